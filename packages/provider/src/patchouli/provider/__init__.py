"""The storage boundary of Patchouli: plans, outcomes, capabilities and errors."""
