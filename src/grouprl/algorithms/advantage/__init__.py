"""Parts of kind `advantage`: they say how good a completion or a token was."""
