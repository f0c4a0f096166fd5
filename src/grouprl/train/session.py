"""Everything one run holds in memory, built from its configuration or from its last checkpoint."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file

from grouprl.algorithms.data_part import Pretraining
from grouprl.algorithms.method import Method
from grouprl.algorithms.update.papers.late_start import LateStart
from grouprl.config.extending import changed_config, check_steps, moved_folders, said
from grouprl.config.own_code import changed, own_code, refuse_changes, remember
from grouprl.config.own_data import refuse_data, refuse_missing, remember_data
from grouprl.config.rates import fastest_of, reach_of_rollout
from grouprl.config.run import Config, default_folder, load_config, with_absolute_paths
from grouprl.config.yaml_files import read_text
from grouprl.core.errors import InputError, RunError
from grouprl.core.json_types import State
from grouprl.monitor.finding import HealthFacts
from grouprl.monitor.health import Health
from grouprl.orchestrator.asynchronous.restrictions import threads_each
from grouprl.orchestrator.asynchronous.source import AsyncSource, is_asynchronous
from grouprl.orchestrator.build import build_policy, make_optimizer
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.placed.placement import RunPlacement, close_placement, engine_of, open_placement
from grouprl.orchestrator.rank_build import check_started
from grouprl.orchestrator.resolve import ResolvedRun, resolve
from grouprl.orchestrator.reward import close_reward, open_reward
from grouprl.orchestrator.synchronous import Synchronous
from grouprl.policy.kinds import policy_kind
from grouprl.policy.threads import choose_threads
from grouprl.protocols import Policy, RunEngine, Scorer, SpreadPolicy
from grouprl.rewards.contract import Reward as RewardFunction
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.engines import close_engine
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.rollout.row_kinds import open_rows
from grouprl.rollout.row_source import ScoringSource
from grouprl.rollout.sampler import MakeEngine
from grouprl.storage.checkpoint import PARTS, Checkpoint, newest, prune, save_checkpoint, whole_parameters
from grouprl.storage.lock import FolderLock
from grouprl.storage.run_folder import RunFolder, in_words, replacing, settle, write_json, write_text
from grouprl.storage.tensors import load_weights
from grouprl.tasks import Task


@dataclass
class Session:
    """A run in memory. `phase` is 'warmup', 'prelude' or 'train'; `step` counts finished steps of the phase."""

    resolved: ResolvedRun
    run: RunFolder
    policy: Policy
    reward: RewardFunction
    source: PromptStream
    errors: ErrorPolicy
    row_source: ScoringSource
    context: SessionContext
    sampler: RunEngine
    """Every sample of this process comes from it."""
    health: Health
    phase: str
    placement: RunPlacement | None = None
    """The workers of the cluster; None where nothing is placed."""
    lock: FolderLock | None = None
    step: int = 0
    elapsed: float = 0.0
    optimizer: torch.optim.Optimizer | None = None
    reference: Scorer | None = None
    renewed: int | None = None
    """Step in which the reference was last renewed from the policy; None: it is the policy after the warm-up."""
    evaluated: int = 0
    """The step after which the policy was evaluated last."""
    graded: bool = False
    """Whether a reward of this run was graded: from then on nothing of it is marked right or wrong."""
    notes: list[str] = field(default_factory=list)

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.resolved.config

    @property
    def task(self) -> Task:
        """What is trained on."""
        return self.resolved.task

    @property
    def method(self) -> Method:
        """What is trained by."""
        return self.resolved.method

    @property
    def max_new_tokens(self) -> int:
        """Token budget of a completion."""
        return self.resolved.max_new_tokens

    def after_warmup(self) -> str:
        """The phase that follows the warm-up."""
        return "pretraining" if self.method.pretrain else "train"

    def pretraining_pieces(self) -> list[tuple[Pretraining, int]]:
        """Each pretraining part with the numbers of its pieces, in order."""
        return [(part, number) for part in self.method.pretrain for number in range(part.count(self.context))]

    def begin(self, phase: str) -> None:
        """Enter a phase: fresh optimiser, step 0; the reference policy is fixed as the warm-up ends."""
        first = self.reference is None
        self.phase, self.step = phase, 0
        self.optimizer = make_optimizer(self.config, self.policy, phase)
        if phase != "warmup" and first and self.resolved.needs_reference:
            with replacing(self.run.reference) as temporary:
                save_file(self.policy.trainable_state(), temporary)
            self.reference = self.policy.reference()

    def publish(self) -> None:
        """Publish the current weights to the sampler; in training their version is the number of finished steps."""
        self.sampler.publish(self.step if self.phase == "train" else 0, self.policy)

    def renew_reference(self) -> None:
        """Make the policy as it is now the reference; nothing where none is kept."""
        if self.reference is None:
            return
        self.renewed = self.step
        with replacing(self.run.reference_of(self.step)) as temporary:
            save_file(self.policy.trainable_state(), temporary)
        self.reference = frozen(self.policy)

    def save(self) -> None:
        """Write a checkpoint of everything that has state, then delete the oldest."""
        assert self.optimizer is not None
        run = self.run
        run.sync_metrics()
        state: State = {
            "phase": self.phase,
            "step": self.step,
            "elapsed": self.elapsed,
            "source": self.source.state(),
            "has_reference": self.reference is not None,
            "reference_renewed": self.renewed,
            "errors": self.errors.state_dict(),
            "metrics_size": run.metrics.stat().st_size,
            "evaluated_before": run.before.is_file(),
            "evaluated": self.evaluated,
            "graded": self.graded,
            "torch_rng": torch.get_rng_state().tolist(),
        }
        data = self.context.state()
        beside: dict[Path, int | None] = {run.metrics: state["metrics_size"]}
        if self.reference is not None:
            beside[run.reference_of(self.renewed)] = None
        save_checkpoint(run, self.phase, self.step, self._parameters(), state, data, beside)
        prune(run, self.config.run.keep)

    def _parameters(self) -> Callable[[Path], None]:
        """What writes weights and optimiser into the folder of a checkpoint."""
        assert self.optimizer is not None
        if not isinstance(self.policy, SpreadPolicy):
            return whole_parameters(self.policy.trainable_state(), self.optimizer.state_dict())
        policy = self.policy
        return lambda folder: policy.save_parts(folder / PARTS)

    def close(self) -> None:
        """End the processes of the run; nothing on disk depends on it."""
        self.context.sample_source.close()
        close_engine(self.sampler)
        close_reward(self.reward)
        self.row_source.close()
        close_placement(self.placement)

    def leave(self) -> None:
        """Unlock the run folder for another process."""
        if self.lock is not None:
            self.lock.release()

    def record(self, values: dict[str, object]) -> None:
        """Append a record to metrics.jsonl and let the health report see it."""
        self.run.append_metrics(values)
        self.health.observe(values)


def frozen(policy: Policy) -> Scorer:
    """Return the policy as it is now, no longer trained."""
    return policy.snapshot() if isinstance(policy, SpreadPolicy) else policy.copied(trainable=False)


def start(config: Config | ResolvedRun, folder: Path | None, engine: MakeEngine | None = None) -> Session:
    """Make the run folder and build a fresh session; `engine` makes the policy's sampler."""
    resolved = resolve(config if isinstance(config, ResolvedRun) else with_absolute_paths(config))
    config, task = resolved.config, resolved.task
    check_started(config.cluster)
    folder = default_folder(config) if folder is None else folder
    threads = threads_each(config, choose_threads(config.run.threads))
    torch.set_num_threads(threads)
    torch.manual_seed(config.seed)
    policy = build_policy(resolved)
    resolved = resolved.with_precision(getattr(policy, "precision", "float32"))
    config = resolved.config
    placement = placement_of(resolved, policy)
    reward, notes = reward_of(resolved, RunFolder(folder), placement)
    run = RunFolder.create(folder)
    lock, ours = FolderLock(run), False
    try:
        if run.config.is_file():
            raise InputError(f"the run folder {folder} has just been started by another process")
        ours = True
        settings = config.dump()
        facts = {
            "threads": threads,
            "task": task.fingerprint(),
            "settings": settings_digest(settings),
            "versions": versions(),
        }
        remember_data(run, task)
        write_json(run.facts, {**facts, "code": remember(run, own_code(config))})
        write_text(run.config, settings)  # last: from here on it is a run that can be resumed
        session = assemble(resolved, run, policy, reward, engine, placement)
        session.lock, session.notes = lock, [*_lock_notes(lock), *notes]
        session.begin("warmup" if config.warmup.steps else session.after_warmup())
    except BaseException as error:
        if isinstance(error, InputError) and ours:
            run.discard()
        lock.release()
        close_reward(reward)
        close_placement(placement)
        raise
    return session


