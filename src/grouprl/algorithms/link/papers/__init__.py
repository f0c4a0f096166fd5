"""Links that a single paper needs."""
