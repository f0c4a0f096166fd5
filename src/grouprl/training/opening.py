"""Opening of a session: a fresh one in a new run folder, or one restored from a run's last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from grouprl.config.extending import changed_config, check_steps, moved_folders, said
from grouprl.config.own_code import changed, own_code, refuse_changes, remember
from grouprl.config.own_data import refuse_data, refuse_missing, remember_data
from grouprl.config.relocation import relocated, told_of
from grouprl.config.run import Config, default_folder, load_config, with_absolute_paths
from grouprl.config.yaml_files import read_text
from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import State
from grouprl.core.wording import in_ranges
from grouprl.evaluation.best import Best
from grouprl.orchestrator.asynchronous.restrictions import threads_each
from grouprl.orchestrator.chat_prompts import resolve_new
from grouprl.orchestrator.make_policy import build_model, make_optimizer
from grouprl.orchestrator.make_sharded_policy import check_started
from grouprl.orchestrator.on_ray.placement import RunPlacement, close_placement
from grouprl.orchestrator.resolve import ResolvedRun, resolve
from grouprl.orchestrator.reward import close_reward
from grouprl.policy.threads import choose_threads
from grouprl.processes.begun_run import remember_begun
from grouprl.protocols import Trainable, distributed
from grouprl.rewards.contract import Reward as RewardFunction
from grouprl.rollout.local.sampler import MakeEngine
from grouprl.storage.checkpoint import Checkpoint, newest, prune
from grouprl.storage.lock import FolderLock
from grouprl.storage.run_folder import RunFolder, in_words, settle, write_json, write_text
from grouprl.tasks import Task
from grouprl.training.session import Session, assemble, placement_of, reward_of, settings_digest, versions


def start(config: Config | ResolvedRun, folder: Path | None, engine: MakeEngine | None = None) -> Session:
    """Make the run folder and build a fresh session; `engine` makes the policy's sampler."""
    resolved = config if isinstance(config, ResolvedRun) else resolve_new(with_absolute_paths(config), download=True)
    config, task = resolved.config, resolved.task
    asked = config.fingerprint()
    check_started(config.cluster)
    folder = default_folder(config) if folder is None else folder
    threads = threads_each(config, choose_threads(config.run.threads))
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    model = build_model(resolved)
    resolved = resolved.with_precision(getattr(model, "precision", "float32"))
    config = resolved.config
    with ExitStack() as undo:
        placement, reward, notes = _workers(resolved, RunFolder(folder), model, undo)
        run = RunFolder.create(folder)
        lock = FolderLock(run)
        undo.callback(lock.release)
        if run.config.is_file():
            raise InputError(f"the run folder {folder} has just been started by another process")
        undo.push(partial(_discard_refused, run))
        remember_begun(asked, run.path)
        settings = config.dump()
        facts = {
            "threads": threads,
            "task": task.fingerprint(),
            "settings": settings_digest(settings),
            "versions": versions(),
        }
        remember_data(run, task)
        facts |= {"code": remember(run, own_code(config)), "folder": str(run.path.resolve())}
        write_json(run.facts, facts)
        write_text(run.config, settings)  # written last: a run with this file can be resumed
        session = assemble(resolved, run, model, reward, engine, placement)
        session.lock, session.notes = lock, [*_lock_notes(lock), *notes]
        session.begin("warmup" if config.warmup.steps else session.after_warmup())
        undo.pop_all()
    return session


def _workers(
    resolved: ResolvedRun, run: RunFolder, model: Trainable, undo: ExitStack
) -> tuple[RunPlacement | None, RewardFunction, list[str]]:
    """Return the workers of a run, its reward, and notes; `undo` ends the processes of both."""
    placement = placement_of(resolved, model)
    undo.callback(close_placement, placement)
    reward, notes = reward_of(resolved, run, placement)
    undo.callback(close_reward, reward)
    return placement, reward, notes


def _discard_refused(run: RunFolder, kind: object, error: BaseException | None, trace: object) -> None:
    """Remove the folder of a run that was refused; one that ended otherwise may still tell its user why."""
    if isinstance(error, InputError):
        run.discard()


