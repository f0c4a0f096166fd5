"""What is trained without log-probs: a reward model with a score for every row, through the steps of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from grouprl import Batch
from grouprl.algorithms.method import Loss
from grouprl.core.errors import InputError
from grouprl.policy import ArrayInputs, TrainableModule
from grouprl.policy.vectors.mlp import perceptron
from grouprl.protocols import Policy
from grouprl.testing import check_policy, check_trainable
from grouprl.training.steps import OutputLoss, accumulate, take_step


class RewardModel(TrainableModule):
    """Scores a row of vectors by the mean of what a perceptron says of each, and tells that, too."""

    outputs = ("score", "said")

    def __init__(self, positions: int = 1000) -> None:
        super().__init__(perceptron(2, 1, (8,), "tanh", seed=0).double(), positions=positions)

    def score(self, inputs: ArrayInputs, names: tuple[str, ...]) -> Mapping[str, Tensor]:
        present_bt = inputs.present_bt()
        said_bt = torch.where(present_bt, self.module(inputs.observation_bt.double())[..., 0], 0.0)
        return {"score": said_bt.sum(1) / present_bt.sum(1), "said": said_bt}


@dataclass(frozen=True)
class Preferred(OutputLoss):
    """-log σ(score of the winner - score of the loser), over rows that alternate."""

    outputs = ("score",)
    couples = "batch"

    def __call__(self, found: Mapping[str, Tensor], batch: Batch) -> Loss:
        margin_n = found["score"][0::2] - found["score"][1::2]
        return Loss(-F.logsigmoid(margin_n).mean(), {"accuracy": (margin_n > 0).double().mean()})


@dataclass(frozen=True)
class Fitted(OutputLoss):
    """½(score - reward)², a loss of each row alone, and as much on what is said of every position."""

    couples: str = "sequence"
    outputs = ("score", "said")

    def live_rows(self, step: Batch) -> Tensor:
        return step.reward_b != 0.5

    def __call__(self, found: Mapping[str, Tensor], batch: Batch) -> Loss:
        error_b = torch.where(batch.reward_b != 0.5, found["score"] - batch.reward_b, 0)
        apart_bt = torch.where(batch.mask_bt & (batch.reward_b != 0.5)[:, None], found["said"] - 1, 0)
        return Loss(0.5 * error_b.square().sum() + apart_bt.square().sum(), {"error": error_b.abs().sum().detach()})


def pairs(count: int = 6) -> Batch:
    """The winner's vectors are further to the right than the loser's."""
    luck = torch.Generator().manual_seed(0)
    length = [2 + row % 3 for row in range(2 * count)]
    seen = [torch.randn(n, 2, generator=luck) + (0.5 if row % 2 == 0 else -0.5) for row, n in enumerate(length)]
    inputs = ArrayInputs.of([x.numpy() for x in seen], [torch.zeros(n).long().numpy() for n in length])
    group_b, reward_b = torch.arange(count).repeat_interleave(2), torch.tensor([1.0, 0.0] * count).double()
    return Batch(mask_bt=inputs.present_bt(), group_b=group_b, reward_b=reward_b, inputs=inputs)


def gradient(model: RewardModel) -> Tensor:
    flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    for p in model.parameters():
        p.grad = None
    return flat


@pytest.mark.parametrize("positions", [1, 5, 1000])
def test_a_reward_model_conforms_and_is_no_policy(positions: int) -> None:
    model = RewardModel(positions)
    check_trainable(model, pairs().inputs)  # type: ignore[arg-type]
    assert not isinstance(model, Policy)
    with pytest.raises(AssertionError, match="lacks a member of Policy"):
        check_policy(model, pairs().inputs)  # type: ignore[arg-type]


def test_it_learns_which_of_a_pair_is_preferred() -> None:
    model, step = RewardModel(), pairs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    records = [take_step(model, optimizer, Preferred(), step) for _ in range(40)]
    assert records[0]["loss"] == pytest.approx(0.69, abs=0.02)
    assert records[-1]["loss"] < 0.3
    assert records[-1]["accuracy"] == 1.0
    assert all(record["grad_norm"] > 0 and record["rows_trained"] == 1 for record in records)


@pytest.mark.parametrize("positions", [1, 5, 1000])
def test_a_step_is_the_same_in_one_pass_in_two_and_by_autograd(positions: int) -> None:
    model, step = RewardModel(positions), pairs()
    step = step.replace(reward_b=torch.where(torch.arange(12) == 3, 0.5, step.reward_b))
    found = []
    for couples in ("sequence", "batch"):
        metrics = accumulate(model, Fitted(couples), step, model.owners())
        assert metrics["rows_trained"] == pytest.approx(11 / 12)
        found.append((metrics, gradient(model)))
    out = Fitted()(model.evaluate(step.inputs, ("score", "said"), grad=True), step)
    out.value.backward()
    direct = gradient(model)
    for metrics, each in found:
        torch.testing.assert_close(each, direct, rtol=1e-10, atol=1e-12)
        assert metrics["loss"] == pytest.approx(float(out.value))
        assert metrics["error"] == pytest.approx(float(out.metrics["error"]))


def test_a_cotangent_must_have_the_shape_of_its_output() -> None:
    model, inputs = RewardModel(), pairs().inputs
    with pytest.raises(InputError, match="1 axes"):
        model.backward(inputs, {"said": torch.ones(12)})
    with pytest.raises(InputError, match=r"must be \[B,T\]"):
        model.backward(inputs, {"score": torch.ones(11)})
    with pytest.raises(InputError, match="no output 'log_prob'"):
        model.evaluate(inputs, ("log_prob",))
