"""Tasks that generate their own prompts and answers."""
