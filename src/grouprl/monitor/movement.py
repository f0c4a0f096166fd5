"""Findings on the policy's movement: it stands still, it moves too fast, or evaluation sees no gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grouprl.config.rates import STILL
from grouprl.core.finding import Finding
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.evaluation.gain import recorded_gain
from grouprl.monitor import health_codes as codes
from grouprl.monitor.history import HealthFacts, History

APART = 10
"""Least steps between two evaluations for which agreement in every figure is not a coincidence."""
STILL_STEPS = 20
"""Number of steps after which learning rates are summed, so that a warm-up of the rate is over."""
WALKED = 0.01
"""Sum of the steps' shares of the weights from which figures that agree are no sign of standing still: it is ten steps
at the rate at which tiny policies learn. A verdict that every completion earns, or none, agrees with itself, too."""
RATIO_FAST = 0.03
"""A step of 3 % of the weights; in docs/findings.md tiny policies learn at 0.6 % and lose what they knew at 5.6 %. The
pretrained model of docs/real.md learns at 0.002 %; for such models, `fast` and `kl_old` detect the problem sooner."""
MEASURED = ("eval/pair_accuracy", "eval/reward", "eval/pass@1", "eval/greedy")
"""Figures that judge an evaluation, of which the first counts."""
GOLD = "eval/reward/gold"
"""The one figure where the reward itself only compares completions of a group."""
SURE = 0.9
"""Share of correct completions from which nothing is left to gain."""


def stands_still(past: History, facts: HealthFacts) -> Finding | None:
    """Report updates that did not move the policy."""
    if past.peak("grad_norm") == 0 or past.peak("lr") == 0 or _all_dead(past, facts):
        return None  # a missing gradient and a rate of 0 have their own findings
    same, steps, moved = _same(past.evaluations), past.seen("lr"), past.total("lr") * facts.reach
    words = ""
    if same is not None and moved < STILL and past.total("update_ratio") < WALKED:
        first, last = same
        words = f"The evaluation after step {last} agrees with that after step {first} in every figure"
    elif facts.reach and steps >= STILL_STEPS and moved < STILL and not _gained(past.evaluations):
        words = f"All learning rates of {steps} steps together can move a log-prob by about {moved:.1g} nats"
    if not words:
        return None
    ratio = past.peak("update_ratio")
    size = f" (largest optimiser step: {ratio:.1g} of the weights)" if ratio else ""
    remedy = "Raise optim.lr: grouprl plan names the usual one for this kind of model. Or train for more steps."
    return codes.STANDS_STILL(f"{words}: the policy hardly moves{size}.", remedy)


def moves_too_fast(past: History, facts: HealthFacts) -> Finding | None:
    """Report optimiser steps that are too large, relative to the weights or by how far they can move a log-prob."""
    ratio = 0.0 if facts.adapters else max(past.values("update_ratio"), default=0.0)
    nats = past.peak("lr") * facts.reach / facts.updates_per_rollout
    if ratio >= RATIO_FAST:
        said = f"one optimiser step changed the weights by {100 * ratio:.0f} % of their size"
    elif facts.fast and nats > facts.fast:
        said = f"one optimiser step at this learning rate can move a log-prob by about {nats:.1g} nats"
    else:
        return None
    remedy = "Lower optim.lr (a third, say), or warm it up: optim.warmup_steps."
    return codes.MOVES_TOO_FAST(f"The policy moves too fast: {said}.", remedy)


def no_gain(past: History, facts: HealthFacts) -> Finding | None:
    """Report an evaluation after some training that is worse, or not clearly better, than the first one."""
    pair = _comparable(past.evaluations)
    if pair is None or _gained(past.evaluations) or pair[1].get("eval/proportional"):
        return None
    first, last = pair
    name = _measure(last)
    gain = recorded_gain(first, last, name)
    worse = gain is not None and gain.high < 0
    gained = _above(past.evaluations[0], last)  # the first evaluation often has more prompts than those during training
    if last["step"] - first["step"] < STILL_STEPS or (not worse and (_solved(first) or gained)):
        return None
    said = "The policy got worse" if worse else "Evaluation shows no gain"
    words = (
        f"{said}: {name.removeprefix('eval/')} was {_interval(first, name)} after step {first['step']} "
        f"and is {_interval(last, name)} after step {last['step']}."
    )
    stored = past.peak("rows_stored") > 0 and past.peak("rows_sampled") == 0
    more = "train on more rows" if stored else "sample more completions per prompt"
    known = "" if name == "eval/pair_accuracy" else "; look at the reward of known completions"
    remedy = f"Train longer, raise optim.lr, {more}{known}."
    if worse:
        remedy = (
            "Go back to an earlier checkpoint; lower optim.lr (a third, say); look at the rewards of known completions."
        )
    return codes.NO_GAIN(words, remedy, key=name, severity="warning" if worse else "note")


def _interval(record: JsonMapping, name: str) -> str:
    return f"{record[name]:.3f} [{record[f'{name}_low']:.3f}, {record[f'{name}_high']:.3f}]"


def _comparable(evaluations: Sequence[Mapping[str, object]]) -> tuple[JsonMapping, JsonMapping] | None:
    """Return the first evaluation on as many prompts as the last one, and the last one; None if that is the same."""
    if not evaluations or _measure(evaluations[-1]) == "":
        return None
    last = evaluations[-1]
    like = [each for each in evaluations[:-1] if each.get("eval/prompts") == last.get("eval/prompts")]
    like = [each for each in like if f"{_measure(last)}_high" in each]
    return (like[0], last) if like else None


def _same(evaluations: Sequence[JsonMapping]) -> tuple[int, int] | None:
    """Return the steps of the last evaluation and of the latest one before that agrees with it in all its figures."""
    if not evaluations:
        return None
    last = evaluations[-1]
    for other in reversed(evaluations[:-1]):
        if other.get("eval/prompts") == last.get("eval/prompts"):
            alike = _figures(other) == _figures(last) and last["step"] - other["step"] >= APART
            return (other["step"], last["step"]) if alike and not _solved(last) and _told(last) else None
    return None


def _all_dead(past: History, facts: HealthFacts) -> bool:
    """Return whether no group of the window was mixed, so that there was nothing by which to move."""
    dead = past.values("groups_zero_variance") if facts.grouped else []
    return bool(dead) and min(dead) == 1


def _told(record: JsonMapping) -> bool:
    """Return whether some figure of an evaluation tells policies apart: where all are 0, all that fail agree."""
    return any(value for value in _figures(record).values())


def _figures(record: Mapping[str, object]) -> JsonObject:
    names = ("eval/pair_accuracy", "eval/greedy", "eval/pass@", "eval/reward")
    return {name: value for name, value in record.items() if name.startswith(names)}


def _solved(record: JsonMapping) -> bool:
    """Return whether nothing is left to gain: nearly all completions are right, and no reward tells them apart."""
    right = [record[name] for name in ("eval/pair_accuracy", "eval/greedy", "eval/pass@1") if name in record]
    graded = any(
        record[reward] != record[correct]
        for reward, correct in (("eval/reward", "eval/pass@1"), ("eval/greedy_reward", "eval/greedy"))
        if reward in record and correct in record
    )
    return bool(right) and min(right) >= (1.0 if graded else SURE)


def _measure(record: Mapping[str, object]) -> str:
    """Return the figure that judges an evaluation: the mean reward, else correct completions; "" if there is none."""
    return next((name for name in _measured(record) if f"{name}_low" in record), "")


def _measured(record: Mapping[str, object]) -> tuple[str, ...]:
    """Return the figures that may judge an evaluation; rewards that compare within a group have a constant mean."""
    return (GOLD,) if record.get("eval/compared") else MEASURED


def _gained(evaluations: Sequence[JsonMapping]) -> bool:
    """Return whether the last evaluation is surely above the first comparable one, sampled or greedy."""
    pair = _comparable(evaluations)
    return pair is not None and _above(*pair)


def _above(first: JsonMapping, last: JsonMapping) -> bool:
    names = (GOLD,) if last.get("eval/compared") else (*MEASURED, "eval/greedy_reward")
    found = [recorded_gain(first, last, name) for name in names]
    return any(gain is not None and gain.low > 0 for gain in found)
