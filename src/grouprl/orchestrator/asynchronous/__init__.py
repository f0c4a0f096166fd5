"""Sampling ahead of training."""
