"""Parts of kind `pretrain` that a single paper needs."""
