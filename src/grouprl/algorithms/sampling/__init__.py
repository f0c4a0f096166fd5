"""Parts of kind `sampling`: they choose how tokens are sampled."""
