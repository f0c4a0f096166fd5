"""The seed of one completion, which depends only on its use, run, prompt and number."""

from __future__ import annotations

import hashlib


def sample_seed(use: str, run_seed: int, prompt: int, sample: int) -> int:
    """Return the 64-bit seed of completion number `sample` of prompt number `prompt`, for a `use` ('train', 'eval').

    It does not depend on the batch in which the completion is sampled, and so neither does the completion.
    """
    key = f"{use}/{run_seed}/{prompt}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
