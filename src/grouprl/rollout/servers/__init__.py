"""Sampling with servers, whoever wrote them: their own calls and replies are in the rooms `vllm` and `sglang`."""
