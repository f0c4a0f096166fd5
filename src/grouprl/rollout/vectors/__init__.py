"""Sampling with policies over arrays: single actions, episodes and chains."""
