"""The run: warm up, evaluate, reinforce, evaluate, report.

One reinforcement step is: choose prompts, sample completions, score them, build the Batch, compute advantages,
update the policy, observe. Everything stateful is in the checkpoint, every random number follows from (seed, step).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from rich.console import Console

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.stage_checks import call, numbers_of, one_of
from grouprl.config.rates import learning_rate, ratio_of_squares, update_ratio, update_squares
from grouprl.config.run import Config, with_absolute_paths
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.spans import span, spanned
from grouprl.core.stopwatch import Stopwatch, TrainingClock
from grouprl.core.terminal import Terminal
from grouprl.evaluation.evaluate import Evaluation, evaluate_rows
from grouprl.evaluation.sampling import example_text
from grouprl.methods.registry import method as catalogue_method
from grouprl.monitor.display import Display, Sample
from grouprl.monitor.glossary import check_names
from grouprl.monitor.metrics import memory_mb, prepared_metrics, sample_metrics, write_rollouts
from grouprl.orchestrator.accounting import NO_ROWS, SampledCounts, StepRollout, account, account_before
from grouprl.orchestrator.resolve import resolve
from grouprl.orchestrator.step import collect_rollout, entropy_of, remember
from grouprl.orchestrator.text_features import add_statistics, add_texts
from grouprl.plan.plan import plan
from grouprl.protocols import SpreadOptimizer
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.engines import engine_metrics, rest_engine, tell_engine
from grouprl.rollout.sampler import MakeEngine
from grouprl.rollout.scored_rows import GREEDY_TOKENS
from grouprl.train.ending import conclude, write_before
from grouprl.train.interrupt import Interrupt, Stopped
from grouprl.train.logprobs import with_scores
from grouprl.train.profile_table import profiled
from grouprl.train.session import Session, start
from grouprl.train.session import resume as resume_session
from grouprl.train.update import update
from grouprl.train.warmup import demonstration_batch, warmup_rate

if TYPE_CHECKING:
    from grouprl.algorithms.method import Method
    from grouprl.records.token_policy import TokenPolicy

SHOWN = 4
"""Sample completions handed to the display per step."""


@dataclass(frozen=True)
class Summary:
    """Where a run lies and how it ended."""

    folder: Path
    interrupted: bool = False


def train(
    config: Config,
    *,
    folder: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    profile: int = 0,
    engine: MakeEngine | None = None,
    changes: Sequence[str] = (),
    accept_changes: bool = False,
) -> Summary:
    """Run a configuration from the start, or continue the run in `folder`.

    At the end the folder holds the resolved config, metrics, rollouts, checkpoints, the final model and a report.
    With `profile` so many steps are profiled, and the table is printed and written into the folder. `engine` makes
    the policy's sampler (see `grouprl.protocols.Engine`) in place of `sampling.engine`; asynchronous runs sample in
    processes of their own by `sampling.engine`, and evaluate with `engine`. `changes` and `accept_changes` are for a
    run that is resumed: see `session.resume`.

    Raises InputError for what the user can mend and RunError when the run cannot continue; what is on disk stays whole.
    """
    console = console or Terminal()
    if not resume:
        resolved = resolve(with_absolute_paths(config))
        prospect = plan(resolved)
        prospect.raise_if_refused()
        for line in prospect.short():
            console.print(line, highlight=False, markup=False)
        session = start(resolved, folder, engine)
        session.graded = prospect.graded
    else:
        session = resume_session(_required(folder), changes, accept_changes=accept_changes, engine=engine)
    try:
        after = profiled(session, console, profile, _run) if profile else _run(session, console)
        if after is None:
            session.save()
        conclude(session, after, console)
    except InputError as error:
        error.begun = resume or bool(session.run.read_metrics())
        if not error.begun:
            session.run.discard()
        raise
    finally:
        session.leave()
    return Summary(session.run.path, interrupted=after is None)


@contextmanager
def settled() -> Iterator[None]:
    """Keep the garbage collector from looking through what is there by now, libraries above all, again and again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run(session: Session, console: Console) -> Evaluation | None:
    """Run the phases that are left; return the evaluation after training, None if it was interrupted before."""
    with (
        closing(session),
        settled(),
        Display(session.config.steps, console=console, actions=not session.row_source.text) as display,
        Interrupt(display.message) as stop,
    ):
        tell_engine(session.sampler, display.message)
        if session.placement is not None:
            session.placement.say = display.message
        for note in [*session.notes, *session.row_source.notes]:
            display.message(note)
        clock = TrainingClock(session.elapsed)
        if session.phase == "warmup":
            warm_up(session, display, stop, clock)
        if session.phase == "pretraining" and not stop.requested:
            prepare_run(session, display, stop, clock)
        with suppress(Stopped):
            if session.phase == "train" and not stop.requested:
                reinforce(session, display, stop, clock)
            finished = session.phase == "train" and session.step == session.config.steps and not stop.requested
            count = session.config.eval.final_prompts
            return _evaluate(session, display, stop, clock, count, "after") if finished else None
        return None


