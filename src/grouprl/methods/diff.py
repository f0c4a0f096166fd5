"""The exact difference of two methods: part by part, setting by setting, and in numbers on the same completions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from grouprl.algorithms.augment.papers.preferences.similar_prompts import SIMILAR
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import Part
from grouprl.core.batch import Batch
from grouprl.core.edges import Edges
from grouprl.core.json_types import JsonObject
from grouprl.core.outputs import ENTROPY, LOG_PROB, OF_ROWS, VALUE, stem
from grouprl.methods.compose import STAGES, flat_part
from grouprl.methods.describe import staged
from grouprl.methods.registry import Entry

if TYPE_CHECKING:
    from torch import Tensor

TAKEN_VALUE = "action_value"
"""Output of a value learner: the value of the action taken."""


@dataclass(frozen=True)
class ContrastExample:
    """Completions on which two methods are compared; `log_ratio` is logp - old_logp at the tokens of each
    completion."""

    title: str
    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    log_ratio: tuple[tuple[float, ...], ...] = ()
    groups: tuple[int, ...] = ()


EXAMPLES = (
    ContrastExample("one correct completion of four, on policy", (1, 0, 0, 0), (4, 2, 2, 1)),
    ContrastExample(
        "the same after the policy has moved (ratios between 0.61 and 1.65)",
        (1, 0, 0, 0),
        (4, 2, 2, 1),
        ((0.1, 0.5, -0.4, 0.0), (0.3, -0.5), (-0.1, 0.05), (-0.3,)),
    ),
    ContrastExample(
        "a mixed group beside an easy one", (1, 0, 1, 1, 1, 0), (2, 1, 2, 2, 1, 1), groups=(0, 0, 1, 1, 1, 1)
    ),
)


def example_batch(example: ContrastExample) -> tuple[Batch, Tensor]:
    """Return the batch and the log-probs of an example; other fields that a method may need have neutral values.

    The reference is the old policy, the sampler exact, values and greedy rewards 0, entropy 1 nat, nothing truncated;
    one variant of each prompt, a plan for each completion, no budget, nothing known from before, the run's first step.
    """
    length_b = torch.tensor(example.lengths)
    b, t = len(length_b), int(length_b.max())
    mask_bt = torch.arange(t)[None] < length_b[:, None]
    old_bt = torch.full((b, t), -1.0, dtype=torch.float64)
    shift_bt = torch.zeros_like(old_bt)
    for row, values in enumerate(example.log_ratio):
        shift_bt[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
    reward_b, zero_bt = torch.tensor(example.rewards, dtype=torch.float64), torch.zeros_like(old_bt)
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.tensor(example.groups or (0,) * b),
        reward_b=reward_b,
        old_bt=old_bt,
        behavior_bt=old_bt,
        ref_bt=old_bt,
        refs={"iterates": old_bt, "mixed": old_bt},
        entropy_bt=zero_bt + 1,
        value_bt=zero_bt,
        greedy_reward_b=torch.zeros_like(reward_b),
        token_bt=torch.arange(mask_bt.numel()).reshape(mask_bt.shape),
        turn_bt=torch.where(mask_bt, 0, -1),
        truncated_b=torch.zeros(b, dtype=torch.bool),
        correct_b=reward_b > 0,
        max_length=t,
        step=0,
        steps=10,
        last_entropy=1.0,
    )
    return _with_mappings(batch, old_bt), old_bt + shift_bt


def _with_mappings(batch: Batch, old_bt: Tensor) -> Batch:
    """Add the neutral entries of the batch's mappings, and one score per completion as its only segment."""
    zero_b, zero = torch.zeros_like(batch.reward_b), torch.zeros_like(batch.group_b)
    return batch.replace(
        turn_reward_bs=batch.reward_b[:, None],
        edges={SIMILAR: Edges(zero.new_zeros(0, 2), zero_b[:0])},
        state_bs=zero[:, None],
        rewards={
            **dict.fromkeys(
                ("continuations", "#density", "#cost", "key_steps", "valid_steps", "execution", "judge", "margin"),
                zero_b,
            ),
            **dict.fromkeys(("accuracy", "format", "helpfulness", "correctness"), batch.reward_b),
        },
        keys={
            "answer": batch.reward_b.long(),
            "plan": torch.arange(len(zero)),
            "own": zero + 1,
            "episode": torch.arange(len(zero)),
            "review": torch.arange(len(zero)),
            **dict.fromkeys(
                ("form", "variant", "budget", "cut", "opponent", "mismatched", "measure", "twin", "shown"), zero
            ),
        },
        agent_b=zero,
        valid_bs=torch.ones_like(batch.mask_bt[:, :1]),
        marks=dict.fromkeys(("plan", "thought", "good", "poor", "said"), torch.zeros_like(batch.mask_bt)),
        stats={
            **dict.fromkeys(("certainty", "influence", "progress"), torch.zeros_like(old_bt)),
            "answer": old_bt,
            "duration": torch.ones_like(old_bt),
            "logp@0.8": old_bt,
            "logp@1.2": old_bt,
            "expert": old_bt,
            "value_after": torch.zeros_like(old_bt),
            "post_value": torch.zeros_like(old_bt),
            "missed": torch.zeros_like(old_bt),
            "decoded": torch.full_like(old_bt, -math.log(2)),
            "best_after": torch.zeros_like(old_bt),
            "collision": torch.full_like(old_bt, 0.5),
        },
        past={
            **dict.fromkeys(("visits", "mean", "std", "baseline", "advantage", "fewest_calls", "v"), zero_b),
            **dict.fromkeys(("score_mean", "reward_mean", "multiplier", "root_weight", "kl_weight"), zero_b),
            **dict.fromkeys(("reward_std", "group_weight", "density_ratio"), zero_b + 1),
            "q": batch.reward_b,
        },
    )


