"""Buffers: which stored rows join the new ones."""