def warm_up(session: Session, display: Display, stop: Interrupt, clock: TrainingClock) -> None:
    """Imitate demonstrations, then enter reinforcement."""
    config, sft = session.config, catalogue_method("sft")
    display.phase("warmup", config.warmup.steps, session.step)
    while session.step < config.warmup.steps and not stop.requested:
        with clock.step:
            numbered_examples = session.source.take(config.warmup.batch)
            size = session.source.size
            batch = demonstration_batch(
                cast("TokenPolicy", session.policy),  # demonstrations are texts
                session.task,
                numbered_examples,
                config.seed,
                examples=size,
                history=config.sampling.history,
                stage=session.row_source.stage,
                teachers=[part for part in data_parts(session.method.parts()) if part.teaches],
                errors=session.errors,
            )
            rate = warmup_rate(config.warmup, session.step)
            record = {"loss": 0.0, "lr": rate, "tokens": 0.0, "demonstrations_failed": float(len(numbered_examples))}
            if batch is not None:
                record["loss"] = _update(session, sft.compute_advantages(batch), sft, rate, parts=1, epochs=1)["loss"]
                record["tokens"] = float(batch.mask_bt.sum())
                record["demonstrations_failed"] -= len(batch.group_b.unique())
            session.step += 1
        _log(session, display, clock, "warmup", record)
        if session.step % config.run.checkpoint_every == 0 and session.step < config.warmup.steps:
            session.save()
    if session.step == config.warmup.steps:
        session.begin(session.after_warmup())


def prepare_run(session: Session, display: Display, stop: Interrupt, clock: TrainingClock) -> None:
    """Do what the method does once before its first step (its pretraining), piece by piece."""
    session.publish()
    pieces = session.pretraining_pieces()
    display.phase("pretraining", len(pieces), session.step)
    while session.step < len(pieces) and not stop.requested:
        part, number = pieces[session.step]
        first = session.source.sampled
        with clock.step:
            metrics = numbers_of(part, call(part, part.piece, number, session.context))
            session.step += 1
            session.publish()
        sampled = account_before(session.source.sampled - first, session.context.read_sampled_counts())
        _log(session, display, clock, "pretraining", {**metrics, **session.context.read_notes(), **sampled})
        if session.step % session.config.run.checkpoint_every == 0 and session.step < len(pieces):
            session.save()
    if session.step == len(pieces):
        session.begin("train")


def reinforce(session: Session, display: Display, stop: Interrupt, clock: TrainingClock) -> None:
    """Improve the policy by the method, evaluating before, during and after."""
    config = session.config
    session.publish()
    session.context.say = display.message
    session.context.sample_source.begin(display.message)
    if session.step == 0 and not session.run.before.is_file():
        write_before(session.run, _evaluate(session, display, stop, clock, config.eval.final_prompts, "before"))
        session.save()
    display.phase("train", config.steps, session.step)
    if _evaluation_due(session):  # it was cut short, or the run ended here and continues now
        _evaluate(session, display, stop, clock, config.eval.prompts)
    while session.step < config.steps and not stop.requested:
        _reinforce_step(session, display, clock)
        if _evaluation_due(session):
            _evaluate(session, display, stop, clock, config.eval.prompts)
        if session.step % config.run.checkpoint_every == 0 or session.step == config.steps:
            session.save()
    if session.step == config.steps:
        session.errors.raise_if_all_failed()


def _evaluation_due(session: Session) -> bool:
    """Whether the policy is to be evaluated between steps, and has not been after this one."""
    every, step = session.config.eval.every, session.step
    return bool(every) and step % every == 0 and 0 < step < session.config.steps and session.evaluated != step


