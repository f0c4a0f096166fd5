"""Parts of kind `score` that a single paper needs."""
