"""What a stand-in for a server of vLLM samples with: a copy of a policy, which takes weights as a server does."""

from __future__ import annotations

import mmap
from typing import Any

import torch

from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler


class Brain:
    """A copy of a policy, which takes weights from memory as a server does."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy.copied(trainable=False)

    def load(self, message: dict[str, Any]) -> None:
        if "bytes" in message:  # a piece of them, which was sent
            assert not self._load(message["bytes"], message["places"])[1]
            return
        with open(message["path"], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            missing, unknown = self._load(held, message["places"])
        assert not unknown
        assert set(missing) <= {"lm_head.weight"}, "all but what is tied"

    def _load(self, held: Any, places: Any) -> Any:
        state = {}
        for name, kind, shape, start, size in places:
            flat = torch.frombuffer(bytearray(held[start : start + size]), dtype=getattr(torch, kind))
            state[name] = flat.reshape(shape)
        return self.policy.model.load_state_dict(state, strict=False)

    def complete(self, ids: list[int], settings: dict[str, Any]) -> tuple[list[int], list[float], str]:
        greedy = settings["temperature"] == 0
        own = Request(
            tuple(ids), settings["max_tokens"], settings.get("seed", 0), settings["temperature"] or 1.0, greedy
        )
        samples = LocalSampler(self.policy).sample([own])
        why = "length" if samples.truncated_b[0] else "stop"
        return list(samples.actions[0]), samples.logp_bt[0].tolist(), why

    def score(self, ids: list[int]) -> list[float]:
        return self.policy.logp(Tokens.of([ids[:1]], [ids[1:]]))[0].tolist()