@spanned("step")
def _reinforce_step(session: Session, display: Display, clock: TrainingClock) -> None:
    config, watch = session.config, Stopwatch()
    first = session.source.sampled
    with clock.step:
        with span("choose"):
            rollout = collect_rollout(session.context)
        rest_engine(session.sampler)
        batch = _batch(session, rollout.wanted) if rollout is not None else None
        with torch.no_grad(), span("advantages"):
            prepared = session.method.compute_advantages(batch) if batch is not None else None
        rate = learning_rate(config.optim, session.step, config.steps)
        metrics: dict[str, float] = {"loss": 0.0, "rows_trained": 0.0, "grad_norm": 0.0}
        if prepared is not None:
            with watch("update"):
                plan = config.batch
                metrics |= _update(session, prepared, session.method, rate, parts=plan.minibatches, epochs=plan.epochs)
                metrics |= _moved(session, metrics)
            metrics |= prepared_metrics(prepared)
        if rollout is not None:
            with span("choose"):
                remember(session.context, rollout, prepared)
        session.step += 1
        session.graded |= rollout is not None and rollout.sampled.scores.graded
        if rollout is not None and config.run.rollouts_every and session.step % config.run.rollouts_every == 0:
            _store(session, rollout.sampled, rollout.wanted, prepared)
        session.publish()
        metrics |= session.context.sample_source.advance(rollout)
        _add_engine_metrics(session, metrics)
    seconds = session.row_source.watch.read() | watch.read()
    metrics |= {f"seconds_{name}": value for name, value in seconds.items()} | session.context.read_notes()
    metrics |= _account(session, range(first, session.source.sampled), rollout, prepared)
    if rollout is not None:
        metrics |= _rollout_metrics(session, rollout, prepared, metrics)
    shown = _shown(_marked(session, rollout.sampled)) if rollout else []
    _log(session, display, clock, "train", {**metrics, "lr": rate}, shown)


def _add_engine_metrics(session: Session, metrics: dict[str, float]) -> None:
    """Add what the sampler and the cluster report: counts and seconds are summed, of gaps the largest is kept."""
    for name, value in engine_metrics(session.sampler).items():
        before = metrics.get(name, 0.0)
        metrics[name] = max(before, value) if name == "canary_gap" else before + value
    metrics |= {} if session.placement is None else session.placement.metrics()


