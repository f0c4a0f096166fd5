"""Estimates for a run on a cluster: memory, time, placement, and the size at which it stops scaling."""
