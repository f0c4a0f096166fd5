"""IWOCS and DRPG: which case is played, and that the worst one is served in the end; prompts that are settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fake_context import FakeContext, Numbers
from grouprl import InputError
from grouprl.algorithms.curriculum.papers import worst_cases
from grouprl.algorithms.curriculum.papers.worst_cases import WorstCases, WorstNow, lowest
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.core.errors import RunError
from grouprl.records.samples import subset
from grouprl.tasks import load_task
from grouprl.training.loop import train

STORE = "env:grouprl.envs.construction.inventory:Inventory"


def played(part: Any, rates: Any, steps: int = 6, cases: int = 3) -> tuple[list[int], FakeContext]:
    """Play steps, the chance of a right completion being `rates` of (case, step); return the case of each."""
    context = FakeContext(rates, task=Numbers(cases), prompts=2, completions=4, steps=steps)
    found = []
    for _ in range(steps):
        requests = part.choose(2, context)
        assert len({request.index for request in requests}) == 1
        found.append(requests[0].index)
        context.finish(context.sample(requests), part, advantage=0.0)
    return found, context


def test_the_lowest_is_the_first_of_equal_ones_and_what_was_not_measured_comes_last() -> None:
    assert lowest({0: 1.0, 1: -2.0, 2: -2.0}, (0, 2, 1)) == 1
    assert lowest({0: 1.0}, (2, 0)) == 0


def test_iwocs_plays_the_nominal_case_until_a_search_finds_a_worse_one() -> None:
    """Case 1 is never right, case 2 always, the nominal one mostly: known are 0, from the third step on 0 and 1."""
    part = WorstCases(every=2, episodes=8)
    cases, context = played(part, lambda case, step: (1.0, 0.0, 1.0)[case])
    assert cases == [0, 0, 1, 1, 1, 1]
    assert context.state_of(part)["known"] == [0, 1]


def test_iwocs_plays_whichever_known_case_is_the_worst_now() -> None:
    """From the fifth step on the nominal case is the one that fails."""
    part = WorstCases(every=2, episodes=8)
    cases, context = played(part, lambda case, step: float((case == 0) == (step < 4)) if case < 2 else 1.0)
    assert cases == [0, 0, 1, 1, 0, 0]
    assert context.state_of(part)["known"] == [0, 1]


def test_iwocs_measures_nothing_while_one_case_is_known_and_no_search_is_due() -> None:
    part = WorstCases(every=100)
    _, context = played(part, (0.5, 0.5, 0.5))
    assert context.state_of(part)["known"] == [0]
    assert len(context.sampled) == 6


def test_drpg_keeps_a_case_within_the_tolerance_and_leaves_it_when_that_has_shrunk() -> None:
    """The nominal case earns 1, the worst 0: kept while 1 ≤ 0 + 2·0.5^step, which is so at steps 0 and 1."""
    cases, _ = played(WorstNow(tolerance=2.0, shrink=0.5), lambda case, step: float(case != 2))
    assert cases == [0, 0, 2, 2, 2, 2]
    cases, _ = played(WorstNow(tolerance=0.0), lambda case, step: float(case != 2))
    assert cases == [2] * 6


def test_cases_that_all_fail_to_be_scored_stop_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext((0.5,) * 3, task=Numbers(3), prompts=2, completions=4, steps=2)
    none = subset(context.sample([context.request(0)]), np.zeros(4, dtype=bool))
    monkeypatch.setattr(worst_cases, "probe_prompts", lambda *_: none)
    with pytest.raises(RunError, match="measured no case"):
        WorstNow().choose(2, context)


def test_endless_prompts_are_refused_and_a_single_case_is_idle() -> None:
    for part in (WorstCases(), WorstNow()):
        assert "data.prompts" in part.refuse(RunFacts(examples=None))[0]
        assert "one prompt" in part.idle(RunFacts(examples=1))[0]
        assert not part.idle(RunFacts(examples=2))
        assert "16 to each" in part.extra_samples(RunFacts(examples=5))


# --- prompts that are settings of an environment ----------------------------------------------------------------------


def test_prompts_are_the_combinations_in_turn() -> None:
    task = load_task({"name": STORE, "own_luck": True, "grid": {"penalty": [4, 1], "holding": [1, 2]}})
    got = [(e.columns["penalty"], e.columns["holding"]) for e in (task.example("train", i) for i in range(5))]
    assert got == [(4, 1), (4, 2), (1, 1), (1, 2), (4, 1)]
    world = task.environment()
    world.reset(task.example("eval", 2), 0)
    assert (world.penalty, world.holding) == (1, 1)
    assert world.step(8).reward < 0
    world.close()


def test_settings_that_make_no_environment_or_other_spaces_are_refused() -> None:
    with pytest.raises(InputError, match="other spaces"):
        load_task({"name": STORE, "grid": {"lead": [0, 1]}})
    with pytest.raises(InputError, match="at least 0"):
        load_task({"name": STORE, "grid": {"penalty": [1.0, -1.0]}})
    with pytest.raises(InputError, match="must list the values"):
        load_task({"name": STORE, "grid": {"penalty": []}})
    with pytest.raises(InputError, match="cannot be made with"):
        load_task({"name": STORE, "grid": {"prize": [1]}})


DIE = """
from grouprl.envs import Observation, Step


class Die:
    def __init__(self, sides):
        self.sides = sides

    def reset(self, example, seed):
        return Observation(f"d{self.sides}>")

    def step(self, action):
        return Step(Observation("over"), float(action == str(self.sides)), terminated=True)

    def demonstrate(self, rng):
        return str(self.sides)

    def score(self):
        return {}

    def close(self):
        pass
"""


def test_an_environment_of_text_has_settings_too_and_shows_each_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "die.py").write_text(DIE)
    task = load_task({"name": f"env:{tmp_path / 'die.py'}:Die", "grid": {"sides": [3, 4]}})
    examples = [task.example("train", index) for index in range(2)]
    assert [example.prompt for example in examples] == ["d3>", "d4>"]
    assert [task.demonstration(example, 0) for example in examples] == ["3", "4"]
    assert task.reward("4", **examples[1].columns) == 1.0
    assert task.reward("4", **examples[0].columns) == 0.0


@pytest.mark.parametrize("name", ["iwocs", "drpg"])
def test_a_run_measures_cases_and_does_not_train_on_the_measurements(name: str, tmp_path: Path) -> None:
    config = {
        "task": {"name": STORE, "turns": 1, "own_luck": True, "config": {"periods": 1}, "grid": {"penalty": [1, 4, 9]}},
        "data": {"prompts": 3},
        "model": {"name": "mlp", "settings": {"hidden": [4]}},
        "method": {"name": name, "episodes": 8} | ({"every": 1} if name == "iwocs" else {}),
        "steps": 3,
        "warmup": {"steps": 0},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "batch": {"prompts": 1, "group_size": 8, "minibatches": 1},
        "run": {"threads": 1},
    }
    train(parse_config(config), folder=tmp_path / "run", console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["phase"] == "train"][-1]
    assert last["completions_probed"] == 3 * 8
    assert (last["rows_trained"], last["tokens"]) == (1.0, 8)
    assert last["worst_return"] <= 0
