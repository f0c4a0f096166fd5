"""Credit and weight of single tokens."""
