"""Features: what only computes fields of the batch."""
