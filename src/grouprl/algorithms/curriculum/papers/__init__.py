"""Parts of kind `curriculum` that a single paper needs."""
