"""Parts of kind `score`: they give the numbers by which completions of a pair are compared."""
