"""Parts of kind `allocation` that a single paper needs."""
