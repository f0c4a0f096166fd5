"""Sampling in this process: the decoding loop, its decoders, and their caches of keys and values."""
