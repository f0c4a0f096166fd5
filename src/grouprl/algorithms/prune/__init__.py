"""Parts of kind `prune`: they take rows out of the loss once they have advantages."""
