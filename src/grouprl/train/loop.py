"""The run: warm up, evaluate, reinforce, evaluate, report.

One reinforcement step is: choose questions, draw answers, score them, build the Batch, let the method judge it,
update the policy, observe. Everything stateful is in the checkpoint, every random number follows from (seed, step).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from grouprl.batch import Batch
from grouprl.methods.registry import method as catalogue_method
from grouprl.train.collect import Collected, join, subset, to_batch
from grouprl.train.config import Config
from grouprl.train.display import Display, Sample
from grouprl.train.ending import conclude, read_before, write_before
from grouprl.train.evaluate import Evaluation, evaluate, question_text
from grouprl.train.interrupt import Interrupt
from grouprl.train.metrics import check_names
from grouprl.train.observe import (
    collected_metrics,
    judged_metrics,
    memory_mb,
    write_rollouts,
)
from grouprl.train.plan import plan
from grouprl.train.session import Session, exact_sampler, start
from grouprl.train.session import resume as resume_session
from grouprl.train.stopwatch import Stopwatch
from grouprl.train.update import learning_rate, update
from grouprl.train.warmup import demonstration_batch, warmup_rate

SHOWN = 4
"""Sample answers handed to the display per step."""


@dataclass(frozen=True)
class Summary:
    """Where a run lies and how it ended."""

    folder: Path
    interrupted: bool = False


def train(
    config: Config, *, folder: Path | None = None, resume: bool = False, console: Console | None = None
) -> Summary:
    """Run a configuration from the start, or go on with the run in `folder`.

    The folder is left with resolved config, metrics, rollouts, checkpoints, the final model and a report.
    Raises InputError for what the user can mend and RunError when the run cannot go on; what is on disk stays whole.
    """
    console = console or Console()
    if not resume:
        prospect = plan(config)
        prospect.raise_if_refused()
        for line in prospect.short():
            console.print(line, highlight=False, markup=False)
    session = resume_session(_required(folder)) if resume else start(config, folder)
    with Display(session.config.steps, console=console) as display, Interrupt(display.message) as stop:
        for note in session.notes:
            display.message(note)
        clock = _Clock(session)
        if session.phase == "warmup":
            warm_up(session, display, stop, clock)
        if session.phase == "train" and not stop.asked:
            reinforce(session, display, stop, clock)
        finished = session.phase == "train" and session.step == session.config.steps and not stop.asked
        count = session.config.eval.final_questions
        after = _evaluate(session, display, clock, count, "after") if finished else None
    if after is None:
        session.save()
    conclude(session, after, console)
    return Summary(session.run.path, interrupted=after is None)


def warm_up(session: Session, display: Display, stop: Interrupt, clock: _Clock) -> None:
    """Imitate demonstrations, then enter reinforcement."""
    config, sft = session.config, catalogue_method("sft")
    display.phase("warmup", config.warmup.steps, session.step)
    while session.step < config.warmup.steps and not stop.asked:
        with clock.step:
            draws = session.source.take(config.warmup.batch)
            batch = demonstration_batch(session.policy, session.task, draws, config.seed)
            rate = warmup_rate(config.warmup, session.step)
            losses = _update(session, sft.judge(batch), sft, rate, parts=1, epochs=1)
            session.step += 1
        tokens = float(batch.mask_bt.sum())
        record = {"loss": losses["loss"], "lr": rate, "tokens": tokens}
        _log(session, display, clock, "warmup", record)
        if session.step % config.run.checkpoint_every == 0 and session.step < config.warmup.steps:
            session.save()
    if session.step == config.warmup.steps:
        session.begin("train")


def reinforce(session: Session, display: Display, stop: Interrupt, clock: _Clock) -> None:
    """Improve the policy by the method, evaluating before, during and after."""
    config = session.config
    if session.step == 0 and read_before(session.run) is None:
        write_before(session.run, _evaluate(session, display, clock, config.eval.final_questions, "before"))
        session.save()
    display.phase("train", config.steps, session.step)
    while session.step < config.steps and not stop.asked:
        _reinforce_step(session, display, clock)
        last = session.step == config.steps
        if config.eval.every and session.step % config.eval.every == 0 and not last:
            _evaluate(session, display, clock, config.eval.questions)
        if session.step % config.run.checkpoint_every == 0 or last:
            session.save()


def _reinforce_step(session: Session, display: Display, clock: _Clock) -> None:
    config, watch = session.config, Stopwatch()
    with clock.step:
        drawn, wanted, rounds = gather(session)
        batch = _batch(session, wanted)
        with torch.no_grad():
            judged = session.method.judge(batch) if batch is not None else None
        rate = learning_rate(config.optim, session.step, config.steps)
        metrics: dict[str, float] = {"loss": 0.0, "rows_trained": 0.0, "grad_norm": 0.0}
        if judged is not None:
            with watch("update"):
                plan = config.batch
                metrics |= _update(session, judged, session.method, rate, parts=plan.minibatches, epochs=plan.epochs)
            metrics |= judged_metrics(judged)
        session.step += 1
        if config.run.rollouts_every and session.step % config.run.rollouts_every == 0:
            _store(session, drawn, wanted, judged)
    seconds = session.collector.watch.read() | watch.read()
    metrics |= collected_metrics(drawn) | {f"seconds_{name}": value for name, value in seconds.items()}
    if session.method.refill is not None:
        metrics["refill_rounds"] = float(rounds)
    _log(session, display, clock, "train", {**metrics, "lr": rate}, _shown(drawn))


def gather(session: Session) -> tuple[Collected, Collected, int]:
    """Draw answers, and with a refill draw again in place of groups it does not want.

    Returns everything drawn, the rows to train on, and the number of rounds.
    """
    config, refill = session.config, session.method.refill
    wish, limit = config.batch.prompts, 1 if refill is None else refill.max_rounds
    parts: list[Collected] = []
    good: list[Collected] = []
    missing = wish
    for _ in range(limit):
        part = session.collector.collect(session.source.take(missing), greedy_baseline=session.method.greedy_baseline)
        parts.append(part)
        kept = subset(part, part.kept_b)
        if refill is not None and len(kept):
            kept = subset(kept, refill.wanted(to_batch(kept, max_length=session.max_new_tokens)).numpy())
        good.append(kept)
        missing -= len(set(kept.group_b.tolist()))
        if missing <= 0:
            break
    return join(parts), join(good), len(parts)


def _batch(session: Session, wanted: Collected) -> Batch | None:
    """The Batch of the rows to train on, with old, reference and critic values where they are needed; None if empty."""
    if not len(wanted):
        return None
    batch = to_batch(wanted, max_length=session.max_new_tokens)
    policy, tokens, needs = session.policy, batch.inputs, session.method.needs()
    if session.method.critic is not None or not exact_sampler(policy):
        out = policy.logp(tokens, values=session.method.critic is not None)  # type: ignore[arg-type]
        value_bt = None if out.value_bt is None else out.value_bt.cpu()
        batch = batch.replace(value_bt=value_bt)
        if not exact_sampler(policy):
            batch = batch.replace(old_bt=out.logp_bt.cpu())
    if session.reference is not None and ("ref_bt" in needs or session.config.model.reference == "initial"):
        batch = batch.replace(ref_bt=session.reference.logp(tokens).logp_bt.cpu())
    return batch


def _update(session: Session, judged: Batch, method: Any, rate: float, *, parts: int, epochs: int) -> dict[str, float]:
    assert session.optimizer is not None
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    return update(
        session.policy,
        session.optimizer,
        method,
        judged,
        parts=parts,
        epochs=epochs,
        seed=session.config.seed * 1_000_003 + session.step,
        grad_clip=session.config.optim.grad_clip,
    )


def _store(session: Session, drawn: Collected, wanted: Collected, judged: Batch | None) -> None:
    """Write the rollouts of the step, with advantages where rows were trained on."""
    found: dict[tuple[int, int], list[float]] = {}
    if judged is not None:
        values = judged.need("advantage_bt", "the rollout record").tolist()
        rows = zip(_row_keys(wanted), values, wanted.rollout.response_ids, strict=True)
        found = {key: row[: len(ids)] for key, row, ids in rows}
    advantage = [found.get(key) for key in _row_keys(drawn)]
    write_rollouts(session.run.rollout_file(session.step), session.step, drawn, advantage)


def _row_keys(collected: Collected) -> list[tuple[int, int]]:
    """(group, answer number within the group) of each row."""
    return list(zip(collected.group_b.tolist(), collected.answer_b.tolist(), strict=True))


def _evaluate(session: Session, display: Display, clock: _Clock, questions: int, when: str = "") -> Evaluation:
    """Evaluate on held-out questions; before and after training (`when`) as a phase of its own on the display."""
    config = session.config
    if when:
        display.phase("eval", questions)
    with clock.step:
        found = evaluate(
            session.policy,
            session.task,
            questions=questions,
            samples=config.eval.samples,
            k=config.eval.k,
            temperature=config.sampling.temperature,
            max_new_tokens=session.max_new_tokens,
            seed=config.seed,
            reward=session.reward,
            correct_at=config.reward.correct_at,
            progress=display.progress if when else None,
        )
    _log(session, display, clock, "eval", found.record())
    return found


def _log(
    session: Session,
    display: Display,
    clock: _Clock,
    phase: str,
    values: dict[str, float],
    samples: Sequence[Sample] | None = None,
) -> None:
    seconds, session.elapsed = clock.step.taken, clock.elapsed()
    record: dict[str, Any] = {"phase": phase, "step": session.step, "seconds": round(session.elapsed, 3), **values}
    if "tokens" in values:
        record["tokens_per_second"] = round(values["tokens"] / max(seconds, 1e-9), 1)
    if phase == "train":
        record["memory_mb"] = round(memory_mb(), 1)
    check_names(record)
    session.record(record)
    display.step(record, samples, session.health.findings())


def _shown(collected: Collected) -> list[Sample]:
    groups = list(dict.fromkeys(collected.group_b.tolist()))[:SHOWN]
    rows = [int((collected.group_b == group).argmax()) for group in groups]
    scores = collected.scores
    return [
        Sample(
            question_text(collected.questions[i]),
            collected.texts[i],
            float(scores.reward_b[i]),
            bool(scores.correct_b[i]),
        )
        for i in rows
    ]


def _required(folder: Path | None) -> Path:
    assert folder is not None, "resuming needs the run's folder"
    return folder


class _Timer:
    def __enter__(self) -> _Timer:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.taken = time.perf_counter() - self.start


class _Clock:
    """Seconds of the run, pauses before a resume left out, and of the current step."""

    def __init__(self, session: Session) -> None:
        self._before, self._start = session.elapsed, time.perf_counter()
        self.step = _Timer()

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self._before + time.perf_counter() - self._start
