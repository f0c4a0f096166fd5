"""Which questions are asked next."""
