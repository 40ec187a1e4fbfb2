"""Artifacts: content-addressed bytes behind entities."""
