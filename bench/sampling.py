"""Sampling beside `generate` of transformers: the same model, prompts and lengths in one process, taking turns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from grouprl.policy import CausalPolicy, Tokens, build_tiny
from grouprl.policy.language.arithmetic import Matrices, rate
from grouprl.rollout import generate
from grouprl.training.profile import Work
from jobs import Groups
from race import spread
from timing import alternate, cpu, ratios

ALPHABET = "0123456789+=| abcdefghijklmnopqrstuvwxyz"
HEAD = ["case", "rows × tokens", "generate, s", "grouprl, s", "CPU", "quartiles", "wall", "goal", "products, s", "over"]


@dataclass(frozen=True)
class Case(Groups):
    """One comparison. Lengths in tokens; `skewed` samples lengths between 1 and `tokens`, most of them short."""

    prompt: int
    tokens: int
    goal: float
    skewed: bool = False
    engine: str = "lean"
    hidden: int = 128
    layers: int = 4


CASES = (
    Case("equal lengths, batch 512, 0.16 M", 32, 16, 8, 16, 1.2, hidden=64, layers=3),
    Case("equal lengths, batch 512, 0.81 M", 32, 16, 8, 16, 1.2),
    Case("equal lengths, batch 256, 0.81 M", 16, 16, 9, 32, 1.2),
    Case("one prompt, batch 8, 0.81 M", 1, 8, 16, 32, 2.0),
    Case("one prompt, batch 1, 0.81 M", 1, 1, 16, 32, 2.0),
    Case("skewed lengths, batch 256, 0.81 M", 16, 16, 16, 64, 2.0, skewed=True),
    Case("reading alone: 4 prompts of 256 × 16", 4, 16, 256, 1, 16.0),
    Case("long prompts: 4 of 256 × 16, 32 tokens", 4, 16, 256, 32, 2.0),
    Case("any architecture (through transformers), batch 256", 16, 16, 9, 32, 1.0, engine="transformers"),
    Case("the same, skewed lengths", 16, 16, 16, 64, 1.0, skewed=True, engine="transformers"),
)


class EndAt(StoppingCriteria):
    """Ends each row after its own number of new tokens."""

    def __init__(self, prompt: int, length_b: torch.Tensor) -> None:
        self.prompt, self.length_b = prompt, length_b

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] - self.prompt >= self.length_b


def policy_of(case: Case) -> CausalPolicy:
    """A fresh tiny model that never ends by itself."""
    sizes = {"hidden": case.hidden, "layers": case.layers, "heads": 4, "intermediate": 11 * case.hidden // 4}
    model, tokenizer = build_tiny(ALPHABET, max_positions=512, **sizes)
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    return CausalPolicy(model, tokenizer, engine=case.engine)


def lengths(case: Case) -> list[int]:
    """Completion lengths: all alike, or log-normal with a median of a fifth of the longest."""
    if not case.skewed:
        return [case.tokens] * case.rows
    sampled = np.random.default_rng(0).lognormal(np.log(case.tokens / 5), 0.8, case.rows)
    found = np.clip(sampled.round().astype(int), 1, case.tokens)
    found[0] = case.tokens
    return found.tolist()


def compare(case: Case, rounds: int) -> dict[str, Any]:
    """Time both, and what the products alone would take."""
    policy, length_b = policy_of(case), lengths(case)
    rng = np.random.default_rng(1)
    prompts = [[1, *rng.integers(3, 30, case.prompt - 1).tolist()] for _ in range(case.prompts)]
    ids = torch.tensor([p for p in prompts for _ in range(case.group)])
    ends = StoppingCriteriaList([EndAt(case.prompt, torch.tensor(length_b))]) if case.skewed else None

    def theirs() -> None:
        policy.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=case.tokens,
            pad_token_id=0,
            stopping_criteria=ends,
        )

    def ours() -> Tokens:
        sampled = generate(
            policy, prompts, n=case.group, max_new_tokens=case.tokens, seeds=range(case.rows), budgets=length_b
        )
        return sampled.tokens

    found = alternate({"theirs": theirs, "ours": ours}, rounds)
    work = Work(Matrices.of(policy.model))
    work.sample(ours())
    products, ratio = sum(work.seconds(rate).values()), ratios(found["theirs"], found["ours"])
    return {
        "generate": cpu(found["theirs"]),
        "grouprl": cpu(found["ours"]),
        "ratio": statistics.median(ratio),
        "quartiles": spread(ratio),
        "wall": statistics.median(ratios(found["theirs"], found["ours"], "wall")),
        "goal": case.goal,
        "products": products,
        "over_products": cpu(found["ours"]) / products,
    }


def row(case: Case, found: dict[str, Any]) -> list[str]:
    """One line of the table."""
    lower, upper = found["quartiles"]
    return [
        case.words,
        f"{case.rows} × {'≤ ' if case.skewed else ''}{case.tokens}",
        f"{found['generate']:.3f}",
        f"{found['grouprl']:.3f}",
        f"{found['ratio']:.2f}",
        f"{lower:.2f} … {upper:.2f}",
        f"{found['wall']:.2f}",
        f"{case.goal:g}",
        f"{found['products']:.4f}",
        f"{found['over_products']:.1f}",
    ]
