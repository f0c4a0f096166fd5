"""Filters and pruning: which rows and tokens leave the loss or the group statistics."""
