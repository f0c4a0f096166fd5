"""An episode that builds one solution: the map is its context, its cost is what it pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.construction.problem import ROLES, Building, ConstructionProblem, Instance, Rest
from grouprl.envs.construction.words import sentence
from grouprl.envs.environment import ArrayObservation, Step, misused
from grouprl.protocols import Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example


def nothing_told(example: Example, luck: np.random.Generator) -> np.ndarray:
    """Return no numbers: the policy has one strategy."""
    return np.zeros(0)


class ConstructionWorld:
    """An environment of arrays in which one solution is built, node by node.

    The example determines the instance, the seed of `reset` what differs within a group (where a tour starts). The
    reward, paid with the last choice, is the negative cost.

    Args:
        problem: the problem.
        instance: returns the instance of an example.
        gap: whether `score` reports how many percent the cost is above the lowest, where that is known.
        told: returns what else the policy is told of an episode, [K], after the numbers of the whole solution.
    """

    def __init__(
        self,
        problem: ConstructionProblem,
        instance: Callable[[Example], Instance],
        *,
        gap: bool = False,
        told: Callable[[Example, np.random.Generator], np.ndarray] = nothing_told,
    ) -> None:
        self.problem, self._instance_of, self._gap, self._tell = problem, instance, gap, told
        self.spaces = self._spaces_with(0)
        self._told_k = np.zeros(0)
        self.instance: Instance = {}
        self.building: Building | None = None
        self._over, self._words = False, ""

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the solution. Raises InputError if the object was used before."""
        if self.building is not None or self._over:
            raise misused("reset() was called twice")
        self.instance = self._instance_of(example)
        luck = np.random.default_rng(seed)
        self.building, self._told_k = self.problem.begin(self.instance, luck), self._tell(example, luck)
        self.spaces = self._spaces_with(len(self._told_k))
        return self._shown(self._context())

    def step(self, action: object) -> Step:
        """Choose a node. Raises InputError before `reset`, after the end, and for a node that is not legal."""
        if self.building is None or self._over:
            raise misused(f"step({action!r}) was called when no solution was under way")
        node, legal_n = int(np.asarray(action)), self.building.legal()
        if not 0 <= node < len(legal_n) or not legal_n[node]:
            raise InputError(
                f"node {node}", f"the legal nodes are {np.flatnonzero(legal_n).tolist()}", "Choose one of them"
            )
        self.building.take(node)
        self._over = not self.building.legal().any()
        paid = -self.building.cost() if self._over else 0.0
        self._words = sentence(self.problem, self.instance, self.building) if self._over else ""
        return Step(self._shown({}), paid, terminated=self._over)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        """Return the gap in percent as a count, if it was asked for and is known."""
        if not self._gap or self.building is None or not self._over:
            return {}
        gap = self.problem.gap(self.instance, self.building.cost())
        return {} if gap is None else {"#gap_percent": gap}

    def close(self) -> None:
        """End the episode."""
        self._over = True

    def _shown(self, context: dict[str, np.ndarray]) -> ArrayObservation:
        assert self.building is not None
        legal_n = self.building.legal()
        values = self._values(self.building)
        return ArrayObservation(values, legal_n if legal_n.any() else None, context, text=self._words)

    def _spaces_with(self, told: int) -> Spaces:
        return self.problem.spaces_with(told)

    def _context(self) -> dict[str, np.ndarray]:
        return {"map": self.problem.map_of(self.instance).astype(np.float32)}

    def _values(self, building: Building) -> dict[str, object]:
        seen = building.view()
        return {
            "here": seen.here,
            "nodes": seen.nodes_nd.astype(np.float32),
            "whole": np.concatenate([seen.whole_s, self._told_k]).astype(np.float32),
        }


class RestWorld(ConstructionWorld):
    """An episode in which only what is left of the instance is seen: the states of BQ-NCO (arXiv:2301.03313).

    Two beginnings after which the same nodes are left, between the same ends, show the same numbers: their past is
    forgotten. A node that is not left is all zeros.
    """

    def _spaces_with(self, told: int) -> Spaces:
        return self.problem.rest_spaces(told)

    def _context(self) -> dict[str, np.ndarray]:
        return {}

    def _values(self, building: Building) -> dict[str, object]:
        return {"rest": rest_numbers(building.rest(self.problem.map_of(self.instance)), self._told_k)}


def rest_numbers(rest: Rest, told_k: np.ndarray) -> np.ndarray:
    """Return [N,3+K+k] roles, features and what is told of the nodes that are left; zeros for others."""
    role_nr = np.zeros((len(rest.left_n), ROLES))
    role_nr[:, 0] = 1.0
    for place, node in enumerate(rest.ends):
        role_nr[node, 1 + place] = 1.0
    told_nk = np.tile(told_k, (len(role_nr), 1))
    seen_nc = np.concatenate([role_nr, rest.feature_nk, told_nk], -1)
    found: np.ndarray = (seen_nc * rest.left_n[:, None]).astype(np.float32)
    return found
