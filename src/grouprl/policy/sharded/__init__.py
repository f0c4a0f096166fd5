"""A policy whose weights and optimiser are cut over several processes."""
