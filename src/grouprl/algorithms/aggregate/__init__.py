"""Parts of kind `aggregate`: they weigh token losses in the loss of an optimiser step."""
