"""Tasks that are answered with one completion."""
