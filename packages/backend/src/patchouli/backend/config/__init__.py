"""Configuration documents: reading, checking, models, and the documents that are shipped."""
