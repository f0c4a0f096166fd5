"""The run: warm up, evaluate, reinforce, evaluate, report.

One reinforcement step is: choose prompts, sample completions, score them, build the Batch, compute advantages,
update the policy, observe. Everything stateful is in the checkpoint, every random number follows from (seed, step).
Listeners (`grouprl.protocols.run_events`) are told of events; the loop itself writes, draws and judges nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.stage_checks import one_of
from grouprl.algorithms.update.last_step import go_on
from grouprl.config.rates import learning_rate
from grouprl.config.run import Config, with_absolute_paths
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.spans import span, spanned
from grouprl.core.stopwatch import Stopwatch, TrainingClock
from grouprl.core.terminal import READING, Terminal
from grouprl.evaluation.evaluate import Evaluation, evaluate_rows
from grouprl.monitor.display import Display
from grouprl.monitor.health import HealthWatch
from grouprl.monitor.metrics import prepared_metrics
from grouprl.monitor.run_record import HealthFile, RunRecord
from grouprl.orchestrator.chat_prompts import resolve_new
from grouprl.orchestrator.stated_components import need_components
from grouprl.orchestrator.step import collect_rollout, remember
from grouprl.orchestrator.text_features import add_texts
from grouprl.plan.plan import plan
from grouprl.protocols.run_events import EvaluationEnded, Progress, RunBegan, RunEnded, RunListener
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.judging.comparing import comparing
from grouprl.rollout.engines import rest_engine, tell_engine
from grouprl.rollout.local.sampler import MakeEngine
from grouprl.trackers.choice import chosen_tracker
from grouprl.trackers.listener import TrackerListener
from grouprl.training.announcer import Announcer
from grouprl.training.ending import conclude, is_best, values_before, write_before
from grouprl.training.first_reference import check_first_pass, check_first_step
from grouprl.training.interrupt import Interrupt, Stopped
from grouprl.training.logprobs import add_statistics, with_references, with_scores
from grouprl.training.measures.judge_probe import judge_drift
from grouprl.training.opening import resume as resume_session
from grouprl.training.opening import start
from grouprl.training.optimise import moved, optimise, record_of_updates
from grouprl.training.preparing import prepare_run, warm_up
from grouprl.training.profile_table import profiled
from grouprl.training.saved_model import check_final_model
from grouprl.training.session import Session
from grouprl.training.step_metrics import account_step, add_engine_metrics, rollout_metrics, twice_scored
from grouprl.training.telling import phase, record_of, tell_rollout, tell_step

When = Literal["before", "between", "after"]


@dataclass(frozen=True)
class Summary:
    """The folder of a run, and the outcome of the run."""

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
    listeners: Sequence[RunListener] = (),
) -> Summary:
    """Run a configuration from the start, or continue the run in `folder`.

    At the end the folder holds the resolved config, metrics, rollouts, checkpoints, the final model and a report.
    With `profile` > 0, that many steps are profiled, and a table is printed and saved in the folder. `engine` makes
    the policy's sampler (see `grouprl.protocols.Engine`) in place of `sampling.engine`; asynchronous runs sample in
    processes of their own by `sampling.engine`, and evaluate with `engine`. `changes` and `accept_changes` are for a
    run that is resumed: see `opening.resume`. `listeners` receive its events: see `grouprl.protocols.run_events`.

    Raises InputError for errors that the user can fix, and RunError if the run cannot continue; files stay intact.
    """
    console = console or Terminal()
    display = Display(console)
    display.keep_going()
    if not resume:
        with console.status(READING):
            resolved = resolve_new(with_absolute_paths(config), download=True)
            prospect = plan(resolved)
        prospect.raise_if_refused()
        for line in prospect.short():
            console.print(line, highlight=False, markup=False)
        session = start(resolved, folder, engine)
        session.graded = prospect.graded
    else:
        assert folder is not None, "resuming needs the run's folder"
        session = resume_session(folder, changes, accept_changes=accept_changes, engine=engine)
    with _left_in_order(session, resume):
        if session.finished:
            with closing(session):
                words = f"{session.run.path} has made all its {session.step} steps. To train it further: --set steps=…"
                console.print(words, highlight=False, markup=False)
            return Summary(session.run.path)
        display.keep_going(session.run.note)
        session.announcer = _announcer(session, display, listeners)
        run = partial(_run, session, display, resumed=resume)
        after = profiled(session, console, profile, run) if profile else run()
        if after is None:
            session.save()
        session.announcer.tell(conclude(session, after))
        if after is not None and session.config.run.check_model:
            check_final_model(session.model, session.run.model, session.task)
    return Summary(session.run.path, interrupted=after is None)


@contextmanager
def _left_in_order(session: Session, resumed: bool) -> Iterator[None]:
    """Report an error that ends the run, remove a run that never began, and unlock its folder."""
    try:
        yield
    except BaseException as error:
        session.announcer.tell(RunEnded(session.run.path, session.phase, session.step, error=error))
        if isinstance(error, InputError):
            error.begun = resumed or bool(session.run.read_metrics())
            if not error.begun:
                session.run.discard()
        raise
    finally:
        session.leave()


def _announcer(session: Session, display: Display, listeners: Sequence[RunListener]) -> Announcer:
    announcer = Announcer(listeners)
    trackers = (TrackerListener(chosen_tracker(each), announcer.say) for each in session.config.run.trackers)
    announcer.own = (RunRecord(session.run, session.config.run.rollouts_every), display, *trackers)
    announcer.last = (HealthWatch(session.health, announcer.tell), HealthFile(session.run, session.health))
    return announcer


def _begun(session: Session, resumed: bool) -> RunBegan:
    settings, actions = session.config.model_dump(mode="json"), not session.row_source.text
    return RunBegan(session.run.path, settings, session.phase, session.step, resumed, actions)


@contextmanager
def settled() -> Iterator[None]:
    """Exclude the objects that exist by now, mostly those of libraries, from garbage collection during the block."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run(session: Session, display: Display, *, resumed: bool) -> Evaluation | None:
    """Run the remaining phases; return the evaluation after training, None if the run was interrupted before it."""
    say = session.announcer.say
    with closing(session), settled(), display, Interrupt(say) as stop:
        session.announcer.tell(_begun(session, resumed))
        tell_engine(session.sampler, say)
        if session.placement is not None:
            session.placement.say = say
        for note in [*session.notes, *session.row_source.notes]:
            say(note)
        session.clock = TrainingClock(session.elapsed)
        if session.phase == "warmup":
            warm_up(session, stop)
        if session.phase == "pretraining" and not stop.requested:
            prepare_run(session, stop)
        with suppress(Stopped):
            if session.phase == "train" and not stop.requested:
                reinforce(session, stop)
            finished = session.phase == "train" and session.step == session.config.steps and not stop.requested
            return _evaluate(session, stop, session.config.eval.final_prompts, "after") if finished else None
        return None


