"""A run's policy on several ranks: the settings that are refused there, and the construction on each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from grouprl.core.errors import InputError
from grouprl.core.importing import SOURCES, Source, import_from_beside, module_from_source
from grouprl.core.plugins import load_plugins
from grouprl.orchestrator.rank_refusals import not_shared, rank_refusals, refusals_alone
from grouprl.policy.allocator import return_freed_memory
from grouprl.policy.fast_forward.forward import why_not_lean
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.language.load import load_policy, resolve_dtype
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.processes.current_ranks import launched
from grouprl.protocols import distributed

if TYPE_CHECKING:
    from grouprl.config.sections import Model, Placing
    from grouprl.orchestrator.resolve import ResolvedRun
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.policy.language.transformer_model import TransformerModel
    from grouprl.policy.sharded.outline import Outline
    from grouprl.policy.sharded.rank_model import RankModel
    from grouprl.policy.sharded.ranks import Ranks, Station
    from grouprl.policy.sharded.sharded_policy import ShardedPolicy
    from grouprl.policy.sharded.sharded_reward import ShardedRewardModel
    from grouprl.protocols import Policy

Part = TypeVar("Part", bound="RankModel")
PASS_OPTIONS = ("temperature", "value_head", "token_budget", "passes")
PLACE_OPTIONS = ("device", "dtype", "precision", "engine")
"""Arguments of `load_policy` that an outline does not have: how passes are made, and where and in which type."""


@dataclass(frozen=True)
class RunBuilders:
    """A picklable builder of a rank's policies from the arguments of `load_policy`."""

    plugins: tuple[str, ...]
    sources: Mapping[str, Source]
    """By name: modules that rank 0 imported from files, because what it sends may be defined in them."""
    name: str
    options: Mapping[str, Any]
    threads: int
    mixed: bool
    offload: bool = False

    def part(self, station: Station) -> RankModel:
        """Return the rank's part of the policy."""
        from grouprl.policy.sharded.rank_policy import RankPolicy

        return self._part(RankPolicy, station)

    def _part(self, made: Callable[..., Part], station: Station) -> Part:
        self._prepare()
        assert station.mesh is not None
        return made(
            self.outline(station.device),
            device=station.device,
            mesh=station.mesh,
            context=station.context,
            mixed=self.mixed,
            offload=self.offload,
            **{name: self.options[name] for name in PASS_OPTIONS if name in self.options},
        )

    def outline(self, device: torch.device) -> Outline:
        """Return the model without its weights, in the type that ranks store for passes on `device`."""
        from grouprl.policy.sharded.outline import outline_of

        return self._outlined(outline_of, device)

    def _outlined(self, outline: Callable[..., Outline], device: torch.device) -> Outline:
        own = {name: value for name, value in self.options.items() if name not in (*PASS_OPTIONS, *PLACE_OPTIONS)}
        return outline(self.name, resolve_dtype(self.types()["dtype"], device), **own)

    def whole(self, station: Station) -> TransformerModel:
        """Return a whole copy of the policy, as a single process would have it, without its value head."""
        return self.copy(self._place(station) | {"value_head": False})

    def copy(self, own: Mapping[str, Any]) -> CausalPolicy:
        """Return a whole copy of the policy that samples as on every rank; `own` holds the policy's own options."""
        options = {**self.options, **own, "passes": replace(self.options["passes"], compiled=False)}
        found = load_policy(self.name, **options)
        if self.mixed and why_not_lean(found.model) is None:
            del found  # before there are two
            found = load_policy(self.name, **{**options, "precision": "mixed"})
        return found

    def _place(self, station: Station) -> dict[str, str]:
        return self.types() | {"device": str(station.device)}

    def types(self) -> dict[str, str]:
        """Return the types in which ranks store weights and compute."""
        dtype = self.options["dtype"]
        return {"dtype": "float32" if dtype == "auto" else dtype, "precision": "float32"}

    def _prepare(self) -> None:
        torch.set_num_threads(self.threads)
        return_freed_memory()
        load_plugins(self.plugins)
        for name, source in self.sources.items():
            import_from_beside(Path(source.path))
            module_from_source(name, source)


