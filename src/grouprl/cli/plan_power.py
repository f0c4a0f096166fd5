"""`grouprl plan --power`: what a pilot says about a run before its compute is spent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.cli.results import put_data
from grouprl.cli.terminal_page import facts, heading
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.config.run import Config
    from grouprl.experiments.pilot import Pilot

SIZES = (2, 4, 8, 16, 32, 64)


def show_power(source: str, changes: Sequence[str], runs: Sequence[Path], difference: float, *, as_json: bool) -> None:
    """Print the shares of groups that teach, and the prompts, seeds and tokens that show a difference.

    Raises:
        InputError: a run stores no groups, or the difference is not above 0.
    """
    from grouprl.cli.quiet import silence_loading_bars
    from grouprl.config.run import load_config

    silence_loading_bars()
    if not difference > 0:
        raise InputError(f"--see {difference:g}", "a difference is above 0")
    config = load_config(source, changes, plugins=False)
    found = power_data(config, runs, difference)
    if as_json:
        put_data(found, indent=2)
        return
    console = Terminal(highlight=False)
    for pilot in found["pilots"]:
        first, last = pilot["steps"]
        heading(console, f"Groups that teach, by {pilot['groups']} groups of steps {first} to {last} of {pilot['run']}")
        console.print(facts(_teaching(pilot)))
    heading(console, f"Gradient of a rollout of {found['rollout_prompts']} groups")
    console.print(facts((each["run"], _gradient(each)) for each in found["gradients"]))
    heading(console, f"To see a difference of {difference:g} (in 80 % of cases, at 5 % two-sided)")
    console.print(facts(_needed(found)))
    if found["held"]:
        heading(console, "Held against the runs")
        console.print(facts((each["run"], _held(each)) for each in found["held"]))


def power_data(config: Config, runs: Sequence[Path], difference: float) -> JsonObject:
    """Return all numbers of `show_power` as plain data."""
    from grouprl.experiments.pilot import finals, held_against, pilot_of
    from grouprl.experiments.power import Spread, prompts_needed, seeds_needed, smallest_difference

    firsts, lasts = [pilot_of(run) for run in runs], [pilot_of(run, last=True) for run in runs]
    spread = Spread.pooled([each.rewards for each in lasts])
    samples, prompts = config.eval.samples, config.eval.final_prompts
    least, most = (spread.of_difference(samples, shared=shared) for shared in (True, False))
    measure, values = finals(runs)
    deviation = _deviation(values)
    seeds = seeds_needed(deviation, difference) if deviation else None
    pilots = [(run, pilot) for run, first, last in zip(runs, firsts, lasts, strict=True) for pilot in (first, last)]
    unique = [each for i, each in enumerate(pilots) if i % 2 == 0 or each[1].steps != pilots[i - 1][1].steps]
    held = [(run, each) for run, last in zip(runs, lasts, strict=True) for each in held_against(run, last)]
    rounds = _rounds(config, lasts)
    tokens = sum(each.tokens for each in lasts) / len(lasts)
    sampled = config.steps * config.batch.prompts * config.batch.group_size * tokens * (rounds or 1.0)
    return {
        "difference": difference,
        "pilots": [_pilot(run, pilot, config.batch.group_size, config.batch.prompts) for run, pilot in unique],
        "rollout_prompts": config.batch.prompts,
        "gradients": [_noise(run, config.batch.prompts) for run in runs],
        "spread": vars(spread),
        "prompts": [prompts_needed(variance, difference) for variance in (least, most)] if most else None,
        "completions_per_prompt": samples,
        "evaluated_prompts": prompts,
        "smallest_difference": [smallest_difference(variance, prompts) for variance in (least, most)] if most else None,
        "measure": measure,
        "seeds_seen": len(values),
        "deviation": deviation,
        "seeds": seeds,
        "rounds": rounds,
        "tokens_per_run": round(sampled),
        "tokens": None if seeds is None else round(2 * seeds * sampled),
        "held": [{"run": run.name, **vars(each)} for run, each in held],
    }


def _rounds(config: Config, pilots: Sequence[Pilot]) -> float | None:
    """Return how many times over a method samples prompts until their groups differ; None if it does not.

    The number follows from the mean share of groups that differ, over the pilots for which it is known.
    """
    from grouprl.orchestrator.resolve import resolve

    refill = resolve(config).method.refill
    if refill is None:
        return None
    known = [share[0] for each in pilots if (share := each.teaching(config.batch.group_size)) is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    return min(float(refill.max_rounds), 1 / mean) if mean > 0 else float(refill.max_rounds)


def _deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of final measures; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _pilot(run: Path, pilot: Pilot, configured: int, prompts: int) -> JsonObject:
    rows = []
    for size in sorted({*SIZES, configured}):
        share = pilot.teaching(size)
        if share is not None:
            low, high = (None if math.isnan(end) else end for end in share[1:])
            rows.append({"size": size, "share": share[0], "low": low, "high": high, "configured": size == configured})
    facts = {"run": run.name, "steps": list(pilot.steps), "groups": len(pilot.rewards), "size": pilot.size}
    return facts | {"prompts": prompts, "configured": configured, "sizes": rows}


def _noise(run: Path, groups: int) -> JsonObject:
    """Return the signal and noise of a run's gradients; with `problem` instead where they cannot be computed."""
    from grouprl.experiments.gradient_noise import gradient_noise

    try:
        found = gradient_noise(run)
    except InputError as error:
        return {"run": run.name, "problem": str(error)}
    numbers = {"signal": found.signal, "low": found.low, "high": found.high, "noise": found.noise}
    ratio = found.ratio(groups)
    shown = {"scale": found.scale, "ratio": ratio if math.isfinite(ratio) else None}
    return {"run": run.name, "step": found.step, "groups": found.groups, **numbers, **shown}


