"""Parts of kind `advantage_transform`: they change advantages."""
