"""Reward transforms: what happens to rewards before advantages are computed."""
