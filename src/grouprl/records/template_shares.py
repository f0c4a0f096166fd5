"""Variables of the chat template that conversations set themselves, as shares of a set of prompts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence

from grouprl.records.examples import Chat

MOST = 16
"""Largest number of settings that are reported, the most frequent ones."""
LONGEST = 32
"""Largest number of characters of a value."""


def template_shares(prompts: Sequence[object]) -> dict[str, float]:
    """Return the share of the prompts that set a variable to a value, as "template/NAME/VALUE"; {} if none sets any."""
    counts = Counter(
        f"template/{name}/{_written(value)}"
        for prompt in prompts
        if isinstance(prompt, Chat)
        for name, value in prompt.variables.items()
    )
    return {name: count / len(prompts) for name, count in counts.most_common(MOST)}


def _written(value: object) -> str:
    """Return a value as a part of a metric's name, which trackers allow few characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)[:LONGEST]
