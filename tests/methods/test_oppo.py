"""OPPO: its terms by hand, the triplet loss of torch, ties, pieces of a step, a context that moves to what is
preferred, and a run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import choices
import grouprl
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.plan.plan import plan
from grouprl.records.offline import StoredEpisode
from grouprl.tasks.adapters.trajectories.files import write
from grouprl.training.loop import train
from small import f64, near, small


def loss_of(batch: Batch, goal_z: torch.Tensor, context_bz: torch.Tensor, error_bt: Any, **settings: Any) -> Any:
    """The method's loss where contexts are leaves, as the policy `hindsight` makes its outputs of them."""
    method = grouprl.method("oppo", **settings)
    outputs = {
        "context_score": -(context_bz - goal_z.detach()).norm(dim=1),
        "goal_score": -(context_bz.detach() - goal_z).norm(dim=1),
        "context_size_error": (context_bz.norm(dim=1) - 1).square(),
        "hindsight_error": error_bt,
    }
    return method.loss(None, method.prepare(batch), outputs=outputs).value


def pairs(count: int, lengths: list[int] | None = None) -> Batch:
    return small([1.0, 0.0] * count, lengths, groups=[i // 2 for i in range(2 * count)], old_bt=None)


def test_each_term_by_hand() -> None:
    """Two pairs of contexts on a line, z* at 0.5: T = 0.5 - 1.0 + 1 and 1.5 - 0.2 + 1."""
    context_bz, error_bt = f64([[1.0], [1.5], [2.0], [0.3]]), f64([[0.4, 0.2], [0.6, 9.0], [0.1, 0.3], [0.5, 9.0]])
    terms = {"cloning": (0.3 + 0.6 + 0.2 + 0.5) / 2, "triplet": (0.5 + 2.3) / 2, "size": (0.25 + 1 + 0.49) / 2}
    given = (pairs(2, [2, 1, 2, 1]), f64([0.5]), context_bz, error_bt)
    near(loss_of(*given, preference=0.0, size=0.0), terms["cloning"] + terms["triplet"])
    near(loss_of(*given, preference=0.3, size=0.0), terms["cloning"] + 1.3 * terms["triplet"])
    near(loss_of(*given), terms["cloning"] + 1.1 * terms["triplet"] + 0.1 * terms["size"])


@pytest.mark.parametrize("margin", [0.25, 1.0, 4.0])
def test_its_gradients_are_those_of_the_triplet_loss_of_torch(margin: float) -> None:
    """z moves by 0.1 times the triplet loss at sg(z*) and by its length, z* by the triplet loss at sg(z)."""
    luck = torch.Generator().manual_seed(1)
    context_bz = torch.randn(8, 3, generator=luck, dtype=torch.float64).requires_grad_()
    goal_z = torch.randn(3, generator=luck, dtype=torch.float64).requires_grad_()
    loss = loss_of(pairs(4), goal_z, context_bz, torch.zeros(8, 1).double(), margin=margin)
    found = torch.autograd.grad(loss, (context_bz, goal_z))
    triplet = torch.nn.TripletMarginLoss(margin=margin, p=2, eps=0.0)
    of_contexts = 0.1 * triplet(goal_z.detach().expand(4, 3), context_bz[0::2], context_bz[1::2])
    sizes = 0.1 * ((context_bz[0::2].norm(dim=1) - 1) ** 2 + (context_bz[1::2].norm(dim=1) - 1) ** 2).mean()
    of_goal = triplet(goal_z.expand(4, 3), context_bz[0::2].detach(), context_bz[1::2].detach())
    near(found[0], torch.autograd.grad(of_contexts + sizes, context_bz)[0])
    near(found[1], torch.autograd.grad(of_goal, goal_z)[0])
    near(loss, float(of_contexts + sizes + of_goal))


@pytest.mark.parametrize(("gap", "triplet"), [(0.0, 1.0), (0.999, 0.001), (1.0, 0.0), (50.0, 0.0), (500.0, 0.0)])
def test_margins(gap: float, triplet: float) -> None:
    """Ahead by the margin nothing is left; behind by as much the loss is linear, however far."""
    for sign, expected in ((1, triplet), (-1, 1 + gap)):
        score_b = f64([sign * gap, 0.0]).requires_grad_()
        method, batch = grouprl.method("oppo"), pairs(1)
        zero = {"context_size_error": f64([0.0, 0.0]), "hindsight_error": f64([[0.0], [0.0]])}
        scores = {"context_score": score_b, "goal_score": score_b}
        loss = method.loss(None, method.prepare(batch), outputs=zero | scores).value
        near(loss, 1.1 * expected)
        if gap != 1.0 or sign < 0:
            slope = 0.0 if expected == 0 else -1.1
            near(torch.autograd.grad(loss, score_b)[0], [slope, -slope])


def test_a_tie_is_cloned_and_moves_no_context() -> None:
    batch, goal_z = small([2.0, 2.0], old_bt=None), f64([0.0]).requires_grad_()
    context_bz, error_bt = f64([[1.0], [-3.0]]).requires_grad_(), f64([[0.5], [0.25]]).requires_grad_()
    loss = loss_of(batch, goal_z, context_bz, error_bt, size=0.0)
    slopes = torch.autograd.grad(loss, (goal_z, context_bz, error_bt))
    near(loss, 0.75)
    assert [each.flatten().tolist() for each in slopes] == [[0.0], [0.0, 0.0], [1.0, 1.0]]


def test_half_a_pair_is_refused() -> None:
    method, batch = grouprl.method("oppo"), pairs(2)
    ready = method.prepare(batch).rows(torch.tensor([0, 1, 2]))
    outputs = dict.fromkeys(("context_score", "goal_score", "context_size_error"), f64([0.0] * 3))
    with pytest.raises(InputError, match="1 of the 2 rows of group 1 are here"):
        method.loss(None, ready, outputs=outputs | {"hindsight_error": f64([[0.0]] * 3)})


def arrived(begin: float) -> tuple[float, float]:
    """Where z* comes to among contexts on a line, preferred ones about 1 and others about -1; by how much it is nearer
    to those preferred.
    """
    luck = torch.Generator().manual_seed(0)
    noise_bz = 0.1 * torch.randn(20, 1, generator=luck, dtype=torch.float64)
    context_bz = f64([[1.0], [-1.0]] * 10) + noise_bz
    goal_z = f64([begin]).requires_grad_()
    for _ in range(400):
        loss = loss_of(pairs(10), goal_z, context_bz, f64([[0.0]] * 20))
        (slope_z,) = torch.autograd.grad(loss, goal_z)
        goal_z = (goal_z - 0.02 * slope_z).detach().requires_grad_()
    ahead_e = (goal_z - context_bz[1::2]).abs() - (goal_z - context_bz[0::2]).abs()
    return float(goal_z.detach()), float(ahead_e.min())


@pytest.mark.parametrize("begin", [-0.7, -0.3, 0.0, 3.0])
def test_the_context_that_acts_moves_to_those_preferred(begin: float) -> None:
    goal, ahead = arrived(begin)
    assert goal > 0.4
    assert ahead > 0.95


def test_beyond_all_contexts_of_a_line_it_stays() -> None:
    """There both distances change alike: the slope is 0, and only contexts themselves move."""
    assert arrived(-2.0)[0] == pytest.approx(-2.0, abs=1e-12)


def preferred(folder: Path) -> dict[str, Any]:
    """Pairs of trajectories: one is right with probability 0.8 in each place, the other with 0.2."""
    luck = np.random.default_rng(0)
    seen = np.concatenate([np.eye(choices.COUNT), np.eye(choices.COUNT)[-1:]]).astype(np.float32)
    rows = [(luck.random(choices.COUNT) < share).astype(int) for _ in range(40) for share in (0.8, 0.2)]
    write(
        folder / "pairs.jsonl",
        [StoredEpisode(seen, row, row.astype(float), True) for row in rows],
        [i // 2 for i in range(80)],
    )
    return {"name": f"trajectories:{folder / 'pairs.jsonl'}", "of": f"env:{choices.__file__}:Choices"}


def run(task: Any, **changes: Any) -> Any:
    settings = {
        "task": task,
        "model": {"name": "hindsight", "settings": {"window": 1, "width": 16, "dims": 4}},
        "method": "oppo",
        "steps": 60,
        "batch": {"prompts": 20, "group_size": 2},
        "optim": {"lr": 0.01, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 2},
        "environment": {"workers": 0},
        "run": {"threads": 1},
    }
    return parse_config({**settings, **changes})


def test_a_run_acts_as_those_preferred(tmp_path: Path) -> None:
    """All four places are right, where the data are right in half of them."""
    train(run(preferred(tmp_path)), folder=tmp_path / "run", console=Console(quiet=True))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["after"]["eval/greedy_reward"] == 4.0
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in steps if row["phase"] == "train"]
    assert steps[-1]["hindsight_error"] < steps[0]["hindsight_error"]
    assert steps[-1]["pair_accuracy"] > 0.9


def test_policies_without_contexts_and_single_trajectories_are_refused(tmp_path: Path) -> None:
    task = preferred(tmp_path)
    found = plan(run(task, model={"name": "mlp", "settings": {"hidden": [8]}})).refusals
    assert any("'hindsight_error' of the policy, but mlp lacks it" in str(each) for each in found)
    found = plan(run(task, batch={"prompts": 20, "group_size": 1})).refusals
    assert any("compares completions of one prompt, but batch.group_size is 1" in str(each) for each in found)
