"""Prompts: which are chosen, how many completions each gets, how tokens are sampled, which groups are sampled anew."""
