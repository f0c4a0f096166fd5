"""Parts of kind `refill` that a single paper needs."""
