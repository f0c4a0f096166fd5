"""Parts of kind `sampling` that a single paper needs."""