def blank_outputs(method: Method, logp_bt: Tensor, mask_bt: Tensor) -> dict[str, Tensor]:
    """Return zeros, [B,T], for each of the model's outputs that the loss reads by name; as values of actions their
    log-probs, and as scores of rows the sums of these, [B].
    """
    named = [name for name in method.outputs if name not in (LOG_PROB, ENTROPY, VALUE)]
    score_b = torch.where(mask_bt, logp_bt, 0).sum(1)
    known = {**dict.fromkeys(OF_ROWS, score_b), TAKEN_VALUE: logp_bt}
    return {name: known.get(stem(name), torch.zeros_like(logp_bt)) for name in named}


def numbers(method: Method, example: ContrastExample) -> list[JsonObject]:
    """Return the given facts of each completion of the example, and its advantages and dLoss/dlogp per token."""
    batch, logp_bt = example_batch(example)
    ready = method.compute_loss_weights(method.compute_advantages(batch))
    logp_bt.requires_grad_()
    value = method.loss(logp_bt, ready, batch.entropy_bt, outputs=blank_outputs(method, logp_bt, ready.mask_bt)).value
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    advantage_bt, group_b = ready.need("advantage_bt", "numbers"), batch.group_b.tolist()
    ratio_bt = (logp_bt.detach() - batch.need("old_bt", "numbers")).exp()
    return [
        {
            "group": group_b[i],
            "last_of_group": group_b[i + 1 : i + 2] not in ([], [group_b[i]]),
            "reward": example.rewards[i],
            "length": length,
            "ratio": ratio_bt[i, :length].tolist(),
            "advantage": advantage_bt[i, :length].tolist(),
            "gradient": grad_bt[i, :length].tolist(),
        }
        for i, length in enumerate(example.lengths)
    ]


def contrast(a: Entry, b: Entry) -> JsonObject:
    """Return the difference of two entries as plain data: parts, settings and numbers."""
    one, two = a.build(), b.build()
    parts = [row for stage in STAGES for row in _stage_rows(stage, one, two)]
    both = [k for k in a.settings if k in b.settings]
    return {
        "a": a.name,
        "b": b.name,
        "parts": parts,
        "settings": [
            {"setting": k, "a": a.settings[k], "b": b.settings[k]} for k in both if a.settings[k] != b.settings[k]
        ],
        "only_a": [k for k in a.settings if k not in both],
        "only_b": [k for k in b.settings if k not in both],
        "examples": [{"title": e.title, "a": numbers(one, e), "b": numbers(two, e)} for e in EXAMPLES],
    }


def _stage_rows(stage: str, one: Method, two: Method) -> list[dict[str, object]]:
    ours, theirs = ([p for s, p in staged(m) if s == stage] for m in (one, two))
    rows = []
    for i in range(max(len(ours), len(theirs))):
        p, q = (parts[i] if i < len(parts) else None for parts in (ours, theirs))
        rows.append({"stage": stage, "same": p == q, "a": _words(p), "b": _words(q), "settings": _changes(p, q)})
    return rows


def _words(part: Part | None) -> str:
    return "—" if part is None else f"{part.name}: {part.words()}"


def _changes(p: Part | None, q: Part | None) -> dict[str, list[object]]:
    """Return the settings in which two parts of the same name differ."""
    if p is None or q is None or p.name != q.name:
        return {}
    ours, theirs = flat_part("", p), flat_part("", q)
    names = [name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)]
    return {name.removeprefix("."): [ours.get(name), theirs.get(name)] for name in names}
