"""Problems whose solutions are built by choosing one node after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.construction.exact import Solution
from grouprl.protocols import ArraySpace, Box, DictSpace, Discrete, Spaces
from grouprl.records.drawing import PlaneDrawing

Instance: TypeAlias = Mapping[str, np.ndarray]
"""The arrays that an instance is made of, by name; each problem says which."""


@dataclass(frozen=True)
class View:
    """A solution under construction as a policy sees it, besides the map."""

    here: int
    """The node it stands at: the one chosen last."""
    nodes_nd: np.ndarray
    """[N,D] what changes about each node."""
    whole_s: np.ndarray
    """[S] what changes about the solution as a whole."""


@dataclass(frozen=True)
class Rest:
    """The rest of an instance: an instance itself, from which the best completion follows, whatever was before."""

    left_n: np.ndarray
    """[N] bool: the nodes that it consists of."""
    feature_nk: np.ndarray
    """[N,K] features of the nodes; those of other nodes are not read."""
    ends: tuple[int, ...] = ()
    """The node where it begins and the one where it ends; (): it is a set."""


ROLES = 3
"""Columns of a rest before its features: whether a node is left, whether it is the beginning, and the end."""


class Building(ABC):
    """A solution under construction."""

    chosen: list[int]
    """The nodes chosen so far."""

    @abstractmethod
    def legal(self) -> np.ndarray:
        """Return [N] bool: the nodes that may be chosen next; none is left where the solution is complete."""

    @abstractmethod
    def take(self, node: int) -> None:
        """Choose a legal node."""

    @abstractmethod
    def view(self) -> View:
        """Return what a policy sees."""

    @abstractmethod
    def cost(self) -> float:
        """Return the cost of the complete solution; lower is better."""

    def rest(self, map_nf: np.ndarray) -> Rest:
        """Return what is left of the instance with this map, if its problem's `rest_features` is not 0."""
        raise NotImplementedError


class ConstructionProblem(ABC):
    """A family of instances of one size.

    Args:
        size: how many cities, customers, items, tasks, or jobs an instance has.

    Raises:
        InputError: the size is below `smallest`.
    """

    name: ClassVar[str]
    smallest: ClassVar[int] = 2
    features: ClassVar[int]
    """F: numbers of each node that do not change while a solution is built."""
    changing: ClassVar[int]
    """D: numbers of each node that do."""
    summary: ClassVar[int]
    """S: numbers of the whole solution that do."""
    rest_features: ClassVar[int] = 0
    """K: numbers of each node of a `Rest`; 0: what is left of an instance is no smaller instance."""
    gain: ClassVar[bool] = False
    """Whether the cost is the negative of a value that is to be large."""
    words: ClassVar[tuple[str, str]] = ("choices", "cost")
    """What a reader calls a solution and its cost, or its value if `gain`."""

    def __init__(self, size: int) -> None:
        if size < self.smallest:
            raise InputError(f"{size} as the size of {self.name}", f"it must be at least {self.smallest}")
        self.size = size

    @property
    def nodes(self) -> int:
        """N: how many nodes there are to choose from."""
        return self.size

    @property
    @abstractmethod
    def longest(self) -> int:
        """The largest number of choices that a solution takes."""

    @abstractmethod
    def sample(self, luck: np.random.Generator) -> Instance:
        """Return an instance."""

    @abstractmethod
    def map_of(self, instance: Instance) -> np.ndarray:
        """Return the features [N,F] of the nodes."""

    @abstractmethod
    def begin(self, instance: Instance, luck: np.random.Generator) -> Building:
        """Return an empty solution; `luck` is what differs between the solutions of a group (where a tour starts)."""

    @abstractmethod
    def solution(self, instance: Instance) -> Solution | None:
        """Return a solution of the lowest possible cost; None if the instance is too large to find it."""

    def best(self, instance: Instance) -> float | None:
        """Return the lowest possible cost; None if the instance is too large to find it."""
        found = self.solution(instance)
        return None if found is None else found.cost

    def continued(self, choices: list[int], building: Building, luck: np.random.Generator) -> list[int]:
        """Return the choices that make the solution `choices` of `building`, which has no choices yet; where several
        orders give it, `luck` picks one.
        """
        return choices

    @property
    def spaces(self) -> Spaces:
        """The map is the context of an episode; an observation is what changes about it."""
        return self.spaces_with(0)

    def spaces_with(self, told: int) -> Spaces:
        """Return the spaces of a policy that is also told `told` numbers, such as which strategy it has."""
        nodes = self.nodes
        seen: dict[str, ArraySpace] = {
            "here": Discrete(nodes),
            "nodes": Box((nodes, self.changing)),
            "whole": Box((self.summary + told,)),
        }
        return Spaces(DictSpace(seen), Discrete(nodes), DictSpace({"map": Box((nodes, self.features))}))

    def rest_spaces(self, told: int) -> Spaces:
        """Return the spaces of a policy that sees the rest alone, with `told` numbers beside each of its nodes."""
        return Spaces(DictSpace({"rest": Box((self.nodes, ROLES + self.rest_features + told))}), Discrete(self.nodes))

    def closed(self, building: Building) -> list[int]:
        """Return the choices of a complete solution as a reader expects them, such as a tour with its way home."""
        return building.chosen

    def drawing(self, instance: Instance, choices: list[int]) -> PlaneDrawing | None:
        """Return a picture of a solution whose choices are `closed`; None if the problem is not in the plane."""
        return None

    def gap(self, instance: Instance, cost: float) -> float | None:
        """Return by how many percent a cost is above the lowest, or above the best known one (`best` [1] of an instance
        that was read from a file); None where neither is known."""
        best = float(instance["best"][0]) if "best" in instance else self.best(instance)
        return None if best is None else 100 * (cost - best) / max(abs(best), 1e-12)


def solved(problem: ConstructionProblem, instance: Instance, choices: list[int]) -> float:
    """Return the cost of a solution that is given as its choices.

    Raises:
        InputError: a choice that is not legal, or a solution that is not complete.
    """
    building = problem.begin(instance, np.random.default_rng(0))
    for node in choices:
        if not (0 <= node < len(building.legal()) and building.legal()[node]):
            raise InputError(f"node {node} after {building.chosen}", f"it is not legal in {problem.name}")
        building.take(node)
    if building.legal().any():
        raise InputError(f"{choices} is not a whole solution", f"{problem.name} has legal choices left")
    return building.cost()
