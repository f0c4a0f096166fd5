"""The history of each training prompt: the results of its completions, visit by visit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from grouprl.core.json_types import State

KEEP = 16
"""Latest visits of a prompt that are stored individually; moments are kept over all visits."""


@dataclass(frozen=True)
class Visit:
    """One group of completions of a prompt."""

    step: int
    completions: int
    right: int
    mean: float
    """Mean reward."""
    std: float
    """Standard deviation of the rewards (n - 1; 0 for a single completion)."""
    advantage: float
    """Mean |advantage| of the completions that were trained on; 0 if there were none."""
    lengths: tuple[int, ...]
    """Tokens of each correct completion, ascending."""

    @property
    def rate(self) -> float:
        """Share of correct completions."""
        return self.right / self.completions


@dataclass(frozen=True)
class Moments:
    """Moments of the rewards over the visits of a prompt, each visit with equal weight (DCPO, arXiv:2509.02333)."""

    visits: int
    mean: float
    variance: float

    def after(self, mean: float, std: float) -> Moments:
        """Return the moments after one more visit with this mean and standard deviation."""
        n, gap = self.visits, mean - self.mean
        variance = (n * self.variance + std**2 + n / (n + 1) * gap**2) / (n + 1)
        return Moments(n + 1, (n * self.mean + mean) / (n + 1), variance)


class PromptHistory:
    """Visits of the training prompts by index, written after each step and read by curricula and budgets."""

    def __init__(self) -> None:
        self._visits: dict[int, list[Visit]] = {}
        self._moments: dict[int, Moments] = {}

    def __len__(self) -> int:
        return len(self._visits)

    def __contains__(self, index: int) -> bool:
        return index in self._visits

    def visits(self, index: int) -> tuple[Visit, ...]:
        """Return the stored visits of prompt `index`, oldest first; () if it was never sampled."""
        return tuple(self._visits.get(index, ()))

    def last(self, index: int) -> Visit | None:
        """Return the last visit of prompt `index`; None if it was never sampled."""
        found = self._visits.get(index)
        return found[-1] if found else None

    def rate(self, index: int, unseen: float = 0.5) -> float:
        """Return the share of correct completions at the last visit of prompt `index`; `unseen` if there was none."""
        last = self.last(index)
        return unseen if last is None else last.rate

    def moments(self, index: int) -> Moments:
        """Return the moments of the rewards over all visits of prompt `index`."""
        return self._moments.get(index, Moments(0, 0.0, 0.0))

    def indices(self) -> list[int]:
        """Return the indices of all prompts that were sampled."""
        return sorted(self._visits)

    def at(self, step: int) -> dict[int, list[Visit]]:
        """Return the visits made in `step` by prompt, for prompts that have not been sampled since."""
        latest = {i: v for i, v in self._visits.items() if v[-1].step == step}
        return {i: [v for v in latest[i] if v.step == step] for i in sorted(latest)}

    def write(self, index: int, visit: Visit) -> None:
        """Add a visit of prompt `index`."""
        self._visits[index] = [*self._visits.get(index, ()), visit][-KEEP:]
        self._moments[index] = self.moments(index).after(visit.mean, visit.std)

    def past(self, indices: Iterable[int]) -> dict[str, np.ndarray]:
        """Return the columns [B] of `Batch.past`: visits so far, and the mean and standard deviation of the rewards
        over them.
        """
        found = [self.moments(int(index)) for index in indices]
        return {
            "visits": np.array([float(m.visits) for m in found]),
            "mean": np.array([m.mean for m in found]),
            "std": np.sqrt([m.variance for m in found]),
        }

    def state(self) -> State:
        """Return the state for a checkpoint, as plain data."""
        return {
            "visits": {str(i): [list(asdict(v).values()) for v in vs] for i, vs in self._visits.items()},
            "moments": {str(i): list(asdict(m).values()) for i, m in self._moments.items()},
        }

    def restore(self, state: State) -> None:
        """Restore what `state` returned."""
        self._visits = {
            int(i): [Visit(*[*values[:-1], tuple(values[-1])]) for values in vs] for i, vs in state["visits"].items()
        }
        self._moments = {int(i): Moments(*values) for i, values in state["moments"].items()}
