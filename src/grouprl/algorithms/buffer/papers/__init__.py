"""Parts of kind `buffer` that a single paper needs."""
