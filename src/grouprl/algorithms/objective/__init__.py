"""Parts of kind `objective`: they give each token its loss."""
