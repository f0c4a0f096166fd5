"""Sampling with a policy whose weights are cut over several processes."""
