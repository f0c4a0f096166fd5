"""Things on a line that are unlocked one after the other: the smallest world of ordered achievements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.records.unlocking import FROM, NOW, TO, LastUnlock

if TYPE_CHECKING:
    from grouprl.records.examples import Example

TREE = ((), (), (0,), (1, 2), (3,))
"""Wood and water need nothing; a table needs wood, a pickaxe water and a table, and ore the pickaxe."""
LEFT, RIGHT, USE = range(3)


class Workshop:
    """Walk along a line of things and use them: the first use of a thing pays 1 if all that it needs was used before.

    The order of the things is drawn from each seed. The observation shows the distance to each thing, which one is
    here, and which ones are unlocked, [3·things], and with `memory` also what was seen before and after the last
    unlocking (`grouprl.records.unlocking`). The form of Crafter (Hafner 2021, arXiv:2109.06780) without its pictures:
    achievements pay once each and unlock each other.

    Args:
        needs: for each thing, the earlier ones that must be unlocked before it.
        steps: actions of an episode, which ends before if all is unlocked.
        memory: whether the last unlocking is shown.
    """

    def __init__(self, needs: Sequence[Sequence[int]] = TREE, steps: int = 20, memory: bool = True) -> None:
        self.needs = [tuple(each) for each in needs]
        if steps < 1 or len(needs) < 2 or any(not 0 <= k < own for own, each in enumerate(self.needs) for k in each):
            raise InputError(
                f"needs {self.needs}, {steps} steps",
                "there are at least two things, each needs only earlier ones, and an episode has at least one step",
                "List for each thing the numbers of things before it",
            )
        self.steps, self.memory, count = steps, memory, len(self.needs)
        own = Box((3 * count,), -1, 1)
        self.spaces = Spaces(DictSpace(dict.fromkeys((NOW, FROM, TO), own)) if memory else own, Discrete(3))
        self.unlocked_k = np.zeros(count, bool)
        self._place_k, self._at, self._left, self._last = np.arange(count), 0, 0, LastUnlock()

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Draw the order of the things and where the walk begins."""
        luck = np.random.default_rng(seed)
        count = len(self.needs)
        self._place_k, self._at, self._left = luck.permutation(count), int(luck.integers(count)), self.steps
        self.unlocked_k = np.zeros(count, bool)
        seen = self._seen()
        return ArrayObservation(self._last.begin(seen) if self.memory else seen)

    def step(self, action: object) -> Step:
        """Walk or use. Raises InputError for an unknown action, and if no episode is under way."""
        act = int(np.asarray(action))
        if self._left < 1 or not 0 <= act <= USE:
            raise InputError(
                f"action {act} with {self._left} left",
                "actions are 0, 1 and 2, and are taken during an episode",
                "Call reset first",
            )
        paid = float(self._use()) if act == USE else 0.0
        self._at = int(np.clip(self._at + (act == RIGHT) - (act == LEFT), 0, len(self.needs) - 1))
        over = self._left == 1 or bool(self.unlocked_k.all())
        self._left = 0 if over else self._left - 1
        seen = self._seen()
        shown = ArrayObservation(self._last.after(seen, paid) if self.memory else seen)
        return Step(shown, paid, terminated=over)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return `correct`, 1 if all is unlocked."""
        return {"correct": float(self.unlocked_k.all())}

    def close(self) -> None:
        """End the episode."""
        self._left = 0

    def _use(self) -> bool:
        """Use the thing that is here; return whether that unlocks it."""
        here = int(np.flatnonzero(self._place_k == self._at)[0])
        new = not self.unlocked_k[here] and all(self.unlocked_k[k] for k in self.needs[here])
        self.unlocked_k[here] |= new
        return bool(new)

    def _seen(self) -> np.ndarray:
        way_k = (self._place_k - self._at) / (len(self.needs) - 1)
        return np.concatenate([way_k, way_k == 0, self.unlocked_k]).astype(np.float32)
