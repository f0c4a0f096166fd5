"""Constructive problems for policies over arrays: built-in ones by name, and instances in vrplib's format."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, suggest
from grouprl.envs.construction import PROBLEMS, ConstructionWorld
from grouprl.envs.construction.exact import Solution
from grouprl.envs.construction.problem import ConstructionProblem, Instance
from grouprl.envs.construction.reference import searched
from grouprl.envs.construction.vrplib import ENDINGS, read_instance
from grouprl.envs.construction.words import choices
from grouprl.envs.construction.world import RestWorld
from grouprl.protocols import Spaces
from grouprl.records.drawing import PlaneDrawing
from grouprl.records.examples import Example
from grouprl.tasks.environments import SeededTask
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import without_folder

SEED = re.compile(r"seed (\d+)$")
"""The seed of an instance at the end of a prompt."""


State = Literal["whole", "rest"]
Solver = Literal["exact", "pyvrp"]


@register_task("construct", argument="problem")
class Construct(SeededTask):
    """Build a solution step by step: construct:tsp, cvrp, knapsack, assignment, allocation, job_shop, or a file.

    A prompt is an instance, made from a seed; the reward is the negative cost. The samples of a group are solutions of
    one instance, and each tour of a TSP starts in a city of its own. It is for policies over arrays (model: pointer).
    With `gap`, rows report how many percent their cost is above the lowest, where that can be computed (or, with
    `solver: pyvrp`, above one that a search of PyVRP finds), or above the best known one of a file. With `strategies`
    the policy is told which of several it has (method: poppy), or with `latent` a vector that stands for one (compass);
    in evaluations they are drawn. With `state: rest` it sees at every choice only what is left of the instance (model:
    quotient).
    """

    problem: str = Field(min_length=1, description="the name of a problem, or a file that ends in .vrp or .tsp")
    count: int = Field(
        10, ge=2, description="cities, customers, items, tasks or jobs of an instance; a file has its own"
    )
    gap: bool = Field(False, description="whether rows report their distance from the best solution, #gap_percent")

    strategies: int = Field(1, ge=1, description="strategies of the policy, whose number it is told; 1: it is not told")
    latent: int = Field(
        0, ge=0, description="numbers, from -1 to 1, of a vector that the policy is told in place of a number"
    )

    state: State = Field(
        "whole", description="'rest': each choice is shown what is left alone, as an instance of its own"
    )

    solver: Solver = Field(
        "exact",
        description="what finds the best solutions: 'pyvrp' searches tours and routes of any size, and proves nothing",
    )

    solver_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="most seconds of a search of PyVRP; one that they end depends on how fast the machine is. None: "
        "every search takes all its steps",
    )

    _problem: ConstructionProblem = PrivateAttr()
    _given: Instance | None = PrivateAttr(default=None)

    max_new_tokens: ClassVar[int] = 1
    """1, because a turn is one choice."""
    needs_clock: ClassVar[bool] = False
    """False: the problems are this package's own."""

    def model_post_init(self, context: object) -> None:
        """Find the problem, or read the file.

        Raises:
            InputError: an unknown name, a size that is too small, a file that cannot be read, or a gap to a cost that
                nothing finds.
        """
        if self.problem.endswith(ENDINGS):
            self._problem, self._given = read_instance(self.problem)
        elif self.problem in PROBLEMS:
            self._problem = PROBLEMS[self.problem](self.count)
        else:
            files = f"A file ends in {' or '.join(ENDINGS)}."
            raise InputError(
                f"there is no problem '{self.problem}'", remedy=f"{suggest(self.problem, PROBLEMS)} {files}"
            )
        if self.state == "rest" and not self._problem.rest_features:
            raise InputError(
                f"task.state = rest for {self._problem.name}",
                "what is left of an instance is not a smaller one of the same kind",
                f"Take {', '.join(sorted(name for name, each in PROBLEMS.items() if each.rest_features))}",
            )
        if self.solver_seconds is not None and self.solver != "pyvrp":
            raise InputError(
                f"task.solver_seconds = {self.solver_seconds:g} with the solver '{self.solver}'",
                "it limits searches of PyVRP; an exact solver takes the time that it needs",
                "Set task.solver to pyvrp, or leave it out",
            )
        if self.solver == "pyvrp":
            self.best_of(self.instance(self.example("train", 0)))
        if self.gap:
            self._given = self._given and self._with_best(self._given)
            self._check_gap()

    def _with_best(self, given: Instance) -> Instance:
        found = None if "best" in given else self.best_of(given)
        return given if found is None else {**given, "best": np.array([found.cost])}

    def _check_gap(self) -> None:
        if "best" not in self.instance(self.example("train", 0)):
            raise InputError(
                f"task.gap = true for {self.problem} of size {self._problem.size}",
                "the lowest cost of an instance this large is not computed here",
                "Set task.solver to pyvrp (tours and routes), lower task.count, or put a .sol beside the file",
            )

    def best_of(self, instance: Instance) -> Solution | None:
        """Return a best solution of an instance, by the task's solver; None if there is none for its size.

        Raises:
            InputError: the solver does not know the problem.
            MissingExtra: the solver is not installed.
        """
        if self.solver == "pyvrp":
            return searched(self._problem, instance, seconds=self.solver_seconds)
        return self._problem.solution(instance)

    @property
    def name(self) -> str:
        """The problem after the task's name, without the folder of a file."""
        return f"{self.registered_as}:{without_folder(self.problem)}"

    @property
    def of(self) -> ConstructionProblem:
        """The problem."""
        return self._problem

    @property
    def spaces(self) -> Spaces:
        """The spaces of the problem; the map is the context, or part of every rest."""
        told = self.latent or (self.strategies if self.strategies > 1 else 0)
        return self._problem.rest_spaces(told) if self.state == "rest" else self._problem.spaces_with(told)

    @property
    def reward_is(self) -> str:
        """The value of a solution, or minus its cost, by the problem's word for it."""
        _, measure = self._problem.words
        return f"the {measure}" if self._problem.gain else f"minus the {measure}"

    @property
    def tells_vectors(self) -> bool:
        """True if `latent` asks for vectors."""
        return self.latent > 0

    def variants(self, example: Example) -> tuple[Example, ...]:
        """Return the instance once for each strategy, whose number or vector is the column `told`."""
        return tuple(
            Example(
                f"{example.id}/{k}", example.prompt, {**example.columns, "told": self._strategy(example, k).tolist()}
            )
            for k in range(self.strategies)
        )

    def _strategy(self, example: Example, number: int) -> np.ndarray:
        if self.latent:
            return np.random.default_rng([int(example.columns["seed"]), number]).uniform(-1, 1, self.latent)
        return np.eye(self.strategies)[number] if self.strategies > 1 else np.zeros(0)

    def _told(self, example: Example, luck: np.random.Generator) -> np.ndarray:
        """Return what the policy is told: what the example says, else a strategy by chance."""
        if "told" in example.columns:
            return np.asarray(example.columns["told"], dtype=float)
        if self.latent:
            return luck.uniform(-1, 1, self.latent)
        return self._strategy(example, int(luck.integers(self.strategies)))

    @property
    def max_turns(self) -> int:
        """The most choices of a solution."""
        return self._problem.longest

    def first_text(self, example: Example) -> str:
        """Return a text that tells a reader which instance it is."""
        which = "" if self._given is not None else f" of size {self._problem.size}, seed {example.columns['seed']}"
        return f"{self._problem.name}{which}"

    def drawing(self, prompt: str, completion: str) -> PlaneDrawing | None:
        """Return a picture of a solution in the plane, from the sentence that ends its transcript."""
        made, seed = choices(completion), SEED.search(prompt)
        if not made or (self._given is None and seed is None):
            return None
        columns = {} if seed is None else {"seed": int(seed[1])}
        return self._problem.drawing(self.instance(Example("", prompt, columns)), made)

    def instance(self, example: Example) -> Instance:
        """Return the instance of an example: that of the file, or one made from the example's seed."""
        if self._given is not None:
            return self._given
        solver = self.solver if self.gap else None
        return _made(self.problem, self._problem.size, int(example.columns["seed"]), solver, self.solver_seconds)

    def environment(self) -> ConstructionWorld:
        """Return a fresh episode."""
        world = RestWorld if self.state == "rest" else ConstructionWorld
        return world(self._problem, self.instance, gap=self.gap, told=self._told)


@lru_cache(maxsize=1024)
def _made(name: str, size: int, seed: int, solver: Solver | None, seconds: float | None) -> Instance:
    """Return the instance of a seed, with its lowest cost where a solver is asked for that and knows it."""
    problem = PROBLEMS[name](size)
    instance = problem.sample(np.random.default_rng(seed))
    if solver is None:
        return instance
    found = searched(problem, instance, seconds=seconds) if solver == "pyvrp" else problem.solution(instance)
    return instance if found is None else {**instance, "best": np.array([found.cost])}
