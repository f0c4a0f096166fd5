"""Parts that hold parts: DPO, IPO, SLiC and SimPO composed of score, link and margin, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import grouprl
from grouprl import Batch, InputError, compose
from grouprl.algorithms.link.link import Logistic, Squared
from grouprl.algorithms.margin.margin import Constant
from grouprl.algorithms.objective.pair import Pair
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.score.score import LogRatio
from grouprl.methods.check import check_method
from grouprl.methods.compose import as_data
from grouprl.methods.describe import parts_of
from grouprl.methods.diff import contrast
from grouprl.methods.parts import described
from grouprl.methods.registry import Entry, find
from small import f64, near, small

POLICY = [(-12.0, -15.0), (-30.0, -24.0), (-7.5, -9.0)]
REFERENCE = [(-13.0, -13.5), (-29.0, -26.0), (-8.0, -8.0)]
LENGTHS = [(6, 5), (15, 12), (5, 6)]
REWARDS = [(1.0, 0.0), (1.0, 0.0), (3.0, 1.0)]


def spec(**objective: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "objective": {"part": "pair", **objective},
        "advantage": "raw_reward",
        "aggregate": "sequence_mean",
    }


def three_pairs() -> tuple[Batch, torch.Tensor]:
    """Three prompts with a chosen and a rejected completion, each log-prob spread evenly over its tokens."""
    lengths = [n for pair in LENGTHS for n in pair]
    mask_bt = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]

    def spread(values: list[tuple[float, float]]) -> torch.Tensor:
        return torch.where(mask_bt, (f64(values).flatten() / torch.tensor(lengths))[:, None], 0)

    rewards = [r for pair in REWARDS for r in pair]
    batch = small(rewards, groups=[0, 0, 1, 1, 2, 2], mask_bt=mask_bt, old_bt=None, ref_bt=spread(REFERENCE))
    return batch, spread(POLICY)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({}, 0.683751),
        ({"score": {"part": "log_ratio", "length": "mean"}}, 0.684957),
        ({"link": "hinge"}, 0.966667),
        ({"link": "squared", "score": {"part": "log_ratio", "length": "mean"}}, 23.447778),
        ({"link": "squared"}, ((2.5 - 5) ** 2 + (-3 - 5) ** 2 + (1.5 - 5) ** 2) / 3),
        ({"score": "log_prob", "link": {"part": "logistic", "beta": 2.0}, "margin": {"value": 1.0}}, 0.979928),
        ({"score": {"part": "log_prob", "length": "sum"}}, 0.737600),
        ({"link": "hinge", "margin": {"part": "reward_gap", "scale": 0.5}}, (1.25 + 1.8 + 1.85) / 3),
    ],
    ids=["dpo", "dpo-mean", "slic", "ipo-mean", "ipo", "simpo", "cpo", "reward-gap"],
)  # fmt: skip
def test_published_losses_are_compositions(objective, expected):
    """The numbers are those of TRL's losses on these pairs; sums and rewards by hand."""
    batch, logp_bt = three_pairs()
    method = compose(spec(**objective)).method
    near(method.loss(logp_bt, method.prepare(batch)).value, expected, 1e-6)


def test_the_gradient_of_dpo_by_hand():
    """Slope β·σ(-βΔ)/3 at every token of the chosen completion, and its negative at the rejected one's."""
    batch, logp_bt = three_pairs()
    method = compose(spec()).method
    logp_bt.requires_grad_()
    (grad_bt,) = torch.autograd.grad(method.loss(logp_bt, method.prepare(batch)).value, logp_bt)
    slope = 0.1 * torch.sigmoid(-0.1 * f64([2.5, -3.0, 1.5])) / 3
    near(grad_bt[:, 0], torch.stack([-slope, slope], 1).flatten())
    assert not grad_bt[~batch.mask_bt].any()


def test_every_nested_number_says_where_it_comes_from():
    found = compose(spec(link={"part": "logistic", "beta": 0.3}, margin="reward_gap")).provenance
    assert {key: found[key] for key in found if key.startswith("objective")} == {
        "objective": "set by you",
        "objective.score": "default of the part",
        "objective.score.length": "default of the part",
        "objective.pairing": "default of the part",
        "objective.link": "set by you",
        "objective.link.beta": "set by you",
        "objective.margin": "set by you",
        "objective.margin.scale": "default of the part",
        "objective.pair_weight": "default of the part",
        "objective.pair_weight.value": "default of the part",
    }
    base = compose({"base": "dmpo", "objective": {"link": {"beta": 0.5}}})
    assert base.provenance["objective.link.beta"] == "set by you"
    assert base.provenance["objective.score.gamma"] == "default of dmpo"
    assert base.method.objective == grouprl.method("dmpo", beta=0.5).objective
    other = compose({"base": "dmpo", "objective": {"link": "hinge"}}).provenance
    assert (other["objective.link"], other["objective.link.beta"]) == ("set by you", "default of the part")
    assert compose({"name": "dmpo", "beta": 0.2}).provenance["objective.link.beta"] == "set by you through beta"


