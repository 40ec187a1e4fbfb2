"""SQLite storage for Patchouli."""
