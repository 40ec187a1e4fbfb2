"""Conformance suite and in-memory model for Patchouli providers."""
