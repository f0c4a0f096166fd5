"""Stored trajectories of arrays: the task that shows them, and the files that they are read from."""
