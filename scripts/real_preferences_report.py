"""The tables of docs/preferences.md about a pretrained model, and what they show in words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from effects_report import interval, markdown

Record = dict[str, Any]
Interval = tuple[float, float, float]
"""Low, middle, high."""
RIVAL, MODEL, AGAINST = "dpo", "bradley_terry", "dr_grpo"
SHARES = {"greedy": "greedily", "pass@1": "sampled"}
SCORES = {
    MODEL: {"pair_accuracy": "reward model, held-out pairs ranked right"},
    AGAINST: {
        "reward": "policy, reward paid",
        "reward/gold": "policy, true reward",
        "greedy": "policy, right greedily",
        "pass@1": "policy, right sampled",
    },
}
"""What is measured of a reward model, and of the policy that it pays."""


def good(record: Record) -> float:
    """Return the number by which rates are compared: of a policy the mean of the shares that are right, greedy and
    sampled, of a reward model the share of pairs; least for a run that failed."""
    if "error" in record:
        return -math.inf
    after = record["after"]
    return float(after.get("pair_accuracy", (after.get("greedy", 0.0) + after.get("pass@1", 0.0)) / 2))


def tables(found: Sequence[Record]) -> dict[str, str]:
    """Return what stands between the marks of the page."""
    arms = finals(found)
    methods = {arm: runs for arm, runs in arms.items() if arm not in SCORES}
    head = ("method", "rate", "steps", "seeds", "greedy", "gain", "sampled", "gain", f"sampled, beside {RIVAL}")
    scored = ("what is trained", "rate", "steps", "seeds", "before", "after", "gain")
    return {
        "pretrained": markdown(head, [_method(runs, methods.get(RIVAL, [])) for runs in methods.values()]),
        "pretrained words": words(found),
        "pretrained scores": markdown(scored, [line for arm in SCORES for line in _scored(arms.get(arm, []))]),
        "pretrained rates": markdown(("method", "rate", "after", ""), list(_rates(found))),
    }


def finals(found: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the runs that are compared, by method, in the order of seeds."""
    whole = [each for each in found if not each["tuning"] and "error" not in each]
    compared = sorted(whole, key=lambda each: each["seed"])
    order = [RIVAL, *sorted({each["arm"] for each in compared} - {RIVAL})]
    rows = {arm: [each for each in compared if each["arm"] == arm] for arm in order}
    return {arm: runs for arm, runs in rows.items() if runs}


def gain(runs: Sequence[Record], kind: str) -> Interval:
    """Return the gain in a measure: over seeds, or of a single one over its prompts."""
    after = [each["after"] for each in runs]
    if len(runs) == 1:
        return tuple(after[0][f"{kind}_gain{end}"] for end in ("_low", "", "_high"))  # type: ignore[return-value]
    return interval([each[f"{kind}_gain"] for each in after])


def beside(runs: Sequence[Record], rivals: Sequence[Record]) -> Interval | None:
    """Return the difference of two methods after training on the seeds of both; None of a method from itself.

    Of one seed it has Newcombe's interval, which takes the prompts of both for independent and so is too wide rather
    than too narrow.
    """
    other = {each["seed"]: each["after"] for each in rivals}
    pairs = [(each["after"], other[each["seed"]]) for each in runs if each["seed"] in other]
    if not pairs or runs[0]["arm"] == rivals[0]["arm"]:
        return None
    if len(pairs) > 1:
        return interval([one["pass@1"] - two["pass@1"] for one, two in pairs])
    mine, yours = ([each[f"pass@1{end}"] for end in ("_low", "", "_high")] for each in pairs[0])
    gap = mine[1] - yours[1]
    low = gap - math.hypot(mine[1] - mine[0], yours[2] - yours[1])
    return low, gap, gap + math.hypot(mine[2] - mine[1], yours[1] - yours[0])