@dataclass(frozen=True)
class RewardBuilders(RunBuilders):
    """A picklable builder of a rank's reward models from the arguments of `load_reward_model`."""

    def part(self, station: Station) -> RankModel:
        """Return the rank's part of the reward model."""
        from grouprl.policy.sharded.rank_reward import rank_reward_class

        return self._part(rank_reward_class(self.options.get("columns")), station)

    def outline(self, device: torch.device) -> Outline:
        """Return the model without its weights, in the type that ranks store for passes on `device`."""
        from grouprl.policy.sharded.reward_outline import reward_outline_of

        return self._outlined(reward_outline_of, device)

    def whole(self, station: Station) -> TransformerModel:
        """Return a whole copy of the reward model, as a single process would have it."""
        return load_reward_model(self.name, **{**self.options, **self._place(station)})


def sharded_policy(run: ResolvedRun, ranks: Ranks, options: Mapping[str, object]) -> ShardedPolicy:
    """Build the policy of a run on all ranks; raises InputError for anything that cannot be sharded."""
    from grouprl.policy.sharded.sharded_policy import ShardedPolicy

    _begin(run, ranks)
    policy = ShardedPolicy(ranks, builders_of(run, options))
    call_syntax(policy.tokenizer, run.config.sampling.tool_calls)
    return policy


def sharded_reward_model(run: ResolvedRun, ranks: Ranks, options: Mapping[str, object]) -> ShardedRewardModel:
    """Build the reward model of a run on all ranks; raises InputError for anything that cannot be sharded."""
    from grouprl.policy.sharded.sharded_reward import sharded_reward_class

    _begin(run, ranks)
    return sharded_reward_class(run.columns)(ranks, builders_of(run, options))


def copy_to_ranks(run: ResolvedRun, ranks: Ranks, policy: Policy) -> None:
    """Let all ranks hold a copy of a policy that is not a language model, and share its passes.

    Raises:
        InputError: the run cannot have several ranks, or the policy cannot be sent to them.
    """
    from grouprl.policy.replicated.replicas import Replicas
    from grouprl.policy.vectors.module_policy import TrainableModule

    _begin(run, ranks)
    if not isinstance(policy, TrainableModule):
        raise InputError(not_shared(run.config.model.name))
    policy.helpers = Replicas(ranks, policy, run.config.plugins)


def _begin(run: ResolvedRun, ranks: Ranks) -> None:
    refusal = next(rank_refusals(run, ranks.count), None)
    if refusal is not None:
        raise InputError(refusal)
    model = run.config.model
    ranks.begin(run.config.run.rank_timeout, model.tensor_parallel, model.context_parallel)


def whole_copy(run: ResolvedRun, options: Mapping[str, object]) -> CausalPolicy:
    """Return a whole copy of a sharded run's policy, for a process that is not one of the ranks."""
    builders = builders_of(run, options)
    policy = builders.copy(builders.types())
    call_syntax(policy.tokenizer, run.config.sampling.tool_calls)
    return policy


def builders_of(run: ResolvedRun, options: Mapping[str, object], name: str = "") -> RunBuilders:
    """Return the builders of the policies of a run's ranks, or of another model called `name`."""
    config = run.config
    return (RewardBuilders if run.scores else RunBuilders)(
        config.plugins,
        dict(SOURCES),
        name or config.model.name,
        options,
        torch.get_num_threads(),
        config.model.precision == "mixed",
        config.model.offload,
    )


def check_started(cluster: Placing) -> None:
    """Check that this process may train; raises InputError if it should start learners on a cluster instead."""
    here = 1 if cluster.ray == "off" else 0
    if cluster.learners > here and not launched():
        raise InputError(
            f"cluster.learners = {cluster.learners} in a process that trains on its own",
            "learners are started by the command line",
            "Start the run with grouprl train, or set cluster.learners to 0",
        )


def check_alone(model: Model) -> None:
    """Check that no setting needs more than one process; raises InputError."""
    refusal = next(refusals_alone(model), None)
    if refusal is not None:
        raise InputError(refusal)


def in_one_process(model: Model) -> Model:
    """Return the model settings with which one process builds the policy of a run that may have had several."""
    return model.model_copy(update={"tensor_parallel": 1, "context_parallel": 1, "offload": False})


def model_of_whole_copy(model: Model, policy: object) -> Model:
    """Return the model settings with which another process builds the policy; with ranks, in the types of a whole
    copy.
    """
    if distributed(policy) is None:
        return model
    from grouprl.policy.sharded.sharded_policy import as_sharded

    dtype = "float32" if model.dtype == "auto" else model.dtype
    types = {"dtype": dtype, "precision": as_sharded(policy).whole_precision}
    return in_one_process(model).model_copy(update=types)
