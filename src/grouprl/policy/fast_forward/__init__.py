"""A dedicated forward pass for Llama-like models: packed tokens, few roundings, hand-written gradients."""
