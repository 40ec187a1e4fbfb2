"""Policy engine of Patchouli over one storage provider."""
