"""Parts of kind `link`: they turn differences of scores into losses of pairs."""
