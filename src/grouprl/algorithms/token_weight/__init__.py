"""Parts of kind `token_weight`: they multiply the policy loss of tokens."""
