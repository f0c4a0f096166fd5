"""Random batches that hold everything a method may ask for, and what to do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.edges import Edges
from grouprl.core.outputs import HEAD, OF_ROWS, PREFERENCE, parameter, stem

COMPONENTS = ("accuracy", "key_steps", "valid_steps", "format", "execution", "judge", "helpfulness", "correctness")
"""Names that some methods know parts of the reward by."""


@dataclass(frozen=True)
class Case:
    """A batch and the log-probs, entropies and values of the policy that is being trained."""

    batch: Batch
    logp_bt: Tensor
    entropy_bt: Tensor
    value_bt: Tensor
    cross_bt: Tensor

    def rows(self, index: Tensor) -> Case:
        leaves = (self.logp_bt, self.entropy_bt, self.value_bt, self.cross_bt)
        return Case(self.batch.rows(index), *(x[index] for x in leaves))


@dataclass(frozen=True)
class Outcome:
    """What a method makes of a case: loss, gradients and metrics."""

    value: Tensor
    grad_bt: Tensor
    entropy_grad_bt: Tensor
    value_grad_bt: Tensor
    cross_grad_bt: Tensor
    metrics: dict[str, Tensor]


def random_case(seed: int, sizes: Sequence[int] = (4, 3, 5, 2), width: int = 7, **how: Any) -> Case:
    """Sample a case with groups of `sizes`, rows of different lengths and log-ratios of about `drift`.

    `holes`: some positions inside a completion are not the policy's (tool output). `rewards` is 'real', 'binary' or
    'mixed' (binary, with both outcomes in every group of two or more). The same question gets the same case: its
    tensors are nobody's to change.
    """
    return _sampled(seed, tuple(sizes), width, **how)


@lru_cache(maxsize=64)
def _sampled(
    seed: int,
    sizes: tuple[int, ...],
    width: int,
    *,
    rewards: str = "real",
    on_policy: bool = False,
    equal_lengths: bool = False,
    holes: bool = True,
    drift: float = 0.4,
    dtype: torch.dtype = torch.float64,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    b = sum(sizes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    group_b = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    length_b = torch.full((b,), width - 2) if equal_lengths else torch.randint(1, width + 1, (b,), generator=g)
    mask_bt = torch.arange(width)[None] < length_b[:, None]
    if holes and not equal_lengths:
        hole_bt = torch.rand(b, width, generator=g) < 0.15
        hole_bt[:, 0] = False
        mask_bt &= ~hole_bt
    correct_b = torch.rand(b, generator=g) < 0.5
    if rewards == "mixed":
        start = 0
        for size in sizes:
            correct_b[start : start + 2] = torch.tensor([True, False])[:size]
            start += size
    reward_b = correct_b.double() if rewards != "real" else normal(b)
    logp_bt = -normal(b, width).abs() - 0.1
    old_bt = logp_bt.clone() if on_policy else logp_bt + drift * normal(b, width)
    greedy_g = (torch.rand(len(sizes), generator=g) < 0.5).double()
    turn_bt = torch.where(mask_bt, torch.arange(width)[None] // 3, -1)
    batch = Batch(
        mask_bt=mask_bt,
        group_b=group_b,
        reward_b=reward_b.to(dtype),
        old_bt=old_bt.to(dtype),
        behavior_bt=(old_bt if on_policy else old_bt + 0.1 * normal(b, width)).to(dtype),
        ref_bt=(logp_bt + 0.3 * normal(b, width)).to(dtype),
        entropy_bt=normal(b, width).abs().to(dtype),
        token_bt=torch.randint(0, 4, (b, width), generator=torch.Generator().manual_seed(seed + 1)),
        value_bt=normal(b, width).to(dtype),
        greedy_reward_b=greedy_g[group_b].to(dtype),
        turn_bt=turn_bt,
        turn_reward_bs=normal(b, int(turn_bt.max()) + 1).to(dtype),
        state_bs=torch.randint(0, 3, (b, int(turn_bt.max()) + 1), generator=g),
        valid_bs=torch.rand(b, int(turn_bt.max()) + 1, generator=torch.Generator().manual_seed(seed + 3)) < 0.7,
        agent_b=torch.randint(0, 2, (b,), generator=g),
        truncated_b=torch.rand(b, generator=g) < 0.25,
        correct_b=correct_b,
        max_length=width + 2,
    )
    case = Case(batch, logp_bt.to(dtype), normal(b, width).abs().to(dtype), normal(b, width).to(dtype), old_bt)
    return replace(case, batch=_with_extras(batch, seed), cross_bt=(-normal(b, width).abs()).to(dtype))


def _with_extras(batch: Batch, seed: int) -> Batch:
    """Add what only some methods ask for: keys, marks, statistics of the policy, the prompt's past, sources."""
    g = torch.Generator().manual_seed(seed + 2)
    (b, width), dtype = batch.size, batch.dtype

    def below(n: int, *shape: int) -> Tensor:
        return torch.randint(0, n, shape, generator=g)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    visits_g, mean_g, std_g, baseline_g = below(3, b), normal(b), normal(b).abs(), normal(b)
    visits_b = visits_g[batch.group_b]
    seen_b = (visits_b > 0).to(dtype)
    keys = {name: below(3, b) for name in ("answer", "form", "variant", "budget", "plan")}
    given = batch.replace(
        keys=keys,
        marks={"plan": batch.mask_bt & (torch.rand(b, width, generator=g) < 0.3)},
        stats={
            "certainty": normal(b, width).abs(),
            "influence": normal(b, width),
            "collision": (0.3 + torch.sin(3 * batch.old_bt).square()) / 2,
            "answer": -batch.entropy_bt,
            "duration": 0.5 + batch.entropy_bt,
            "progress": torch.sin(5 * batch.old_bt),
            "logp@0.8": batch.old_bt + 0.1 * normal(b, width),
            "value_after": batch.value_bt.roll(-1, 1) * 0.5,
            "post_value": batch.value_bt + 0.3 * torch.sin(7 * batch.old_bt),
            "missed": torch.cos(5 * batch.old_bt).abs(),
            "decoded": -torch.sin(9 * batch.old_bt).abs(),
            "best_after": torch.sin(3 * batch.old_bt),
            "expert": batch.ref_bt + 0.5 * torch.sin(7 * batch.old_bt),
            "logp@1.2": batch.old_bt + 0.1 * normal(b, width),
        },
        past={
            "visits": visits_b.to(dtype),
            "mean": mean_g[batch.group_b] * seen_b,
            "std": std_g[batch.group_b] * seen_b,
            "baseline": baseline_g[batch.group_b],
        },
        refs={
            name: batch.old_bt + 0.1 * torch.sin(k * batch.old_bt) for k, name in enumerate(("iterates", "mixed"), 2)
        },
        source_b=torch.where(torch.rand(b, generator=g) < 0.7, 0, below(len(SOURCES), b)),
        step=3,
        version_bt=torch.where(batch.mask_bt, 3 - torch.arange(width) % 3, -1),
        steps=10,
        last_entropy=0.7,
    )
    pair_b = torch.arange(b) // 2
    return given.replace(
        keys={
            **keys,
            "mismatched": (torch.arange(b) % 5 == 3).long(),
            "own": below(2, b),
            "cut": below(2, b),
            "opponent": torch.arange(b) % 2,
            "measure": _second(batch),
            "twin": _twins(batch),
            "shown": (-_twins(batch)).clamp(min=0),
            **dict.fromkeys(("episode", "review"), pair_b),
        },
        edges={"preferred": _preferences(batch), "similar": _similarity(batch)},
        marks={
            **given.marks,
            "said": ~batch.mask_bt & batch.mask_bt.flip(1).cummax(1).values.flip(1),
            "thought": batch.mask_bt & (torch.arange(width) < 3),
            "good": batch.mask_bt & (batch.entropy_bt > 0.8),
            "poor": batch.mask_bt & (batch.entropy_bt < 0.3),
        },
        rewards={
            "continuations": below(9, b).to(dtype),
            "margin": torch.cos(3 * batch.reward_b),
            "#density": (pair_b % 3).to(dtype) / 2,
            "#cost": torch.cos(4 * batch.reward_b),
            **{name: torch.sin((2 + i) * batch.reward_b) for i, name in enumerate(COMPONENTS)},
        },
        past={
            **given.past,
            "score_mean": torch.full_like(batch.reward_b, 0.2),
            "tie_margin": torch.full_like(batch.reward_b, 0.4),
            "group_weight": (1 + batch.group_b % 3).to(dtype) / 2,
            "advantage": normal(b),
            "reward_std": torch.full((b,), 1.5, dtype=dtype),
            "multiplier": torch.full((b,), 0.8, dtype=dtype),
            "root_weight": torch.full((b,), 0.3, dtype=dtype),
            "kl_weight": torch.full((b,), 0.6, dtype=dtype),
            "reward_mean": torch.full((b,), 0.25, dtype=dtype),
            "fewest_calls": visits_b.to(dtype) - 1,
            "q": torch.sin(3 * batch.reward_b),
            "v": torch.cos(5 * batch.reward_b),
        },
    )


