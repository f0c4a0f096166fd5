"""Solved instances of constructive problems, from which a policy learns by imitation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from pydantic import Field

from grouprl.core.errors import InputError
from grouprl.core.hashing import generator
from grouprl.envs.construction import ConstructionWorld
from grouprl.envs.environment import ArrayObservation
from grouprl.records.examples import Example
from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.construct import Construct
from grouprl.tasks.registry import register_task


@register_task("solved", argument="problem")
class Solved(Construct):
    """Learn from best solutions, choice by choice: solved:tsp, cvrp, knapsack, assignment.

    A prompt is an instance with a solution of the lowest cost, found exactly, so that instances are small, or by
    PyVRP (solver: pyvrp), whose tours and routes are as good as its search makes them; method: sft imitates its
    choices (BQ-NCO, arXiv:2301.03313, with model: quotient and state: rest). Where several orders of choices make
    the same solution, one is drawn: the city where a tour starts and its direction, the order of routes and items. With
    `cut`, each row draws its place, from the first choice to the last; the paper draws one size of at least four nodes
    for a whole batch.
    Evaluations build solutions of other instances, as construct:... does.
    """

    cut: bool = Field(
        False, description="whether a row is one choice of a solution, at a place that is drawn, and not all of them"
    )

    def model_post_init(self, context: object) -> None:
        """Find the problem.

        Raises:
            InputError: an unknown name, or instances that are too large to be solved exactly.
        """
        super().model_post_init(context)
        if self.best_of(self.instance(self.example("train", 0))) is None:
            raise InputError(
                f"solved:{self.problem} with task.count = {self.of.size}",
                "the best solution of an instance this large is not computed here",
                "Lower task.count, set task.solver to pyvrp, or store solutions in a file (task: trajectories:FILE)",
            )

    def stored_rows(self, example: Example) -> Sequence[StoredEpisode]:
        """Return the best solution of the instance as an episode, or one choice of it."""
        whole = self._played(example)
        if not self.cut:
            return [whole]
        return [one_choice(whole, generator(self.seed, "place", example.id).randrange(len(whole)))]

    def _played(self, example: Example) -> StoredEpisode:
        world, seed = self.environment(), int(example.columns["seed"])
        shown = [world.reset(example, seed)]
        rewards: list[float] = []
        actions = self._choices(world, np.random.default_rng([seed, 1]))
        for node in actions:
            step = world.step(node)
            shown.append(cast("ArrayObservation", step.observation))
            rewards.append(float(step.reward))
        return StoredEpisode(
            _stacked(shown),
            np.array(actions),
            np.array(rewards),
            terminated=True,
            legal=np.stack([cast("np.ndarray", each.legal) for each in shown[:-1]]),
            components=world.score(),
            context=cast("Mapping[str, np.ndarray]", shown[0].context),
        )

    def _choices(self, world: ConstructionWorld, luck: np.random.Generator) -> list[int]:
        found = self.best_of(world.instance)
        assert found is not None
        assert world.building is not None
        return self.of.continued(found.choices, world.building, luck)


def one_choice(whole: StoredEpisode, place: int) -> StoredEpisode:
    """Return the choice at a place of an episode as an episode of its own, with what was seen before and after it."""
    seen, one = cast("Mapping[str, np.ndarray]", whole.observations), slice(place, place + 1)
    return StoredEpisode(
        {name: values[place : place + 2] for name, values in seen.items()},
        whole.actions[one],
        whole.rewards[one],
        terminated=place == len(whole) - 1,
        legal=None if whole.legal is None else whole.legal[one],
        context=whole.context,
        final_legal=whole.legal[place + 1] if whole.legal is not None and place + 1 < len(whole) else whole.final_legal,
    )


def _stacked(shown: Sequence[ArrayObservation]) -> dict[str, np.ndarray]:
    values = [cast("Mapping[str, object]", each.values) for each in shown]
    return {name: np.stack([np.asarray(each[name]) for each in values]) for name in values[0]}
