"""Parts of kind `advantage` that a single paper needs."""
