"""Environments over arrays are examined like those of text: what breaks a rule is found and named."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.envs.array_check import check_array_environment
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Spaces
from grouprl.tasks import Example

SPACES = Spaces(Box((2,), -1.0, 1.0), Discrete(3))


class Walk:
    """Three actions move a number; an episode has at most six of them. A mask forbids to repeat an action."""

    def shown(self) -> Any:
        values = np.array([self.place, self.turns / 6], np.float32)
        return ArrayObservation(values, [n != self.last for n in range(3)])

    def reset(self, example: Any, seed: int) -> Any:
        self.rng, self.place, self.turns, self.last = random.Random(seed), 0.0, 0, -1
        return self.shown()

    def step(self, action: Any) -> Step:
        assert self.turns < 6, "it is over"
        assert int(action) != self.last, "an illegal action"
        self.last, self.turns = int(action), self.turns + 1
        self.place += (int(action) - 1) * 0.1 * self.rng.random()
        return Step(self.shown(), float(self.place), terminated=self.turns >= 6)

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


class Broken(Walk):
    """Shows a number that is not finite after the first action."""

    def shown(self) -> Any:
        return np.array([np.nan if self.turns else 0.0, 0.0], np.float32)


class Shaped(Walk):
    def shown(self) -> Any:
        return np.zeros(3, np.float32)


class Wide(Walk):
    def shown(self) -> Any:
        return np.array([2.0, self.turns / 6], np.float32)


class Chance(Walk):
    def reset(self, example: Any, seed: int) -> Any:
        shown = super().reset(example, seed)
        self.rng = random.Random()
        return shown


class Endless(Walk):
    def step(self, action: Any) -> Step:
        return Step(np.array([self.place, 0.0], np.float32), 0.0)


class Rewarded(Walk):
    def step(self, action: Any) -> Step:
        return Step(super().step(action).observation, float("inf"))


class Shared(Walk):
    moved: list[int] = []  # noqa: RUF012

    def step(self, action: Any) -> Step:
        self.moved.append(1)
        found = super().step(action)
        return Step(found.observation, float(len(self.moved)), terminated=found.terminated)


def checked(make: Any, spaces: Spaces = SPACES, **options: Any) -> Any:
    examples = [Example(f"q{i}", "", {}) for i in range(4)]
    return check_array_environment(
        make, spaces, lambda n: examples[n % 4], **{"episodes": 12, "max_turns": 20} | options
    )


def test_one_that_keeps_the_rules_has_no_findings() -> None:
    report = checked(Walk)
    assert [each.name for each in report.findings] == []
    assert report.facts["longest_episode"] == 6
    assert set(report.facts) & {"demonstrated", "legal", "random", "nonsense"} == {"legal"}


@pytest.mark.parametrize(
    ("make", "name", "said"),
    [
        (Broken, "step raises", "finite"),
        (Shaped, "reset raises", r"shape \(3,\)"),
        (Wide, "bounds", "An observation was 2"),
        (Chance, "determinism", "played again alone"),
        (Endless, "no end", "continued after 20 turns"),
        (Rewarded, "reward finite", "inf"),
        (Shared, "determinism", "where it had given"),
    ],
)
def test_a_broken_rule_is_named(make: Any, name: str, said: str) -> None:
    """What is said is of arrays: their environments answer no text."""
    found = {each.name: each for each in checked(make).findings}
    assert name in found
    assert pytest.importorskip("re").search(said, f"{found[name].what} {found[name].rule}")
    assert "text" not in found[name].rule
    assert found[name].serious == (name != "bounds")


class Pairs(Walk):
    """Two numbers an action, named arrays, a map of the episode; it can act by itself."""

    def shown(self) -> Any:
        return ArrayObservation({"at": np.array([self.turns / 6], np.float32)}, None, {"map": np.ones(2, np.float32)})

    def step(self, action: Any) -> Step:
        assert np.shape(action) == (2,)
        assert self.turns < 3
        self.turns += 1
        return Step(self.shown(), float(action[0] + action[1]), terminated=self.turns >= 3)

    def demonstrate(self, rng: random.Random) -> Any:
        return np.array([1, 3])


def test_named_arrays_contexts_and_demonstrations_are_read() -> None:
    spaces = Spaces(DictSpace({"at": Box((1,), 0.0, 1.0)}), MultiDiscrete((2, 4)), DictSpace({"map": Box((2,))}))
    report = checked(Pairs, spaces)
    assert [each.name for each in report.findings] == []
    facts = report.facts
    assert facts["demonstrated"]["return"] == 12.0
    assert facts["legal"]["return"] < 12.0


def test_actions_of_a_box_are_drawn_within_its_bounds() -> None:
    seen: list[np.ndarray] = []

    class Pushed(Walk):
        def step(self, action: Any) -> Step:
            seen.append(np.asarray(action))
            self.turns += 1
            return Step(np.zeros(2, np.float32), 1.0, terminated=self.turns >= 3)

        def shown(self) -> Any:
            return np.zeros(2, np.float32)

    spaces = Spaces(SPACES.observation, Box((2,), (-0.5, 1.0), (0.5, np.inf)))
    checked(Pushed, spaces)
    drawn_n2 = np.stack(seen)
    assert (np.abs(drawn_n2[:, 0]) <= 0.5).all()
    assert (drawn_n2[:, 1] >= 1.0).all()
    assert len(np.unique(drawn_n2[:, 0])) > 5


def test_the_command_takes_tasks_over_arrays() -> None:
    pytest.importorskip("gymnasium")
    found = CliRunner().invoke(app, ["check-env", "control:CartPole-v1", "--episodes", "4"])
    assert found.exit_code == 0, found.output
    assert "no problems" in found.output
    found = CliRunner().invoke(app, ["check-env", "construct:tsp", "--episodes", "4"])
    assert found.exit_code == 0, found.output
