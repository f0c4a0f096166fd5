"""Parts of kind `regularize` that a single paper needs."""
