"""Group robust preferences: weights of the data's groups by hand, their limits, what they remember, and a run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import grouprl
from grouprl import Batch, InputError
from grouprl.algorithms.augment.papers.preferences.robust_groups import RobustGroups
from grouprl.algorithms.link.link import Squared
from small import f64, near, small


def pairs(gaps: list[float], groups: list[int] | None = None, rewards: list[float] | None = None) -> Batch:
    """Pairs of one token a row, whose better row has the log-ratio `gap`, the worse one 0."""
    rows = [value for gap in gaps for value in (gap - 600, -600.0)]
    rewards, groups = rewards or [1, 0] * len(gaps), groups or [i // 2 for i in range(len(rows))]
    return small(rewards, groups=groups, old_bt=[[x] for x in rows], ref_bt=[[-600.0]] * len(rows))


def gap_of(loss: float) -> float:
    """The difference at which DPO's loss with β = 0.1 is `loss`."""
    return -math.log(math.exp(loss) - 1) / 0.1


def twice(names: str) -> list[str]:
    """The data group of each row, from those of pairs."""
    return [name for name in names for _ in range(2)]


def rows_loss(method: str, batch: Batch, weight_b: torch.Tensor | None = None, **settings: Any) -> torch.Tensor:
    """The gradient of a loss at the policy before the update."""
    made = grouprl.method(method, **settings)
    given = batch if weight_b is None else batch.replace(past={"group_weight": weight_b})
    logp_bt = batch.old_bt.clone().requires_grad_()
    (grad_bt,) = torch.autograd.grad(made.loss(logp_bt, made.prepare(given)).value, logp_bt)
    return grad_bt


def test_constant_losses_end_at_their_softmax():
    """100 steps of size 0.05 on losses 0.7, 0.5 and 0.9: softmax(5·L) = 0.2447, 0.0900, 0.6652."""
    part, batch, log = RobustGroups(step=0.05), pairs([gap_of(x) for x in (0.7, 0.5, 0.9)]), {}
    for _ in range(100):
        log, weight_b = part.after(log, twice("abc"), batch)
    near(weight_b[::2] / 3, [0.24472847, 0.09003057, 0.66524096], 1e-7)
    assert torch.equal(weight_b[::2], weight_b[1::2])


def test_weights_are_those_of_unequal_groups_after_the_step():
    """Two pairs of a with the mean loss 0.6, one of b with 1.6: log q_b - log q_a = 1, then the new q over shares."""
    batch = pairs([gap_of(x) for x in (0.4, 0.8, 1.6)])
    log, weight_b = RobustGroups(step=1.0).after({}, twice("aab"), batch)
    assert log == pytest.approx({"a": 0.6, "b": 1.6})
    q = 1 / (1 + math.e)
    near(weight_b[::2], [q / (2 / 3), q / (2 / 3), (1 - q) / (1 / 3)])
    near(weight_b.mean(), 1.0)


def test_the_loss_is_the_weighted_sum_of_group_means():
    batch = pairs([gap_of(x) for x in (0.4, 0.8, 1.6)])
    _, weight_b = RobustGroups(step=1.0).after({}, twice("aab"), batch)
    method, q = grouprl.method("gr_dpo"), 1 / (1 + math.e)
    value = method.loss(batch.old_bt, method.prepare(batch.replace(past={"group_weight": weight_b}))).value
    near(value, q * 0.6 + (1 - q) * 1.6)