def _rollout_metrics(
    session: Session, rollout: StepRollout, prepared: Batch | None, known: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics of what was sampled; its entropy only where it is not among the `known` ones."""
    metrics = dict(sample_metrics(rollout.sampled))
    if "entropy" not in {**known, **metrics} and (entropy := entropy_of(prepared)) is not None:
        metrics["entropy"] = entropy
    if session.method.refill is not None:
        metrics["refill_rounds"] = float(rollout.rounds)
    return metrics


def _account(
    session: Session, requested: range, rollout: StepRollout | None, prepared: Batch | None
) -> dict[str, float]:
    """What became of the prompts sampled in this step; of those whose completions arrived, where they are requested
    ahead."""
    asynchronous, counts = session.context.sample_source.asynchronous, session.context.read_sampled_counts()
    if rollout is None:
        return account(() if asynchronous else requested, None, NO_ROWS, None, None, counts)
    if asynchronous:
        counts = _arrived(rollout)
    sampled = rollout.sampled if rollout.rounds else None
    ordinals = set(rollout.sampled.ordinal_b.tolist()) if asynchronous else requested
    return account(ordinals, sampled, rollout.fate_b if rollout.rounds else NO_ROWS, rollout.wanted, prepared, counts)


def _arrived(rollout: StepRollout) -> SampledCounts:
    """What other processes sampled of this step's rows."""
    counts = SampledCounts()
    counts.add(rollout.sampled)
    if rollout.sampled.greedy_reward_b is not None:
        _, first_b = np.unique(rollout.sampled.ordinal_b, return_index=True)
        counts.add_unnamed(rollout.sampled.extras[GREEDY_TOKENS][first_b].tolist())
    return counts


@spanned("log-probs, statistics")
def _batch(session: Session, wanted: ScoredSamples) -> Batch | None:
    """The Batch of the rows to train on, with old, reference and critic values where they are needed; None if empty."""
    if not len(wanted):
        return None
    batch = session.context.batch(wanted)
    method, inputs = session.method, wanted.inputs
    batch = add_texts(batch, wanted, method, session.task, session.policy)
    batch = with_scores(session, batch, inputs, torch.from_numpy(wanted.foreign_b), exact=wanted.rollout.exact)
    if session.reference is not None and ("ref_bt" in method.needs() or session.config.model.reference == "initial"):
        batch = batch.replace(ref_bt=session.reference.logp(inputs).logp_bt.cpu())
    for part in data_parts(method.parts()):
        batch = one_of(part, Batch, part.fill, batch, wanted, session.context)
    return add_statistics(session.policy, batch, method.needs())


def _update(
    session: Session, prepared: Batch, method: Method, rate: float, *, parts: int, epochs: int
) -> dict[str, float]:
    assert session.optimizer is not None
    for group in session.optimizer.param_groups:
        group["lr"] = rate
    return update(
        session.policy,
        session.optimizer,
        method,
        prepared,
        parts=parts,
        epochs=epochs,
        seed=session.config.seed * 1_000_003 + session.step,
        grad_clip=session.config.optim.grad_clip,
        context=session.context,
        old_of_update=prepared.old_bt is None,
    )


def _moved(session: Session, metrics: dict[str, float]) -> dict[str, float]:
    """How far the last optimiser step went, where there was one."""
    assert session.optimizer is not None
    if not metrics["grad_norm"] > 0:
        return {}
    if isinstance(session.optimizer, SpreadOptimizer):
        pieces = [each for each in session.optimizer.measured(update_squares) if each is not None]
        ratio = ratio_of_squares(pieces) if pieces else None
    else:
        ratio = update_ratio(session.optimizer)
    return {} if ratio is None else {"update_ratio": ratio}


@spanned("records")
def _store(session: Session, sampled: ScoredSamples, wanted: ScoredSamples, prepared: Batch | None) -> None:
    """Write the rollouts of the step, with advantages where rows were trained on."""
    found: dict[tuple[int, int, int], list[float]] = {}
    sampled = _marked(session, sampled)
    if prepared is not None:
        values = prepared.need("advantage_bt", "the rollout record").tolist()
        rows = zip(wanted.row_keys, values, wanted.rollout.action_ids, strict=True)
        found = {key: row[: len(ids)] for key, row, ids in rows}
    advantage = [found.get(key) for key in sampled.row_keys]
    write_rollouts(session.run.rollout_file(session.step), session.step, sampled, advantage)


def _evaluate(
    session: Session, display: Display, stop: Interrupt, clock: TrainingClock, prompts: int, when: str = ""
) -> Evaluation:
    """Evaluate on held-out prompts; before and after training (`when`) as a phase of its own on the display.

    Raises Stopped when the run is to stop meanwhile.
    """
    config = session.config

    def progress(done: int, total: int) -> None:
        stop.give_way()
        if when:
            display.progress(done, total)

    if when:
        display.phase("eval", prompts)
    with clock.step:
        source, settings = session.row_source.held_out(), config.eval
        found = evaluate_rows(source, prompts=prompts, samples=settings.samples, k=settings.k, progress=progress)
    session.evaluated = session.step
    session.graded |= found.graded
    found = found.knowing(session.graded)
    _log(session, display, clock, "eval", found.record())
    return found


@spanned("records")
def _log(
    session: Session,
    display: Display,
    clock: TrainingClock,
    phase: str,
    values: dict[str, float],
    samples: Sequence[Sample] | None = None,
) -> None:
    seconds, session.elapsed = clock.step.taken, clock.elapsed()
    record: JsonObject = {"phase": phase, "step": session.step, "seconds": round(session.elapsed, 3), **values}
    if "tokens" in values:
        record["tokens_per_second"] = round(values["tokens"] / max(seconds, 1e-9), 1)
    if phase == "train":
        record["memory_mb"] = round(memory_mb(), 1)
    check_names(record)
    session.record(record)
    display.step(record, samples, session.health.findings())


def _marked(session: Session, samples: ScoredSamples) -> ScoredSamples:
    """Return the samples with what the run knows of its reward: a step of zeros and ones may belong to a graded one."""
    return replace(samples, scores=replace(samples.scores, graded=session.graded))


def _shown(samples: ScoredSamples) -> list[Sample]:
    ordinals = list(dict.fromkeys(samples.ordinal_b.tolist()))[:SHOWN]
    rows = [int((samples.ordinal_b == ordinal).argmax()) for ordinal in ordinals]
    scores = samples.scores
    return [
        Sample(
            example_text(samples.examples[i]),
            samples.texts[i],
            float(scores.reward_b[i]),
            None if scores.graded else bool(scores.correct_b[i]),
        )
        for i in rows
    ]


def _required(folder: Path | None) -> Path:
    assert folder is not None, "resuming needs the run's folder"
    return folder
