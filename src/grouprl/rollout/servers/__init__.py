"""Sampling with servers of any kind; calls and replies of each kind are in the packages `vllm` and `sglang`."""
