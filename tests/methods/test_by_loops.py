"""The best-known methods against loops over Python numbers: values and gradients of ragged, empty and lone rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import grouprl
from grouprl import Batch, compose
from small import f64

WIDTH = 12
FAR = (0.0, 50.0, 500.0)
"""Log-ratio in nats of some tokens, besides those near 0."""
Token = Callable[["Row", int, float], tuple[float, float]]
"""A row, a position and its advantage to the token's loss and its slope by the token's log-prob."""


@dataclass(frozen=True)
class Row:
    """One completion in plain numbers; its tokens lie at the places `at`, which may have holes between them."""

    group: int
    reward: float
    truncated: bool
    at: list[int]
    old: list[float]
    new: list[float]
    ref: list[float]
    sampler: list[float]
    value: list[float]
    final: float

    @property
    def length(self) -> int:
        return len(self.at)


def rows_of(seed: int, far: float) -> list[Row]:
    """Groups of one to six rows, among them groups without spread, and rows without tokens."""
    rng = random.Random(seed)
    rows = []
    for group in range(4):
        count, alike = rng.choice((1, 2, 3, 4, 6)), rng.random() < 0.2
        for _ in range(count):
            length = rng.choice((0, 1, 2, 3, 5, 8, WIDTH))
            old = [-rng.expovariate(1) for _ in range(length)]
            reward = 1.0 if alike else rng.choice((0.0, 1.0, rng.uniform(-2, 2)))
            moved = [rng.choice((-far, far)) if rng.random() < 0.05 else rng.gauss(0, 0.5) for _ in range(length)]
            near = [[x + rng.gauss(0, 0.4) for x in old] for _ in range(2)]
            values = [rng.gauss(0, 1) for _ in range(length)]
            at, new = sorted(rng.sample(range(WIDTH), length)), [x + d for x, d in zip(old, moved, strict=True)]
            rows.append(Row(group, reward, rng.random() < 0.3, at, old, new, *near, values, rng.gauss(0, 1)))
    rows.append(Row(9, 0.5, False, [3], [-1.0], [-0.9], [-1.1], [-1.2], [0.3], 0.0))
    rng.shuffle(rows)
    return rows


def spread(rows: Sequence[Row], name: str, fill: float = -3.0) -> torch.Tensor:
    """The numbers `name` of each token as [B,T], with `fill` elsewhere."""
    out_bt = torch.full((len(rows), WIDTH), fill, dtype=torch.float64)
    for i, row in enumerate(rows):
        out_bt[i, row.at] = f64(getattr(row, name)) if row.at else f64([])
    return out_bt


def batch_of(rows: Sequence[Row], **fields: Any) -> Batch:
    mask_bt = torch.zeros(len(rows), WIDTH, dtype=torch.bool)
    for i, row in enumerate(rows):
        mask_bt[i, row.at] = True
    old_bt = spread(rows, "old")
    given: dict[str, Any] = {"old_bt": old_bt, "behavior_bt": old_bt, "ref_bt": spread(rows, "ref"), **fields}
    return Batch(
        mask_bt=mask_bt,
        group_b=torch.tensor([row.group for row in rows]),
        reward_b=f64([row.reward for row in rows]),
        truncated_b=torch.tensor([row.truncated for row in rows]),
        correct_b=torch.tensor([row.reward > 0 for row in rows]),
        max_length=WIDTH,
        **given,
    )


def ratio(log: float) -> float:
    return math.exp(min(20.0, max(-20.0, log)))


def relative(rows: Sequence[Row], kind: str) -> list[float]:
    """Advantages by the rewards of the other rows of a group: 'std', 'mean' or 'others'; 0 for a lone row."""
    found = []
    for row in rows:
        rewards = [each.reward for each in rows if each.group == row.group]
        count, mean = len(rewards), sum(rewards) / len(rewards)
        if count == 1:
            found.append(0.0)
        elif kind == "others":
            found.append(row.reward - (sum(rewards) - row.reward) / (count - 1))
        else:
            deviation = math.sqrt(sum((x - mean) ** 2 for x in rewards) / (count - 1))
            found.append((row.reward - mean) / (deviation + 1e-6) if kind == "std" else row.reward - mean)
    return found


def whitened(rows: Sequence[Row], value_b: Sequence[float]) -> list[float]:
    """Values of rows less their mean over tokens, over the root of their variance over tokens."""
    each = [value for row, value in zip(rows, value_b, strict=True) for _ in range(row.length)]
    mean = sum(each) / len(each)
    variance = sum((x - mean) ** 2 for x in each) / len(each)
    return [(x - mean) / math.sqrt(variance + 1e-8) for x in value_b]


def clipped(low: float, high: float) -> Token:
    """PPO's surrogate and its slope: none where the clip acts."""

    def token(row: Row, t: int, advantage: float) -> tuple[float, float]:
        rho = ratio(row.new[t] - row.old[t])
        free, held = rho * advantage, min(1 + high, max(1 - low, rho)) * advantage
        if free <= held:
            return -free, -free
        return -held, 0.0

    return token


