"""The end of a run: writing its results, the final model and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from grouprl.core.errors import RunError
from grouprl.evaluation.best import best_of
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.gain import PromptValues
from grouprl.methods.registry import CATALOGUE
from grouprl.monitor.outcome import verdict
from grouprl.orchestrator.account_words import set_aside_words, totals
from grouprl.protocols.run_events import EvaluationEnded, RunEnded, Sample
from grouprl.rewards.judging.judge_costs import cost_words
from grouprl.rollout.quarantine import OFFERS
from grouprl.storage.run_folder import RunFolder, replacing, write_json
from grouprl.training.session import Session, versions
from grouprl.view.report import write_report


def write_before(run: RunFolder, found: Evaluation) -> None:
    """Store the evaluation before reinforcement."""
    values = {name: each.as_json() for name, each in found.by_prompt.items()}
    rows = [sample._asdict() for sample in found.samples]
    write_json(run.before, {"record": found.record(), "samples": rows, "by_prompt": values})


def values_before(run: RunFolder) -> dict[str, PromptValues]:
    """Return the values by prompt of the evaluation before reinforcement; empty if there was none or it is damaged."""
    try:
        data = json.loads(run.before.read_text(encoding="utf-8"))
        return {name: PromptValues.from_json(each) for name, each in data["by_prompt"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # `conclude` says so once, at the end; until then evaluations are compared by their intervals


def is_best(session: Session, found: Evaluation) -> bool:
    """Note in best.json, and return, whether an evaluation is the best so far by `eval.best`."""
    settings, held = session.config.eval, session.best
    if not settings.best:
        return False
    prompts = min(settings.prompts, settings.final_prompts)
    session.best = best_of(held, found, settings.best, session.step, prompts)
    if session.best is None or session.best is held:
        return False
    write_json(session.run.best, session.best.as_json())
    return True


def read_before(run: RunFolder) -> EvaluationEnded | None:
    """Return the evaluation before reinforcement; None if there was none yet.

    Raises RunError if the record is damaged.
    """
    if not run.before.is_file():
        return None
    try:
        data = json.loads(run.before.read_text(encoding="utf-8"))
        return EvaluationEnded(0, "before", data["record"], tuple(Sample(**row) for row in data["samples"]))
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{run.before} is damaged ({error})") from error


def conclude(session: Session, found: Evaluation | None) -> RunEnded:
    """Write model, samples, summary, health and report; return how the run ended. `found` is None if interrupted."""
    run = session.run
    write_json(run.health, [finding.as_row() for finding in session.health.findings()])
    before = _before(session)
    after = None if found is None else EvaluationEnded(session.step, "after", found.record(), found.samples)
    if found is not None:
        is_best(session, found)  # its checkpoint is that of the last step
        with replacing(run.model) as folder:
            session.model.save(folder)
    if after is not None and before is not None:
        _write_samples(session, before.samples, after.samples)
    write_json(run.summary, _summary(session, before, after))
    report = write_report(run.path)
    words = verdict(before.record, after.record, session.step).words if before and after else ""
    aside = [each.prompt for each in session.source.aside.prompts]
    best = _best_words(session)
    costs = cost_words(totals(run.read_metrics()))
    remarks = (*((set_aside_words(aside),) if aside else ()), *((costs,) if costs else ()), *best)
    return RunEnded(run.path, session.phase, session.step, before, after, words, remarks, report)


def _best_words(session: Session) -> tuple[str, ...]:
    """Say which checkpoint is the best by `eval.best`, or that no evaluation had a value of it."""
    if session.best is not None:
        return (session.best.words(),)
    wanted = session.config.eval.best
    return (f"no evaluation had a value of {wanted} (eval.best), so that no checkpoint is the best",) if wanted else ()


def _before(session: Session) -> EvaluationEnded | None:
    """Return the evaluation before reinforcement; if its record is lost, say so and end the run normally.

    The run may have learned only later that the reward is graded.
    """
    try:
        found = read_before(session.run)
    except RunError as error:
        session.announcer.say(f"{error}: there is no comparison with the completions before training.")
        return None
    if found is None or not session.graded:
        return found
    samples = tuple(sample.without_mark() for sample in found.samples)
    return replace(found, record={**found.record, "eval/graded": 1.0}, samples=samples)


def _write_samples(session: Session, before: Sequence[Sample], after: Sequence[Sample]) -> None:
    later = {sample.prompt: sample for sample in after}
    rows = [
        {
            "prompt": old.prompt,
            "before": old.completion,
            "after": later[old.prompt].completion,
            "before_reward": old.reward,
            "after_reward": later[old.prompt].reward,
            "before_correct": old.correct,
            "after_correct": later[old.prompt].correct,
            **_drawn(session, before=old, after=later[old.prompt]),
        }
        for old in before
        if old.prompt in later
    ]
    write_json(session.run.samples, rows)


def _drawn(session: Session, **sides: Sample) -> dict[str, object]:
    """Return the pictures that the task has of two completions, by the names of the sides."""
    found = {side: session.task.drawing(each.prompt, each.completion) for side, each in sides.items()}
    return {f"{side}_drawing": each.data() for side, each in found.items() if each is not None}


def _summary(session: Session, before: EvaluationEnded | None, after: EvaluationEnded | None) -> dict[str, object]:
    config, method = session.config, session.method
    entry = CATALOGUE.get(method.name)
    return {
        "task": config.task_name,
        "model": config.model.name,
        "method": method.name,
        "method_label": config.method_label,
        "title": entry.card.title if entry else method.name,
        "formula": entry.card.formula if entry else "",
        "objective": [
            {"part": p.name, "kind": p.kind, "words": p.words(), "formula": p.formula()} for p in method.parts()
        ],
        "actions": not session.row_source.text,
        "pieces": len(session.task.agents) > 1 or session.task.actions_per_step is not None,
        "reward_is": session.task.reward_is,
        "seed": config.seed,
        "phase": session.phase,
        "steps": session.step,
        "finished": after is not None,
        "graded": session.graded,
        "findings": [found.code for found in session.health.findings() if found.persists],
        "account": totals(session.run.read_metrics()),
        "set_aside": [
            {"prompt": each.prompt, "times": each.times, "left_out": each.times >= OFFERS, "what": each.what}
            for each in session.source.aside.prompts
        ],
        "parameters": sum(p.numel() for p in session.model.parameters()),
        "before": None if before is None else before.record,
        "after": None if after is None else after.record,
        "best": None if session.best is None else session.best.as_json(),
        "seconds": round(session.elapsed, 1),
        "versions": versions(),
    }
