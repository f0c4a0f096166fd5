"""The sections of the page. All text of users and models is escaped with `escape`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape

from grouprl.core.finding import time_of
from grouprl.core.json_types import JsonMapping
from grouprl.core.numbers import is_number
from grouprl.monitor.outcome import mean_first, verdict
from grouprl.orchestrator.account_words import in_words, set_aside_words, totals
from grouprl.view.charts import number
from grouprl.view.curves import (
    YARDSTICK,
    components,
    counted_label,
    counted_parts,
    counts,
    further,
    held_out_rewards,
    leading,
    pictures,
    reaches_one,
    reward_parts,
    success,
    yardstick_names,
    yardsticks,
)
from grouprl.view.drawings import picture
from grouprl.view.runfiles import RunData
from grouprl.view.stored_steps import stored_steps
from grouprl.view.tokens import all_pairs, rollout_groups
from grouprl.view.trajectory_page import episode_groups

COMPLETIONS, COMPLETION_LENGTH = 16, 1500
"""Largest numbers of rows of the before/after table, and of characters of a completion in it."""
FURTHER = 30
"""Largest number of charts among the further metrics."""
OF_SCORES = (
    ("eval/pair_accuracy", "Pairs ranked right"),
    ("eval/pair_confidence", "Ranked right by its own σ(|gap|)"),
    ("eval/pair_loss", "-log σ(gap); 0.693 knows nothing"),
    ("eval/longer_preferred", "The longer one scores higher"),
    ("eval/longer_better", "The longer one is better"),
    ("eval/marked_preferred", "More Markdown scores higher"),
    ("eval/marked_better", "More Markdown is better"),
)
"""Cards of a reward model: accuracy, calibration, and what it prefers beside what the data prefer."""
SEVERITIES = ("alarm", "warning", "note")
LEGEND = (
    '<p class="muted only-advantage"><span class="t up4">pushed up</span> <span class="t down4">pushed down</span> '
    '<span class="t">no gradient</span></p>'
    '<p class="muted only-probability"><span class="t p1">below 0.9</span> <span class="t p2">0.6</span> '
    '<span class="t p3">0.3</span> <span class="t p4">0.1</span></p>'
    '<p class="muted only-entropy"><span class="t e1">above 0.05 nats</span> <span class="t e2">0.3</span> '
    '<span class="t e3">0.7</span> <span class="t e4">1.5</span></p>'
    '<p class="muted only-ratio"><span class="t more4">more likely than under the reference</span> '
    '<span class="t less4">less likely</span> as the step began</p>'
)
"""The legend of the colours of tokens, for each of the choices."""


def headline(run: RunData) -> str:
    """Return the verdict, the numbers before → after with intervals, and the main facts of the run."""
    before, after = evaluations(run)
    found = verdict(before, after, run.summary.get("steps") if run.summary.get("finished") else None)
    cards = [_card(name, run.worded(label), before, after) for name, label in _headline_rows(run, before, after)]
    facts = [
        f'{key.removesuffix("_label")} <b title="{escape(str(run.summary[key]))}">'
        f"{escape(without_folders(str(run.summary[key])))}</b>"
        for key in ("task", "method_label", "model", "seed")
        if key in run.summary
    ]
    for key, form in (("parameters", "{:,.0f} parameters"), ("steps", "{:.0f} steps"), ("seconds", "{:.0f} s")):
        if isinstance(run.summary.get(key), (int, float)):
            facts.append(form.format(run.summary[key]).replace(",", "\u202f"))
    state, so_far = "", run.summary.get("finished") is False
    if so_far:
        state = f'<p class="banner">This run was interrupted: {_last_known(before, after)}</p>'
    small = _held_out(before, after)
    body = (
        f'<div class="cards">{"".join(cards)}</div><p class="muted">{small}</p>'
        if cards
        else _none("No evaluation yet.")
    )
    words = f"So far: {found.words[:1].lower()}{found.words[1:]}" if so_far and after else found.words
    said = f'<p class="verdict-line {found.kind}">{escape(words)}</p>' if cards else ""
    return f'{said}<p class="facts">{" · ".join(facts)}</p>{state}{body}'


def _last_known(before: JsonMapping, after: JsonMapping) -> str:
    """Say which evaluations of an interrupted run are compared."""
    if not after:
        return "it was not evaluated again after " + ("training had begun." if before else "its warm-up.")
    return f"the numbers after the arrows are its evaluation after step {after.get('step', 0):.0f}."


def _held_out(before: JsonMapping, after: JsonMapping) -> str:
    """State the number of prompts behind the numbers before and after."""
    counts = [record.get("eval/prompts") for record in (before, after)]
    first, last = (f"{count:.0f}" if is_number(count) else "" for count in counts)
    if not last:
        return f"On {first} held-out prompts; in brackets 95 % intervals." if first else ""
    both = last if first in ("", last) else f"{first} (before) and {last} (after)"
    return f"On {both} held-out prompts; in brackets 95 % intervals."


def without_folders(name: str) -> str:
    """Return a name with only the last part of a path in it ("env:nim.py:Nim", "my-model")."""
    return re.sub(r"(?<![^:])~?/(?:[^:/]+/)*(?=[^:/])", "", name)


def evaluations(run: RunData) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Return the records before and after training: those of the summary, else the first and last evaluation."""
    records = run.of_phase("eval")
    before, after = run.summary.get("before"), run.summary.get("after")
    first = before if isinstance(before, Mapping) else records[0] if records else {}
    last = after if isinstance(after, Mapping) else records[-1] if len(records) > 1 else {}
    return first, last


