"""An account of lost episodes by prompt, which ends the run when they are too many."""

from __future__ import annotations

from collections import Counter, defaultdict

from grouprl.core.errors import RunError
from grouprl.rewards.contract import Failure

ENOUGH = 16
"""The run ends when more prompts than this are lost, and more than succeeded. For a single prompt, further episodes are
not tried after more losses than this without a success.
"""


class EpisodeAccount:
    """Counts of answered and lost episodes of the task `name`, by prompt."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._came: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By prompt: the number of episodes that answered each method."""
        self._lost: Counter[str] = Counter()
        self._vain: dict[str, str] = {}
        """Prompts of which no further episodes are tried, and the method that every episode failed in."""

    def answered(self, prompt: str, method: str) -> None:
        """Count an answer."""
        self._came[prompt][method] += 1

    def lost(self, prompt: str, method: str, failure: Failure) -> None:
        """Count an episode that was lost during a call of `method`.

        Raises:
            RunError: most prompts lose their episodes.
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
        """Return why an episode need not be tried: too many of its prompt were lost, and none survived a method. None
        otherwise.
        """
        method = self._vain.get(prompt)
        if method is None or self._came[prompt][method]:
            return None
        what = f"not tried, after {self._lost[prompt]} episodes of its prompt, of which none came through {method}()"
        return Failure(what, "", "error", lost=True)

    def clear(self) -> None:
        """Reset all counts to zero."""
        self._came.clear()
        self._lost.clear()
        self._vain.clear()
