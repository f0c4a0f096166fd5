"""Profile of a training step: the time of each part, and the share of useful arithmetic.

Hot code marks its spans (`grouprl.core.spans`); they have a listener only while steps are profiled. Times are
exclusive: the time of an inner part is not counted in the outer one. Useful arithmetic is the matrix products that a
step needs: each distinct prompt once, and each token once that differs from others in itself or in its context,
sampled, trained forward and twice backward, attention included; but no padding, no rows that have ended, and no
recomputation.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.core.spans import listening
from grouprl.policy.language.arithmetic import (
    PASS_TOKENS,
    Matrices,
    ProductKind,
    Shape,
    backward,
    operations,
    synchronise,
    timed,
)
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.models_of import language_models_of
from grouprl.protocols import Policy, Request
from grouprl.records.shared_prefixes import histories
from grouprl.records.tokens import Tokens, read_rows
from grouprl.rollout.local.decode_loop import Written

STEP = "step"
"""The span of a whole step."""
SKIPPED = 2
"""Number of first steps to skip, in which a process allocates memory and chooses kernels."""
INSIDE_SAMPLING = ("products", "attention", "sampling")
OPAQUE = ("prefill", "log-probs, statistics", "score", "records")
"""Parts that are not divided further."""
DECODE = "decode: other"
WAITING = "waiting for environments"
PARTS = (
    *("choose", "prefill", *(f"decode: {name}" for name in INSIDE_SAMPLING), DECODE, "environments", WAITING, "score"),
    *("log-probs, statistics", "advantages", "forward", "loss", "backward", "optimiser", "update: other"),
    *("records", "other"),
)
"""Parts of a step, in order."""


@dataclass
class Work:
    """The matrix products that were needed, by part of a step, and the operations of attention."""

    matrices: Matrices
    products: dict[str, Counter[Shape]] = field(default_factory=lambda: defaultdict(Counter))
    attention: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def sample(self, tokens: Tokens) -> None:
        """Count a rollout: distinct prompts are read, and every sampled token except each completion's last one."""
        prompts, tree = set(tokens.prompt_ids), histories(read_rows(tokens))
        known_r = np.maximum(tree.common_r, np.array(tokens.prompt_lengths)[list(tree.order)])
        read, decoded = sum(map(len, prompts)), int((tree.length_r - known_r).sum())
        self.products["prefill"] += self.matrices.forward(read, len(prompts))
        at_once = decoded / max(1, tokens.max_response - 1)
        self.products["decode: products"] += self.matrices.forward(decoded, decoded, at_once)
        self.attention["prefill"] += sum(self.matrices.attention(len(p), len(p) / 2) for p in prompts)
        self.attention["decode: products"] += self._attention(known_r, tree.length_r)

    def run(self, tokens: Tokens, gradient: bool) -> None:
        """Count one pass of an update."""
        tree = histories(read_rows(tokens))
        forward = self.matrices.forward(tree.distinct, sum(tokens.response_lengths), min(PASS_TOKENS, tree.distinct))
        attention = self._attention(tree.common_r, tree.length_r)
        self.products["forward"] += forward
        self.attention["forward"] += attention
        if gradient:
            self.products["backward"] += backward(forward)
            self.attention["backward"] += 2 * attention

    def _attention(self, known_r: np.ndarray, length_r: np.ndarray) -> float:
        """Return the operations of tokens `known_r` to `length_r` of each row; each attends to those before it."""
        pairs = zip(known_r.tolist(), length_r.tolist(), strict=True)
        return sum(self.matrices.attention(n - k, (k + n) / 2) for k, n in pairs)

    def seconds(self, rate_of: Callable[[Shape], float]) -> dict[str, float]:
        """Return the seconds of the products alone, by part, at the rate of each shape; attention at the best rate."""
        found = {name: timed(products, rate_of) for name, products in self.products.items()}
        best = max((rate_of(shape) for products in self.products.values() for shape in products), default=1.0)
        return {name: seconds + self.attention[name] / best for name, seconds in found.items()}

    def operations(self) -> float:
        """Return the floating-point operations of everything counted."""
        return sum(map(operations, self.products.values())) + sum(self.attention.values())


