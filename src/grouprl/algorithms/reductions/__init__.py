"""Aggregation: the weight of each token loss in the loss of one optimiser step."""
