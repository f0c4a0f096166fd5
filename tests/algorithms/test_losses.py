"""Losses and metrics of tokens, rows, pairs and groups: each is weighted at its own level, however a step is cut."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import random_case
from grouprl import Batch, GroupLoss, InputError, Metric, PairLoss, RowLoss, TokenLoss
from grouprl.algorithms.advantage.advantage import RawReward, Relative
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.losses import at_tokens, paired, shares
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import Objective, PolicyGradient
from grouprl.core import levels
from grouprl.core.metric import GLOSSARY, declare
from grouprl.training.steps import _add
from grouprl.training.update import _closed
from small import f64, near, small

LEVELS = {"mean_of_tokens": "token", "mean_of_rows": "row", "mean_of_pairs": "pair", "mean_of_groups": "group"}


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setattr("grouprl.core.metric.GLOSSARY", shared := dict(GLOSSARY))
    for module in ("grouprl.algorithms.losses", "grouprl.algorithms.stage_checks", "grouprl.monitor.glossary.entry"):
        monkeypatch.setattr(f"{module}.GLOSSARY", shared)
    declare("a test", {name: Metric(words="x", level=level) for name, level in LEVELS.items()})


class Every(Objective):
    """Every level's metrics: the reward of a token, row and group, the sum of a pair's two."""

    couples: ClassVar[str] = "group"
    name = "every"

    def pairs(self, batch: Any) -> torch.Tensor:
        same_bb = batch.group_b[:, None] == batch.group_b[None]
        return (same_bb & (batch.reward_b[:, None] > batch.reward_b[None])).nonzero()

    def __call__(self, logp_bt: Any, batch: Any) -> TokenLoss:
        reward_b, index_b = batch.reward_b, levels.compact(batch.group_b)[0]
        best_g = torch.zeros(int(index_b.max()) + 1, dtype=batch.dtype)
        metrics = {
            "mean_of_tokens": reward_b[:, None].expand_as(logp_bt),
            "mean_of_rows": reward_b,
            "mean_of_pairs": reward_b[batch.edges["pairs"].index_e2].sum(1),
            "mean_of_groups": best_g.scatter_reduce(0, index_b, reward_b, "amax"),
        }
        return TokenLoss(-batch.advantage_bt * logp_bt, metrics)

    def zero_rows(self, batch: Any) -> torch.Tensor:
        return torch.zeros_like(batch.group_b, dtype=torch.bool)


def every() -> Method:
    Every.kind = "objective"
    return Method(objective=Every(), advantage=Relative("group"), aggregate=SequenceMean())


def test_a_metric_is_the_mean_at_its_own_level():
    """Lengths 1, 3, 2; rewards 1, 0 of one prompt and 4 of another: means by hand."""
    batch, method = small([1, 0, 4], [1, 3, 2], [0, 0, 1]), every()
    metrics = method.loss(batch.old_bt, method.prepare(batch)).metrics
    near(metrics["mean_of_tokens"], (1 * 1 + 4 * 2) / 6)
    near(metrics["mean_of_rows"], 5 / 3)
    near(metrics["mean_of_pairs"], 1.0)
    near(metrics["mean_of_groups"], (1 + 4) / 2)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 99), order=st.permutations(range(4)), cut=st.integers(1, 3))
def test_sums_of_micro_batches_of_whole_groups_are_those_of_the_step(seed, order, cut):
    case, method = random_case(seed), every()
    ready = method.prepare(case.batch)
    whole = method.loss(case.logp_bt, ready)
    found: dict[str, float] = {}
    total, sums = 0.0, dict.fromkeys([*whole.metrics, *(f"_share/{x}" for x in ("token", "row", "pair", "group"))], 0.0)
    for groups in (order[:cut], order[cut:]):
        rows = torch.isin(ready.group_b, torch.tensor(groups)).nonzero()[:, 0].flip(0)
        part, logp_bt = ready.rows(rows), case.logp_bt[rows]
        out = method.loss(logp_bt, part)
        total += float(out.value)
        _add(sums, {**out.metrics, **counted(part)})
    near(whole.value, total)
    found = _closed({**sums, "rows_trained": 1.0})
    for name, value in whole.metrics.items():
        near(value, found.get(name, 0.0))


def counted(batch: Batch) -> dict[str, float]:
    """The shares of each level in the step, as the trainer adds them up beside the metrics."""
    return {f"_share/{level}": float(share.sum()) for level, share in shares(batch).items()}


def test_a_mean_over_nothing_is_absent():
    """Equal rewards make no pair: nothing is said of pairs, and the other levels stay."""
    batch, method = small([1, 1], [1, 2]), every()
    ready = method.prepare(batch)
    sums = {k: float(v) for k, v in method.loss(batch.old_bt, ready).metrics.items()}
    sums |= counted(ready)
    assert {"mean_of_pairs"} == set(LEVELS) - _closed({**sums, "rows_trained": 1.0}).keys()


def test_losses_of_each_level_reach_the_tokens():
    """Weights of a token ⅓ and ⅙·½: a row's loss counts once, a group's once for each row, a pair's is the mean."""
    batch = paired(small([2, 1, 0], [1, 2, 1]), torch.tensor([[0, 1], [0, 2], [1, 2]]))
    weight_bt = SequenceMean()(batch)
    for loss, expected in (
        (TokenLoss(f64([[1, 0], [2, 4], [3, 0]])), (1 + 3 + 3) / 3),
        (RowLoss(f64([1, 2, 6])), 3.0),
        (GroupLoss(f64([5])), 5.0),
        (PairLoss(f64([1, 2, 6])), 3.0),
    ):
        near((weight_bt * at_tokens(loss, batch)).sum(), expected)


