"""The seed of one answer, made from where it belongs and from nothing else."""

from __future__ import annotations

import hashlib


def answer_seed(use: str, run_seed: int, question: int, answer: int) -> int:
    """Return the 64-bit seed of answer number `answer` to question number `question`, for a `use` ('train', 'eval').

    It does not depend on the batch the answer is drawn in, so neither does the answer.
    """
    key = f"{use}/{run_seed}/{question}/{answer}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
