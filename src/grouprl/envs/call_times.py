"""The time that calls of environments take, by prompt, to show which prompts a run waits for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

MOST_PROMPTS = 4096
"""The number of prompts whose times are kept apart; times of later ones are only added to the total."""


@dataclass
class PromptTime:
    """Calls of the environments of one prompt: their number, their total seconds, and the seconds of the longest."""

    calls: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one call."""
        self.calls, self.seconds, self.longest = self.calls + 1, self.seconds + seconds, max(self.longest, seconds)

    def join(self, other: PromptTime) -> None:
        """Add the calls counted in `other`."""
        self.calls, self.seconds = self.calls + other.calls, self.seconds + other.seconds
        self.longest = max(self.longest, other.longest)

    @property
    def mean(self) -> float:
        """The average seconds of a call."""
        return self.seconds / max(1, self.calls)


class CallTimes:
    """Seconds of calls, by the id of their prompt."""

    def __init__(self) -> None:
        self.whole = PromptTime()
        self.by_prompt: dict[str, PromptTime] = defaultdict(PromptTime)

    def add(self, prompt: str, seconds: float) -> None:
        """Count one call of an environment of `prompt`."""
        self.whole.add(seconds)
        if prompt in self.by_prompt or len(self.by_prompt) < MOST_PROMPTS:
            self.by_prompt[prompt].add(seconds)

    def add_all(self, others: CallTimes) -> None:
        """Add the calls counted in `others`."""
        self.whole.join(others.whole)
        for prompt, own in others.by_prompt.items():
            if prompt in self.by_prompt or len(self.by_prompt) < MOST_PROMPTS:
                self.by_prompt[prompt].join(own)

    def slowest(self) -> tuple[str, PromptTime] | None:
        """Return the prompt with the longest calls on average, and its times; None before the first call."""
        return max(self.by_prompt.items(), key=lambda item: item[1].mean, default=None)

    def words(self) -> str:
        """Describe how long calls take and which prompt is the slowest; '' before the first call."""
        found = self.slowest()
        if found is None:
            return ""
        name, own = found
        share = own.seconds / self.whole.seconds if self.whole.seconds else 0.0
        return (
            f"a call of an environment takes {_spelt(self.whole.mean)} on average; those of the slowest prompt, "
            f"'{name}', take {_spelt(own.mean)} (the longest {_spelt(own.longest)}, {share:.0%} of all that "
            "environments take)"
        )

    def clear(self) -> None:
        """Forget all calls."""
        self.whole = PromptTime()
        self.by_prompt.clear()


def _spelt(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
