"""Weights of pairs of a single paper."""
