"""ZO-RankSGD: weights of a ranking by hand, its mean direction, and runs that only rankings decide."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

import grouprl
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.ranked_directions import RankedDirections, edge_weights
from pretraining_runs import cut_at, records, run
from small import f64, near


def test_weights_of_a_whole_ranking() -> None:
    """m = 4: 3, 1, -1, -3 over 6 edges, in the order of the scores 2nd, 1st, 4th, 3rd."""
    near(edge_weights(f64([3, 9, -1, 0]), 4), f64([1, 3, -3, -1]) / 6)


def test_weights_where_only_the_best_two_are_ranked() -> None:
    """m - 1 - 2r = 4 and 2, others -k = -2, over k(k-1)/2 + k(m-k) = 1 + 6."""
    near(edge_weights(f64([5, 4, 3, 2, 1]), 2), f64([4, 2, -2, -2, -2]) / 7)


def test_ties_have_no_edge_and_only_the_order_counts() -> None:
    near(edge_weights(f64([1, 1, 0]), 3), f64([1, 1, -2]) / 2)
    assert not edge_weights(f64([7, 7, 7]), 3).any()
    score_m = f64([0.3, -2, 5, 0.1])
    near(edge_weights(score_m, 3), edge_weights(score_m.exp() * 1e6, 3))
    assert float(edge_weights(score_m, 3).sum()) == pytest.approx(0)


def test_a_point_that_could_not_be_played_ranks_last() -> None:
    near(edge_weights(f64([float("-inf"), 1, 2]), 3), f64([-2, 0, 2]) / 3)


def test_more_ranked_than_there_are_is_an_error() -> None:
    with pytest.raises(grouprl.InputError, match="best 3 of 2"):
        edge_weights(f64([1, 2]), 3)


def bowl(points: Any) -> Tensor:
    """-½·Σ c·x² with its top at 0."""
    return torch.stack([-(f64([1, 2, 0.5, 4]) * x.double().square()).sum() / 2 for x in points])


def test_the_mean_direction_is_that_of_the_gradient() -> None:
    part, at_p, total_p = RankedDirections(directions=8, best=3, radius=1e-3, lengths=1), f64([1, -1, 2, 0.5]), 0
    for seed in range(400):
        total_p = total_p + part.move(at_p, 1.0, seed, lambda points: bowl(points), {})[0] - at_p
    slope_p = -f64([1, 2, 0.5, 4]) * at_p
    assert float(torch.cosine_similarity(total_p, slope_p, dim=0)) > 0.98


def test_steps_climb_a_bowl_and_never_fall() -> None:
    part, at_p, store = RankedDirections(radius=0.05, lengths=8), f64([1, -1, 2, 0.5]), {}
    height = [float(bowl([at_p])[0])]
    for seed in range(150):
        at_p, _ = part.move(at_p, 1.0, seed, bowl, store)
        height.append(float(bowl([at_p])[0]))
    assert all(after >= before for before, after in itertools.pairwise(height))
    assert height[-1] > height[0] / 1000


def test_without_progress_nothing_moves_and_directions_are_averaged() -> None:
    part, at_p, store = RankedDirections(), f64([0.0, 0, 0, 0]), {}
    for count in (1, 2, 3):
        at_p, metrics = part.move(at_p, 1.0, count, bowl, store)
        assert metrics == {"ranked_length": 0.0, "ranked_averaged": count}
        assert not at_p.any()
    assert store["count"] == 3
    moved, metrics = part.move(f64([1, 0, 0, 0]), 0.1, 0, bowl, store)
    assert metrics["ranked_averaged"] == 4
    assert store == {}
    assert moved.any()


def test_what_cannot_be_ranked_is_refused() -> None:
    assert RankedDirections().refuse(RunFacts()) == []
    assert "best 9 of 8" in RankedDirections(best=9).refuse(RunFacts())[0]
    assert any("stored" in line for line in RankedDirections().refuse(RunFacts(stored=True)))
    assert any("async_steps" in line for line in RankedDirections().refuse(RunFacts(async_steps=1)))


def test_a_language_model_moves_by_rankings_alone_and_resumes_to_the_bit(tmp_path: Any) -> None:
    method = {"base": "reinforce", "update": {"part": "ranked_directions", "directions": 4, "best": 4, "radius": 0.02}}
    method["update"]["prompts"] = 32
    optim = {"lr": 0.003, "schedule": "constant"}
    settings = {"optim": optim, "steps": 6, "warmup": {"steps": 200, "batch": 32, "lr": 1e-2}}
    whole = run(tmp_path / "run", method, **settings)
    steps = records(whole, "train")
    assert any(step["ranked_length"] > 0 for step in steps)
    cut = cut_at(whole, tmp_path / "cut", "step-000003")
    assert records(run(cut, method, resume=True, **settings), "train") == steps


def test_it_finds_the_arm_that_pays(tmp_path: Any) -> None:
    folder = grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.construction.arms:Arms"},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {
                "base": "reinforce",
                "update": {"part": "ranked_directions", "prompts": 32, "radius": 0.5, "directions": 6, "best": 3},
            },
            "steps": 12,
            "batch": {"prompts": 1, "group_size": 32},
            "optim": {"lr": 4.0, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 1, "final_prompts": 32},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    ).folder
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    paid = [row["reward_mean"] for row in rows if row["phase"] == "train"]
    assert paid[-1] > max(0.9, paid[0])
