"""Rewards by name: those that are built in, those of libraries, and what is known of each."""
