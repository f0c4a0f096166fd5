"""Parts of kind `buffer`: they choose which stored rows join the new ones."""
