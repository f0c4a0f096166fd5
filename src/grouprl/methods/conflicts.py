"""Parts that contradict each other: refusals and warnings for methods put together by hand."""

from __future__ import annotations

from collections.abc import Collection

import torch

from grouprl.algorithms.method import Method
from grouprl.core.batch import Batch

Refusal = tuple[str, str, str]
"""Value, rule and remedy: the three sentences of an InputError."""
SAMPLING = ("curriculum", "allocation", "sampling", "refill")
"""Stages that act on prompts that are sampled."""


def conflicts(method: Method, touched: Collection[str]) -> tuple[list[Refusal], list[str]]:
    """Return (refusals, warnings) about combinations in which one of the stages `touched` takes part.

    The caller removes what the published entry itself has, so that only changes are reported.
    """
    refusals = [
        *(_critic_and_advantage(method) if {"critic", "advantage"} & set(touched) else []),
        *(_greedy(method) if {"advantage", "reward_transform"} & set(touched) else []),
        *(_single_completions(method) if {"buffer", "advantage_transform"} & set(touched) else []),
        *(_before_training(method) if {"curriculum", "buffer", "pretrain", "critic"} & set(touched) else []),
    ]
    warnings = [
        *(_ratio_and_aggregate(method) if {"objective", "aggregate"} & set(touched) else []),
        *(_two_kl_terms(method) if {"reward_transform", "regularize"} & set(touched) else []),
        *(_on_policy(method) if {"objective"} & set(touched) else []),
        *(_for_nothing(method) if {"augment", "reward_transform", "buffer", *SAMPLING} & set(touched) else []),
    ]
    return refusals, warnings


def _ratio_and_aggregate(method: Method) -> list[str]:
    level = method.objective.settings().get("ratio", "token")
    if level == "token" or _sequences_weigh_the_same(method):
        return []
    return [
        f"aggregate '{method.aggregate.name}' with a ratio at {level} level weighs long completions more (as LUSPO and "
        "TRL's default loss do): the ratio is one decision per completion, so its gradient grows with the length. "
        "aggregate: sequence_mean (GSPO) weighs all the same"
    ]


def _sequences_weigh_the_same(method: Method) -> bool:
    """Return whether two completions of 1 and 3 tokens get the same total weight."""
    mask_bt = torch.tensor([[True, False, False], [True, True, True]])
    group_b, reward_b = torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 0.0])
    batch = Batch(mask_bt=mask_bt, group_b=group_b, reward_b=reward_b, max_length=4)
    weight_b = method.aggregate(batch).sum(1)
    return bool(torch.isclose(weight_b[0], weight_b[1]))


def _critic_and_advantage(method: Method) -> list[Refusal]:
    reads_values = "value_bt" in method.advantage.needs()
    given = any("value_bt" in part.supplies() for part in method.pretrain)
    if reads_values and method.critic is None and not given:
        return [
            (
                f"advantage '{method.advantage.name}' without a critic",
                "it reads the values of a critic, and no part trains one",
                "Add a critic part, or start from {base: ppo}",
            )
        ]
    if method.critic is not None and not reads_values:
        return [
            (
                f"critic '{method.critic.name}' with advantage '{method.advantage.name}'",
                "the advantage never reads the critic's values, so the critic would be trained for nothing",
                "Drop the critic (critic: null), or use advantage: gae",
            )
        ]
    return []


def _before_training(method: Method) -> list[Refusal]:
    """Return refusals of parts that need a part of `pretrain` or a critic which the method lacks."""
    names = [part.name for part in method.pretrain]
    readers = [part for part in (method.curriculum, method.buffer) if part is not None]
    found = [
        (
            f"{part.kind} '{part.name}' without pretrain 'initial_completions'",
            "it chooses by the policy's results before training, which only that part measures",
            "Set pretrain: [initial_completions]",
        )
        for part in readers
        if part.name in ("initial_rate", "reference_rows") and "initial_completions" not in names
    ]
    if "rejection_step" in names and "initial_completions" not in names[: names.index("rejection_step")]:
        rule = "it imitates completions that only 'initial_completions' keeps, if it comes first"
        remedy = "Set pretrain: [initial_completions, rejection_step]"
        found.append(("pretrain 'rejection_step' without 'initial_completions' before it", rule, remedy))
    if "value_pretraining" in names and method.critic is None:
        rule = "it fits the head of a critic, and no part trains one"
        found.append(("pretrain 'value_pretraining' without a critic", rule, "Add a critic part, or drop that part"))
    return found


def _single_completions(method: Method) -> list[Refusal]:
    if method.buffer is None or method.buffer.name != "sample_buffer":
        return []
    if any(part.name == "stored_advantage" for part in method.advantage_transform):
        return []
    return [
        (
            "buffer 'sample_buffer' without advantage_transform 'stored_advantage'",
            "it replays single completions, which have no group to be compared with, only their stored advantage",
            "Set filter: [replay_apart] and advantage_transform: [stored_advantage], or base: skywork_r1v2",
        )
    ]


def _for_nothing(method: Method) -> list[str]:
    """Return warnings about parts whose results no other part uses."""
    found = []
    if any(p.name == "continuations" for p in method.augment) and "rewards.continuations" not in method.needs():
        found.append(
            "augment: continuations samples completions for nothing: no part reads how many were right. "
            "Add reward_transform: [continuation_reward]"
        )
    if method.buffer is not None and method.buffer.name == "demonstrations":
        stages = [(stage, getattr(method, stage)) for stage in SAMPLING]
        idle = [f"{stage}: {p.name}" for stage, p in stages if p is not None]
        idle += [f"augment: {p.name}" for p in method.augment]
        found += [f"{name} has no effect: no prompt is sampled with buffer: demonstrations" for name in idle]
    return found


def _greedy(method: Method) -> list[Refusal]:
    reader = next((p for p in method.parts() if "greedy_reward_b" in p.needs()), None)
    if reader is not None and not method.greedy_baseline:
        return [
            (
                f"{reader.kind} '{reader.name}' without greedy completions",
                "it compares each reward with that of a greedy completion, which is sampled only if the method asks "
                "for it",
                "Set greedy_baseline: true",
            )
        ]
    return []


def _two_kl_terms(method: Method) -> list[str]:
    terms = [
        f"{stage}: {p.name}"
        for stage in ("reward_transform", "regularize")
        for p in getattr(method, stage)
        if _is_kl(p.name)
    ]
    if len(terms) < 2:
        return []
    return [f"the KL to the reference counts {len(terms)} times ({', '.join(terms)}); one term is usual"]


def _on_policy(method: Method) -> list[str]:
    corrects = bool({"old_bt", "behavior_bt"} & set(method.objective.needs()))
    name = method.objective.name
    if not corrects and not method.on_policy:
        return [
            f"'{name}' has no ratio that corrects for drift; set on_policy: true to limit runs to one update per "
            "rollout"
        ]
    if corrects and method.on_policy:
        return [
            f"'{name}' allows several updates per rollout, but the base allows one; set on_policy: false to use them"
        ]
    return []


def _is_kl(name: str) -> bool:
    return "kl" in name.split("_")
