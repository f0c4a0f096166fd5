"""The state of a run in memory, built from its configuration or from its last checkpoint."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors.torch import save_file

from grouprl.algorithms.data_part import Pretraining
from grouprl.algorithms.method import Method
from grouprl.algorithms.references import FROZEN
from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.core.outputs import TEACHER_KL
from grouprl.core.stopwatch import TrainingClock
from grouprl.evaluation.best import Best
from grouprl.monitor.health import Health
from grouprl.orchestrator.asynchronous.source import AsyncSource, is_asynchronous
from grouprl.orchestrator.context import SessionContext
from grouprl.orchestrator.make_policy import make_optimizer
from grouprl.orchestrator.on_ray.placement import RunPlacement, close_placement, engine_of, open_placement
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.orchestrator.reward import close_reward, open_reward
from grouprl.orchestrator.synchronous import Synchronous
from grouprl.policy.state import as_policy
from grouprl.protocols import Policy, RunEngine, Scorer, Trainable, distributed, distributed_policy
from grouprl.protocols.run_events import CheckpointWritten
from grouprl.rewards.contract import Reward as RewardFunction
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.engines import close_engine
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.local.sampler import MakeEngine
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.rollout.row_source import ScoringSource
from grouprl.storage.checkpoint import PARTS, prune, save_checkpoint, whole_parameters
from grouprl.storage.lock import FolderLock
from grouprl.storage.model_files import write_tensors
from grouprl.storage.run_folder import RunFolder, replacing
from grouprl.storage.tensors import load_weights
from grouprl.tasks import Task
from grouprl.training.announcer import Announcer
from grouprl.training.first_reference import begin_guide, kept_guide, teach
from grouprl.training.health_facts import health_facts_of
from grouprl.training.references import References

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


@dataclass
class Session:
    """A run in memory. `phase` is 'warmup', 'pretraining' or 'train'; `step` counts finished steps of the phase."""

    resolved: ResolvedRun
    run: RunFolder
    model: Trainable
    """What is trained: a policy, or a reward model."""
    reward: RewardFunction
    source: PromptStream
    errors: ErrorPolicy
    row_source: ScoringSource
    context: SessionContext
    sampler: RunEngine
    """The engine that makes every sample of this process."""
    health: Health
    phase: str
    placement: RunPlacement | None = None
    """The workers on the cluster; None if no workers are placed."""
    lock: FolderLock | None = None
    step: int = 0
    elapsed: float = 0.0
    optimizer: torch.optim.Optimizer | None = None
    references: References = field(default_factory=lambda: References({}))
    """The reference policies with which log-probs are compared."""
    renewed: int | None = None
    """Step at which the frozen reference was last renewed; None if it still is the policy after the warm-up."""
    finished: bool = False
    """Whether the run had ended, with its results on disk, when it was opened."""
    evaluated: int = 0
    """The step after which the policy was last evaluated."""
    best: Best | None = None
    """The best evaluation by `eval.best`; None without one."""
    graded: bool = False
    """Whether a graded reward was seen in this run; from then on completions are not marked right or wrong."""
    notes: list[str] = field(default_factory=list)
    announcer: Announcer = field(default_factory=Announcer)
    """Tells the run's listeners of its events."""
    clock: TrainingClock = field(default_factory=lambda: TrainingClock(0.0))

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.resolved.config

    @property
    def task(self) -> Task:
        """The task that the run trains on."""
        return self.resolved.task

    @property
    def method(self) -> Method:
        """The method that the run trains by."""
        return self.resolved.method

    @property
    def policy(self) -> Policy:
        """The model as a policy.

        Raises:
            InputError: it has no log-probs.
        """
        return as_policy(self.model)

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a completion."""
        return self.resolved.max_new_tokens

    def after_warmup(self) -> str:
        """Return the phase that follows the warm-up."""
        return "pretraining" if self.method.pretrain else "train"

    def pretraining_pieces(self) -> list[tuple[Pretraining, int]]:
        """Return (part, number) of every piece of every pretraining part, in order."""
        return [(part, number) for part in self.method.pretrain for number in range(part.count(self.context))]

    def begin(self, phase: str) -> None:
        """Enter a phase with a fresh optimiser at step 0; after the warm-up, fix the reference policy."""
        first = self.references.frozen is None
        self.phase, self.step = phase, 0
        self.optimizer = make_optimizer(self.config, self.model, phase)
        if phase != "warmup" and first and self.resolved.needs_reference:
            with replacing(self.run.reference) as temporary:
                if self.resolved.guides:
                    reference = begin_guide(self.resolved, self.policy, temporary)
                else:
                    reference = self.first_reference()
                    self._write_weights(temporary)
            self._freeze(reference)
        if phase == "train" and self.references:
            self.references.begin(self.policy)

    def restore_reference(self, renewed: int | None) -> None:
        """Restore the frozen reference as it was kept at the beginning, or when it was renewed after step `renewed`.

        The weights of the policy are then those of the reference, unless the run names a model as its first one.
        """
        self.renewed = renewed
        path = self.run.reference_of(renewed)
        if renewed is None and self.resolved.guides:
            self._freeze(kept_guide(self.resolved, self.policy, path))
            return
        if (spread := distributed(self.model)) is None:
            self.model.load_trainable_state(load_weights(path))
        else:
            spread.load_file(path)
        self._freeze(self.first_reference() if renewed is None else frozen(self.policy))

    def _freeze(self, reference: Scorer) -> None:
        """Make a model the frozen reference, and the policy's teacher where the loss reads whole distributions."""
        self.references.freeze(reference)
        if TEACHER_KL in self.method.outputs:
            teach(self.policy, reference)

    def first_reference(self) -> Scorer:
        """Return the policy as it is now as the reference: the base of adapters that nothing has trained yet."""
        trained = self.config.warmup.steps > 0
        return frozen(self.policy) if self.config.model.lora and trained else self.policy.reference()

    def publish(self) -> None:
        """Publish the current weights to the sampler; in training their version is the number of finished steps."""
        self.sampler.publish(self.step if self.phase == "train" else 0, cast("Policy", self.model))

    def renew_reference(self) -> None:
        """Make a copy of the current policy the frozen reference, if the run keeps one."""
        if self.references.frozen is None:
            return
        self.renewed = self.step
        with replacing(self.run.reference_of(self.step)) as temporary:
            self._write_weights(temporary)
        self._freeze(frozen(self.policy))

    def initial_policy(self) -> CausalPolicy:
        """Return the frozen reference as a policy to sample from.

        Raises:
            InputError: there is none, or it has no weights of its own in this process.
        """
        whole: Callable[[], CausalPolicy] | None = getattr(self.references.frozen, "whole", None)
        if whole is None:
            raise InputError(
                "completions of the initial policy are asked for",
                "a run can sample from it where it keeps a language model of its own as reference",
                "Set model.reference: initial",
            )
        return whole()

    def save(self) -> None:
        """Write a checkpoint of all state, then delete the oldest ones beyond those to keep."""
        assert self.optimizer is not None
        run = self.run
        # The checkpoint seals the log up to its present length, so these bytes must be on disk before it.
        run.sync_metrics()
        state: State = {
            "phase": self.phase,
            "step": self.step,
            "elapsed": self.elapsed,
            "source": self.source.state(),
            "rows": self.row_source.state(),
            "has_reference": self.references.frozen is not None,
            "reference_renewed": self.renewed,
            "errors": self.errors.state_dict(),
            "metrics_size": run.metrics.stat().st_size,
            "evaluated_before": run.before.is_file(),
            "evaluated": self.evaluated,
            "graded": self.graded,
            "best": None if self.best is None else self.best.as_json(),
            "torch_rng": torch.get_rng_state().tolist(),
        }
        data = {**self.context.state(), "references": self.references.state()}
        beside: dict[Path, int | None] = {run.metrics: state["metrics_size"]}
        if self.references.frozen is not None:
            beside[run.reference_of(self.renewed)] = None
        written = save_checkpoint(run, self.phase, self.step, self._parameters(), state, data, beside)
        # Only after the new one is whole on disk: at no time is there no checkpoint.
        prune(run, self.config.run.keep, self.best_step)
        self.announcer.tell(CheckpointWritten(written, self.phase, self.step))

    @property
    def best_step(self) -> int | None:
        """The step of the checkpoint that is kept because it is the best; None if none is."""
        return None if self.best is None else self.best.step

    def _write_weights(self, path: Path) -> None:
        """Write the trainable weights to a safetensors file."""
        if (spread := distributed(self.policy)) is None:
            save_file(self.policy.trainable_state(), path)
            return
        described = [(name, each.dtype, tuple(each.shape)) for name, each in spread.named_parameters()]
        write_tensors(path, described, spread.each_weight())

    def _parameters(self) -> Callable[[Path], None]:
        """Return a function that writes the weights and the optimiser into the folder of a checkpoint."""
        assert self.optimizer is not None
        spread = distributed(self.model)
        if spread is None:
            return whole_parameters(self.model.trainable_state(), self.optimizer.state_dict())
        return lambda folder: spread.save_parts(folder / PARTS)

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


