"""Parts of kind `update` that a single paper needs."""