def placement_of(resolved: ResolvedRun, policy: Policy) -> RunPlacement | None:
    """Place the workers of a run whose completions this process samples; None where nothing is placed."""
    return open_placement(resolved, policy.device.type, sampling_here=not is_asynchronous(resolved.config))


def reward_of(
    resolved: ResolvedRun, run: RunFolder, placement: RunPlacement | None
) -> tuple[RewardFunction, list[str]]:
    """Return what scores the completions of a run, and notes on it; a placement ends where that fails."""
    placed = None if placement is None else placement.reward(resolved.reward)
    try:
        return open_reward(resolved.config.reward, resolved.task, resolved.reward, run.verdicts, placed)
    except BaseException:
        close_placement(placement)
        raise


def resume(
    folder: Path,
    changes: Sequence[str] = (),
    *,
    accept_changes: bool = False,
    engine: MakeEngine | None = None,
) -> Session:
    """Rebuild the session of an existing run from its newest whole checkpoint (or from the start if there is none).

    `changes` are settings `key=value` among `extending.MAY_CHANGE`; with `accept_changes` the task, and the user's own
    code, may differ from those that the run began with.

    Raises InputError when the folder is no run or in use, or its settings, task or code no longer are what they were;
    RunError on damaged records, and when there are checkpoints but none is whole, or were some and none is left.
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
    _rewind(run, checkpoint)
    policy = build_policy(resolved)
    placement = placement_of(resolved, policy)
    reward, notes = reward_of(resolved, run, placement)
    notes += said(before, config)
    try:
        session = assemble(resolved, run, policy, reward, engine, placement)
        session.notes = complaints + notes
        _restore(session, checkpoint)
        if changes or accept_changes:
            _write_changes(run, config, task, facts)
        if not complaints:  # killed between writing a checkpoint and pruning; damaged ones must not count as kept
            prune(run, config.run.keep)
    except BaseException:
        close_reward(reward)
        close_placement(placement)
        raise
    return session


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
    """Return the checkpoint from which a run continues, None at its very beginning; and what is wrong with others.

    Raises:
        RunError: there are checkpoints, and none is whole; or there are none although steps were made.
    """
    with in_words(run.checkpoints):
        settle(run.checkpoints)
    checkpoint, complaints = newest(run)
    if checkpoint is None and complaints:
        checkpoint, complaints = _in_spite_of_the_log(run, complaints)
    if checkpoint is None and complaints:
        raise RunError(
            f"none of the checkpoints of {run.path} is whole: {'; '.join(c.partition(';')[0] for c in complaints)}. "
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
    """Make changed settings, and the task and code as they are now, those of the run.

    A process that is killed in between leaves facts that know the settings before as well as those after.
    """
    settings = config.dump()
    code = remember(run, own_code(config))
    remember_data(run, task)
    now = {**facts, "task": task.fingerprint(), "code": code, "settings_next": settings_digest(settings)}
    write_json(run.facts, now)
    write_text(run.config, settings)
    write_json(run.facts, {**now, "settings": settings_digest(settings)})


def _in_spite_of_the_log(run: RunFolder, complaints: list[str]) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is whole but for metrics.jsonl, which is then mended."""
    checkpoint, others = newest(run, log=False)
    if checkpoint is None:
        return None, complaints
    steps = checkpoint.state["step"] if checkpoint.state["phase"] == "train" else 0
    lost = run.mend_metrics(checkpoint.state["metrics_size"], steps)
    checkpoint.state["metrics_size"] = run.metrics.stat().st_size
    return checkpoint, [*others, f"{run.metrics} is damaged: {lost} of its lines are left out, the run itself is whole"]


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
    """Forget everything recorded after the checkpoint (None: everything)."""
    nothing: State = {"metrics_size": 0, "phase": "warmup", "evaluated_before": False}
    state = checkpoint.state if checkpoint else nothing
    run.rewind(state["metrics_size"], state["step"] if state["phase"] == "train" else 0)
    if not state["evaluated_before"]:
        with in_words(run.before):
            run.before.unlink(missing_ok=True)


