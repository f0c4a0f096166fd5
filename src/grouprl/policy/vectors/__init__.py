"""Policies that read arrays and act with numbers or arrays."""
