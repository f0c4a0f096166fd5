"""Parts of kind `margin`: they say by how much the scores of a pair must differ."""
