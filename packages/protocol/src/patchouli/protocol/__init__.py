"""The wire contract of Patchouli: models, errors, framing and JSON Schemas."""