def reinforce(session: Session, stop: Interrupt) -> None:
    """Improve the policy by the method, evaluating before, during and after."""
    config = session.config
    if session.step < config.steps:
        for remembered in session.context.memory.values():
            go_on(session.model, remembered)
    session.publish()
    session.context.say = session.announcer.say
    session.context.sample_source.begin(session.announcer.say)
    if session.step == 0 and not session.run.before.is_file():
        found = _evaluate(session, stop, config.eval.final_prompts, "before")
        write_before(session.run, found)
        is_best(session, found)
        session.save()
    with phase(session, "train", config.steps, session.step):
        if _best_after(session, stop):  # its evaluation was cut short, or the run had ended here and is now continued
            session.save()
        while session.step < config.steps and not stop.requested:
            reinforce_step(session)
            best = _best_after(session, stop)
            if best or session.step % config.run.checkpoint_every == 0 or session.step == config.steps:
                session.save()
    if session.step == config.steps:
        session.errors.raise_if_all_failed()


def _best_after(session: Session, stop: Interrupt) -> bool:
    """Evaluate between steps if it is due; return whether the policy is the best so far, by `eval.best`."""
    due = _evaluation_due(session)
    return due and is_best(session, _evaluate(session, stop, session.config.eval.prompts, "between"))


def _evaluation_due(session: Session) -> bool:
    """Return whether an evaluation between steps is due after this one and has not been made."""
    every, step = session.config.eval.every, session.step
    return bool(every) and step % every == 0 and 0 < step < session.config.steps and session.evaluated != step


