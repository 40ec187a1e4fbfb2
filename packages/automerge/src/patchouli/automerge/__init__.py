"""Automerge documents and version-graph joins for JSON fields."""
