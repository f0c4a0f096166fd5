"""Hashes and random generators that depend on contents alone, the same in every process."""

from __future__ import annotations

import hashlib
import json
import random


def digest(value: object) -> str:
    """Return a hash of a JSON-like value, the same in every process."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def generator(*parts: object) -> random.Random:
    """Return a random generator determined by the parts, the same in every process."""
    key = "\0".join(str(part) for part in parts).encode()
    return random.Random(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big"))


def content_number(content: str) -> int:
    """Return an integer below 2**64 that depends only on the content."""
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big")
