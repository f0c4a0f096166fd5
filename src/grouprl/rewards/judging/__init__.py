"""Rewards given by a judge, another language model."""
