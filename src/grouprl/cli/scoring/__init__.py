"""Commands that hold rewards and reward models against completions whose worth is known."""