def frozen(policy: Policy) -> Scorer:
    """Return a copy of the current policy that is not trained."""
    spread = distributed_policy(policy)
    return policy.copied(trainable=False) if spread is None else spread.snapshot()


def placement_of(resolved: ResolvedRun, model: Trainable) -> RunPlacement | None:
    """Place the workers of a run on its cluster; return None if no workers are placed."""
    return open_placement(resolved, model.device.type, sampling_here=not resolved.config.run.samples_apart)


def reward_of(
    resolved: ResolvedRun, run: RunFolder, placement: RunPlacement | None
) -> tuple[RewardFunction, list[str]]:
    """Return the reward function of a run, and notes on it."""
    placed = None if placement is None else placement.reward(resolved.reward)
    pace = run.pace if resolved.config.run.samples_apart else None
    return open_reward(resolved.config.reward, resolved.task, resolved.reward, run.verdicts, placed, pace)


def assemble(
    resolved: ResolvedRun,
    run: RunFolder,
    model: Trainable,
    reward: RewardFunction,
    engine: MakeEngine | None = None,
    placement: RunPlacement | None = None,
) -> Session:
    """Put the parts of a session together."""
    config, task, method, budget = resolved.config, resolved.task, resolved.method, resolved.max_new_tokens
    errors = ErrorPolicy(config.reward.on_error, max_fraction=config.reward.max_failed_fraction)
    source = PromptStream(task, config.seed, config.data.prompts)
    sampler = engine(model) if engine is not None else engine_of(resolved, model, placement)
    stage = None if placement is None else placement.stage
    row_source = open_rows(
        config, task, model, reward, budget, errors, kind=resolved.row_kind, sampler=sampler, stage=stage
    )
    context = SessionContext(
        config,
        method,
        task,
        source,
        row_source,
        # Looked up when it is called: the session is made of this context, and does not exist yet.
        clock=lambda: session.step,
        renew_reference=lambda: session.renew_reference(),
        initial_policy=lambda: session.initial_policy(),
        reference_logp=lambda inputs: session.references.logp(FROZEN, inputs),
    )
    session = Session(
        resolved=resolved,
        run=run,
        model=model,
        reward=reward,
        source=source,
        errors=errors,
        row_source=row_source,
        context=context,
        sampler=sampler,
        health=Health(health_facts_of(resolved, sampler.exact, model), run.read_metrics()),
        phase="train",
        placement=placement,
        references=References(method.references(), rows_return=method.buffer is not None or not row_source.samples),
    )
    context.sample_source = AsyncSource(context, as_policy(model)) if is_asynchronous(config) else Synchronous(context)
    return session


def settings_digest(settings: str) -> str:
    """Return the digest of a configuration's text."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the numerical libraries."""
    names = ("grouprl", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}
