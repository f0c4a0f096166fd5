"""Loading of a run's policy, final or from a checkpoint, and its export as an ordinary Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grouprl.config.run import Config, load_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.agents import model_names
from grouprl.orchestrator.make_policy import build_model
from grouprl.orchestrator.resolve import resolve
from grouprl.policy import CausalPolicy, load_policy
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.state import as_policy
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.protocols import Policy, Trainable
from grouprl.storage.checkpoint import best_step, load_policy_state
from grouprl.storage.run_folder import RunFolder, replacing
from grouprl.tasks import Task
from grouprl.training.saved_model import check_final_model


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


def load_trained(run: Path, checkpoint: int | Literal["best"] | None = None) -> Trained:
    """Load the final policy of the run folder `run`, or that of a checkpoint: of a step, or the best by `eval.best`.

    For a run without a final model (interrupted, or still running) the newest intact checkpoint is loaded.

    Raises:
        InputError: `run` is not a run folder, has no such checkpoint, or has nothing to load yet.
        RunError: the checkpoint is damaged.
    """
    folder = RunFolder.open(run)
    config = load_config(str(folder.config))
    resolved = resolve(config)
    task = resolved.task
    if checkpoint == "best":
        checkpoint = best_step(run)
    if checkpoint is None and folder.model.is_dir() and policy_kind(config.model.name) is None:
        final = _final_reward(folder.model, config) if resolved.scores else _final(folder.model, config, task)
        return Trained(config, task, final, "the final model")
    state = load_policy_state(run, checkpoint)
    model = build_model(resolved)
    model.load_trainable_state(state)
    newest = "the newest checkpoint" + " (the run has no final model)" * (not folder.model.is_dir())
    when = newest if checkpoint is None else f"checkpoint {checkpoint}"
    return Trained(config, task, model, when)


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


def export(run: Path, dest: Path, checkpoint: int | Literal["best"] | None = None) -> str:
    """Write a run's policy to `dest` as a folder that `transformers` loads; return a description of the policy.

    The folder is written completely or not at all.

    Raises:
        InputError: `dest` is not empty, or there is nothing to export (see `load_trained`).
        RunError: the written model answers differently in `transformers` than the policy does.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(f"{dest} exists already", "an export never overwrites anything", "Choose an empty folder")
    trained = load_trained(run, checkpoint)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with replacing(dest) as folder:
        trained.model.save(folder)
        check_final_model(trained.model, folder, trained.task)
    return trained.when
