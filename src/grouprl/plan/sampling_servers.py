"""Notes and refusals of a plan about the servers that a run samples with, of any kind."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan import sglang_servers as sglang
from grouprl.plan import vllm_servers as vllm


def server_notes(run: ResolvedRun) -> Iterator[str]:
    """Say which servers will be started or asked, and how they receive weights."""
    yield from vllm.server_notes(run)
    yield from sglang.server_notes(run)


def server_refusals(run: ResolvedRun, longest: int) -> Iterator[str]:
    """Say why servers cannot sample for this run; prompt and completion have at most `longest` tokens."""
    yield from vllm.server_refusals(run, longest)
    yield from sglang.server_refusals(run, longest)


def server_idle(run: ResolvedRun) -> Iterator[str]:
    """Say which settings of servers have no effect."""
    yield from vllm.server_idle(run)
    yield from sglang.server_idle(run)
