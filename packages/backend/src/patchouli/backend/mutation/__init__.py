"""From the heads of an entity and a proposal to new versions and heads. Pure."""
