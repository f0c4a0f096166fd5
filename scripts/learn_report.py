"""The record of the learning runs: a table, a figure and the numbers."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grouprl.evaluation.gain import recorded_gain
from grouprl.storage.run_folder import write_text

Outcome = dict[str, Any]
MARGIN = 0.1
"""The rise of pass@1 that the 95 % interval of the difference must exceed."""
PANELS_PER_ROW = 5
CONTROL = "grpo, coin"
"""The run whose reward is a coin: it must not learn."""
TAUGHT = "sft"
"""The method that is the warm-up itself: it has no rollouts of its own."""


def learned(outcome: Outcome) -> bool:
    """Whether the 95 % interval of the gain in pass@1 lies above MARGIN."""
    if "error" in outcome:
        return False
    gain = recorded_gain(outcome["before"], outcome["after"], "eval/pass@1")
    return gain is not None and gain.low >= MARGIN


def line(outcome: Outcome) -> str:
    """One line for the terminal."""
    name = f"{outcome['task']}, {outcome['method']}, seed {outcome['seed']}:"
    if "error" in outcome:
        return f"{name} {outcome['error']}"
    before, after = outcome["before"]["eval/pass@1"], outcome["after"]["eval/pass@1"]
    verdict = "learned" if learned(outcome) else "did not learn"
    greedy = outcome["after"]["eval/greedy"]
    return f"{name} pass@1 {before:.3f} -> {after:.3f} (greedy {greedy:.3f}), {outcome['seconds']:.0f} s, {verdict}"


def write(outcomes: list[Outcome], docs: Path) -> None:
    """Write learning.md, learning.json and learning.png."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(outcome, ensure_ascii=False, allow_nan=False) for outcome in outcomes)
    write_text(docs / "learning.json", f'{{"margin": {MARGIN}, "runs": [\n{lines}\n]}}\n')
    figure(outcomes, docs / "learning.png")
    write_text(docs / "learning.md", page(outcomes))


def page(outcomes: list[Outcome]) -> str:
    """The text of docs/learning.md."""
    control = [outcome for outcome in outcomes if outcome["method"] == CONTROL]
    outcomes = [outcome for outcome in outcomes if outcome["method"] != CONTROL]
    failed = [line(outcome) for outcome in outcomes if not learned(outcome)]
    verdict = "Every run met it." if not failed else "These runs did not meet it:\n\n" + listed(failed)
    there = {outcome["method"] for outcome in outcomes}
    missed = {outcome["method"] for outcome in outcomes if not learned(outcome)}
    notes = [f"`{name}`: {why}" for name, why in WHY_NOT.items() if name in missed]
    notes += [f"`{name}`: {why}" for name, why in AS_BASE.items() if name in there]
    verdict += "\n\nHow to read single rows:\n\n" + listed(notes) if notes else ""
    tables = [f"## {task}\n\n{table(runs)}" for task, runs in by(outcomes, "task").items()]
    minutes = sum(outcome.get("seconds", 0) for outcome in outcomes) / 60
    return PAGE.format(
        margin=MARGIN,
        verdict=verdict,
        control=listed([line(outcome) for outcome in control]) or "(not run)",
        tables="\n\n".join(tables),
        minutes=minutes,
        runs=len(outcomes),
        own=sum("tried" in outcome for outcome in outcomes),
        date=today(),
    )


