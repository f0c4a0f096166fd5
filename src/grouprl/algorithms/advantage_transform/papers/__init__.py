"""Parts of kind `advantage_transform` that a single paper needs."""
