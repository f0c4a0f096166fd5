"""Commands that test rewards and reward models on completions whose quality is known."""