def resume(
    folder: Path,
    changes: Sequence[str] = (),
    *,
    accept_changes: bool = False,
    engine: MakeEngine | None = None,
) -> Session:
    """Rebuild the session of an existing run from its newest intact checkpoint (or from the start if there is none).

    `changes` are settings `key=value` among `extending.MAY_CHANGE`; with `accept_changes` the task, and the user's own
    code, may differ from those that the run began with.

    Raises InputError if the folder is not a run or is in use, or if its settings, task or code have changed;
    RunError if records are damaged, if no checkpoint is intact, or if all checkpoints are gone.
    """
    run = RunFolder.open(folder)
    lock = FolderLock(run)
    try:
        session = _resumed(run, changes, accept_changes, engine)
    except BaseException:
        lock.release()
        raise
    session.lock = lock
    session.notes += _lock_notes(lock)
    return session


def _resumed(run: RunFolder, changes: Sequence[str], accept_changes: bool, engine: MakeEngine | None) -> Session:
    facts = _facts(run)
    _check_settings(run, facts)
    found = relocated(run, facts.get("folder", ""))
    changes = [*found, *changes]
    before, moves = load_config(str(run.config), plugins=False), moved_folders(run, changes)
    other = changed(facts.get("code", {}), moves)
    if other and not accept_changes:
        refuse_changes(run, other, moves)
    config = changed_config(run, changes)
    refuse_missing(run, config)
    check_started(config.cluster)
    torch.set_num_threads(facts["threads"])
    torch.manual_seed(config.seed)
    resolved = resolve(config)
    task = resolved.task
    if task.fingerprint() != facts["task"] and not accept_changes:
        refuse_data(run, task)
    checkpoint, complaints = _last_checkpoint(run)
    check_steps(config, run, checkpoint.state["step"] if checkpoint and checkpoint.state["phase"] == "train" else 0)
    finished = not complaints and checkpoint is not None and _is_finished(run, config, checkpoint)
    if not finished:
        _rewind(run, checkpoint)
    model = build_model(resolved)
    with ExitStack() as undo:
        placement, reward, notes = _workers(resolved, run, model, undo)
        session = assemble(resolved, run, model, reward, engine, placement)
        session.finished = finished
        session.notes = [*complaints, *told_of(run, found), *notes, *said(before, config)]
        _restore(session, checkpoint)
        if changes or accept_changes:
            _write_changes(run, config, task, facts)
        if not complaints:  # a killed process may not have pruned; damaged ones must not count as kept
            prune(run, config.run.keep, session.best_step)
        undo.pop_all()
    return session


def _is_finished(run: RunFolder, config: Config, last: Checkpoint) -> bool:
    """Return whether the run has made all its steps and written its last checkpoint, its model and its results."""
    try:
        summary = json.loads(run.summary.read_bytes())
    except (OSError, ValueError):
        return False
    done = summary.get("finished") is True and summary.get("steps") == config.steps == last.state["step"]
    return done and last.state["phase"] == "train" and run.model.is_dir() and run.metrics.is_file()


def _check_settings(run: RunFolder, facts: State) -> None:
    """Refuse a configuration that was edited in the run folder."""
    known = settings_digest(read_text(run.config))
    if "" != facts.get("settings", "") != known and facts.get("settings_next") != known:
        raise InputError(
            f"{run.config} was changed since the run began",
            "a resumed run continues exactly as it began",
            f"Undo the change, or start a new run: grouprl train {run.config} --folder …",
        )


