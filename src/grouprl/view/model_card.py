"""A model's card for a hub, made from its run: method, numbers with their intervals, data, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from grouprl.config.run import Config, load_config
from grouprl.core.json_types import JsonObject
from grouprl.view.runfiles import RunData, read_run

MEASURES = ("greedy", "pass@1", "greedy_reward", "reward")
"""Held-out measures of a card, in order; of graded rewards only the last two."""
SHOWN = ("task", "method", "steps", "seed", "warmup", "batch", "optim")
"""Sections of the configuration that a card shows."""


def model_card(run: Path, exported: str, step: int | None = None) -> str:
    """Return the text of a README.md for a model that was exported from a run.

    Args:
        run: the run folder.
        exported: a description of the policy, such as `the final model`.
        step: the step of a checkpoint, whose evaluation the card then shows; None: the end of the run.
    """
    data, config = read_run(run, rollouts=False), load_config(str(run / "config.yaml"), plugins=False)
    evaluations = data.of_phase("eval")
    before = evaluations[0] if evaluations else {}
    after = next((each for each in reversed(evaluations) if step in (None, each.get("step"))), {})
    pieces = [
        _head(config, acts=data.summary.get("actions") is True),
        _opening(config, data.summary, exported),
        *(data.worded(each) for each in (_method(data.summary), _numbers(before, after, data.graded))),
        _data(config, data, step),
        _repeat(config, data.summary),
    ]
    return "\n".join(pieces)


def _head(config: Config, *, acts: bool) -> str:
    """Return the card's head; a policy that `acts` is made by this library, from no other model."""
    tags, name = ["grouprl", "reinforcement-learning", config.method_name], config.model.name
    own = acts or name == "tiny" or Path(name).exists()
    known = {
        "library_name": "grouprl" if acts else "transformers",
        "tags": tags,
        **({} if own else {"base_model": name}),
    }
    return f"---\n{yaml.safe_dump(known, sort_keys=False)}---\n"


def _opening(config: Config, summary: JsonObject, exported: str) -> str:
    size = summary.get("parameters")
    counted = f", {size:,} parameters" if isinstance(size, int) else ""
    return (
        f"# {config.model.name}, trained by {config.method_name}\n\n"
        f"{exported[:1].upper()}{exported[1:]} of a run of grouprl{counted}. Made from the run's record.\n"
    )


def _method(summary: JsonObject) -> str:
    title, formula = summary.get("title", ""), summary.get("formula", "")
    parts = summary.get("objective") or []
    lines = ["## Method", "", f"{title}.", "", "```", str(formula), "```", ""]
    lines += [f"- `{part['part']}` ({part['kind']}): {part['words']}" for part in parts]
    return "\n".join([*lines, ""])


def _numbers(before: Mapping[str, object], after: Mapping[str, object], graded: bool) -> str:
    """Return the table of held-out measures, with 95 % intervals in brackets."""
    names = [n for n in MEASURES if f"eval/{n}" in after and not (graded and n in MEASURES[:2])]
    lines = ["## Held-out numbers", ""]
    if not names:
        return "\n".join([*lines, "No evaluation of these weights is recorded.", ""])
    lines += ["| measure | before | after | difference |", "|---|---|---|---|"]
    for name in names:
        cells = (_interval(before, name), _interval(after, name), _interval(after, f"{name}_gain"))
        lines.append(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |")
    samples = after.get("eval/samples")
    words = f"{after.get('eval/prompts')} held-out prompts, {samples} sampled completion{'s' * (samples != 1)} of each"
    return "\n".join([*lines, "", f"{words}; 95 % intervals in brackets, after step {after.get('step')}.", ""])


def _interval(record: Mapping[str, object], name: str) -> str:
    value, low, high = (record.get(f"eval/{name}{end}") for end in ("", "_low", "_high"))
    if not isinstance(value, int | float):
        return "not recorded"
    known = isinstance(low, int | float) and isinstance(high, int | float)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]" if known else f"{value:.3f}"


def _data(config: Config, run: RunData, step: int | None) -> str:
    """Return what the run was trained on; of an earlier checkpoint, that the counts are those of the whole run."""
    account = run.summary.get("account") or {}
    named = {
        "prompts_sampled": "prompts sampled from",
        "rows_sampled": "completions sampled",
        "tokens_sampled": "tokens sampled",
        "rows_stored": "stored rows",
    }
    lines = ["## Data", "", f"Task `{config.task_name}`, seed {config.seed}, {config.steps} steps.", ""]
    if step is not None and step < config.steps:
        lines += [f"These weights are those after step {step}; the counts are of the whole run.", ""]
    lines += [f"- {run.of_rows(words)}: {account[key]:,}" for key, words in named.items() if account.get(key)]
    findings: Sequence[object] = run.summary.get("findings") or ()
    told = ", ".join(f"`{code}`" for code in findings)
    return "\n".join([*lines, "", f"Findings of the run's health report: {told or 'none'}.", ""])


def _repeat(config: Config, summary: JsonObject) -> str:
    """Return the settings that decide what is learned; those of places, programs and trackers are left out."""
    versions = ", ".join(f"{name} {version}" for name, version in (summary.get("versions") or {}).items())
    known = config.model_dump(mode="json")
    shown = yaml.safe_dump({key: _without_folders(known[key]) for key in SHOWN}, sort_keys=False, allow_unicode=True)
    return "\n".join(
        ["## Settings", "", f"With {versions or 'unknown versions'}.", "", "```yaml", shown.rstrip(), "```", ""]
    )


def _without_folders(value: object) -> object:
    """Return a setting in which absolute paths are names of files."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return re.sub(r"(?<![\w.])/(?:[^/\s:]+/)+", "", value) if isinstance(value, str) else value
