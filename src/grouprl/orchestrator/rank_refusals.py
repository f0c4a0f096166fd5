"""The settings that a run cannot have on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

from grouprl.policy.kinds import policy_kind
from grouprl.policy.optimizers import BY_ELEMENT

if TYPE_CHECKING:
    from grouprl.config.sections import Model
    from grouprl.orchestrator.resolve import ResolvedRun

MASTERS = ("auto", "float32", "float64")
"""Types that the weights of a sharded policy may have."""


def fsdp_sums() -> bool:
    """Return whether this torch's FSDP can sum gradients over ranks, with any backend."""
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "set_gradient_divide_factor") and hasattr(
        FSDPModule, "set_force_sum_reduction_for_comms"
    )


def refusals_alone(model: Model) -> Iterator[str]:
    """Yield the reasons, one sentence each, why a model cannot be trained in one process."""
    shared = {
        "tensor": (model.tensor_parallel, "tensor parallelism splits each matrix between several processes"),
        "context": (model.context_parallel, "context parallelism splits each row between several processes"),
    }
    for name, (count, why) in shared.items():
        if count > 1:
            remedy = f"Start the run with grouprl launch -n {count} train …, or set it to 1"
            yield f"model.{name}_parallel = {count} in one process: {why}. {remedy}"
    if model.offload:
        yield (
            "model.offload = true in one process: offloading moves one process's part of a sharded model to main "
            "memory. Start the run with grouprl launch -n 2 train …, or leave it out"
        )


def rank_refusals(run: ResolvedRun, ranks: int) -> Iterator[str]:
    """Yield the reasons, one sentence each, why a run cannot be spread over this number of ranks."""
    config, model = run.config, run.config.model
    if (kind := policy_kind(model.name)) is not None:
        yield from _copy_refusals(model, kind)
        return
    if not fsdp_sums():
        yield (
            f"torch {version('torch')} has an FSDP that averages gradients over processes, and a loss is a sum over "
            "all of them. Install a newer torch (tried: 2.13, 2.14), or train in one process"
        )
    if run.of_users:
        yield (
            f"{run.method.name} trains a reward model of users, whose own layers stay whole. Train it in one process, "
            "without grouprl launch"
        )
    if config.optim.name not in BY_ELEMENT:
        yield (
            f"optim.name = {config.optim.name}: it needs whole matrices, but each rank holds only pieces of them. "
            f"Take one of {', '.join(BY_ELEMENT)}"
        )
    if model.dtype not in MASTERS:
        yield f"model.dtype = {model.dtype}: ranks keep weights in float32. Set precision: mixed, and leave dtype out"
    if model.precision == "onednn":
        yield "model.precision = onednn: ranks run the model through transformers. Take float32 or mixed"
    if model.engine == "lean":
        yield "model.engine = lean: ranks run the model through transformers. Leave it out"
    if model.shared_prefix == "on":
        yield "model.shared_prefix = on: with several ranks prompts are not shared in a pass. Leave it out"
    if ranks % model.tensor_parallel:
        yield (
            f"model.tensor_parallel = {model.tensor_parallel} on {ranks} processes: that many share each matrix, so "
            f"the number of processes must be a multiple of it. Set it to a divisor of {ranks}, or start another number"
        )
    if ranks % model.context_parallel:
        yield (
            f"model.context_parallel = {model.context_parallel} on {ranks} processes: that many share each row, so the "
            f"number of processes must be a multiple of it. Set it to a divisor of {ranks}, or start another number"
        )
    if model.context_parallel > 1 and model.tensor_parallel > 1:
        yield (
            "model.context_parallel with model.tensor_parallel: ranks that share rows have whole matrices. Set one of "
            "them to 1: weights are divided among all ranks in either way"
        )
    if model.context_parallel > 1 and model.compile:
        yield "model.context_parallel with model.compile: ranks talk to each other inside a layer. Leave one out"
    if model.tensor_parallel > 1 and model.lora is not None:
        yield "model.tensor_parallel with lora: transformers splits only models without adapters. Leave one out"
    if model.agents != "shared":
        yield "model.agents: with several ranks all agents share one policy. Set model.agents: shared"
    for part in run.method.parts():
        if (part.one_policy and not part.in_parts) or part.reads_gradients:
            yield (
                f"{part.name} ({part.kind}) looks inside the model or its gradients, which ranks divide. "
                "Train in one process, or leave it out"
            )


def not_shared(name: str) -> str:
    """Return the reason why a policy that no module of ours scores cannot be trained on several ranks."""
    return (
        f"model: {name} is neither a language model nor made of grouprl.policy.TrainableModule (ArrayPolicy, "
        "ModulePolicy), and ranks share only the passes of those. Derive it from one, or train in one process"
    )


def _copy_refusals(model: Model, kind: object) -> Iterator[str]:
    """Yield the reasons why ranks cannot each hold a copy of a policy that is not a language model."""
    from grouprl.policy.vectors.module_policy import TrainableModule

    if isinstance(kind, type) and not issubclass(kind, TrainableModule):
        yield not_shared(model.name)
    for name, count in (("tensor", model.tensor_parallel), ("context", model.context_parallel)):
        if count > 1:
            yield f"model.{name}_parallel = {count}: each rank holds a whole copy of {model.name}. Leave it out"
    if model.offload:
        yield f"model.offload = true: each rank holds a whole copy of {model.name}, in use. Leave it out"
