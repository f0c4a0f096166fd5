"""Parts of kind `curriculum`: they choose the prompts of a step."""
