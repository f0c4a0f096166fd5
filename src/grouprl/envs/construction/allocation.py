"""Entities with several skills, each sent to one of several tasks; a task may take any number of them."""

from __future__ import annotations

import numpy as np

from grouprl.envs.construction.exact import Solution
from grouprl.envs.construction.problem import Building, ConstructionProblem, Instance, View

SKILLS = 3
CERTAIN_ENTITIES = 8
"""Largest number of entities for which the best allocation is computed exactly."""


class _Sending(Building):
    def __init__(self, instance: Instance) -> None:
        self._skill_nk, self._need_mk, self._worth_m = (instance[name] for name in ("skill", "need", "worth"))
        self._got_mk = np.zeros_like(self._need_mk)
        self.chosen: list[int] = []

    def legal(self) -> np.ndarray:
        """Return all tasks while an entity is left."""
        return np.full(len(self._need_mk), len(self.chosen) < len(self._skill_nk))

    def take(self, node: int) -> None:
        """Send the entity whose turn it is to a task."""
        self._got_mk[node] += self._skill_nk[len(self.chosen)]
        self.chosen.append(node)

    def view(self) -> View:
        """Return the share of each task's needs that is met, and the share that this entity would add; this entity's
        skills, the mean skills of those after it, and how many are left.
        """
        count, turn = len(self._skill_nk), min(len(self.chosen), len(self._skill_nk) - 1)
        own_k, later_nk = self._skill_nk[turn], self._skill_nk[turn + 1 :]
        met_mk = np.minimum(self._got_mk / self._need_mk, 1.0)
        more_mk = np.minimum((self._got_mk + own_k) / self._need_mk, 1.0) - met_mk
        later_k = later_nk.mean(0) if len(later_nk) else np.zeros(SKILLS)
        whole_s = np.concatenate([own_k, later_k, [1 - len(self.chosen) / count]])
        return View(self.chosen[-1] if self.chosen else 0, np.concatenate([met_mk, more_mk], -1), whole_s)

    def cost(self) -> float:
        """Return the negative utility."""
        return -float(utility(self._got_mk, self._need_mk, self._worth_m))


class TaskAllocation(ConstructionProblem):
    """The most useful way to send each of `size` entities to one of half as many tasks, several to one if need be.

    Skills are uniform in [0, 1], needs in [0.5, 1.5], worths in [0.5, 1]. A task is worth as much of its worth as the
    mean share of its needs that is met. Instances have `skill` [N,3], `need` [M,3] and `worth` [M].
    """

    name, words = "allocation", ("tasks of entity 1, 2 …:", "utility")
    features, changing, summary = SKILLS + 1, 2 * SKILLS, 2 * SKILLS + 1
    gain = True

    @property
    def nodes(self) -> int:
        """The tasks."""
        return (self.size + 1) // 2

    @property
    def longest(self) -> int:
        """One choice per entity."""
        return self.size

    def sample(self, luck: np.random.Generator) -> Instance:
        """Return uniform skills, needs and worths."""
        return {
            "skill": luck.random((self.size, SKILLS)),
            "need": luck.uniform(0.5, 1.5, (self.nodes, SKILLS)),
            "worth": luck.uniform(0.5, 1.0, self.nodes),
        }

    def map_of(self, instance: Instance) -> np.ndarray:
        """Return needs and worths."""
        return np.concatenate([instance["need"], instance["worth"][:, None]], -1)

    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Let entity 0 be sent first."""
        return _Sending(instance)

    def solution(self, instance: Instance) -> Solution | None:
        """Return the most useful of all allocations of at most 8 entities."""
        return best_allocation(instance) if self.size <= CERTAIN_ENTITIES else None


def utility(got_amk: np.ndarray, need_mk: np.ndarray, worth_m: np.ndarray) -> np.ndarray:
    """Return the utility [A], Σ_m worth_m · mean_k min(got_mk/need_mk, 1) of A allocations."""
    found: np.ndarray = (np.minimum(got_amk / need_mk, 1.0).mean(-1) * worth_m).sum(-1)
    return found


def best_allocation(instance: Instance) -> Solution:
    """Return the most useful allocation, by trying all M^N."""
    skill_nk, need_mk = instance["skill"], instance["need"]
    tasks, one_mm = len(need_mk), np.eye(len(need_mk))
    got_amk = np.zeros((1, *need_mk.shape))
    for own_k in skill_nk:
        got_amk = (got_amk[:, None] + one_mm[:, :, None] * own_k).reshape(-1, *need_mk.shape)
    found_a = utility(got_amk, need_mk, instance["worth"])
    best = int(found_a.argmax())
    return Solution(-float(found_a[best]), [best // tasks**left % tasks for left in reversed(range(len(skill_nk)))])
