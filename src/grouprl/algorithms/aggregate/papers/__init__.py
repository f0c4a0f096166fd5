"""Parts of kind `aggregate` that a single paper needs."""