def _restore(session: Session, checkpoint: Checkpoint | None) -> None:
    """Continue from the checkpoint; from the beginning without one."""
    config, policy = session.config, session.policy
    if checkpoint is None:
        session.begin("warmup" if config.warmup.steps else session.after_warmup())
        session.notes.append("no checkpoint yet: starting from the beginning")
        return
    state = checkpoint.state
    if state["has_reference"]:
        session.renewed = state["reference_renewed"]
        policy.load_trainable_state(load_weights(session.run.reference_of(session.renewed)))
        first = session.renewed is None
        session.reference = policy.reference() if first else frozen(policy)
    session.phase, session.step, session.elapsed = state["phase"], state["step"], state["elapsed"]
    session.evaluated = state.get("evaluated", session.step)
    session.graded = state.get("graded", False)
    session.optimizer = make_optimizer(config, policy, session.phase)
    if checkpoint.parts is not None and isinstance(policy, SpreadPolicy):
        policy.load_parts(checkpoint.parts)
    else:
        policy.load_trainable_state(checkpoint.weights)
        fresh = session.optimizer.state_dict()
        session.optimizer.load_state_dict({"param_groups": fresh["param_groups"], **checkpoint.optimizer})
    session.source.restore(state["source"])
    session.context.restore(checkpoint.data)
    session.errors.load_state_dict(state["errors"])
    torch.set_rng_state(torch.tensor(state["torch_rng"], dtype=torch.uint8))


