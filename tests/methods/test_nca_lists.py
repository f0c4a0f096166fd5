"""NCA and InfoNCA of lists: hand values, gradients by differences, optima, limits, rows left out, far scores, a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import grouprl
from batches import pieces_of
from grouprl import Batch, InputError
from grouprl.algorithms.objective.papers.noise_contrast import InfoNca, ListNca
from grouprl.algorithms.part import RunFacts
from short_runs import trained_steps
from small import near, small

SCORES = [0.4, -0.2, 0.9, 0.1, -0.7]
REWARDS = [1.0, 0.0, 2.5, 0.5, 0.5]
NAMES = ("infonca", "nca_rewards")


def batch_of(scores: list[float], rewards: list[float], groups: list[int] | None = None) -> Batch:
    """Completions of one token with these log-ratios."""
    return small(rewards, groups=groups, old_bt=[[x - 1] for x in scores], ref_bt=[[-1.0]] * len(scores))


def outcome(batch: Batch, method: str, **settings: float) -> tuple[torch.Tensor, torch.Tensor]:
    made = grouprl.method(method, **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    total = sum(math.exp(x - top) for x in values)
    return [math.exp(x - top) / total for x in values]


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z))


def infonca(scores: list[float], rewards: list[float], beta: float, alpha: float) -> float:
    chances = zip(softmax([x / alpha for x in rewards]), softmax([beta * x for x in scores]), strict=True)
    return -sum(w * math.log(f) for w, f in chances)


def nca(scores: list[float], rewards: list[float], beta: float, alpha: float) -> float:
    weights = softmax([x / alpha for x in rewards])
    policy = sum(w * log_sigmoid(beta * x) for w, x in zip(weights, scores, strict=True))
    return -policy - sum(log_sigmoid(-beta * x) for x in scores) / len(scores)


RULES: dict[str, Callable[[list[float], list[float], float, float], float]] = {"infonca": infonca, "nca_rewards": nca}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("beta", "alpha"), [(0.1, 1.0), (1.0, 0.5), (3.0, 2.0), (0.1, 1e-4)])
def test_a_list_by_hand(name: str, beta: float, alpha: float) -> None:
    near(outcome(batch_of(SCORES, REWARDS), name, beta=beta, alpha=alpha)[0], RULES[name](SCORES, REWARDS, beta, alpha))


@pytest.mark.parametrize("name", NAMES)
def test_groups_weigh_by_their_size_and_scores_are_sums_over_tokens(name: str) -> None:
    both = outcome(batch_of(SCORES, REWARDS, [4, 4, 4, 2, 2]), name, alpha=1.0)[0]
    one, two = (RULES[name](SCORES[cut], REWARDS[cut], 0.1, 1.0) for cut in (slice(3), slice(3, None)))
    near(both, (3 * one + 2 * two) / 5)
    batch = small([1, 0], [3, 1], old_bt=[[-0.5, -0.7, -0.9], [-1.4]], ref_bt=[[-1.0] * 3, [-1.0]])
    near(outcome(batch, name, alpha=1.0)[0], RULES[name]([0.9, -0.4], [1, 0], 0.1, 1.0))


@pytest.mark.parametrize(("name", "pairs"), [("infonca", "dpo"), ("nca_rewards", "nca")])
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_two_completions_and_a_small_alpha_are_a_pair(name: str, pairs: str, beta: float) -> None:
    """Whatever the rewards' scale: at the default α the better completion has all the weight."""
    batch = batch_of(SCORES[:4], [3.0, 2.0, -1.0, 0.5], [0, 0, 1, 1])
    for one, other in zip(outcome(batch, name, beta=beta), outcome(batch, pairs, beta=beta), strict=True):
        near(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_the_optimum_of_a_list(name: str) -> None:
    """NCA's is one score each, log(K·w)/β; InfoNCA's is that up to a constant of the list."""
    weights = softmax([x / 2.0 for x in REWARDS])
    scores = [math.log(5 * w) / 0.5 for w in weights]
    _, grad_bt = outcome(batch_of(scores, REWARDS), name, beta=0.5, alpha=2.0)
    near(grad_bt, torch.zeros_like(grad_bt))
    _, moved_bt = outcome(batch_of([x + 0.3 for x in scores], REWARDS), name, beta=0.5, alpha=2.0)
    assert (moved_bt.abs().max() > 1e-3) == (name == "nca_rewards")


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_share_the_weight(name: str) -> None:
    """Of the two best each has half of it."""
    value, _ = outcome(batch_of([0.2, -0.1, 0.5], [1.0, 1.0, 0.0]), name)
    z = [0.02, -0.01, 0.05]
    cross = -sum(0.5 * math.log(softmax(z)[i]) for i in (0, 1))
    near(
        value,
        cross
        if name == "infonca"
        else -sum(log_sigmoid(x) for x in z[:2]) / 2 - sum(map(log_sigmoid, (-0.02, 0.01, -0.05))) / 3,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_constant_of_the_prompt_in_rewards_and_the_order_of_rows_change_nothing(name: str) -> None:
    groups, order_b = [0, 0, 0, 1, 1], torch.tensor([3, 0, 4, 1, 2])
    one = outcome(batch_of(SCORES, REWARDS, groups), name, alpha=1.0)
    shifted = [x + y for x, y in zip(REWARDS, [7.0, 7.0, 7.0, -2.0, -2.0], strict=True)]
    other = outcome(batch_of(SCORES, shifted, groups), name, alpha=1.0)
    near(other[0], one[0])
    near(other[1], one[1])
    value, grad_bt = outcome(batch_of(SCORES, REWARDS, groups).rows(order_b), name, alpha=1.0)
    near(value, one[0])
    near(grad_bt, one[1][order_b])


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    batch = small(REWARDS, [2, 1, 3, 2, 1], [0, 0, 0, 1, 1], ref_bt=[[-1.0] * n for n in (2, 1, 3, 2, 1)])
    noise_bt = torch.randn(batch.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = grouprl.method(name, beta=0.7, alpha=0.4)
    ready = made.prepare(batch)
    assert torch.autograd.gradcheck(lambda x_bt: made.loss(x_bt, ready).value, (noise_bt - 1).requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_a_step_in_pieces_of_whole_groups_adds_up(name: str) -> None:
    batch, made = batch_of(SCORES, REWARDS, [0, 1, 0, 1, 0]), grouprl.method(name)
    ready = made.prepare(batch)
    pieces = pieces_of(made, batch.group_b, torch.Generator().manual_seed(1))
    assert len(pieces) == 2
    near(sum(made.loss(batch.old_bt[rows], ready.rows(rows)).value for rows in pieces), outcome(batch, name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_do_not_count_are_in_no_list(name: str) -> None:
    """They stay in the denominator of the mean over rows; K is the number of those that count."""
    batch = batch_of(SCORES, REWARDS)
    value, grad_bt = outcome(batch.replace(stat_b=torch.tensor([True] * 4 + [False])), name, alpha=1.0)
    near(value, RULES[name](SCORES[:4], REWARDS[:4], 0.1, 1.0) * 4 / 5)
    assert not grad_bt[4].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_completion_without_others_is_left_out_of_the_mean_too(name: str) -> None:
    batch = batch_of([*SCORES, 0.3], [*REWARDS, 1.0], [0] * 5 + [1])
    value, grad_bt = outcome(batch, name, alpha=1.0)
    near(value, RULES[name](SCORES, REWARDS, 0.1, 1.0))
    assert not grad_bt[5].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [-500.0, -50.0, 50.0, 500.0])
def test_far_scores_stay_finite(name: str, gap: float, dtype: torch.dtype) -> None:
    """InfoNCA pays the difference of two nats, NCA what a wrong verdict on a completion costs, β = 1."""
    batch, made = batch_of([gap, 0.0], [0.0, 1.0]), grouprl.method(name, beta=1.0)
    batch = batch.replace(**{x: getattr(batch, x).to(dtype) for x in ("old_bt", "ref_bt", "reward_b")})
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    assert torch.autograd.grad(value, logp_bt)[0].isfinite().all()
    expected = {"infonca": max(gap, 0.0), "nca_rewards": 1.5 * math.log(2) + max(gap, 0.0) / 2}[name]
    near(value.double(), expected, 1e-3)


@pytest.mark.parametrize(("name", "part"), [("infonca", InfoNca), ("nca_rewards", ListNca)])
def test_without_a_reference_a_list_or_a_score_of_each_completion_it_says_so(name: str, part: type) -> None:
    made = grouprl.method(name)
    with pytest.raises(InputError, match="ref_bt"):
        outcome(batch_of(SCORES, REWARDS).replace(ref_bt=None), name)
    with pytest.raises(ValueError, match=f"{part.name} has the score"):
        part(score=grouprl.method("aot").objective.score)
    assert "group_size is 1" in " ".join(made.objective.refuse(RunFacts(group_size=1)))
    assert made.objective.refuse(RunFacts(group_size=4)) == []


@pytest.mark.parametrize(("name", "first"), [("infonca", math.log(4)), ("nca_rewards", 2 * math.log(2))])
def test_a_run_on_scored_lists_begins_at_the_loss_of_the_reference(name: str, first: float, tmp_path: Path) -> None:
    row = {"completions": ["ab", "b", "c", "acb"], "scores": [0.0, 2.0, 0.5, 0.5]}
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps({"prompt": f"{x}>", **row}) + "\n" for x in "abcdefgh"))
    config = {
        "task": {"name": f"pairs:{tmp_path / 'lists.jsonl'}"},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": name,
        "steps": 1,
        "batch": {"prompts": 4, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 1},
    }
    (step,) = trained_steps(config, tmp_path / "run")
    assert step["loss"] == pytest.approx(first, rel=1e-5)
    assert step["grad_norm"] > 0
