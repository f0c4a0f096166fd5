"""Margins that a single paper needs."""