def _second(batch: Batch) -> Tensor:
    """1 for the second row of each group."""
    return torch.tensor([int((batch.group_b[:i] == g).sum() == 1) for i, g in enumerate(batch.group_b)])


def _twins(batch: Batch) -> Tensor:
    """The number of its group for the first row of each, the same negative for the second, 0 for the others."""
    before_b = torch.tensor([int((batch.group_b[:i] == g).sum()) for i, g in enumerate(batch.group_b)])
    sign_b = (before_b == 0).long() - (before_b == 1).long()
    return sign_b * (1 + batch.group_b)


def _preferences(batch: Batch) -> Edges:
    """Three of four pairs of each group compared, by no order that a reward could explain."""
    i_bb, j_bb = torch.meshgrid(*2 * [torch.arange(len(batch.group_b))], indexing="ij")
    related_bb = (batch.group_b[:, None] == batch.group_b) & (i_bb < j_bb) & ((i_bb + j_bb) % 4 != 1)
    chance_bb = torch.sin(3.0 * i_bb + 5.0 * j_bb).to(batch.dtype) / 2 + 0.5
    return Edges.where(related_bb, chance_bb)


def _similarity(batch: Batch) -> Edges:
    """Cosines of the prompts of rows of different groups."""
    apart_bb = batch.group_b[:, None] != batch.group_b
    return Edges.where(apart_bb, torch.cos(1.0 + batch.group_b[:, None] * batch.group_b).to(batch.dtype))


