"""Parts of kind `critic` that a single paper needs."""
