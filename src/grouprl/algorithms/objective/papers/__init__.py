"""Parts of kind `objective` that a single paper needs."""
