"""The page about a pretrained model's training step."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from report import markdown

GOALS = {"float32": 3.5, "onednn": 3.5, "mixed": 6.0}
"""How many times as fast as TRL each precision should be."""
MEMORY_GOAL, USEFUL_GOAL = 1 / 3, 0.65
ALL_ROWS = 64
"""Rows of a step, which TRL by its defaults passes through the model all at once."""
WORDS = {
    "float32": "`precision: float32` (torch's own products)",
    "onednn": "`precision: onednn` (float32 by oneDNN)",
    "mixed": "`precision: mixed` (products in bfloat16)",
}
THEIRS = {
    "float32": "TRL in float32 (torch's own products)",
    "onednn": "TRL in float32, by oneDNN",
    "bfloat16": "TRL in bfloat16",
}

PAGE = """# Speed on a pretrained model

Measured by `bench/pretrained.py`, a part of `make bench`: SmolLM2-135M-Instruct, sums asked in its chat template, 8
prompts × 8 completions of at most 24 tokens, one optimiser step per rollout, a reward that varies in nearly every
group. Both libraries take their steps in turn, in processes of their own, after one that is not counted; each line of
ours was raced by the line of TRL's below it, which multiplies by the same library. Seconds are {clock}.

A ratio is TRL's cost over ours: the geometric mean over the pairs of steps, with its 95 % interval by Student's
distribution. A goal is met, or missed, where the whole interval lies on that side of it. `useful` is what the matrix
products and the attention that a step cannot do without take by themselves, in the type in use and by the same kernels,
over the step's seconds: what is computed anew counts as not useful. Peak memory is that of the whole process.

{machines}

## What makes the difference

- A pass holds at least 1,024 tokens however wide the layers are, so that weights are joined and their gradients added
  up twice instead of three times, and the output layer takes at least 128 positions at a time (21 before), so that its
  gradient of 113 MB is passed over some 11 times instead of 64.
- `precision: onednn`: on some processors oneDNN alone uses the widest vector instructions. Results are float32 with
  other last bits, so it is taken only where it is written, or where `auto` finds it faster.
- `precision: mixed`: products in bfloat16, of float32 weights, where the processor multiplies so. What enters a product
  is kept rounded, half the bytes, so that a pass holds twice the tokens; old log-probs are those that the update
  computes anyway; the slopes of log-probs are kept for the backward pass, rounded as its products need them.
- Gradients are allocated as they come: while a pass is read there are none, and they replace its activations.
- What is left beside products: softmax over 49,152 entries; attention in small matrices; elementwise passes; weights,
  which are rounded anew in each pass.
"""

MACHINE = """## {title}

{facts}

{steps}

{goals}

Where our step goes, in seconds per step; in parentheses what the products alone take. Spans are those of
`grouprl train --profile`.