def reinforce(row: Row, t: int, advantage: float) -> tuple[float, float]:
    return -advantage * row.new[t], -advantage


def capped(row: Row, t: int, advantage: float) -> tuple[float, float]:
    weight = min(5.0, ratio(row.new[t] - row.old[t]))
    return -weight * advantage * row.new[t], -weight * advantage


Loss = tuple[float, list[list[float]]]


def summed(rows: Sequence[Row], advantage_b: Sequence[float], token: Token, weigh: str, kept: Sequence[bool]) -> Loss:
    """The loss of a step, and its slope at each token of each row."""
    counted = [row for row, keep in zip(rows, kept, strict=True) if keep and row.length]
    tokens, total, slopes = sum(row.length for row in counted), 0.0, []
    for row, advantage, keep in zip(rows, advantage_b, kept, strict=True):
        slopes.append([0.0] * row.length)
        for t in range(row.length if keep else 0):
            each = {
                "sequence": 1 / len(counted) / row.length,
                "token": 1 / tokens,
                "sum": 1 / len(counted),
                "constant": 1 / len(counted) / WIDTH,
            }
            value, slope = token(row, t, advantage)
            total += each[weigh] * value
            slopes[-1][t] = each[weigh] * slope
    return total, slopes


def of_sequences(rows: Sequence[Row], advantage_b: Sequence[float], low: float, high: float) -> Loss:
    """GSPO: one ratio per completion, the root of its length."""
    count, total, slopes = sum(row.length > 0 for row in rows), 0.0, []
    for row, advantage in zip(rows, advantage_b, strict=True):
        moved = sum(new - old for new, old in zip(row.new, row.old, strict=True)) / max(row.length, 1)
        alone = replace(row, at=[0], old=[0.0], new=[moved])
        value, slope = clipped(low, high)(alone, 0, advantage)
        total += value / count * (row.length > 0)
        slopes.append([slope / row.length / count] * row.length if row.length else [])
    return total, slopes


def compare(method: Any, batch: Batch, rows: Sequence[Row], expected: Loss) -> None:
    """Compare value and gradient of the whole step with `expected`, and of the step cut into single rows."""
    value, slopes = expected
    grad_bt = torch.zeros(batch.mask_bt.shape, dtype=torch.float64)
    for i, row in enumerate(rows):
        grad_bt[i, row.at] = f64(slopes[i]) if row.at else f64([])
    ready, logp_bt = method.prepare(batch), spread(rows, "new", fill=7.0).requires_grad_()
    whole = method.loss(logp_bt, ready).value
    (found_bt,) = torch.autograd.grad(whole, logp_bt)
    torch.testing.assert_close(whole.detach(), f64(value), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found_bt, grad_bt, rtol=1e-9, atol=1e-9)
    each = [torch.tensor([i]) for i in range(len(rows))]
    parts = sum(method.loss(logp_bt[row], ready.rows(row)).value for row in each)
    torch.testing.assert_close(parts.detach(), f64(value), rtol=1e-9, atol=1e-9)


def mixed(rows: Sequence[Row]) -> list[bool]:
    """Whether a row's group has right and wrong completions."""
    return [
        0 < sum(r.reward > 0 for r in rows if r.group == row.group) < sum(r.group == row.group for r in rows)
        for row in rows
    ]


def expected_of(name: str, rows: Sequence[Row]) -> Loss:
    """What a method's published formula gives with our defaults."""
    every = [True] * len(rows)
    if name == "gspo":
        return of_sequences(rows, relative(rows, "std"), 3e-4, 4e-4)
    if name == "dapo":
        late = 0.2 * WIDTH
        shaped = [replace(r, reward=r.reward + max(-1.0, min(0.0, (WIDTH - late - r.length) / late))) for r in rows]
        return summed(rows, relative(shaped, "std"), clipped(0.2, 0.28), "token", mixed(rows))
    if name == "reinforce_pp":
        return summed(rows, whitened(rows, [r.reward for r in rows]), clipped(0.2, 0.2), "token", every)
    if name == "reinforce_pp_baseline":
        return summed(rows, whitened(rows, relative(rows, "mean")), clipped(0.2, 0.2), "token", every)
    kind, token, weigh = {
        "grpo": ("std", clipped(0.2, 0.2), "sequence"),
        "dr_grpo": ("mean", clipped(0.2, 0.2), "constant"),
        "rloo": ("others", reinforce, "sum"),
        "cispo": ("std", capped, "token"),
    }[name]
    return summed(rows, relative(rows, kind), token, weigh, every)


