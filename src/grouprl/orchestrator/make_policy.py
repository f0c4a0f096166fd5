"""Construction of a run's policy and optimiser, and the settings of its passes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from grouprl.config.run import Config
from grouprl.orchestrator.agents import model_names
from grouprl.orchestrator.make_sharded_policy import (
    check_alone,
    copy_to_ranks,
    sharded_policy,
    sharded_reward_model,
)
from grouprl.orchestrator.pass_settings import pass_settings
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.allocator import keep_freed_memory
from grouprl.policy.kinds import Build, make_policy, policy_kind
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy, resolve_device, resolve_dtype
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.language.users.layers import UserSizes
from grouprl.policy.master_weights import HALF, MasterWeights
from grouprl.policy.optimizers import build_optimizer
from grouprl.policy.teams.shared_trunk import with_heads
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.processes.current_ranks import current_ranks
from grouprl.protocols import Policy, Trainable, distributed

if TYPE_CHECKING:
    from grouprl.policy.sharded.ranks import Ranks


def build_model(run: ResolvedRun) -> Trainable:
    """Load or build what the run trains: a policy, or a reward model if its method reads scores.

    Raises:
        InputError: as `build_policy` and `build_reward_model` do.
    """
    if not run.scores:
        return build_policy(run)
    ranks = current_ranks()
    if ranks is None:
        return build_reward_model(run)
    keep_freed_memory()
    return sharded_reward_model(run, cast("Ranks", ranks), load_options(run, run.config.model.name, run.config.seed))


def build_policy(run: ResolvedRun) -> Policy:
    """Load or build the configured policy; one for each agent if agents have their own.

    Raises:
        InputError: there is no such model or policy, its settings do not fit it, or it does not fit the task.
    """
    keep_freed_memory()
    config = run.config
    ranks = cast("Ranks | None", current_ranks())
    if policy_kind(config.model.name) is not None:
        policy = build_kind(run)
        if ranks is not None:
            copy_to_ranks(run, ranks, policy)
        return policy
    if ranks is not None:
        return sharded_policy(run, ranks, load_options(run, config.model.name, config.seed))
    check_alone(config.model)
    names = model_names(config, run.task)
    if len(names) == 1:
        return build_one(run, config.model.name, config.seed)
    if config.model.agents == "heads":
        return with_heads(build_one(run, config.model.name, config.seed), list(names), config.seed)
    members = {agent: build_one(run, name, config.seed + i) for i, (agent, name) in enumerate(names.items())}
    return TeamPolicy(members)


def build_reward_model(run: ResolvedRun) -> RewardModel:
    """Load or build the configured model with a layer for scores, in this process.

    Raises:
        InputError: there is no such model, or it cannot be a reward model.
    """
    keep_freed_memory()
    check_alone(run.config.model)
    name = run.config.model.name
    return load_reward_model(name, **load_options(run, name, run.config.seed))


def build_kind(run: ResolvedRun) -> Policy:
    """Build a policy that is not a language model, in this process."""
    config, task = run.config, run.task
    model = config.model
    place = resolve_device(model.device)
    build = Build(
        spaces=run.row_kind.spaces_of(task),
        task=task,
        seed=config.seed,
        temperature=config.sampling.temperature,
        values=run.needs_values,
        device=str(place),
        dtype=resolve_dtype(model.dtype, place, pretrained=False),
        positions=config.batch.tokens_per_microbatch,
    )
    return make_policy(model.name, build, model.settings)


def build_one(run: ResolvedRun, name: str, seed: int) -> CausalPolicy:
    """Load or build the language model `name` with the run's settings."""
    policy = load_policy(name, **load_options(run, name, seed))
    call_syntax(policy.tokenizer, run.config.sampling.tool_calls)
    return policy


def build_teacher(run: ResolvedRun, folder: str) -> CausalPolicy:
    """Load the language model in a folder with the run's settings, without new adapters and without a critic."""
    return load_policy(folder, **teacher_options(run, folder))


def teacher_options(run: ResolvedRun, folder: str) -> dict[str, Any]:
    """Return the arguments with which `load_policy` builds a run's reference of other weights."""
    options = {**load_options(run, folder, run.config.seed), "value_head": False}
    return {name: x for name, x in options.items() if name != "lora"}


def load_options(run: ResolvedRun, name: str, seed: int) -> dict[str, Any]:
    """Return the arguments with which `load_policy` builds the language model `name` of a run, or those with which
    `load_reward_model` does where a reward model is trained.
    """
    config, model = run.config, run.config.model
    options: dict[str, object] = {}
    if name == "tiny":
        options = model.tiny.model_dump()
        if run.alphabet:
            options["alphabet"] = run.alphabet
    if model.lora is not None:
        options["lora"] = model.lora.model_dump()
    if model.chat_template_kwargs:
        options["template_settings"] = model.chat_template_kwargs
    if not run.scores:
        options |= {"temperature": config.sampling.temperature, "value_head": run.needs_values}
    if run.of_users:
        options["users"] = UserSizes(**model.users.model_dump())
    if run.columns is not None:
        options["columns"] = run.columns
    return {
        "device": model.device,
        "dtype": model.dtype,
        "precision": model.precision,
        "engine": model.engine,
        "passes": pass_settings(model),
        "token_budget": config.batch.tokens_per_microbatch,
        "seed": seed,
        **options,
    }


def make_optimizer(config: Config, policy: Trainable, phase: str) -> torch.optim.Optimizer:
    """Return the optimiser of the trainable parameters; the warm-up uses its own learning rate and no weight decay.

    Weights in half precision are updated in float32 (`MasterWeights`). Raises InputError for an optimiser that cannot
    update a policy spread over several ranks.
    """
    optim = config.optim
    rate, decay = (config.warmup.lr, 0.0) if phase == "warmup" else (optim.lr, optim.weight_decay)
    make = partial(build_optimizer, optim, lr=rate, weight_decay=decay)
    if distributed(policy) is None:
        parameters = policy.parameters()
        half = any(parameter.dtype in HALF for parameter in parameters)
        return MasterWeights(parameters, make) if half else make(parameters)
    from grouprl.policy.sharded.sharded_model import as_sharded_model
    from grouprl.policy.sharded.sharded_optimizer import ShardedOptimizer

    return ShardedOptimizer(as_sharded_model(policy), make, optim.name)