def test_one_number_is_set_in_one_place():
    with pytest.raises(InputError, match=r"'beta' and 'objective' both decide objective.link.beta"):
        compose({"name": "dmpo", "beta": 0.2, "objective": {"link": {"beta": 0.5}}})
    compose({"name": "dmpo", "beta": 0.2, "objective": {"score": {"gamma": 0.5}}})


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"link": "logistc"}, r"unknown link part 'logistc'.*Did you mean 'logistic'"),
        ({"link": "constant"}, r"unknown link part 'constant'.*'constant' is a part of kind margin"),
        ({"link": {"part": "hinge", "bta": 1}}, r"link: hinge has no setting 'bta'.*Did you mean 'beta'"),
        ({"link": {"beta": -1}}, r"link: logistic.beta = -1"),
        ({"link": 3}, r"objective: pair.link = 3.*its name or a mapping"),
        ({"lnk": "hinge"}, r"objective: pair has no setting 'lnk'.*Did you mean 'link'"),
        ({"link": Constant()}, r"objective: pair.link is the margin part 'constant'.*kind link"),
    ],
)
def test_wrong_nested_parts_are_refused_with_a_remedy(objective, message):
    with pytest.raises(InputError, match=message):
        compose(spec(**objective))


def test_a_part_of_another_kind_is_refused_in_python_too():
    with pytest.raises(Exception, match="instance of Link"):
        Pair(link=Constant())  # type: ignore[arg-type]


def test_a_composition_is_written_down_and_read_again():
    method = compose(spec(score={"part": "log_prob", "length": "sum"}, link="squared")).method
    data = as_data(method)
    assert data["objective"] == {
        "part": "pair",
        "score": {"part": "log_prob", "length": "sum"},
        "pairing": {"part": "all_pairs"},
        "link": {"part": "squared", "beta": 0.1},
        "margin": {"part": "constant", "value": 0.0},
        "pair_weight": {"part": "even", "value": 1.0},
    }
    assert compose(data).method.objective == method.objective == Pair(score=method.objective.score, link=Squared())


def test_what_nested_parts_need_and_refuse_counts():
    method = grouprl.method("dmpo")
    assert {"ref_bt", "turn_bt"} <= set(method.needs())
    assert any("reference" in words for part in method.parts() for words in part.refuse(RunFacts(has_reference=False)))
    assert "ref_bt" not in compose(spec(score="log_prob")).method.needs()


def test_cards_listings_and_differences_show_nested_parts():
    rows = {row["stage"]: row for row in parts_of(grouprl.method("dmpo"))}
    assert rows["objective.link"]["settings"] == {"beta": 0.1}
    assert rows["objective"]["settings"] == {}
    rows = {row["stage"]: row for row in contrast(find("dmpo"), find("sdpo_segment"))["parts"]}
    objective = rows["objective"]
    assert objective["settings"] == {
        "score": ["discounted_turns", "differing_turns"],
        "score.gamma": [0.7, None],
    }
    (shown,) = described(name="pair")
    assert [(row["name"], row["type"]) for row in shown.settings][1] == ("link", "a part of kind link")
    assert shown.settings[1]["shown"] == "part = logistic, beta = 0.1"
    assert "link: {part: hinge}" in described("link", "hinge")[0].example


def test_the_rules_hold_for_a_composition():
    card = find("dmpo").card
    for objective in (Pair(score=LogRatio(length="mean"), link=Squared()), Pair(link=Logistic(beta=1.0))):
        method = grouprl.method("dmpo").with_parts(objective=objective)
        findings = check_method(Entry("mine", card, lambda method=method: method))
        assert [f for f in findings if not f.passed] == []


class Labelled(grouprl.Objective):
    """A loss of right and wrong completions that is a constant where a group has one kind alone."""

    kind, name, couples = "objective", "labelled", "group"

    def __call__(self, logp_bt: Any, batch: Any) -> grouprl.TokenLoss:
        live_b = (batch.advantage_bt != 0).any(1)
        if not bool(live_b.any()):
            return grouprl.TokenLoss(torch.zeros_like(logp_bt).detach())
        return grouprl.TokenLoss(-batch.advantage_bt * logp_bt)


def test_a_group_that_teaches_nothing_is_no_fault_of_the_objective():
    """In the rule's micro-batches a group without spread stands alone: its loss is a constant, and rightly so."""
    method = grouprl.method("dr_grpo").with_parts(objective=Labelled())
    findings = check_method(Entry("mine", find("dmpo").card, lambda: method))
    failed = [f.words for f in findings if not f.passed and "micro-batches" in f.rule]
    assert failed == []