@spanned("step")
def reinforce_step(session: Session) -> None:
    """Make one step: choose prompts, roll out, score, build the batch, prepare, update, observe."""
    config, method, watch = session.config, session.method, Stopwatch()
    first = session.source.sampled
    with session.clock.step:
        with span("choose"):
            rollout = collect_rollout(session.context)
        rest_engine(session.sampler)
        batch = batch_of(session, rollout.wanted) if rollout is not None else None
        if batch is not None and session.step == 0 and not session.resolved.guides:
            check_first_step(method, batch, getattr(session.model, "dtype", batch.dtype))
            if config.model.lora is not None and config.model.lora.dropout:
                check_first_pass(method, batch, session.model)
        session.references.follow(session.step)
        with torch.no_grad(), span("advantages"):
            prepared = method.compute_advantages(batch) if batch is not None else None
        rate = learning_rate(config.optim, session.step, config.steps)
        record = None if prepared is None else record_of_updates(session, prepared)
        metrics: dict[str, float] = {"loss": 0.0, "rows_trained": 0.0, "grad_norm": 0.0}
        if prepared is not None:
            with watch("update"):
                cuts = {"parts": config.batch.minibatches, "epochs": config.batch.epochs}
                metrics |= optimise(session, prepared, method, rate, **cuts, record=record)
                metrics |= moved(session, metrics["grad_norm"])
            metrics |= prepared_metrics(prepared)
        if rollout is not None:
            with span("choose"):
                remember(session.context, rollout, prepared)
        session.step += 1
        if rollout is not None:
            metrics |= twice_scored(session, rollout) | judge_drift(session, rollout)
            session.graded |= rollout.sampled.scores.graded
            tell_rollout(session, rollout, prepared, record)
        session.publish()
        metrics |= session.context.sample_source.advance(rollout)
        add_engine_metrics(session, metrics)
    seconds = session.row_source.watch.read() | watch.read()
    metrics |= {f"seconds_{name}": value for name, value in seconds.items()} | session.context.read_notes()
    metrics |= account_step(session, range(first, session.source.sampled), rollout, prepared)
    if rollout is not None:
        metrics |= rollout_metrics(session, rollout, prepared, metrics)
    tell_step(session, "train", {**metrics, "lr": rate}, rollout)


@spanned("log-probs, statistics")
def batch_of(session: Session, wanted: ScoredSamples) -> Batch | None:
    """Return the Batch of the rows to train on, with old, reference and critic values if needed; None if empty."""
    if not len(wanted):
        return None
    batch = session.context.batch(wanted)
    method, inputs = session.method, wanted.inputs
    need_components(method, batch)
    batch = add_texts(batch, wanted, method, session.task, lambda text: session.context.text.encode(text))
    batch = with_scores(session, batch, inputs, torch.from_numpy(wanted.foreign_b), exact=wanted.rollout.exact)
    batch = with_references(session, batch, inputs)
    for part in data_parts(method.parts()):
        batch = one_of(part, Batch, part.fill, batch, wanted, session.context)
    return add_statistics(session.model, batch, method.needs())


def _evaluate(session: Session, stop: Interrupt, prompts: int, when: When) -> Evaluation:
    """Evaluate on held-out prompts, as a separate phase before and after training.

    Raises Stopped if the run is to stop meanwhile.
    """
    tell = session.announcer.tell

    def progress(done: int, total: int) -> None:
        stop.give_way()
        tell(Progress(done, total))

    with nullcontext() if when == "between" else phase(session, "eval", prompts), session.clock.step:
        source, settings = session.row_source.held_out(), session.config.eval
        found = evaluate_rows(source, prompts=prompts, samples=settings.samples, k=settings.k, progress=progress)
    session.evaluated = session.step
    session.graded |= found.graded
    of_groups, aim = comparing(session.row_source.reward) is not None, session.method.objective.proportional
    found = replace(found.knowing(session.graded), compared=of_groups, proportional=aim)
    found = found.since(values_before(session.run))
    with span("records"):
        record = record_of(session, "eval", {**found.record(), **session.context.read_reward()})
        tell(EvaluationEnded(session.step, when, record, found.samples))
    return found
