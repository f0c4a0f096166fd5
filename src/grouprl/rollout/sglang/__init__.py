"""Sampling with servers of SGLang."""
