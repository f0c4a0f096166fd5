"""The page about a pretrained model's training step."""

from __future__ import annotations

from typing import Any

from report import markdown

GOALS = (
    ("float32 against float32", "onednn", 3.5),
    ("mixed against TRL's better type", "mixed", 6.0),
)
MEMORY_GOAL, USEFUL_GOAL = 1 / 3, 0.65
WORDS = {
    "float32": "`precision: float32` (torch's own products)",
    "onednn": "`precision: onednn` (float32 by oneDNN)",
    "mixed": "`precision: mixed` (products in bfloat16)",
}

PAGE = """# Speed on a pretrained model

Measured by `bench/pretrained.py`, a part of `make bench`: SmolLM2-135M-Instruct, sums asked in its chat template, 8
prompts × 8 completions of at most 24 tokens, one optimiser step per rollout, a reward that varies in nearly every
group. A line with a ratio stands for steps taken in turn with those of the line below, unless a day is named there, in
processes of their own. Seconds are {clock}.

{machine}

## A step

{steps}

`ratio` is the median of TRL's seconds over ours, pair by pair; where TRL ran on another day, that of its median and
ours. `useful` is what the matrix products and the
attention that a step cannot do without take by themselves, in the type in use and by the same kernels, over the step's
seconds: what is computed anew counts as not useful. Peak memory is that of the whole process.

## Goals

{goals}

{notes}

## Where our step goes

{parts}

Seconds per step; in parentheses what the products alone take. Spans are those of `grouprl train --profile`.

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
{trl}"""


def page(results: dict[str, Any]) -> str:
    """The text of docs/bench_pretrained.md."""
    legs: dict[str, Any] = results["legs"]
    facts = next(iter(legs.values()))["machine"]
    return PAGE.format(
        clock="the wall clock's" if "gpu" in facts else "the processor's, on one thread of a machine that was not idle",
        machine=", ".join(f"{name} {value}" for name, value in facts.items()),
        steps=markdown(["who", "s/step", "ratio", "peak memory, MB", "tokens", "useful", "steps"], step_rows(legs)),
        goals=goals(legs),
        notes="\n".join(f"- {note}" for note in results.get("notes", ())),
        parts=markdown(["part", *legs], part_rows(legs)),
        trl=trl_words(legs),
    )


def step_rows(legs: dict[str, Any]) -> list[list[str]]:
    """Two rows for each pair."""
    rows = []
    for name, leg in legs.items():
        ratio = f"{leg['ratio']:.2f}" if "ratio" in leg else ""
        useful, count = f"{leg['profile']['useful']:.0%}", str(leg["steps"])
        rows.append([WORDS[name], *_cost(leg["ours"], ratio), useful, count])
        if "theirs" in leg:
            day = f", on {leg['theirs_date']}" if "theirs_date" in leg else ""
            taken = str(len(leg["theirs"]["each"]))
            rows.append([f"TRL, weights in {leg['theirs_dtype']}{day}", *_cost(leg["theirs"], ""), "", taken])
    return rows


def _cost(found: dict[str, Any], ratio: str) -> list[str]:
    return [f"{found['seconds']:.1f}", ratio, f"{found['rss_mb']:,.0f}", f"{found['tokens']:.0f}"]


def part_rows(legs: dict[str, Any]) -> list[list[str]]:
    """One row for each part that took a hundredth of a step or more anywhere."""
    spent = {name: leg["profile"]["seconds"] for name, leg in legs.items()}
    parts = dict.fromkeys(part for seconds in spent.values() for part in seconds)
    shown = [part for part in parts if any(s.get(part, 0) > 0.01 * sum(s.values()) for s in spent.values())]

    def cell(name: str, part: str) -> str:
        alone = legs[name]["profile"]["products"].get(part)
        return f"{spent[name].get(part, 0.0):.2f}" + ("" if alone is None else f" ({alone:.2f})")

    return [[part, *(cell(name, part) for name in legs)] for part in shown]


def goals(legs: dict[str, Any]) -> str:
    """Say of each goal what was measured."""
    theirs = [leg["theirs"]["seconds"] for leg in legs.values() if "theirs" in leg]
    lines = []
    for words, name, goal in GOALS:
        if name not in legs or not theirs:
            lines.append(f"- {words}: goal {goal:g} ×; not measured here.")
            continue
        own = legs[name]["ours"]["seconds"]
        found = min(theirs) / own if name == "mixed" else legs[name]["ratio"]
        lines.append(f"- {words}: {found:.2f} × of {goal:g} ×, {'met' if found >= goal else 'missed'}.")
    for name, leg in legs.items():
        if "theirs" in leg:
            share = leg["ours"]["rss_mb"] / leg["theirs"]["rss_mb"]
            met = "met" if share <= MEMORY_GOAL else "missed"
            lines.append(
                f"- memory, {name} over TRL in {leg['theirs_dtype']}: {share:.2f} of {MEMORY_GOAL:.2f}, {met}."
            )
        share = leg["profile"]["useful"]
        if name == "onednn":
            lines.append(
                f"- useful arithmetic, {name}: {share:.0%} of 65%, {'met' if share >= USEFUL_GOAL else 'missed'}."
            )
    return "\n".join(lines)


def trl_words(legs: dict[str, Any]) -> str:
    """Say how TRL was set where it was not as its defaults have it."""
    rows = {leg["trl_rows"] for leg in legs.values() if "theirs" in leg}
    if rows and min(rows) < 64:
        return (
            f"\nTRL's 64 rows went through the model {min(rows)} at a time (`per_device_train_batch_size`, with "
            "gradients accumulated), since the memory of this machine did not hold all at once beside what else ran "
            "on it. In one pass TRL took 13.7 GB in float32 and 11.9 GB in bfloat16 on another day; the arithmetic of "
            "its step is the same.\n"
        )
    return ""
