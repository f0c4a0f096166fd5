"""Tasks that are made here, prompts and answers included."""
