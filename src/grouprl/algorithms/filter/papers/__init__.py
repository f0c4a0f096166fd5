"""Parts of kind `filter` that a single paper needs."""
