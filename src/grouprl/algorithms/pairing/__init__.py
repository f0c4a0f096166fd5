"""Parts of kind `pairing`: they say which of a prompt's pairs are compared."""
