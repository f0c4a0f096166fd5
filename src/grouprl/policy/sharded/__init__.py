"""A policy whose weights and optimiser are divided among several processes."""