def test_pairs_are_averaged_over_pairs_and_not_over_tokens():
    """A right pair of 18 tokens beside a wrong one of 2: half of the pairs are right, and nine tenths of the tokens."""
    lengths = [9, 9, 1, 1]
    batch = small(
        [1, 0, 1, 0], lengths, [0, 0, 1, 1], turn_bt=torch.zeros(4, 9, dtype=torch.int64), ref_bt=[[-1.0] * 9] * 4
    )
    method = grouprl.method("dmpo")
    logp_bt = batch.old_bt + f64([[0.1] * 9, [-0.1] * 9, [-0.5] * 9, [0.5] * 9])
    metrics = method.loss(logp_bt, method.prepare(batch)).metrics
    near(metrics["pair_accuracy"], 0.5)
    near(metrics["pair_margin"], (2 * 0.9 - 1.0) / 2)


class Across(Every):
    """Pairs of different prompts, without saying so."""

    def pairs(self, batch: Any) -> torch.Tensor:
        return torch.tensor([[0, len(batch.group_b) - 1]])


def test_pairs_beyond_a_group_are_refused_where_a_micro_batch_can_hold_one_of_the_two():
    Across.kind = "objective"
    method = every().with_parts(objective=Across())
    with pytest.raises(InputError, match=r'compares rows of different groups.*couples = "batch"'):
        method.prepare(small([1, 0], groups=[0, 1]))
    Across.couples = "batch"
    method.prepare(small([1, 0], groups=[0, 1]))


class Alone(PolicyGradient):
    """A loss of groups by a part that sees a row alone."""

    def __call__(self, logp_bt: Any, batch: Any) -> Any:
        return GroupLoss(torch.zeros(1, dtype=batch.dtype))


def test_a_level_above_the_row_is_refused_where_rows_come_alone():
    method = Method(objective=Alone(), advantage=RawReward(), aggregate=SequenceMean())
    batch = small([1.0])
    with pytest.raises(InputError, match=r'losses of level group.*couples = "group"'):
        method.loss(batch.old_bt, method.prepare(batch))