def _lock_notes(lock: FolderLock) -> list[str]:
    return [] if lock.works else ["this file system has no locks: a second run on this folder would not be noticed"]


def assemble(
    resolved: ResolvedRun,
    run: RunFolder,
    policy: Policy,
    reward: RewardFunction,
    engine: MakeEngine | None = None,
    placement: RunPlacement | None = None,
) -> Session:
    """Put the parts of a session together."""
    config, task, method, budget = resolved.config, resolved.task, resolved.method, resolved.max_new_tokens
    errors = ErrorPolicy(config.reward.on_error, max_fraction=config.reward.max_failed_fraction)
    source = PromptStream(task, config.seed, config.data.prompts)
    sampler = engine(policy) if engine is not None else engine_of(resolved, policy, placement)
    stage = None if placement is None else placement.stage
    row_source = open_rows(
        config, task, policy, reward, budget, errors, kind=resolved.row_kind, sampler=sampler, stage=stage
    )
    context = SessionContext(
        config,
        method,
        task,
        source,
        row_source,
        clock=lambda: session.step,
        renew_reference=lambda: session.renew_reference(),
    )
    session = Session(
        resolved=resolved,
        run=run,
        policy=policy,
        reward=reward,
        source=source,
        errors=errors,
        row_source=row_source,
        context=context,
        sampler=sampler,
        health=Health(_health_facts(config, method, budget, sampler.exact, policy), run.read_metrics()),
        phase="train",
        placement=placement,
    )
    context.sample_source = AsyncSource(context, policy) if is_asynchronous(config) else Synchronous(context)
    return session


def _health_facts(config: Config, method: Method, max_tokens: int, exact: bool, policy: Policy) -> HealthFacts:
    other = policy_kind(config.model.name) is not None
    facts = health_facts(config, method, max_tokens, exact)
    facts = replace(facts, actions=other, adapters=config.model.lora is not None)
    if method.update is not None or other or config.optim.name != "adamw":
        return facts  # no rule tells how far steps of this rate go, or a part sets them itself
    reach = reach_of_rollout(policy, config.model.lora, facts.updates_per_rollout)
    return replace(facts, reach=reach, fast=fastest_of(policy))


def health_facts(config: Config, method: Method, max_tokens: int, exact: bool) -> HealthFacts:
    """What the health report needs to know of the run."""
    weights = [p.settings().get("coef") for p in (*method.regularize, *method.reward_transform) if "kl" in p.name]
    return HealthFacts(
        completions=config.batch.prompts * config.batch.group_size,
        updates_per_rollout=config.updates_per_rollout * method.phases,
        exact_sampler=exact and (not config.run.async_steps or config.run.proximal == "recompute"),
        async_steps=config.run.async_steps,
        grouped=config.batch.group_size > 1 and "past.q" not in method.needs(),
        waits=method.update.start if isinstance(method.update, LateStart) else 0,
        clips="old_bt" in method.objective.needs(),
        kl_weight=cast("float | None", weights[0]) if weights else None,
        refill=method.refill is not None,
        refill_max_rounds=getattr(method.refill, "max_rounds", 0),
        filters=tuple(p.name for p in method.filter),
        max_tokens=max_tokens,
    )


def settings_digest(settings: str) -> str:
    """Return the digest of a configuration's text."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that compute."""
    names = ("grouprl", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
