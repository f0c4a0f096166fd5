"""Sampling with servers of vLLM, over HTTP, shared memory and the network."""
