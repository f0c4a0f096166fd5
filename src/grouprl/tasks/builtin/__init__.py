"""Built-in tasks, which generate their prompts and answers."""
