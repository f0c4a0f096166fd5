"""Parts of kind `critic`: they train a value head."""
