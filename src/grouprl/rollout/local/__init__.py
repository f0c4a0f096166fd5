"""Sampling in this process: the loop, its decoders, and what they keep of what they have read."""
