"""Parts of kind `pair_weight`: they say how much each pair counts."""