def curves(run: RunData) -> str:
    """Return the learning curves."""
    if not run.records:
        return _none("No metrics yet.")
    shares = success(run) if reaches_one(run, run.of_phase("eval")) else ""
    second = shares if run.mean_first else held_out_rewards(run)
    small, more = [second, yardsticks(run), components(run), *counts(run), *pictures(run)], further(run)[:FURTHER]
    fold = f'<details><summary>{len(more)} further metrics</summary><div class="charts">{"".join(more)}</div></details>'
    return f'{leading(run)}<div class="charts">{"".join(small)}</div>{fold if more else ""}'


def health(run: RunData) -> str:
    """Return the outcomes of the sampled prompts and completions, and the findings, persistent ones first."""
    account = run.worded(in_words(totals(run.records), "rows" if run.pieces else "completions"))
    aside = set_aside_words([row["prompt"] for row in run.summary.get("set_aside", ())])
    said = " ".join(words for words in (account, aside) if words)
    return (f'<p class="muted">{escape(said)}</p>' if said else "") + _findings(run)


def _findings(run: RunData) -> str:
    if run.findings is None:
        return _none("No health report in this folder.")
    if not run.findings and verdict(*evaluations(run)).kind == "learned":
        return '<p class="fine">✓ Nothing was found that needs attention.</p>'
    if not run.findings:  # a run without findings is not healthy unless it is known to learn
        return _none(
            "Nothing was found, but no gain is shown either: most findings need 5 to 20 training steps. What to look "
            "at: docs/not_learning.md."
        )
    return f'<ul class="findings">{"".join(_finding(row) for row in run.findings)}</ul>'


def before_after(run: RunData) -> str:
    """Return the completions of the same prompts before and after training."""
    if not run.samples:
        return _none("No completions to compare yet.")
    expected = any(row.get("expected") is not None for row in run.samples)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("prompt", "before", "after", *["expected"] * expected))
    rows = "".join(_pair(row, expected) for row in run.samples[:COMPLETIONS])
    return f'<div class="scroll"><table class="pairs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _measured(run: RunData, column: str) -> bool:
    """Return whether a number of tokens is stored for any row; zeros alone were never measured."""
    found = [row.get(column) for row in run.rollouts]
    return any(any(values) if isinstance(values, list) else values for values in found)


