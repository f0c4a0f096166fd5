"""Rewards that a judging model gives."""
