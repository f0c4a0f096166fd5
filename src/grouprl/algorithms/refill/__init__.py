"""Parts of kind `refill`: they choose which groups are sampled anew before an update."""