def named_outputs(method: Method, cross_bt: Tensor, logp_bt: Tensor, batch: Batch) -> dict[str, Tensor]:
    """What a loss is given by name: cross-entropies, log-probs as values, and their sums as scores of rows."""
    score_b = torch.where(batch.mask_bt, logp_bt, 0).sum(1)
    named = [name for name in method.outputs if name not in ("log_prob", "entropy", "value")]
    known = {**dict.fromkeys(OF_ROWS, score_b), "action_value": logp_bt}
    numbered = {name: (score_b + parameter(name)).sin() for name in named if stem(name) in (HEAD, PREFERENCE)}
    return {name: known.get(name, cross_bt) for name in named} | numbered


def outcome(method: Method, case: Case, prepared: Batch | None = None) -> Outcome:
    """Loss, gradients and metrics of `case`; `prepared` are its rows of a step that was prepared as a whole."""
    ready = method.prepare(case.batch) if prepared is None else prepared
    given = (case.logp_bt, case.entropy_bt, case.value_bt, case.cross_bt)
    leaves = [x.clone().requires_grad_() for x in given]
    loss = method.loss(leaves[0], ready, leaves[1], outputs=named_outputs(method, leaves[3], leaves[0], ready))
    value, metrics = loss.value, dict(loss.metrics)
    if method.critic is not None:
        extra = method.value_loss(leaves[2], ready)
        value, metrics = value + extra.value, metrics | dict(extra.metrics)
    grads = [torch.zeros_like(x) for x in leaves]
    if value.requires_grad:
        got = torch.autograd.grad(value, leaves, allow_unused=True)
        grads = [zero if x is None else x for x, zero in zip(got, grads, strict=True)]
    return Outcome(value.detach(), *grads, metrics)