class Clock:
    """Exclusive seconds of nested parts, by the wall clock unless another clock is given."""

    def __init__(self, device: torch.device, now: Callable[[], float] | None = None) -> None:
        self.device, self.now, self.seconds = device, now or time.perf_counter, defaultdict[str, float](float)
        self._stack: list[str] = []
        self._mark = 0.0

    def enter(self, span: str) -> None:
        """Begin a span; the enclosing spans decide to which part of a step it belongs."""
        name = self._part(span)
        self._tell()
        self._stack.append(name)

    def leave(self) -> None:
        """End the innermost span."""
        self._tell()
        self._stack.pop()

    def inside(self, part: str) -> bool:
        """Return whether a span of that part is open."""
        return part in self._stack

    def _part(self, span: str) -> str:
        outer = self._stack[-1] if self._stack else ""
        if outer in OPAQUE:
            return outer
        if span in INSIDE_SAMPLING:
            return f"decode: {span}" if outer.startswith("decode") else outer
        return "other" if span == STEP else span

    def _tell(self) -> None:
        synchronise(self.device)
        now = self.now()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._mark
        self._mark = now


class Profile:
    """Profiles `steps` reinforcement steps of a run, after the first `skipped`. Use it as a context manager.

    `now` is the clock: on a busy machine, a single thread is better measured by processor time than by the wall clock.

    Raises:
        InputError: the policy is not a single language model, for which alone the matrix products are known.
    """

    def __init__(
        self, policy: Policy, steps: int, *, skipped: int = SKIPPED, now: Callable[[], float] | None = None
    ) -> None:
        model = language_models_of(policy).get("")
        if model is None or model is not policy:
            raise InputError(
                f"--profile with {type(policy).__name__}",
                "a profile counts the matrix products of one language model",
                "Leave it out; metrics.jsonl has the seconds of each step (seconds_*)",
            )
        self.policy, self.steps, self.taken, self._seen = model, steps, 0, 0
        self.skipped = skipped
        self.clock, self.work = Clock(policy.device, now), Work(Matrices.of(model.model))
        self._active = False
        self._open = ExitStack()

    def __enter__(self) -> Profile:
        self._open.enter_context(listening(self))
        for module, part in timed_modules(self.policy):
            before = module.register_forward_pre_hook(lambda *_, part=part: self.enter(part))
            after = module.register_forward_hook(lambda *_, part=part: self.leave(part), always_call=True)
            self._open.callback(before.remove)
            self._open.callback(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def enter(self, name: str) -> None:
        """Begin a span; the span of a step begins the profiling of that step."""
        if name == STEP:
            self._seen += 1
            self._active = self._seen > self.skipped and self.taken < self.steps
            if self._active:
                self.taken += 1
        if self._active:
            self.clock.enter(name)

    def leave(self, name: str) -> None:
        """End the innermost span."""
        if self._active:
            self.clock.leave()
        if name == STEP:
            self._active = False

    def note(self, what: str, facts: tuple[object, ...]) -> None:
        """Count the tokens sampled, and those in the passes of an update."""
        if self._active and what == "sampled":
            requests, written = cast(tuple[Sequence[Request[tuple[int, ...]]], Written], facts)
            self.work.sample(Tokens(tuple(request.prompt for request in requests), written.ids))
        if self._active and what == "read" and self.clock.inside("forward"):
            (tokens,) = cast(tuple[Tokens], facts)
            self.work.run(tokens, torch.is_grad_enabled())


def product_kind(policy: CausalPolicy) -> ProductKind:
    """Return how a policy's matrices are multiplied: the data type, and oneDNN or torch's default."""
    if policy.precision == "float32":
        return policy.dtype
    return torch.bfloat16 if policy.precision == "mixed" else "onednn"


def timed_modules(policy: CausalPolicy) -> Iterator[tuple[nn.Module, str]]:
    """Yield the attention and linear layers of a model run by transformers, each with its part of a step."""
    if policy.lean is not None:
        return
    for module in policy.model.modules():
        kind = type(module).__name__
        if kind.endswith("Attention"):
            yield module, "attention"
        elif kind in ("Linear", "Conv1D"):
            yield module, "products"
