"""Notes and refusals of a plan about the servers that a run samples with, of any kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.rollout.engines import SGLANG, VLLM

OF_SERVERS = {VLLM: "grouprl.plan.vllm_servers", SGLANG: "grouprl.plan.sglang_servers"}
"""By engine: the module that plans its servers, which is imported if a run samples with them."""


def server_notes(run: ResolvedRun) -> Iterator[str]:
    """Say which servers will be started or asked, and how they receive weights."""
    if (own := _chosen(run)) is not None:
        yield from own.server_notes(run)


def server_refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    """Say why servers cannot sample for this run; prompt and completion have at most `longest` tokens."""
    if (own := _chosen(run)) is not None:
        yield from own.server_refusals(run, longest)


def server_idle(run: ResolvedRun) -> Iterator[str]:
    """Say which settings of servers have no effect: those of servers that do not sample, and some of those that do."""
    sampling = run.config.sampling
    for settings in (sampling.vllm, sampling.sglang):
        if sampling.engine != settings.engine and settings.engine in sampling.model_fields_set:
            yield f"{settings.key} has no effect: sampling.engine is {sampling.engine}"
    if (own := _chosen(run)) is not None:
        yield from own.server_idle(run)


def _chosen(run: ResolvedRun) -> ModuleType | None:
    module = OF_SERVERS.get(run.config.sampling.engine)
    return None if module is None else importlib.import_module(module)