def in_pieces(method: Method, case: Case, pieces: Sequence[Tensor]) -> Outcome:
    """The outcome of one step computed in micro-batches of the rows `pieces`, put together again."""
    step = replace(case, batch=method.prepare(case.batch))
    value = torch.zeros((), dtype=case.batch.dtype)
    grads = [torch.zeros_like(case.logp_bt) for _ in range(4)]
    metrics: dict[str, Tensor] = {}
    for index in pieces:
        piece = step.rows(index)
        part = outcome(method, piece, piece.batch)
        value = value + part.value
        found = (part.grad_bt, part.entropy_grad_bt, part.value_grad_bt, part.cross_grad_bt)
        for whole, own in zip(grads, found, strict=True):
            whole[index] = own
        for key, x in part.metrics.items():
            metrics[key] = metrics.get(key, 0) + x
    return Outcome(value, *grads, metrics)


def pieces_of(method: Method, group_b: Tensor, g: torch.Generator) -> list[Tensor]:
    """Cut the rows at random, in random order, keeping together what the method couples."""
    unit_b = {"sequence": torch.arange(len(group_b)), "group": group_b, "batch": torch.zeros_like(group_b)}[
        method.couples
    ]
    units = unit_b.unique()
    units = units[torch.randperm(len(units), generator=g)]
    cuts = torch.randint(0, 4, (len(units),), generator=g)
    pieces = [torch.isin(unit_b, units[cuts == c]).nonzero()[:, 0] for c in cuts.unique()]
    return [p[torch.randperm(len(p), generator=g)] for p in pieces]


def padded(case: Case, left: int, right: int, garbage: float, *, said: bool = False) -> Case:
    """The same case with more positions, and `garbage` at every position outside the mask.

    `said`: the environment's tokens keep their values, for methods that read them.
    """
    mask_bt = torch.nn.functional.pad(case.batch.mask_bt, (left, right))
    known_bt = torch.nn.functional.pad(case.batch.mask_bt | (case.batch.marks["said"] & said), (left, right))

    def pad(x: Any) -> Any:
        if isinstance(x, Mapping):
            return {key: pad(value) for key, value in x.items()}
        if not isinstance(x, Tensor) or x.shape != case.batch.mask_bt.shape or x is case.batch.mask_bt:
            return x
        fill = garbage if x.is_floating_point() else -1
        return torch.nn.functional.pad(x, (left, right), value=0).masked_fill(~known_bt, fill)

    fields = {name: pad(x) for name, x in vars(case.batch).items()}
    if said:
        fields["marks"] |= {"said": torch.nn.functional.pad(case.batch.marks["said"], (left, right))}
    batch = Batch(**{**fields, "mask_bt": mask_bt})
    return Case(batch, *(pad(x) for x in (case.logp_bt, case.entropy_bt, case.value_bt, case.cross_bt)))


def close(actual: Tensor, expected: Tensor, rtol: float, atol: float, told: str = "") -> None:
    """Assert what `torch.testing.assert_close` does, which takes fifty times as long where all is well."""
    alike = actual.dtype == expected.dtype and actual.shape == expected.shape
    if not (alike and torch.allclose(actual, expected, rtol=rtol, atol=atol)):
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda m: f"{told}: {m}")


def same(a: Outcome, b: Outcome, tolerance: float = 1e-10) -> None:
    """Assert equality of two outcomes: value, gradients and metrics."""
    for name in ("value", "grad_bt", "entropy_grad_bt", "value_grad_bt", "cross_grad_bt"):
        close(getattr(a, name), getattr(b, name), tolerance, tolerance, name)
    assert a.metrics.keys() == b.metrics.keys()
    for key in a.metrics:
        close(a.metrics[key], b.metrics[key], tolerance, tolerance, key)
