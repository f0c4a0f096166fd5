"""Requests to a judge and their costs: the pace of requests, and counts of requests, kept answers and tokens."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from grouprl.core.json_types import JsonMapping
from grouprl.storage.run_folder import in_words

TURNS = struct.Struct("<dd")
"""What processes that share a pace keep: when it was written, and the time of the next request."""

COSTS = {
    "requests": "judge_requests",
    "kept": "judge_kept",
    "prompt_tokens": "judge_prompt_tokens",
    "completion_tokens": "judge_reply_tokens",
}
"""Counts of a judge's client, and the metrics that report them."""
USAGE = ("prompt_tokens", "completion_tokens")
"""The counts of tokens that an OpenAI-compatible endpoint sends as `usage` of an answer."""


class Pace:
    """Lets requests through at most `per_minute` in a minute, evenly; None: at once.

    `shared` is a file in which several processes of this machine keep one pace together; None: this process has its
    own.
    """

    def __init__(self, per_minute: int | None, shared: Path | None = None) -> None:
        self._gap = 0.0 if per_minute is None else 60.0 / per_minute
        self._shared = shared
        self._next, self._lock = 0.0, Lock()

    def wait(self) -> None:
        """Return once the next request may be sent.

        Raises:
            RunError: the shared file cannot be locked or written.
        """
        if not self._gap:
            return
        with self._lock:
            now = time.monotonic()
            mine = self._own_turn(now) if self._shared is None else self._shared_turn(self._shared)
        time.sleep(max(0.0, mine - now))

    def _own_turn(self, now: float) -> float:
        mine = max(now, self._next)
        self._next = mine + self._gap
        return mine

    def _shared_turn(self, file: Path) -> float:
        """Return the time at which this request may be sent, and keep that of the next one in the file.

        Times are those of the machine's clock, which all its processes read alike.
        """
        with in_words(file), file.open("a+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            now = time.monotonic()
            stored = os.pread(handle.fileno(), TURNS.size, 0)
            written, following = TURNS.unpack(stored) if len(stored) == TURNS.size else (now, now)
            mine = now if written > now else max(now, following)  # a machine that has started anew counts from 0
            os.ftruncate(handle.fileno(), 0)
            os.write(handle.fileno(), TURNS.pack(now, mine + self._gap))
        return mine


class Tally:
    """Counts since they were last read; safe for threads."""

    def __init__(self) -> None:
        self._counts, self._lock = defaultdict[str, float](float), Lock()

    def add(self, **counts: float) -> None:
        """Add to counts by name."""
        with self._lock:
            for name, value in counts.items():
                self._counts[name] += value

    def read(self) -> dict[str, float]:
        """Return the counts and forget them."""
        with self._lock:
            taken, self._counts = dict(self._counts), defaultdict(float)
        return taken


def told_tokens(answer: object) -> dict[str, float]:
    """Return the counts of tokens that an endpoint's answer tells; {} if it tells none."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    counts = {name: usage.get(name) for name in USAGE} if isinstance(usage, dict) else {}
    return {name: float(x) for name, x in counts.items() if type(x) is int and 0 <= x < 2**53}


def cost_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """Return a client's counts as metrics, those of tokens if the endpoint reports them; {} if nothing was asked."""
    if not counts:
        return {}
    always = {"requests": 0.0, "kept": 0.0, **counts}
    return {metric: always[name] for name, metric in COSTS.items() if name in always}


def answer_shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Return how a judge of pairs answered, from the counts of its pairs and replies; {} if no pair was asked about."""
    shares = {
        "judge_agreement": ("agreeing", "decided"),
        "judge_flips": ("flipped", "turned"),
        "judge_unsure": ("unsure", "replies"),
    }
    return {
        metric: counts.get(part, 0) / counts[whole] for metric, (part, whole) in shares.items() if counts.get(whole)
    }


def cost_words(account: JsonMapping) -> str:
    """Describe what a run's judge was asked in a sentence; "" if there was none."""
    if "judge_requests" not in account:
        return ""
    asked, kept = account["judge_requests"], account.get("judge_kept", 0)
    requests = f"The judge got {asked:,} request{'' if asked == 1 else 's'}"
    known = f"; {kept:,} answer{' was' if kept == 1 else 's were'} kept from before" if kept else ""
    tokens = [f"{account[name]:,} tokens of {what}" for name, what in _TOKENS.items() if name in account]
    in_tokens = f" ({' and '.join(tokens)})" if tokens else ""
    return f"{requests}{in_tokens}{known}."


_TOKENS = {"judge_prompt_tokens": "prompts", "judge_reply_tokens": "replies"}
