"""Parts of kind `prune` that a single paper needs."""
