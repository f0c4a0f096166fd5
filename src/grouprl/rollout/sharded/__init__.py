"""Sampling with a policy whose weights are divided among several processes."""
