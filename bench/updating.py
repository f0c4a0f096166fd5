"""Ways through the model in an update: padded, packed, shared prompts, in turns on the same rows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grouprl.policy import CausalPolicy, Tokens, build_tiny
from grouprl.policy.passes import AUTO, PADDED, PassSettings, padding_ratio, sharing_ratio
from race import spread
from timing import alternate, cpu, ratios

HEAD = ["rows", "engine", "way", "plain, s", "this way, s", "faster", "quartiles", "tokens saved"]
HIDDEN, LAYERS = 128, 4


@dataclass(frozen=True)
class Case:
    """Rows that go through the model in a plain way and in a better one."""

    words: str
    tokens: Tokens
    engine: str
    way: str
    plain: PassSettings
    better: PassSettings
    ratio: float
    """Tokens of the plain way over those of the better one."""


def rows(prompts: int, group: int, prompt: int, completions: list[int]) -> Tokens:
    """Random rows of these lengths."""
    rng = np.random.default_rng(2)

    def sample(count: int) -> list[int]:
        return rng.integers(3, 30, count).tolist()

    requested = [[1, *sample(prompt - 1)] for _ in range(prompts)]
    return Tokens.of([p for p in requested for _ in range(group)], [sample(n) for n in completions])


def cases() -> list[Case]:
    """Skewed lengths, and long prompts with many completions."""
    sampled = np.random.default_rng(0).lognormal(np.log(24), 0.9, 96)
    skewed = rows(96, 1, 8, np.clip(sampled.round().astype(int), 1, 192).tolist())
    long = rows(2, 8, 384, [48] * 16)
    packed, shared = PassSettings("on", "off", "off"), PassSettings("off", "on", "off")
    apart = PassSettings("auto", "off", "off")
    return [
        Case("96 completions, skewed, ≤ 192", skewed, "transformers", "packed", PADDED, packed, padding_ratio(skewed)),
        Case("the same", skewed, "lean", "packed (against padded)", PADDED, apart, padding_ratio(skewed)),
        Case("2 prompts of 384 × 8 of 48", long, "transformers", "shared", PADDED, shared, sharing_ratio(long)),
        Case("the same", long, "lean", "shared", apart, AUTO, sharing_ratio(long)),
    ]


def policy_of(engine: str, passes: PassSettings) -> CausalPolicy:
    """A fresh tiny model run in one way."""
    sizes = {"hidden": HIDDEN, "layers": LAYERS, "heads": 4, "intermediate": 11 * HIDDEN // 4, "max_positions": 512}
    model, tokenizer = build_tiny("0123456789abcdefghijklmnopqrstuvwxyz", **sizes)
    engine = "transformers" if passes.packing == "off" else engine
    return CausalPolicy(model, tokenizer, engine=engine, passes=passes, token_budget=10**6)


def compare(case: Case, rounds: int) -> dict[str, Any]:
    """Time forward and backward of all log-probs in both ways."""
    cotangent_bt = torch.ones(len(case.tokens), case.tokens.max_response)

    def step(passes: PassSettings) -> Any:
        policy = policy_of(case.engine, passes)
        return lambda: policy.backward(case.tokens, {"log_prob": cotangent_bt})

    found = alternate({"plain": step(case.plain), "better": step(case.better)}, rounds)
    ratio = ratios(found["plain"], found["better"])
    return {
        "plain": cpu(found["plain"]),
        "better": cpu(found["better"]),
        "ratio": statistics.median(ratio),
        "quartiles": spread(ratio),
        "tokens": case.ratio,
    }


def row(case: Case, found: dict[str, Any]) -> list[str]:
    """One line of the table."""
    lower, upper = found["quartiles"]
    return [
        case.words,
        case.engine,
        case.way,
        f"{found['plain']:.3f}",
        f"{found['better']:.3f}",
        f"{found['ratio']:.2f}",
        f"{lower:.2f} … {upper:.2f}",
        f"{case.ratio:.2f}",
    ]
