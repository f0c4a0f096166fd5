"""The search of a latent vector: it stays in its box, repeats itself, and finds the strategy that suits an instance."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Distribution

from grouprl.core.errors import InputError, MissingExtra
from grouprl.evaluation.latent_search import costs_of, drawn, search
from grouprl.policy import ArrayPolicy, Build, Seen
from grouprl.tasks import load_task


class Told(ArrayPolicy):
    """Goes to near cities as far as its first latent number says, and to far ones where it is negative."""

    def __init__(self, build: Build) -> None:
        super().__init__(build, nn.Linear(1, 1))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        far_pn, first_p = seen.observation["nodes"][..., 0], seen.observation["whole"][:, 1]
        return Categorical(logits=-20 * first_p[:, None] * far_pn, validate_args=False)


@pytest.fixture
def task() -> Any:
    return load_task({"name": "construct:tsp", "count": 8, "gap": True, "strategies": 2, "latent": 3})


def test_the_search_finds_the_strategy_that_drawing_has_in_few(task: Any) -> None:
    pytest.importorskip("cma", reason="cma is not installed: pip install 'grouprl[routing]'")
    policy, example = Told(Build(spaces=task.spaces)), task.example("eval", 0)
    found, by_chance = search(task, policy, example, budget=96), drawn(task, policy, example, budget=96)
    assert len(found.cost_n) == len(found.latent_nk) == 96
    assert np.abs(found.latent_nk).max() <= 1
    assert found.latent_nk[-16:, 0].mean() > 0.5 > abs(by_chance.latent_nk[:, 0].mean()) + 0.2
    assert found.cost_n[-16:].mean() < found.cost_n[:16].mean() - 0.2
    assert found.cost_n.mean() < by_chance.cost_n.mean() - 0.2
    assert found.best == found.cost_n.min() >= task.of.best(task.instance(example)) - 1e-6
    again = search(task, policy, example, budget=96)
    assert (again.cost_n == found.cost_n).all()
    assert (again.latent_nk == found.latent_nk).all()
    assert len(search(task, policy, example, budget=21, population=8).cost_n) == 21


def test_a_latent_vector_is_what_the_policy_is_told(task: Any) -> None:
    policy, example = Told(Build(spaces=task.spaces)), task.example("eval", 0)
    near, far = (costs_of(task, policy, example, np.full((8, 3), z), seed=0) for z in (1.0, -1.0))
    assert max(near) < min(far)
    assert torch.tensor(near).std() > 0  # tours start in different cities


def test_what_cannot_be_searched_is_told(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, example = Told(Build(spaces=task.spaces)), task.example("eval", 0)
    plain = load_task({"name": "construct:tsp", "count": 8})
    with pytest.raises(InputError, match=r"task\.latent = 0"):
        search(plain, policy, example, budget=8)
    with pytest.raises(InputError, match="two solutions"):
        search(task, policy, example, budget=1)
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[routing\]"):
        search(task, policy, example, budget=8)
