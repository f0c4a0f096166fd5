"""Tasks that are played turn by turn."""