def rollouts(run: RunData) -> str:
    """Return a few groups of the last stored rollout, token by token."""
    if not run.rollouts:
        return _none("No rollouts are stored.")
    options = [("advantage", "advantage")]
    options += [("probability", "probability of the token")] * _measured(run, "behavior_logp")
    options += [("entropy", "entropy")] * _measured(run, "entropy")
    moved = any(row.get("log_ratio") for row in run.rollouts)
    options += [("ratio", "log π/π_ref")] * moved
    first = "ratio" if moved and all_pairs(run.rollouts) else "advantage"
    radios = "".join(
        f'<label><input type="radio" name="colour" id="by-{key}"{" checked" * (key == first)}> '
        f"{run.worded(label)}</label>"
        for key, label in options
    )
    played = any(row.get("turns") for row in run.rollouts)
    compared = any("pair_margin" in record for record in run.of_phase("train"))
    found = episode_groups(run.rollouts, run.folder) if played else None
    groups = "".join(found or rollout_groups(run.rollouts, run.folder, compared=compared))
    more = " <code>grouprl show</code> prints any other."
    return (
        f'<p class="muted">From {escape(run.rollout_file)}: mixed groups first. '
        f"Point at {run.worded('a token')} for its numbers.{more}</p>"
        f'<fieldset class="colours"><legend>Colour by</legend>{radios}</fieldset>{LEGEND}{groups}'
        f"{stored_steps(run.folder, marks=not run.graded)}"
    )


def objective(run: RunData) -> str:
    """Return the objective of the run in words and symbols."""
    parts = [part for part in run.summary.get("objective") or [] if isinstance(part, Mapping)]
    title, formula = run.summary.get("title"), run.summary.get("formula")
    if not (parts or title or formula):
        return _none("The summary does not describe the method.")
    rows = "".join(
        f'<tr><th scope="row">{escape(str(p.get("kind", "")))}</th>'
        f"<td>{escape(run.worded(str(p.get('words', ''))))}</td>"
        f"<td><code>{escape(run.worded(str(p.get('formula', ''))))}</code></td></tr>"
        for p in parts
    )
    head = (
        '<thead><tr><th scope="col">part</th><th scope="col">in words</th><th scope="col">in symbols</th></tr></thead>'
    )
    table = f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>' if parts else ""
    name = escape(str(run.summary.get("method", "this method")))
    card = f'<pre class="formula">{escape(run.worded(str(formula)))}</pre>' if formula else ""
    fold = f"<details><summary>The catalogue's formula of {name}, before this run's settings</summary>{card}</details>"
    return f"<p>{escape(str(title or ''))}</p>{table}{fold if card else ''}"


def settings(run: RunData) -> str:
    """Return the resolved configuration, the environment and the times of the run."""
    config = f"<pre>{escape(run.config[:100_000])}</pre>" if run.config else _none("No config.yaml.")
    versions = run.summary.get("versions")
    rows = _pairs_table(versions) if isinstance(versions, Mapping) else _none("No versions recorded.")
    return (
        f"<details><summary>Resolved configuration</summary>{config}</details>"
        f"<details><summary>Environment</summary>{rows}</details>"
        f"<details><summary>Where the time went</summary>{_times(run)}</details>"
    )


def missing(run: RunData) -> str:
    """Return a note on the files that the folder lacks; "" if it is complete."""
    if not run.missing:
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in run.missing)
    return f'<aside class="banner"><p>Some files are missing from the folder of this run:</p><ul>{items}</ul></aside>'


def _headline_rows(run: RunData, before: JsonMapping, after: JsonMapping) -> list[tuple[str, str]]:
    record = after or before
    ks = sorted(int(name[10:]) for name in record if name[:10] == "eval/pass@" and name[10:].isdigit())
    parts = reward_parts([record])
    right = "Reward ≥ 1" if record.get("eval/graded") else "Right"
    shares = list(OF_SCORES)
    if reaches_one(run, (before, after)):
        sampled = ((f"eval/pass@{k}", f"{right}, sampled (pass@{k})") for k in ks)
        shares += [("eval/greedy", f"{right}, greedy"), *sampled]
    meaning = f", {run.reward_is}" if run.reward_is else ""
    rewards = [("eval/reward", f"Mean reward{meaning}"), *((name, f"Reward: {name[12:]}") for name in parts)]
    rows = [*rewards, *shares] if mean_first(record) else [*shares, *rewards]
    rows += [(name, f"Counted: {counted_label(name)}") for name in counted_parts([record])]
    rows += [(name, f"Yardstick: {name.removeprefix(YARDSTICK)}") for name in yardstick_names([record])]
    rows.append(("eval/length_mean", "Length (tokens)"))
    return [(name, label) for name, label in rows if is_number(record.get(name))]