def table(outcomes: list[Outcome]) -> str:
    """One row per method: its seeds side by side."""
    head = [
        "method",
        "runs that learned",
        "pass@1 before",
        "pass@1 after",
        "greedy after",
        "settings",
        "rates tried",
        "seconds",
    ]
    rows = [row(method, runs) for method, runs in by(outcomes, "method").items()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def row(method: str, runs: list[Outcome]) -> list[str]:
    """The cells of one method."""
    done = [run for run in runs if "error" not in run]
    if not done:
        return [f"`{method}`", f"0 of {len(runs)}", "", "", "", runs[0]["error"].replace("|", "\\|"), "", ""]
    cells = [f"`{method}`", f"{sum(map(learned, runs))} of {len(runs)}"]
    cells += ["<br>".join(interval(run[when]) for run in done) for when in ("before", "after")]
    cells.append("<br>".join(f"{run['after']['eval/greedy']:.3f}" for run in done))
    seconds = statistics.median(run["seconds"] for run in done)
    return [*cells, settings(method, done[0]["config"]), tried(done[0]), f"{seconds:.0f}"]


def tried(outcome: Outcome) -> str:
    """The pass@1 of each learning rate that was tried; empty where the task's own was kept."""
    scores = outcome.get("tried", {})
    return ", ".join(f"{rate}: {'lost' if score is None else f'{score:.3f}'}" for rate, score in scores.items())


def interval(record: Mapping[str, float]) -> str:
    """A pass@1 with its 95 % interval."""
    value, low, high = (record[f"eval/pass@1{end}"] for end in ("", "_low", "_high"))
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def settings(method: str, config: Mapping[str, Any]) -> str:
    """Learning rate, steps and updates per rollout of a run."""
    if method == TAUGHT:
        warmup = config["warmup"]
        return f"{warmup['steps']} supervised steps of {warmup['batch']} demonstrations"
    updates = config["batch"]["minibatches"] * config["batch"].get("epochs", 1)
    return f"lr {config['optim']['lr']:g}, {config['steps']} steps, {updates} update{'s' * (updates > 1)} per rollout"


def today() -> str:
    """The date, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def figure(outcomes: list[Outcome], path: Path) -> None:
    """Small multiples: pass@1 of each step's own completions, one panel per method, one line per task and seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = by([outcome for outcome in outcomes if outcome.get("curve")], "method")
    colours = {task: f"C{number}" for number, task in enumerate(by(outcomes, "task"))}
    rows = -(-len(panels) // PANELS_PER_ROW)
    drawing, axes = pyplot.subplots(
        rows, PANELS_PER_ROW, figsize=(11, 1.5 * rows), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (method, runs) in zip(axes.flat, panels.items(), strict=False):
        for run in runs:
            axis.plot(range(1, len(run["curve"]) + 1), run["curve"], colours[run["task"]], linewidth=0.9)
        axis.set_title(method, fontsize=8)
        axis.set_ylim(0, 1.04)
        axis.tick_params(labelsize=6)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    keys = [pyplot.Line2D([], [], color=colour, label=task) for task, colour in colours.items()]
    drawing.legend(handles=keys, loc="outside upper center", ncols=len(keys), fontsize=8, frameon=False)
    drawing.supxlabel("step", fontsize=8)
    drawing.supylabel("pass@1 of the completions sampled in training", fontsize=8)
    drawing.savefig(path, dpi=110)
    pyplot.close(drawing)


def by(outcomes: Iterable[Outcome], key: str) -> dict[str, list[Outcome]]:
    """Outcomes by the value of `key`, in the order of first appearance."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome[key]].append(outcome)
    return dict(found)


def listed(lines: list[str]) -> str:
    """Lines as a Markdown list."""
    return "\n".join(f"- {text}" for text in lines)


WHY_NOT = {
    "intuitor": "its reward is the policy's own certainty; it never reads whether a completion is right",
    "rl_v": "its verdicts are texts that this model has never written, 9.6 nats each, so that at `verify_coef: 1` the "
    "first gradient is 109 long where that of completions alone is 0.3, and within seven steps nothing is right any "
    "more; with `verify_coef: 0.01` and the task's rate it learned as GRPO did (0.97)",
    "self": "an artefact of its task: the policy is the same before and after, so no step trained on anything",
    "dvpo": "its value model is fixed before training and no reward is read after; it did not guide this model",
    "passk": "it rewards k completions together, for which one that is right is enough; pass@1 is not what it raises",
    "dapo_direct": "its critic explains no variance on this task; on `addition`, where it does, the method learns",
    "vargrad": "its rewards are logarithms: 1 and 0 ask for right completions e times as likely as each wrong one, of "
    "which there are many more; on the grid of docs/control.md, whose rewards are meant so, it learns",
    "counterpol": "its target is 0 unless it is set: it asks for a policy that earns nothing, and gets one",
    "plaid": "at the largest rate tried it gains 0.10, at ten times the task's it loses everything",
    "discopop": "at its own tau its loss falls as the worse completion gains where policy and reference agree",
}
"""What is known of methods that did not learn."""
AS_BASE = {
    "hicra": "no planning phrase can occur in this task's letters, so the row is its base's (`grouprl plan` says so)",
    "parallel_r1": "this task has no parallel blocks, so only the reward of 1 and -1 acts",
    "s_grpo_memory": "completions are shorter than the head that is always kept, so the row is GRPO's",
    "vapo": "completions are so short that its length-adaptive lambda is 0; set length_alpha higher",
}
"""Rows of methods whose own mechanism has nothing to act on at these settings."""

PAGE = """# Which methods learn, and which do not

A run *learned* if the 95 % interval of its gain in pass@1 (one completion sampled at temperature 1, held-out prompts,
512 prompts with 4 completions each) lies above {margin}. {verdict}

Recorded by `make zoo` (`scripts/learn.py`): {runs} runs, {minutes:.0f} minutes on one core of a
machine that did other things beside, {date}. All runs of a task begin with the same tiny model, warmed up on imperfect
demonstrations; that warm-up is the run of `sft`, whose row tells of the untouched model and of the warmed-up one. Then
each method gets the same number of rollouts of 32 prompts with 16 completions, AdamW, and a learning rate that rises
over the first steps and falls linearly to 5 %.

The control, GRPO with a coin for a reward, must not meet it:

{control}

Methods that are only right on-policy make one update per rollout, the others two. {own} runs are at the method's own
learning rate, the best by pass@1 of three (the task's, a third of it and three times it), tried on one seed that is
none of those recorded; the rest are older and at the task's. Nothing else was tuned per method: this says which work at
these settings, not which is best.

![pass@1 of the completions sampled in training, by step](learning.png)

{tables}

pass@1 with 95 % intervals, one line per seed. All numbers: `learning.json`.
"""