def _last_checkpoint(run: RunFolder) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint from which a run continues, None at the beginning, and the errors of damaged ones.

    Raises:
        RunError: no checkpoint is intact, or there is none although steps were made.
    """
    with in_words(run.checkpoints):
        settle(run.checkpoints)
    checkpoint, complaints = newest(run)
    if checkpoint is None and complaints:
        checkpoint, complaints = _in_spite_of_the_log(run, complaints)
    if checkpoint is None and complaints:
        raise RunError(
            f"none of the checkpoints of {run.path} is intact: {'; '.join(c.partition(';')[0] for c in complaints)}. "
            "Restore one from a copy, or start a new run"
        )
    if checkpoint is None and any(record.get("phase") == "train" for record in run.read_metrics()):
        raise RunError(
            f"{run.checkpoints} holds no checkpoint, but {run.metrics} holds steps that come after the first: the "
            f"checkpoints were removed. Restore one from a copy, or start a new run: grouprl train {run.config} "
            "--folder …"
        )
    return checkpoint, complaints


def _write_changes(run: RunFolder, config: Config, task: Task, facts: dict[str, object]) -> None:
    """Store changed settings, and the current task and code, as those of the run.

    Until the end the facts hold the digests of both the old and the new settings, so that the run can still be resumed
    if the process is killed in between.
    """
    settings = config.dump()
    code = remember(run, own_code(config))
    remember_data(run, task)
    now = {**facts, "task": task.fingerprint(), "code": code, "settings_next": settings_digest(settings)}
    write_json(run.facts, now)
    write_text(run.config, settings)
    write_json(run.facts, {**now, "settings": settings_digest(settings), "folder": str(run.path.resolve())})


def _in_spite_of_the_log(run: RunFolder, complaints: list[str]) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is intact except for metrics.jsonl, which is then repaired."""
    checkpoint, others = newest(run, log=False)
    if checkpoint is None:
        return None, complaints
    steps = checkpoint.state["step"] if checkpoint.state["phase"] == "train" else 0
    lost = run.mend_metrics(checkpoint.state["metrics_size"], steps)
    checkpoint.state["metrics_size"] = run.metrics.stat().st_size
    gone = f"the record and the report lack {in_ranges(lost)}" if lost else "no step is lost"
    said = (
        f"{run.metrics} was damaged or missing: {gone}; weights, optimiser and data are intact, and the run continues"
    )
    return checkpoint, [*others, said]


def _facts(run: RunFolder) -> State:
    try:
        facts = json.loads(run.facts.read_bytes())
        if isinstance(facts["threads"], int) and isinstance(facts["task"], str):
            return dict(facts)
        reason = "it does not hold the facts of a run"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise RunError(f"{run.facts} is damaged ({reason}). Restore it from a copy, or start a new run")


def _rewind(run: RunFolder, checkpoint: Checkpoint | None) -> None:
    """Delete all records made after the checkpoint (None: all records)."""
    nothing: State = {"metrics_size": 0, "phase": "warmup", "evaluated_before": False}
    state = checkpoint.state if checkpoint else nothing
    run.rewind(state["metrics_size"], state["step"] if state["phase"] == "train" else 0)
    if not state["evaluated_before"]:
        with in_words(run.before):
            run.before.unlink(missing_ok=True)
    with in_words(run.best):
        run.best.unlink(missing_ok=True)
    if state.get("best"):
        write_json(run.best, state["best"])


def _restore(session: Session, checkpoint: Checkpoint | None) -> None:
    """Restore the session from the checkpoint; without one, start from the beginning."""
    config, model = session.config, session.model
    if checkpoint is None:
        session.begin("warmup" if config.warmup.steps else session.after_warmup())
        session.notes.append("no checkpoint yet: starting from the beginning")
        return
    state = checkpoint.state
    if state["has_reference"]:
        session.restore_reference(state["reference_renewed"])
    session.phase, session.step, session.elapsed = state["phase"], state["step"], state["elapsed"]
    session.evaluated = state.get("evaluated", session.step)
    session.graded = state.get("graded", False)
    session.best = Best.from_json(state["best"]) if state.get("best") else None
    session.optimizer = make_optimizer(config, model, session.phase)
    if checkpoint.parts is not None and (spread := distributed(model)) is not None:
        spread.load_parts(checkpoint.parts)
    else:
        model.load_trainable_state(checkpoint.weights)
        fresh = session.optimizer.state_dict()
        session.optimizer.load_state_dict({"param_groups": fresh["param_groups"], **checkpoint.optimizer})
    session.source.restore(state["source"])
    session.row_source.restore(state.get("rows", {}))
    session.context.restore(checkpoint.data)
    if session.references:
        session.references.restore(checkpoint.data["references"], session.policy)
    session.errors.load_state_dict(state["errors"])
    torch.set_rng_state(torch.tensor(state["torch_rng"], dtype=torch.uint8))


def _lock_notes(lock: FolderLock) -> list[str]:
    return [] if lock.works else ["this file system has no locks: a second run on this folder would not be noticed"]
