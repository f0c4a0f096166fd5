"""Reward models whose layer gives several numbers: their names, and the classes of such models."""