def _card(name: str, label: str, before: JsonMapping, after: JsonMapping) -> str:
    values = [record[name] for record in (before, after) if is_number(record.get(name))]
    digits = 1 if "length" in name else None
    *old, new = (_decimals(value) if digits is None else f"{value:.{digits}f}" for value in values)
    first = "".join(f'<span class="old">{each}</span> → ' for each in old)
    intervals = [
        f"[{_decimals(record[f'{name}_low'])}, {_decimals(record[f'{name}_high'])}]"
        for record in (before, after)
        if is_number(record.get(f"{name}_low")) and is_number(record.get(f"{name}_high"))
    ]
    return (
        f'<div class="card"><h3>{escape(label)}</h3><p class="big">{first}<b>{new}</b></p>'
        f'<p class="muted">{" → ".join(intervals)}</p></div>'
    )


def _decimals(value: float) -> str:
    """Return a number with three decimals, or fewer if it is large, so that two of them fit on a card."""
    return f"{value:.{max(0, 4 - len(str(int(abs(value)))))}f}"


def _finding(row: Mapping[str, object]) -> str:
    severity = row.get("severity") if row.get("severity") in SEVERITIES else "note"
    first, last = row.get("first_step", "?"), row.get("last_step", "?")
    when = escape(time_of(first, last, persists=bool(row.get("persists"))))
    state = "" if row.get("persists") else " past"
    code, words, remedy = (escape(str(row.get(key, "")), quote=True) for key in ("code", "text", "remedy"))
    head = f'<span class="badge" title="{code}">{severity}</span> <span class="muted">{when}</span>'
    return f'<li class="{severity}{state}">{head}<p>{words}</p><p class="remedy">{remedy}</p></li>'


def _pair(row: Mapping[str, object], expected: bool) -> str:
    cells = [f"<td><pre>{_text(row.get('prompt'))}</pre></td>"]
    for side in ("before", "after"):
        reward, right = row.get(f"{side}_reward"), row.get(f"{side}_correct")
        sign = "" if right is None else "✓ right" if right else "✗ wrong"
        kind = "" if right is None else "right" if right else "wrong"
        score = f"reward {number(float(reward))}" if isinstance(reward, (int, float)) else ""
        foot = f'<span class="verdict {kind}">{sign}</span> <span class="muted">{score}</span>'
        drawn, said = picture(row.get(f"{side}_drawing")), str(row.get(side) or "")
        said = said.rpartition("\n")[2] if drawn else said  # the sentence at the end states all choices
        cells.append(f"<td>{drawn}<pre>{_text(said)}</pre>{foot}</td>")
    cells += [f"<td><pre>{_text(row.get('expected'))}</pre></td>"] * expected
    return f"<tr>{''.join(cells)}</tr>"


def _times(run: RunData) -> str:
    """Return a table of the seconds of each phase and, for training steps, of rollout, scoring and update."""
    totals: dict[str, float] = {}
    for record in run.of_phase("train"):
        for name, value in record.items():
            if name.startswith("seconds_") and is_number(value):
                totals[name[8:]] = totals.get(name[8:], 0.0) + value
    phases: dict[str, float] = {}
    last = 0.0
    for record in run.records:
        if is_number(record.get("seconds")):
            phase = str(record.get("phase", "train"))
            phases[phase] = phases.get(phase, 0.0) + max(0.0, record["seconds"] - last)
            last = record["seconds"]
    rows = {
        **{f"phase {k}": f"{v:.1f} s" for k, v in phases.items()},
        **{f"of it {k}": f"{v:.1f} s" for k, v in totals.items()},
    }
    return _pairs_table(rows) if rows else _none("No times recorded.")


def _pairs_table(pairs: Mapping[str, object]) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(str(k))}</th><td>{escape(str(v))}</td></tr>' for k, v in pairs.items())
    return f"<table><tbody>{rows}</tbody></table>"


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= COMPLETION_LENGTH else text[:COMPLETION_LENGTH] + " …")


def _none(words: str) -> str:
    return f'<p class="none">{escape(words)}</p>'


SECTIONS: Sequence[tuple[str, str, Callable[[RunData], str]]] = (
    ("outcome", "Before and after", headline),
    ("health", "Health", health),
    ("curves", "Learning curves", curves),
    ("completions", "Completions before and after", before_after),
    ("rollouts", "Rollouts, token by token", rollouts),
    ("objective", "What was optimised", objective),
    ("settings", "Settings", settings),
)
"""Anchor, title and renderer of each section, in the order of the page."""
