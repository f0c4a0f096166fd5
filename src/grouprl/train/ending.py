"""How a run ends: its results are printed and written, with the final model and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping

from rich.console import Console

from grouprl.core.errors import RunError
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.sampling import Sample
from grouprl.methods.registry import CATALOGUE
from grouprl.monitor.summary import side_by_side, summary_table
from grouprl.monitor.verdict import verdict
from grouprl.orchestrator.accounting import set_aside_words, totals
from grouprl.rollout.quarantine import OFFERS
from grouprl.storage.run_folder import RunFolder, replacing, write_json
from grouprl.train.session import Session, versions
from grouprl.view.report import write_report


def write_before(run: RunFolder, found: Evaluation) -> None:
    """Store the evaluation before reinforcement."""
    write_json(run.before, {"record": found.record(), "samples": [s._asdict() for s in found.samples]})


def read_before(run: RunFolder) -> tuple[dict[str, float], list[Sample]] | None:
    """The evaluation before reinforcement: its record and sample completions; None if there was none yet.

    Raises RunError when the record is damaged.
    """
    if not run.before.is_file():
        return None
    try:
        data = json.loads(run.before.read_text(encoding="utf-8"))
        return data["record"], [Sample(**row) for row in data["samples"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{run.before} is damaged ({error})") from error


def conclude(session: Session, after: Evaluation | None, console: Console) -> None:
    """Write model, samples, summary, health and report, and print the outcome. `after` is None if interrupted."""
    run = session.run
    write_json(run.health, [finding.as_row() for finding in session.health.findings()])
    before = _before(session, console)
    if after is not None:
        with replacing(run.model) as folder:
            session.policy.save(folder)
    if after is not None and before is not None:
        _write_samples(run, before[1], after)
    write_json(run.summary, _summary(session, None if before is None else before[0], after))
    report = write_report(run.path)
    if after is not None and before is not None:
        actions = not session.row_source.text
        console.print(summary_table(before[0], after.record(), actions=actions))
        console.print(side_by_side(before[1], after.samples, actions=actions))
        console.print(verdict(before[0], after.record(), session.step).words, soft_wrap=True)
    elif after is None:
        console.print(f"Interrupted in {session.phase} after step {session.step}; a checkpoint is written.")
        console.print(f"Go on with: grouprl train {run.path} --resume", soft_wrap=True)
    if session.source.aside.prompts:
        console.print(set_aside_words([each.prompt for each in session.source.aside.prompts]), soft_wrap=True)
    console.print(f"Report: {report}", soft_wrap=True)


def _before(session: Session, console: Console) -> tuple[dict[str, float], list[Sample]] | None:
    """The evaluation before reinforcement; without it a run still ends well, and reports the loss.

    That the reward is graded may have come out only since.
    """
    try:
        found = read_before(session.run)
    except RunError as error:
        console.print(f"{error}: there is no comparison with the completions before training.", soft_wrap=True)
        return None
    if found is None or not session.graded:
        return found
    return {**found[0], "eval/graded": 1.0}, [sample.without_mark() for sample in found[1]]


def _write_samples(run: RunFolder, before: list[Sample], after: Evaluation) -> None:
    later = {sample.prompt: sample for sample in after.samples}
    rows = [
        {
            "prompt": old.prompt,
            "before": old.completion,
            "after": later[old.prompt].completion,
            "before_reward": old.reward,
            "after_reward": later[old.prompt].reward,
            "before_correct": old.correct,
            "after_correct": later[old.prompt].correct,
        }
        for old in before
        if old.prompt in later
    ]
    write_json(run.samples, rows)


def _summary(session: Session, before: Mapping[str, float] | None, after: Evaluation | None) -> dict[str, object]:
    config, method = session.config, session.method
    entry = CATALOGUE.get(method.name)
    return {
        "task": config.task_name,
        "model": config.model.name,
        "method": method.name,
        "title": entry.card.title if entry else method.name,
        "formula": entry.card.formula if entry else "",
        "objective": [
            {"part": p.name, "kind": p.kind, "words": p.words(), "formula": p.formula()} for p in method.parts()
        ],
        "actions": not session.row_source.text,
        "seed": config.seed,
        "phase": session.phase,
        "steps": session.step,
        "finished": after is not None,
        "graded": session.graded,
        "account": totals(session.run.read_metrics()),
        "set_aside": [
            {"prompt": each.prompt, "times": each.times, "left_out": each.times >= OFFERS, "what": each.what}
            for each in session.source.aside.prompts
        ],
        "parameters": sum(p.numel() for p in session.policy.parameters()),
        "before": before,
        "after": None if after is None else after.record(),
        "seconds": round(session.elapsed, 1),
        "versions": versions(),
    }
