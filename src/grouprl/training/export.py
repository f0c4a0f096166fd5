"""Loading of a run's policy, final or from a checkpoint, and its export as an ordinary Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from grouprl.config.run import Config, load_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.agents import model_names
from grouprl.orchestrator.make_policy import build_model, load_options
from grouprl.orchestrator.make_sharded_policy import builders_of, in_one_process
from grouprl.orchestrator.resolve import ResolvedRun, resolve
from grouprl.plan.memory import human
from grouprl.policy import CausalPolicy, load_policy
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.passes import free_bytes
from grouprl.policy.sharded.stored_policy import StoredModel, StoredPolicy
from grouprl.policy.state import as_policy
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.protocols import Policy, Trainable
from grouprl.storage.checkpoint import Checkpoint, best_step, find_checkpoint
from grouprl.storage.run_folder import RunFolder, replacing
from grouprl.tasks import Task
from grouprl.training.saved_model import check_final_model

ROOM = 2.5
"""Number of times that a model must fit into the free memory to be compared: here, and in `transformers`."""


@dataclass(frozen=True)
class Trained:
    """A trained model with its configuration and task, and a description of the point of the run it is from."""

    config: Config
    task: Task
    model: Trainable
    when: str

    @property
    def policy(self) -> Policy:
        """The model as a policy.

        Raises:
            InputError: it has no log-probs.
        """
        return as_policy(self.model)


def load_trained(run: Path, checkpoint: int | str | None = None) -> Trained:
    """Load the final policy of the run folder `run`, or that of a checkpoint: of a step, by name (`warmup-40`), or the
    `best` by `eval.best`.

    For a run without a final model (interrupted, or still running) the newest intact checkpoint is loaded.

    Raises:
        InputError: `run` is not a run folder, has no such checkpoint, or has nothing to load yet.
        RunError: the checkpoint is damaged.
    """
    return _load(find_point(run, checkpoint))


@dataclass(frozen=True)
class Point:
    """A point of a run whose policy is asked for, nothing of it loaded: the final model, or a checkpoint."""

    run: ResolvedRun
    folder: RunFolder
    when: str
    checkpoint: Checkpoint | None = None
    """None: the final model."""


def find_point(run: Path, checkpoint: int | str | None = None) -> Point:
    """Return the point of a run that `load_trained` loads; it raises the same errors."""
    folder = RunFolder.open(run)
    config = load_config(str(folder.config))
    resolved = resolve(config.model_copy(update={"model": in_one_process(config.model)}))
    step = best_step(run) if checkpoint == "best" else checkpoint
    if step is None and folder.model.is_dir() and policy_kind(resolved.config.model.name) is None:
        return Point(resolved, folder, "the final model")
    newest = "the newest checkpoint" + " (the run has no final model)" * (not folder.model.is_dir())
    when = newest if step is None else f"checkpoint {step}"
    return Point(resolved, folder, when, find_checkpoint(run, step))


def stored_step(run: Path, checkpoint: int | str | None = None) -> int | None:
    """Return the training step of the weights that `export` takes with the same arguments; None for the final model, -1
    for a checkpoint before training, which no evaluation describes.
    """
    found = find_point(run, checkpoint).checkpoint
    if found is None:
        return None
    return int(found.state["step"]) if found.state["phase"] == "train" else -1


def _load(point: Point) -> Trained:
    config, task, where = point.run.config, point.run.task, point.folder.model
    if point.checkpoint is not None:
        model = build_model(point.run)
        model.load_trainable_state(point.checkpoint.weights)
    else:
        model = _final_reward(where, config) if point.run.scores else _final(where, config, task)
    return Trained(config, task, model, point.when)


def _final(folder: Path, config: Config, task: Task) -> CausalPolicy | TeamPolicy:
    """Load the final model, or one model per agent if agents have their own."""
    agents = list(model_names(config, task))
    folders = [folder] if len(agents) == 1 else [folder / agent for agent in agents]
    policies = [load_policy(each, device=config.model.device, dtype=config.model.dtype) for each in folders]
    for policy in policies:
        call_syntax(policy.tokenizer, config.sampling.tool_calls)
    return policies[0] if len(agents) == 1 else TeamPolicy(dict(zip(agents, policies, strict=True)))


def _final_reward(folder: Path, config: Config) -> RewardModel:
    return load_reward_model(folder, device=config.model.device, dtype=config.model.dtype, trained=True)


def export(run: Path, dest: Path, checkpoint: int | str | None = None) -> str:
    """Write a run's policy to `dest` as a folder that `transformers` loads; return a description of the policy.

    The folder is written completely or not at all.

    Raises:
        InputError: `dest` is not empty, or there is nothing to export (see `load_trained`).
        RunError: the written model answers differently in `transformers` than the policy does.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(f"{dest} exists already", "an export never overwrites anything", "Choose an empty folder")
    point = find_point(run, checkpoint)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with replacing(dest) as folder:
        parts = None if point.checkpoint is None else point.checkpoint.parts
        if parts is not None:
            return point.when + _export_parts(point.run, parts, folder)
        trained = _load(point)
        trained.model.save(folder)
        check_final_model(trained.model, folder, trained.task)
    return point.when


def _export_parts(run: ResolvedRun, parts: Path, folder: Path) -> str:
    """Write the policy of a checkpoint of several processes, tensor by tensor; return why it was not compared, if so.

    What was written is compared with `transformers` where this machine has room for the model twice.
    """
    options = load_options(run, run.config.model.name, run.config.seed)
    outline = builders_of(run, options).outline(torch.device("cpu"))
    stored = StoredModel(outline, parts) if run.scores else StoredPolicy(outline, parts)
    if not run.scores:
        call_syntax(stored.tokenizer, run.config.sampling.tool_calls)
    stored.save(folder)
    free = free_bytes("cpu")
    if free is not None and ROOM * stored.nbytes > free:
        what = "scores" if run.scores else "answers"
        return f" (its {what} were not compared with those of transformers: {human(free)} of memory are free)"
    model = _final_reward(folder, run.config) if run.scores else _final(folder, run.config, run.task)
    check_final_model(model, folder, run.task)
    return ""
