"""Parts of kind `token_weight` that a single paper needs."""
