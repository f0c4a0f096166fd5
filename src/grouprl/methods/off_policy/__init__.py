"""Samples of older policies, stored rows, and regression on given targets."""