def words(found: Sequence[Record]) -> str:
    """Return what the tables show, what they do not show first."""
    arms = finals(found)
    gains = {(arm, kind): gain(runs, kind) for arm, runs in arms.items() for kind in _kinds(arm)}
    gaps = {arm: gap for arm, runs in arms.items() if arm not in SCORES and (gap := beside(runs, arms.get(RIVAL, [])))}
    unsure = [f"`{arm}` ({_words(arm, kind)})" for (arm, kind), each in gains.items() if each[0] <= 0]
    even = [f"`{arm}`" for arm, (low, _, high) in gaps.items() if low <= 0 <= high]
    ahead = [
        f"`{arm}` ends {'ahead of' if low > 0 else 'behind'} it"
        for arm, (low, _, high) in gaps.items()
        if low > 0 or high < 0
    ]
    ends = [f"`{arm}`" for arm in arms if _at_end(found, arm)]
    failed = [f"`{each['arm']}`, seed {each['seed']}" for each in found if "error" in each and not each["tuning"]]
    lines = [
        f"**No gain is shown** of {', '.join(unsure)}." if unsure else "",
        "Every gain in the tables is shown." if gains and not unsure else "",
        f"**No difference from DPO is shown**, sampled, of {', '.join(even)}." if even else "",
        f"Sampled beside DPO, {', '.join(ahead)}." if ahead else "",
        f"The rate is the end of its sweep, so that a better one may lie beyond: {', '.join(ends)}." if ends else "",
        f"**Failed**: {', '.join(failed)}." if failed else "",
        made(found),
    ]
    return "\n".join(filter(None, lines))


def made(found: Sequence[Record]) -> str:
    """Return how many seeds there are, and on what they were run."""
    seeds = sorted({len(runs) for runs in finals(found).values()} or {0})
    counts = " to ".join(str(n) for n in dict.fromkeys((seeds[0], seeds[-1])))
    places = sorted({each.get("device", "a CPU") for each in found if "error" not in each})
    kinds = sorted({each["precision"] for each in found if "error" not in each})
    return f"Seeds of a method: {counts}. Run on {' and '.join(places)}, products in {' and '.join(kinds)}."


def _kinds(arm: str) -> Sequence[str]:
    return tuple(SCORES.get(arm, SHARES))


def _words(arm: str, kind: str) -> str:
    return SCORES[arm][kind] if arm in SCORES else SHARES[kind]


def _method(runs: Sequence[Record], rivals: Sequence[Record]) -> list[str]:
    gap = beside(runs, rivals)
    cells = [cell for kind in SHARES for cell in (" → ".join(_ends(runs, kind)), _signed(gain(runs, kind)))]
    return [*_named(runs, runs[0]["arm"]), *cells, _signed(gap) if gap else ""]


def _scored(runs: Sequence[Record]) -> list[list[str]]:
    """Return a line per measure of a reward model, or of the policy that it pays."""
    kinds = SCORES[runs[0]["arm"]] if runs else {}
    return [[*_named(runs, name), *_ends(runs, kind), _signed(gain(runs, kind))] for kind, name in kinds.items()]


def _named(runs: Sequence[Record], name: str) -> list[str]:
    return [name, f"{runs[0]['lr']:g}", str(runs[0]["steps"]), str(len(runs))]


def _ends(runs: Sequence[Record], kind: str) -> list[str]:
    return [f"{statistics.fmean(each[end][kind] for each in runs):.3f}" for end in ("before", "after")]


def _signed(found: Interval) -> str:
    low, middle, high = found
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"


def _rates(found: Sequence[Record]) -> Iterator[list[str]]:
    """Yield a line per rate that was tried, in the order of methods and rates."""
    best = {arm: runs[0]["lr"] for arm, runs in finals(found).items()}
    order = sorted(best, key=lambda arm: arm != RIVAL)
    for arm in (*order, *sorted({each["arm"] for each in found} - set(order))):
        for rate, each in sorted(_tried(found, arm).items()):
            mark = f"chosen{'*' * _at_end(found, arm)}" if best.get(arm) == rate else ""
            yield [arm, f"{rate:g}", "failed" if "error" in each else f"{good(each):.3f}", mark]


def _tried(found: Sequence[Record], arm: str) -> Mapping[float, Record]:
    """Return the shorter runs by which a method was tuned, by rate."""
    return {each["lr"]: each for each in found if each["tuning"] and each["arm"] == arm}


def _at_end(found: Sequence[Record], arm: str) -> bool:
    """Return whether a method's rate is the least or the greatest of those that were tried."""
    rates, chosen = sorted(_tried(found, arm)), [runs[0]["lr"] for name, runs in finals(found).items() if name == arm]
    return bool(chosen and len(rates) > 1) and chosen[0] in (rates[0], rates[-1])