def _gradient(each: JsonObject) -> str:
    if "problem" in each:
        return f"not known: {each['problem']}"
    where = f"step {each['step']}, {each['groups']} groups"
    if each["low"] <= 0 or each["scale"] is None:
        return f"signal {each['signal']:.2g} [{each['low']:.2g}, {each['high']:.2g}] cannot be told from 0 ({where})"
    ratio = "" if each["ratio"] is None else f"signal to noise {each['ratio']:.1f}; "
    return f"{ratio}as much signal as noise at {each['scale']:.1f} groups ({where})"


def _teaching(pilot: JsonObject) -> Iterator[tuple[str, str]]:
    for row in pilot["sizes"]:
        share = row["share"]
        ends = "extrapolated" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        per = f"{row['size'] / share:.0f} completions for one" if share > 0 else "none was seen"
        mine = (
            f"; {pilot['prompts'] * share:.0f} of {pilot['prompts']} in a rollout of this run"
            if row["configured"]
            else ""
        )
        yield f"groups of {row['size']}", f"{share:.2f} ({ends}), {per}{mine}"
    if not any(row["configured"] for row in pilot["sizes"]):
        why = f"the pilot has groups of {pilot['size']}, and its rewards are not only 0 and 1"
        yield f"groups of {pilot['configured']}", f"as configured: not known, as {why}"


def _prompts(found: JsonObject) -> Iterator[tuple[str, str]]:
    if found["prompts"] is None:
        yield "prompts", "not known, as all rewards of the pilot are equal: give --power a run with some of each"
        return
    low, high = ("more than a billion" if n is None else f"{n:,}" for n in found["prompts"])
    each, ends = found["completions_per_prompt"], low if low == high else f"{low} to {high}"
    yield "prompts", f"{ends} held-out ones, {each} completion{'s' * (each != 1)} of each"
    yield "", "(fewest if two policies find the same prompts hard, most if that has nothing in common)"
    low, high = found["smallest_difference"]
    yield "", f"the configured {found['evaluated_prompts']:,} show {low:.3f} to {high:.3f}"


def _needed(found: JsonObject) -> Iterator[tuple[str, str]]:
    yield from _prompts(found)
    if not found["deviation"]:
        why = "from one run" if found["seeds_seen"] < 2 else "as all runs ended with the same"
        yield "seeds", f"not known {why}: give --power runs of several seeds"
        yield "tokens", f"{found['tokens_per_run']:,} sampled in a run of this configuration"
        yield from _refilled(found)
        return
    seeds = found["seeds"]
    spread = f"{found['measure']} of {found['seeds_seen']} runs has a standard deviation of {found['deviation']:.3f}"
    yield "seeds", f"{'more than 10,000' if seeds is None else f'{seeds:,} of each method'}; {spread}"
    if found["tokens"] is not None:
        yield "tokens", f"{found['tokens']:,} sampled by two methods, {found['tokens_per_run']:,} in a run"
        yield from _refilled(found)


def _refilled(found: JsonObject) -> Iterator[tuple[str, str]]:
    if found["rounds"] is not None:
        yield "", f"(its prompts {found['rounds']:.1f} times over, as it samples until their groups differ)"


def _held(each: JsonObject) -> str:
    return f"{each['what']}: predicted {each['predicted']:.3f}, seen {each['seen']:.3f}"
