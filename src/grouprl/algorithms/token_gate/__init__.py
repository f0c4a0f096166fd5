"""Parts of kind `token_gate`: they multiply the policy loss of tokens anew at each optimiser step."""
