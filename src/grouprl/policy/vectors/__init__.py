"""Policies that read vectors and act with numbers or vectors."""
