"""N-PG-IGT's update: gradients taken ahead of the weights stand for gradients at the weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.algorithms.objective.importance import kept
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.transported import Transported


def moved(part: Transported, slopes: list[float], lr: float = 0.4) -> tuple[float, dict[str, Any]]:
    """Move one weight, from 1, by the given gradients; return where the policy is, and the store."""
    own, store = [torch.ones(1, dtype=torch.float64)], {}
    for slope in slopes:
        part.move(own, torch.tensor([slope], dtype=torch.float64), lr, store)
    return float(own[0]), store


def test_two_steps_by_hand() -> None:
    """η = 2/(t+2): 1, ⅔. Weights 1 - 0.4 = 0.6, ahead by ½ of the step: 0.4. Then d = ⅓·2 + ⅔·(-4) = -2, the weight
    goes up by 0.4, to 1, and η = ½ looks ahead by the whole step, to 1.4.
    """
    part = Transported(power=1.0, decay=0.0)
    at, store = moved(part, [2.0])
    assert (at, float(store["weights"])) == (pytest.approx(0.4), pytest.approx(0.6))
    at, store = moved(part, [2.0, -4.0])
    assert (at, float(store["weights"]), float(store["momentum"])) == (
        pytest.approx(1.4),
        pytest.approx(1.0),
        pytest.approx(-2.0),
    )


def test_the_rate_falls_with_the_steps() -> None:
    """γ = 0.4 and 0.4·⅔."""
    _, store = moved(Transported(power=0.0, decay=1.0), [1.0, 1.0])
    assert float(store["weights"]) == pytest.approx(1 - 0.4 - 0.4 * 2 / 3)


def test_with_power_0_each_step_is_along_its_own_gradient() -> None:
    at, store = moved(Transported(power=0.0, decay=0.0), [5.0, -3.0, 0.01])
    assert at == float(store["weights"]) == pytest.approx(1 - 0.4 + 0.4 - 0.4)


def test_without_a_gradient_nothing_moves() -> None:
    assert moved(Transported(), [0.0])[0] == 1.0


def test_of_a_quadratic_the_momentum_is_the_mean_of_gradients_at_the_weights() -> None:
    """L = ½·hθ²: gradients at ϑ average to the gradient at θ, exactly; with gradients at θ itself it lags behind."""
    part, slope = Transported(decay=0.0), torch.tensor([3.0, 0.5], dtype=torch.float64)
    own, store = [torch.tensor([2.0, -1.0], dtype=torch.float64)], {}
    for _ in range(6):
        before = store.get("weights", own[0].clone())
        part.move(own, slope * own[0], 0.1, store)
        assert torch.allclose(store["momentum"], slope * before, atol=1e-12)


def descended(part: Transported, ahead: bool, seed: int) -> float:
    """Return the loss of a noisy quadratic in ten dimensions after 300 steps; `ahead`: gradients are those at ϑ."""
    luck = np.random.default_rng(seed)
    slope = torch.linspace(0.5, 2, 10, dtype=torch.float64)
    own, store = [torch.ones(10, dtype=torch.float64)], {}
    for _ in range(300):
        at = own[0] if ahead or "weights" not in store else store["weights"]
        noise = torch.from_numpy(luck.normal(size=10))
        part.move(own, slope * at + noise, 0.5, store)
    return float((0.5 * slope * store["weights"].square()).sum())


def test_noise_is_averaged_better_than_by_plain_momentum() -> None:
    """The same schedule, ten seeds: gradients ahead of the weights end nearer to the optimum than those at them."""
    part = Transported(power=0.8, decay=0.5)
    ahead, plain = (np.mean([descended(part, each, seed) for seed in range(10)]) for each in (True, False))
    assert ahead < 0.7 * plain


def test_several_steps_on_a_rollout_and_sampling_ahead_are_refused() -> None:
    part = Transported()
    assert part.refuse(RunFacts(updates_per_rollout=1)) == []
    assert "takes 4" in part.refuse(RunFacts(updates_per_rollout=4))[0]
    assert "async_steps" in part.refuse(RunFacts(async_steps=1))[0]
    assert any("nowhere ahead" in line for line in Transported(power=0).idle(RunFacts()))


def test_a_run_ends_with_the_weights_and_not_ahead_of_them(tmp_path: Any) -> None:
    """Two steps of 0.1 and 0.1·⅔ of all weights together: the saved model has moved by at most their sum."""
    from safetensors.torch import load_file

    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.construction.coverage:CoverageWalk", "turns": 10},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {"name": "n_pg_igt", "baseline": "group"},
            "steps": 2,
            "batch": {"prompts": 1, "group_size": 8, "minibatches": 1},
            "optim": {"lr": 0.1, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["phase"] == "train" and row["grad_norm"] > 0 for row in rows) == 2
    from grouprl.policy import Build, Mlp
    from grouprl.tasks import load_task

    task = load_task("env:grouprl.envs.construction.coverage:CoverageWalk")
    began = Mlp(Build(task.spaces, seed=0), hidden=(4,)).trainable_state()
    ended = load_file(tmp_path / "run" / "model" / "policy.safetensors")
    way = torch.cat([(ended[name] - began[name]).flatten() for name in began])
    assert 0.1 / 3 - 1e-4 <= float(way.norm()) <= 0.1 * 5 / 3 + 1e-4


def test_a_kept_vector_is_where_the_weights_are() -> None:
    """Out of a checkpoint it comes on the CPU, whichever device the policy is on."""
    here_p, elsewhere_p = torch.tensor([1.0, 2.0]), torch.empty(2, device="meta")
    assert kept({"momentum": here_p}, "momentum", elsewhere_p).device.type == "meta"
    assert kept({"momentum": here_p}, "momentum", torch.zeros(2)).tolist() == [1.0, 2.0]
    assert kept({}, "momentum", here_p) is here_p
