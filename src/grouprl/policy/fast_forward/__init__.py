"""A forward pass of its own for Llama-like models: packed tokens, few roundings, gradients written by hand."""
