"""Where the time of a training step goes, and what share of it is useful arithmetic.

Functions are timed from outside, and only while steps are profiled: a run without a profile pays nothing. Times are
exclusive: what an inner part takes is not counted in the outer one. Useful arithmetic is the matrix products that a
step cannot do without: each distinct prompt once, each token once that differs from others in itself or in what comes
before it, sampled, trained forward and twice backward, attention included; not padding, not rows that have ended,
nothing that is computed anew.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch

from grouprl.policy.arithmetic import PASS_TOKENS, Matrices, Shape, backward, operations, rate, synchronise, timed
from grouprl.records.histories import histories, read_rows
from grouprl.records.tokens import Tokens

SKIPPED = 2
"""First steps of a process, in which memory is found and kernels are chosen."""
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
    """The products that were needed, by part of a step, and the attention's operations."""

    matrices: Matrices
    products: dict[str, Counter[Shape]] = field(default_factory=lambda: defaultdict(Counter))
    attention: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def sample(self, tokens: Tokens) -> None:
        """Count a rollout: distinct prompts are read, and so is every sampled token but each completion's last
        one."""
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
        """Operations of tokens `known_r` to `length_r` of each row: each looks back on those before it."""
        pairs = zip(known_r.tolist(), length_r.tolist(), strict=True)
        return sum(self.matrices.attention(n - k, (k + n) / 2) for k, n in pairs)

    def seconds(self, device: str) -> dict[str, float]:
        """Return seconds of the products alone by part, at the rates of this machine; attention at the best rate."""
        found = {name: timed(products, lambda s: rate(s, device)) for name, products in self.products.items()}
        best = max((rate(s, device) for products in self.products.values() for s in products), default=1.0)
        return {name: seconds + self.attention[name] / best for name, seconds in found.items()}

    def operations(self) -> float:
        """Return floating-point operations of everything counted."""
        return sum(map(operations, self.products.values())) + sum(self.attention.values())


class Clock:
    """Exclusive wall-clock seconds of nested parts."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, defaultdict[str, float](float)
        self._stack: list[str] = []
        self._mark = 0.0

    def wrap(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return `function` with its time counted as `part`."""

        @functools.wraps(function)
        def timed_function(*arguments: Any, **named: Any) -> Any:
            self._enter(self._name(part))
            try:
                return function(*arguments, **named)
            finally:
                self._leave()

        return timed_function

    def _name(self, part: str) -> str:
        outer = self._stack[-1] if self._stack else ""
        if outer in OPAQUE:
            return outer
        if part in INSIDE_SAMPLING:
            return f"decode: {part}" if outer.startswith("decode") else outer
        return part

    def _enter(self, name: str) -> None:
        self._tell()
        self._stack.append(name)

    def _leave(self) -> None:
        self._tell()
        self._stack.pop()

    def _tell(self) -> None:
        synchronise(self.device)
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._mark
        self._mark = now


class Profile:
    """Profiles `steps` reinforcement steps of a run, after the first two. Use it as a context manager."""

    def __init__(self, policy: Any, steps: int, loop: ModuleType) -> None:
        """`loop` is the module whose steps are taken."""
        self.policy, self.steps, self.taken, self._seen, self.loop = policy, steps, 0, 0, loop
        self.clock, self.work = Clock(policy.device), Work(Matrices.of(policy.model))
        self._open = ExitStack()

    def __enter__(self) -> Profile:
        step = self.loop._reinforce_step
        self._open.enter_context(replaced(self.loop, "_reinforce_step", functools.partial(self._around, step)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _around(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self._seen += 1
        if self._seen <= SKIPPED or self.taken == self.steps:
            return step(*arguments)
        self.taken += 1
        with ExitStack() as hooks:
            for owner, name, part in timed_functions(self.policy, self.loop):
                hooks.enter_context(replaced(owner, name, self.clock.wrap(getattr(owner, name), part)))
            self._count(hooks)
            return self.clock.wrap(step, "other")(*arguments)

    def _count(self, hooks: ExitStack) -> None:
        """Let rollouts and passes be counted."""
        from grouprl.rollout import sampler

        decode, engine = sampler.decode, self.policy._engine

        def counted_decode(policy: Any, requests: Any, **settings: Any) -> Any:
            found = decode(policy, requests, **settings)
            self.work.sample(Tokens(tuple(request.prompt for request in requests), found.ids))
            return found

        def counted_read(tokens: Tokens, read: Callable[..., Any] = engine.read) -> Any:
            if "forward" in self.clock._stack:
                self.work.run(tokens, torch.is_grad_enabled())
            return read(tokens)

        hooks.enter_context(replaced(sampler, "decode", counted_decode))
        hooks.enter_context(replaced(engine, "read", counted_read))


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let `owner.name` be `value` for a while."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def timed_functions(policy: Any, loop: ModuleType) -> list[tuple[Any, str, str]]:
    """Return what is timed: owner, attribute, part of a step."""
    from grouprl.algorithms.method import Method
    from grouprl.envs.stage import AnsweringStage
    from grouprl.policy.lean_weights import Affine
    from grouprl.rollout import collector as collect
    from grouprl.rollout import decoding
    from grouprl.rollout.cache import RowCache, SlotCache
    from grouprl.rollout.lean_decoder import LeanDecoder
    from grouprl.rollout.transformers_decoder import TransformersDecoder
    from grouprl.train import update

    caches = [
        (cache, name, "attention") for cache in (RowCache, SlotCache) for name in ("append", "attend", "keep", "fork")
    ]
    return [
        *((loop, name, "choose") for name in ("gather", "remember")),
        *((loop, name, "records") for name in ("_store", "_log")),
        (loop, "_batch", "log-probs, statistics"),
        *((decoder, "start", "prefill") for decoder in (LeanDecoder, TransformersDecoder)),
        (decoding, "make_decoder", "prefill"),
        (decoding._Writer, "write", DECODE),
        (decoding._Writer, "written", DECODE),
        *((decoding._Writer, name, "sampling") for name in ("_choose", "_going_on")),
        *((Affine, name, "products") for name in ("__call__", "add_to")),
        *caches,
        *_modules(policy),
        (collect, "play", "environments"),
        *((AnsweringStage, name, WAITING) for name in ("receive", "call")),
        (collect.Collector, "_score", "score"),
        (Method, "compute_advantages", "advantages"),
        (loop, "update", "update: other"),
        (update, "_score", "forward"),
        (type(policy), "_run", "forward"),
        (update, "_losses", "loss"),
        (torch.autograd, "backward", "backward"),
        (update.Learner, "apply", "optimiser"),
    ]


def _modules(policy: Any) -> Iterator[tuple[Any, str, str]]:
    """Attention and linear layers of a model that is run by transformers itself."""
    if policy.lean is not None:
        return
    for module in policy.model.modules():
        kind = type(module).__name__
        if kind.endswith("Attention"):
            yield module, "forward", "attention"
        elif kind in ("Linear", "Conv1D"):
            yield module, "forward", "products"