def test_a_ranked_list_counts_as_in_the_mean_over_pairs():
    """A list of three beside a pair: the list's three pairs have the mean loss of its group, and 3/5 of all rows."""
    rewards, groups = [2, 1, 0, 1, 0], [0, 0, 0, 1, 1]
    batch = small(rewards, groups=groups, old_bt=[[x] for x in (-1.0, -2, -4, -1, -3)], ref_bt=[[-1.0]] * 5)
    log, weight_b = RobustGroups(step=1.0).after({}, ["a"] * 3 + ["b"] * 2, batch)
    of = [math.log1p(math.exp(-0.1 * gap)) for gap in (1, 3, 2, 2)]
    assert log == pytest.approx({"a": sum(of[:3]) / 3, "b": of[3]})
    near(weight_b[0] * 3 + weight_b[3] * 2, 5.0)


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_one_group_is_the_plain_loss_and_step_zero_the_even_mean_of_groups(loss):
    batch, part = pairs([1.0, -2.0, 0.5, 4.0]), grouprl.method("gr_dpo", loss=loss, step=0.0).augment[0]
    alone = grouprl.method("gr_dpo", loss=loss, step=3.0).augment[0].after({"a": 7.0}, twice("aaaa"), batch)[1]
    near(rows_loss("gr_dpo", batch, alone, loss=loss), rows_loss(loss, batch))
    even = part.after({}, twice("abab"), batch)[1]
    near(rows_loss("gr_dpo", batch, even, loss=loss), rows_loss(loss, batch))
    uneven = part.after({}, twice("abbb"), batch)[1]
    near(uneven[::2], [2.0, 2 / 3, 2 / 3, 2 / 3])


def test_the_order_of_rows_does_not_matter():
    batch, part, names = pairs([1.0, -2.0, 0.5]), RobustGroups(step=1.0), twice("bab")
    order = torch.tensor([4, 1, 3, 0, 5, 2])
    log, weight_b = part.after({}, names, batch)
    other, moved_b = part.after({}, [names[i] for i in order], batch.rows(order))
    assert log == pytest.approx(other)
    near(moved_b, weight_b[order])


def test_an_absent_group_keeps_its_weight_and_a_new_one_begins_without_loss():
    part, batch = RobustGroups(step=1.0), pairs([gap_of(0.5)])
    log, weight_b = part.after({"a": 1.0, "b": 2.0}, twice("a"), batch)
    assert log == pytest.approx({"a": 1.5, "b": 2.0})
    near(weight_b, [1 / (1 + math.exp(0.5))] * 2)
    log, _ = part.after({"a": 1.0}, twice("c"), batch)
    assert log == pytest.approx({"a": 1.0, "c": 0.5})


def test_huge_losses_and_steps_without_pairs_stay_finite():
    part = RobustGroups(link=Squared(beta=0.01), step=1.0)
    log, weight_b = part.after({}, twice("ab"), pairs([-500.0, 500.0]))
    near(weight_b, [2.0, 2.0, 0.0, 0.0])
    assert all(math.isfinite(value) for value in log.values())
    again, weight_b = part.after(log, twice("ab"), pairs([1.0, 1.0], rewards=[1, 1, 0, 0]))
    assert again == log
    assert not weight_b.any()


def test_it_remembers_and_notes_its_weights():
    state: dict[str, Any] = {}
    noted: dict[str, float] = {}
    context: Any = SimpleNamespace(state_of=lambda part: state, note=lambda name, value, _: noted.update({name: value}))
    examples = [SimpleNamespace(id="x", level=3, columns={"annotator": a}) for a in (0, 0, 1, 1)]
    samples: Any = SimpleNamespace(examples=examples)
    batch = pairs([gap_of(0.5), gap_of(1.5)])
    for times in (1, 2):
        filled = RobustGroups(by="annotator", step=1.0).fill(batch, samples, context)
        assert state["log"] == pytest.approx({"0": 0.5 * times, "1": 1.5 * times})
        near(filled.past["group_weight"][2], 2 / (1 + math.exp(-times)))
    assert noted["largest_group_weight"] == pytest.approx(1 / (1 + math.exp(-2)))
    state.clear()
    near(RobustGroups().fill(batch, samples, context).past["group_weight"], [1.0] * 4)
    assert list(state["log"]) == ["3"]


def test_data_without_the_column_are_refused():
    samples: Any = SimpleNamespace(examples=[SimpleNamespace(id="row 7", columns={"annotator": 1})])
    context: Any = SimpleNamespace(state_of=lambda part: {})
    with pytest.raises(InputError, match=r"prompt row 7 has no such column.*annotator"):
        RobustGroups(by="anotator").fill(pairs([1.0]), samples, context)


def test_weights_have_no_gradient():
    batch = pairs([1.0, -2.0])
    near(rows_loss("gr_dpo", batch, f64([3.0, 3.0, 0.0, 0.0])), 3 * rows_loss("dpo", batch) * f64([[1], [1], [0], [0]]))
