"""Tiny policies on several processes of this machine: each test function runs on rank 0, the others follow."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.load import load_policy
from grouprl.policy.passes import AUTO, PassSettings

SIZES = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 32}
LARGER = {"hidden": 24, "layers": 3, "heads": 4, "intermediate": 40}


@dataclass(frozen=True)
class TinyBuilders:
    """Builds a tiny policy and its parts."""

    value_head: bool = False
    lora: tuple[tuple[str, object], ...] | None = None
    dtype: str = "float64"
    mixed: bool = False
    offload: bool = False
    passes: PassSettings = AUTO
    token_budget: int = 64
    alphabet: str = "0123456789"
    larger: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the model."""
        return LARGER if self.larger else SIZES

    def one(self, **more) -> CausalPolicy:
        """The policy of a single process."""
        lora = None if self.lora is None else dict(self.lora)
        return load_policy("tiny", alphabet=self.alphabet, dtype=self.dtype, device="cpu", lora=lora, seed=1,
                           token_budget=self.token_budget, **self.sizes, **more)  # fmt: skip

    def with_head(self, value_head: bool) -> TinyBuilders:
        """The same with a value head, or without."""
        return replace(self, value_head=value_head)

    def teacher(self, packing: str) -> TinyBuilders:
        """Builders of a larger model of the same characters."""
        return replace(self, larger=True, lora=None, passes=replace(self.passes, packing=packing))

    def part(self, station):
        from grouprl.policy.sharded.outline import outline_of
        from grouprl.policy.sharded.rank_policy import RankPolicy

        lora = None if self.lora is None else dict(self.lora)
        outline = outline_of(
            "tiny", getattr(torch, self.dtype), lora=lora, seed=1, alphabet=self.alphabet, **self.sizes
        )
        return RankPolicy(outline, device=station.device, mesh=station.mesh, context=station.context,
                          mixed=self.mixed, offload=self.offload, passes=self.passes, value_head=self.value_head,
                          token_budget=self.token_budget)  # fmt: skip

    def whole(self, station) -> CausalPolicy:
        return self.one()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start_ranks(command: list[str], ranks: int, **more) -> list[subprocess.Popen]:
    """Start `command` as so many ranks, with the environment that torchrun gives them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    found = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        environment = {**os.environ, **meeting, **own, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        found.append(subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, **more))  # fmt: skip
    return found


def run_on_ranks(script: Path, ranks: int, *arguments: str, timeout: float = 900) -> str:
    """Run a script of `tests/support` on so many ranks; return what rank 0 printed. All must end well."""
    started = start_ranks([sys.executable, str(script), *arguments], ranks)
    try:
        said = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    for rank, (process, (_, error)) in enumerate(zip(started, said, strict=True)):
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}: {error[-3000:]}"
    return said[0][0]