{parts}
"""


def page(results: dict[str, Any]) -> str:
    """Return the text of docs/bench_pretrained.md."""
    clock = "the wall clock's" if any(_facts(found).get("gpu") for found in results.values()) else "the processor's"
    return PAGE.format(clock=clock, machines="\n".join(section(*item) for item in results.items()))


def section(kind: str, found: dict[str, Any]) -> str:
    """Return what was measured on one kind of processor."""
    legs = found["legs"]
    head = ["who", "s/step", "ratio", "ratio per token", "peak memory, MB", "tokens", "useful", "steps"]
    lines = [*goals(legs), *(f"- {note}" for note in found.get("notes", ())), *_without_bfloat16(found)]
    return MACHINE.format(
        title=f"On a processor with {kind}" if "gpu" not in _facts(found) else f"On {kind}",
        facts=", ".join(f"{name} {value}" for name, value in _facts(found).items()),
        steps=markdown(head, step_rows(legs)),
        goals="\n".join(lines),
        parts=markdown(["part", *legs], part_rows(legs)),
    )


def _facts(found: dict[str, Any]) -> dict[str, str]:
    """Return the facts of the machine at the latest of its legs."""
    facts: dict[str, str] = max((leg["machine"] for leg in found["legs"].values()), key=lambda each: each["date"])
    return facts


def _without_bfloat16(found: dict[str, Any]) -> Iterator[str]:
    """Say why `mixed` was not raced where this processor does not multiply bfloat16 by itself."""
    if "mixed" not in found["legs"] and found["bfloat16"] <= 1:
        what = f"products in bfloat16 take {1 / found['bfloat16']:.1f} times as long here as those in float32"
        yield f"- `precision: mixed` and TRL in bfloat16 were not raced: {what}."


def step_rows(legs: dict[str, Any]) -> list[list[str]]:
    """Return two rows for each pair."""
    rows = []
    for name, leg in legs.items():
        ratios = [spelt(leg["ratio"].get(what)) for what in ("step", "token")] if "ratio" in leg else ["", ""]
        rows.append([WORDS[name], *_cost(leg["ours"], *ratios), f"{leg['profile']['useful']:.0%}", _count(leg["ours"])])
        if "theirs" in leg:
            rows.append([THEIRS[leg["theirs_dtype"]], *_cost(leg["theirs"], "", ""), "", _count(leg["theirs"])])
    return rows


def spelt(ratio: list[float] | None) -> str:
    """Return a ratio with its interval."""
    return "" if ratio is None else f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def _cost(found: dict[str, Any], per_step: str, per_token: str) -> list[str]:
    memory, tokens = f"{found['rss_mb']:,.0f}", f"{median(found['tokens']):.0f}"
    return [f"{median(found['seconds']):.1f}", per_step, per_token, memory, tokens]


def _count(found: dict[str, Any]) -> str:
    return str(len(found["seconds"]))


def part_rows(legs: dict[str, Any]) -> list[list[str]]:
    """Return one row for each part that took a hundredth of a step or more anywhere."""
    spent = {name: leg["profile"]["seconds"] for name, leg in legs.items()}
    parts = dict.fromkeys(part for seconds in spent.values() for part in seconds)
    shown = [part for part in parts if any(s.get(part, 0) > 0.01 * sum(s.values()) for s in spent.values())]

    def cell(name: str, part: str) -> str:
        alone = legs[name]["profile"]["products"].get(part)
        return f"{spent[name].get(part, 0.0):.2f}" + ("" if alone is None else f" ({alone:.2f})")

    return [[part, *(cell(name, part) for name in legs)] for part in shown]


def goals(legs: dict[str, Any]) -> Iterator[str]:
    """Say of each goal what was measured."""
    for name, leg in legs.items():
        if "ratio" not in leg:
            yield f"- {name}: goal {GOALS[name]:g} ×; not raced here."
        for what, found in leg.get("ratio", {}).items():
            goal = GOALS[name]
            yield f"- {name}, per {what}: {spelt(found)} of {goal:g} ×, {verdict(found, goal)}."
        if (rows := leg.get("trl_rows", ALL_ROWS)) < ALL_ROWS:
            yield (
                f"- memory, {name}: not compared, as TRL's {ALL_ROWS} rows went through its model {rows} at a time "
                "(`per_device_train_batch_size`, gradients added up); the arithmetic of its step is the same."
            )
        elif "theirs" in leg:
            share = leg["ours"]["rss_mb"] / leg["theirs"]["rss_mb"]
            yield f"- memory, {name}: {share:.2f} of TRL's, goal {MEMORY_GOAL:.2f}, {_met(share <= MEMORY_GOAL)}."
        share = leg["profile"]["useful"]
        yield f"- useful arithmetic, {name}: {share:.0%} of {USEFUL_GOAL:.0%}, {_met(share >= USEFUL_GOAL)}."


def verdict(ratio: list[float], goal: float) -> str:
    """Say whether the interval of a ratio lies above or below a goal, or holds it."""
    _, low, high = ratio
    return "met" if low >= goal else "missed" if high < goal else "open: the interval holds the goal"


def _met(met: bool) -> str:
    return "met" if met else "missed"
