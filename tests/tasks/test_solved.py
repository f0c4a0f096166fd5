"""Solved instances: rows are best solutions, a row may be one choice of one, and imitation makes shorter tours."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.construction import PROBLEMS
from grouprl.plan.plan import plan
from grouprl.tasks import load_task
from grouprl.tasks.adapters.trajectories.files import write
from grouprl.testing import check_stored_rows
from grouprl.training.loop import train

SIZES = {"tsp": 6, "cvrp": 5, "knapsack": 6, "assignment": 5, "job_shop": 3, "allocation": 4}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_row_is_a_best_solution_as_its_environment_plays_it(name: str) -> None:
    task = load_task({"name": f"solved:{name}", "count": SIZES[name], "gap": True})
    check_stored_rows(task)
    for index in range(4):
        example = task.example("train", index)
        (row,) = task.stored_rows(example)
        assert row.rewards[:-1].sum() == 0
        assert -row.rewards[-1] == pytest.approx(task.of.best(task.instance(example)))
        assert row.components["#gap_percent"] == pytest.approx(0, abs=1e-6)
        assert row.legal[np.arange(len(row)), row.actions].all()
        assert (row.context["map"] == task.of.map_of(task.instance(example)).astype(np.float32)).all()
        assert task.stored_rows(example)[0] == row


def test_a_cut_row_is_one_choice_of_the_whole_and_every_place_is_drawn() -> None:
    options = {"name": "solved:tsp", "count": 6, "state": "rest"}
    whole, cut = load_task(options), load_task({**options, "cut": True})
    places = Counter()
    for index in range(200):
        ((one,), (full,)) = (task.stored_rows(task.example("train", index)) for task in (cut, whole))
        assert len(one) == 1
        here = [t for t in range(5) if (full.observations["rest"][t] == one.observations["rest"][0]).all()]
        (place,) = here
        places[place] += 1
        assert one.actions[0] == full.actions[place]
        assert (one.observations["rest"][1] == full.observations["rest"][place + 1]).all()
        assert one.terminated == (place == 4)
    assert min(places.values()) > 20  # 40 each are expected
    assert len(places) == 5


def test_instances_that_nobody_can_solve_exactly_are_told() -> None:
    with pytest.raises(InputError, match=r"Lower task\.count"):
        load_task({"name": "solved:tsp", "count": 13})


def settings(**task: Any) -> dict[str, Any]:
    return {
        "task": {"name": "solved:tsp", "count": 8, "gap": True, "state": "rest", **task},
        "model": {"name": "quotient", "settings": {"width": 32, "layers": 2}},
        "method": "sft",
        "steps": 60,
        "batch": {"prompts": 48, "group_size": 1},
        "optim": {"lr": 5e-3, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 48, "final_prompts": 48},
        "run": {"threads": 1},
    }


def nearest(task: Any, index: int) -> float:
    """The gap in percent of the tour that goes to the nearest city, in the start that an evaluation has."""
    example, world = task.example("eval", index), task.environment()
    world.reset(example, 0)
    while world.building.legal().any():
        far_n = world.building.view().nodes_nd[:, 0]
        world.step(int(np.where(world.building.legal(), far_n, np.inf).argmin()))
    return world.score()["#gap_percent"]


def test_imitation_makes_shorter_tours_than_the_nearest_city(tmp_path: Path) -> None:
    config = parse_config(settings())
    train(config, folder=tmp_path / "run", console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["phase"] == "train"]
    uniform = sum(np.log(n) for n in range(2, 8)) / 7  # nodes left to choose from: 7, 6 ... 1
    assert losses[0] > 0.8 * uniform
    assert np.mean(losses[-5:]) < 0.6 * uniform
    before, after = (row["eval/reward/#gap_percent"] for row in rows if row["phase"] == "eval")
    assert after < np.mean([nearest(load_task(config.task), index) for index in range(48)]) < before


def test_groups_are_of_one_and_a_policy_that_reads_rests_needs_some() -> None:
    several = parse_config({**settings(), "batch": {"prompts": 4, "group_size": 4}})
    assert any("up to 1 rows" in str(each) for each in plan(several).refusals)
    with pytest.raises(InputError, match="reads the rest"):
        plan(parse_config(settings(state="whole")))
    cloned = parse_config({**settings(state="whole"), "model": {"name": "pointer"}})
    assert not plan(cloned).refusals


def test_solutions_with_their_map_are_read_from_a_file(tmp_path: Path) -> None:
    task = load_task({"name": "solved:cvrp", "count": 4})
    rows = [task.stored_rows(task.example("train", index))[0] for index in range(3)]
    write(tmp_path / "routes.jsonl", rows)
    of = {"name": "construct:cvrp", "count": 4}
    read = load_task({"name": f"trajectories:{tmp_path / 'routes.jsonl'}", "of": of})
    found = [read.stored_rows(read.example("train", index))[0] for index in range(3)]
    for ours, theirs in zip(rows, found, strict=True):
        np.testing.assert_allclose(ours.context["map"], theirs.context["map"])
        assert ours.actions.tolist() == theirs.actions.tolist()
    lines = [json.loads(line) for line in (tmp_path / "routes.jsonl").read_text().splitlines()]
    for changed, said in (({}, "have the names"), ({"map": [[0.0]]}, "have the shape"), (7, "is int")):
        (tmp_path / "bad.jsonl").write_text(json.dumps({**lines[0], "context": changed}))
        with pytest.raises(InputError, match=said):
            load_task({"name": f"trajectories:{tmp_path / 'bad.jsonl'}", "of": of})
