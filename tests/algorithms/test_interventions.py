"""InT: which step was wrong, what is imitated, and a run with it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.imitating import imitation
from grouprl.algorithms.pretrain.papers.interventions import Interventions, Proposal, first_wrong
from pretraining_runs import cut_at, records, run

SOLUTION = "?7+5\n1:12\n=12"
PART = {"part": "interventions", "rollouts": 2, "continuations": 4, "epochs": 2, "lr": 1e-3}
METHOD = {"base": "grpo", "pretrain": [PART]}
TASK = {"name": "steps", "terms": 2, "noise": 0.4, "disorder": 0.2}
SETTINGS = {"task": TASK, "warmup": {"steps": 400, "batch": 32, "lr": 1e-2}}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("?7+5\n1:13\n=13", ("?7+5\n", "1:12\n")),
        ("?8+5\n1:12\n=12", ("", "?7+5\n")),
        ("?7+5\n1:12\n=21", ("?7+5\n1:12\n", "=12")),
        ("?7+5\n1:12", ("?7+5\n1:12\n", "=12")),
        ("", ("", "?7+5\n")),
        (SOLUTION, None),
        (f"{SOLUTION}\n=3", None),
    ],
)
def test_the_first_step_that_differs_is_replaced_by_the_solutions(text, found):
    assert first_wrong(text, SOLUTION, "\n") == found


def test_the_loss_is_the_mean_over_what_is_imitated_and_its_gradient_that_of_torch():
    logp_bt = torch.tensor([[-1.0, -2.0, -8.0], [-3.0, -9.0, -9.0]], dtype=torch.float64, requires_grad=True)
    mask_bt = torch.tensor([[True, True, False], [True, False, False]])
    loss, slope_bt = imitation(logp_bt, mask_bt)
    assert loss == pytest.approx((1 + 2 + 3) / 3)
    (grad_bt,) = torch.autograd.grad(-logp_bt[mask_bt].mean(), logp_bt)
    assert torch.equal(slope_bt, grad_bt)
    assert imitation(logp_bt, torch.zeros_like(mask_bt))[0] == 0.0


def test_a_run_corrects_imitates_and_resumes_to_the_bit(tmp_path):
    whole = run(tmp_path / "run", METHOD, **SETTINGS)
    before = records(whole, "pretraining")
    assert len(before) == 4
    assert sum(record["interventions"] for record in before[:2]) > 0
    kept = [record["interventions_kept"] for record in before[:2]]
    assert all(0 <= share <= 1 for share in kept)
    assert max(kept) > 0
    assert before[3]["intervention_loss"] < before[2]["intervention_loss"]
    cut = cut_at(whole, tmp_path / "cut", "pretraining-000003")
    assert records(cut, "pretraining") == before
    assert records(cut, "train") == records(whole, "train")


def test_a_task_without_solutions_is_refused():
    assert Interventions().refuse(RunFacts(demonstrations=False))
    assert not Interventions().refuse(RunFacts())


class Continued:
    """A run whose continuations are right as given, one list per request."""

    def __init__(self, right):
        self.right, self.requests = right, []
        self.max_new_tokens = 9

    def sample(self, requests, *, count_failures):
        self.requests = requests
        return SimpleNamespace(scores=SimpleNamespace(correct_b=np.array(self.right).ravel()))


def test_a_correction_is_kept_if_one_continuation_is_right(monkeypatch):
    monkeypatch.setattr("grouprl.algorithms.pretrain.papers.interventions.again", lambda *_, **made: made)
    found = [Proposal(0, (4, 5)), Proposal(3, (6,)), Proposal(5, (7, 8, 9))]
    context = Continued([[False, True], [False, False], [True, True]])
    assert Interventions(continuations=2).solved(None, found, context).tolist() == [True, False, True]
    assert [(each["prefix"], each["max_new_tokens"]) for each in context.requests] == [
        ((4, 5), 7),
        ((6,), 8),
        ((7, 8, 9), 6),
    ]
    assert len(Interventions().solved(None, [], context)) == 0
