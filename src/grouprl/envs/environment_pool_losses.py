"""An account of the episodes that were lost, by prompt, which says when they are too many."""

from __future__ import annotations

from collections import Counter, defaultdict

from grouprl.core.errors import RunError
from grouprl.rewards.contract import Failure

ENOUGH = 16
"""More prompts than that lost, and more than came through, end the run; of one prompt, more lost episodes than that and
none that came through, and the others are not tried."""


class EpisodeAccount:
    """The episodes of a task `name` that were answered, and those that were lost, by prompt."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._came: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """How many episodes of each prompt have answered each method."""
        self._lost: Counter[str] = Counter()
        self._vain: dict[str, str] = {}
        """Prompts whose further episodes are not tried, and the method that none came through."""

    def answered(self, prompt: str, method: str) -> None:
        """Count an answer."""
        self._came[prompt][method] += 1

    def lost(self, prompt: str, method: str, failure: Failure) -> None:
        """Count an episode that was lost while `method` was called.

        Raises:
            RunError: most prompts lose theirs.
        """
        self._lost[prompt] += 1
        well = sum(counted[method] > 0 for name, counted in self._came.items() if name not in self._lost)
        if len(self._lost) > ENOUGH and len(self._lost) > well:
            raise RunError(
                f"The environments of the task '{self.name}' hung or ended their process on {len(self._lost)} of "
                f"{len(self._lost) + well} prompts; for instance on '{prompt}': {failure.what}"
                + (f"\n{failure.trace}" if failure.trace else "")
            )
        if self._lost[prompt] > ENOUGH and not self._came[prompt][method]:
            self._vain[prompt] = method

    def in_vain(self, prompt: str) -> Failure | None:
        """Return why an episode need not be tried: too many of its prompt were lost, and none came through a method."""
        method = self._vain.get(prompt)
        if method is None or self._came[prompt][method]:
            return None
        what = f"not tried, after {self._lost[prompt]} episodes of its prompt of which none came through {method}()"
        return Failure(what, "", "error", lost=True)

    def clear(self) -> None:
        """Count from nothing again."""
        self._came.clear()
        self._lost.clear()
        self._vain.clear()
