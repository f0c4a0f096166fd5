"""Parts of kind `augment` that a single paper needs."""
