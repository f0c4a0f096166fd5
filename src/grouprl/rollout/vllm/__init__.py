"""Sampling with servers of vLLM: everything that this package knows of them goes over HTTP and shared memory."""
