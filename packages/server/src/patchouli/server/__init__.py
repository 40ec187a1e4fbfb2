"""The Patchouli daemon and its command line."""
