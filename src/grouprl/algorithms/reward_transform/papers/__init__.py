"""Parts of kind `reward_transform` that a single paper needs."""
