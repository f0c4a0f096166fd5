"""Parts of kind `allocation`: they choose how many completions each prompt gets."""