NAMES = ("grpo", "dr_grpo", "rloo", "gspo", "gspo_token", "dapo", "cispo", "reinforce_pp", "reinforce_pp_baseline")


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_loops(name, far):
    for seed in range(6):
        rows = rows_of(seed, far)
        compare(grouprl.method(name), batch_of(rows), rows, expected_of(name.removesuffix("_token"), rows))


def divergence(estimator: str, d: float) -> tuple[float, float]:
    fell = math.exp(min(20.0, max(-20.0, -d)))
    return {"k1": (d, 1.0), "k2": (d * d / 2, d), "k3": (fell - 1 + d, 1 - fell)}[estimator]


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_divergences_are_those_of_loops(estimator, far):
    def token(row: Row, t: int, advantage: float) -> tuple[float, float]:
        value, slope = clipped(0.2, 0.2)(row, t, advantage)
        more, slant = divergence(estimator, row.new[t] - row.ref[t])
        return value + 0.1 * more, slope + 0.1 * slant

    for seed in range(4):
        rows = rows_of(seed, far)
        expected = summed(rows, relative(rows, "std"), token, "sequence", [True] * len(rows))
        compare(grouprl.method("grpo", kl_coef=0.1, kl_estimator=estimator), batch_of(rows), rows, expected)


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_sum"])
@pytest.mark.parametrize(
    ("part", "weight"),
    [
        ({"part": "truncated_importance", "high": 2.0}, lambda w: min(w, 2.0)),
        ({"part": "masked_importance", "low": 0.5, "high": 1.5}, lambda w: w if 0.5 <= w <= 1.5 else 0.0),
    ],
)
def test_corrections_of_the_sampler_are_those_of_loops(part, weight, level):
    def mismatch(row: Row, t: int) -> float:
        logs = [old - sampler for old, sampler in zip(row.old, row.sampler, strict=True)]
        return ratio({"token": logs[t], "sequence": sum(logs) / len(logs), "sequence_sum": sum(logs)}[level])

    def token(row: Row, t: int, advantage: float) -> tuple[float, float]:
        value, slope = clipped(0.2, 0.2)(row, t, advantage)
        factor = weight(mismatch(row, t))
        return factor * value, factor * slope

    advantage = {"part": "relative", "key": "group", "scale": "sample_std", "eps": 1e-6}
    spec = {"name": "mine", "advantage": advantage, "objective": {"part": "clipped"}, "aggregate": "token_mean"}
    method = compose({**spec, "token_weight": [{**part, "level": level}]}).method
    for seed in range(4):
        rows = rows_of(seed, 0.0)
        batch = batch_of(rows, behavior_bt=spread(rows, "sampler"))
        compare(method, batch, rows, summed(rows, relative(rows, "std"), token, "token", [True] * len(rows)))


@pytest.mark.parametrize(("gamma", "lam", "limits"), [(1.0, 0.95, False), (0.9, 0.8, True), (0.97, 0.0, True)])
def test_advantages_over_a_critic_are_those_of_loops(gamma, lam, limits):
    """δ = r + γ·V_next - V, A = δ + γλ·A_next; a row that a limit cut goes on with the final observation's value."""
    for seed in range(6):
        rows = rows_of(seed, 0.0)
        final_b = f64([row.final for row in rows]) if limits else None
        batch = batch_of(rows, value_bt=spread(rows, "value"), final_value_b=final_b)
        ready = grouprl.method("ppo", gamma=gamma, lam=lam, whiten=False).prepare(batch)
        for i, row in enumerate(rows):
            after, carried = row.final if limits and row.truncated else 0.0, 0.0
            for t in reversed(range(row.length)):
                paid = row.reward if t == row.length - 1 else 0.0
                carried = paid + gamma * after - row.value[t] + gamma * lam * carried
                after = row.value[t]
                assert float(ready.advantage_bt[i, row.at[t]]) == pytest.approx(carried, abs=1e-12)
                assert float(ready.return_bt[i, row.at[t]]) == pytest.approx(carried + after, abs=1e-12)
