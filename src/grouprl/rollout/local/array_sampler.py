"""Sampling actions from a policy over arrays: one for each request, or a chain by the policy's own dynamics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.envs.environment import ArrayObservation
from grouprl.policy.vectors.array_columns import SEEDS, signed
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy, SampledTurn
from grouprl.protocols import NO_VERSION, Request, Samples, SamplingSession

if TYPE_CHECKING:
    from grouprl.protocols import Policy


@dataclass
class _Chain:
    """The actions sampled so far for one request."""

    actions: list[int | np.ndarray] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    states: list[ArrayObservation] = field(default_factory=list)
    """The state before each action."""
    cut: bool = False
    """Whether the budget ran out before the chain was complete."""

    def append(self, action: int | np.ndarray, logp: float, entropy: float) -> None:
        """Append an action."""
        self.actions.append(action)
        self.logp.append(logp)
        self.entropy.append(entropy)


class ArraySampler:
    """The sampler of an `ArrayPolicy` in this process: prompts are observations (arrays or `ArrayObservation`), samples
    are actions.

    An action depends only on its observation, seed, temperature and the weights, not on what else is sampled. Action
    t of a request is sampled with its seed plus t, so a chain taken in one request is the chain taken step by step.
    For a policy that remembers, a session keeps its state by the name and agent of requests, and a request outside of
    a session begins an episode; for others nothing is kept, and a session is the sampler itself.
    """

    exact = True

    def __init__(self, policy: ArrayPolicy) -> None:
        self.policy = policy
        self.version = NO_VERSION

    def sample(
        self, requests: Sequence[Request[object]], known: Sequence[torch.Tensor | None] = ()
    ) -> Samples[int | np.ndarray]:
        """Return one action for each request, or if its budget is larger, a chain of actions by the policy's dynamics.

        `known` is what the policy remembers of each request's episode (None: it begins).

        Raises:
            InputError: a setting that applies only to tokens (top_p, top_k, stop …), or a budget above 1 for a policy
                without its own dynamics.
        """
        for request in requests:
            _check_plain(request)
        if not requests:
            return Samples((), np.zeros((0, 0)), np.zeros(0, dtype=bool), True, np.zeros((0, 0)))
        if len({request.greedy for request in requests}) > 1:
            raise InputError(
                "some requests are greedy and some are not",
                "either all requests of a call must be greedy, or none",
                "Request them in two calls",
            )
        longest = max(request.budget for request in requests)
        if longest > 1 and not self.policy.has_dynamics:
            raise InputError(
                f"budget={longest}",
                f"{type(self.policy).__name__} has no dynamics, so every action needs an observation",
                "Request one action at a time",
            )
        if longest == 1:
            return self._single(requests, known)
        return self._laid_out(self._chains(requests))

    def _single(
        self, requests: Sequence[Request[object]], known: Sequence[torch.Tensor | None]
    ) -> Samples[int | np.ndarray]:
        """Return one action for each request."""
        turn = self._act(_seen(requests, self.policy.device, self.policy.dtype, known), requests)
        return Samples(
            actions=tuple((action,) for action in turn.actions()),
            logp_bt=turn.logp_r.numpy()[:, None],
            truncated_b=np.zeros(len(requests), dtype=bool),
            exact=True,
            entropy_bt=turn.entropy_r.numpy()[:, None],
            origins=None if turn.origin_r is None else tuple((origin,) for origin in turn.origins()),
            version_bt=None if self.version == NO_VERSION else np.full((len(requests), 1), self.version),
        )

    def _act(self, seen: Seen, requests: Sequence[Request[object]], step: int = 0) -> SampledTurn:
        seeds = [(request.seed + step) % SEEDS for request in requests]
        return self.policy.act(seen, seeds, [r.temperature for r in requests], greedy=requests[0].greedy)

    def _chains(self, requests: Sequence[Request[object]]) -> list[_Chain]:
        """Let all chains act until each has ended or used its budget."""
        chains, rows, step = [_Chain() for _ in requests], list(range(len(requests))), 0
        seen = _seen(requests, self.policy.device, self.policy.dtype)
        while rows:
            own = [requests[row] for row in rows]
            turn = self._act(seen, own, step)
            for row, *found in zip(rows, turn.actions(), turn.logp_r.tolist(), turn.entropy_r.tolist(), strict=True):
                chains[row].append(*found)
            for row, state in zip(rows, _states(seen), strict=True):
                chains[row].states.append(state)
            step += 1
            seen, over = self._advanced(seen, turn.action_r)
            for row, ended in zip(rows, over, strict=True):
                chains[row].cut = not ended
            left = [i for i, request in enumerate(own) if not over[i] and step < request.budget]
            rows = [rows[i] for i in left]
            seen = seen.of_rows(torch.tensor(left, dtype=torch.int64, device=self.policy.device))
        return chains

    @torch.no_grad()
    def _advanced(self, seen: Seen, action_r: torch.Tensor) -> tuple[Seen, list[bool]]:
        """Return the positions after these actions, and for each whether its chain is complete."""
        found = self.policy.advance(seen, action_r)
        found = replace(found, seed_n=None if seen.seed_n is None else seen.seed_n + 1)
        return found, self.policy.ended(found).tolist()

    def _laid_out(self, chains: Sequence[_Chain]) -> Samples[int | np.ndarray]:
        width = max(len(chain.actions) for chain in chains)
        kind = np.float64 if self.policy.score_dtype == torch.float64 else np.float32
        logp_bt, entropy_bt = (np.zeros((len(chains), width), dtype=kind) for _ in range(2))
        version_bt = np.full((len(chains), width), NO_VERSION, dtype=np.int64)
        for row, chain in enumerate(chains):
            count = len(chain.actions)
            logp_bt[row, :count], entropy_bt[row, :count] = chain.logp, chain.entropy
            version_bt[row, :count] = self.version
        return Samples(
            actions=tuple(tuple(chain.actions) for chain in chains),
            logp_bt=logp_bt,
            truncated_b=np.array([chain.cut for chain in chains]),
            exact=True,
            entropy_bt=entropy_bt,
            version_bt=None if self.version == NO_VERSION else version_bt,
            states=tuple(tuple(chain.states) for chain in chains),
        )

    def session(self) -> AbstractContextManager[SamplingSession[object, int | np.ndarray]]:
        """Return this sampler if nothing is kept between requests, else a session that keeps what is remembered."""
        return nullcontext(_Remembering(self) if self.policy.has_memory else self)

    def publish(self, version: int, policy: Policy) -> None:
        """Set the version; the weights of a policy other than the sampler's own are copied.

        The policy's statistics of observations are put in use.

        Raises:
            InputError: a version lower than the last one.
        """
        if version < self.version:
            raise InputError(f"version {version} after {self.version}", "versions never go back")
        if isinstance(policy, ArrayPolicy):
            policy.renew()
        if policy is not self.policy:
            self.policy.load_trainable_state(policy.trainable_state())
        self.version = version


class _Remembering:
    """A session of a policy that remembers: requests of one name and agent continue each other."""

    def __init__(self, sampler: ArraySampler) -> None:
        self._sampler = sampler
        self._kept: dict[tuple[object, int], torch.Tensor] = {}

    @torch.no_grad()
    def sample(self, requests: Sequence[Request[object]]) -> Samples[int | np.ndarray]:
        """Return one action for each request, as the next one of its episode."""
        policy = self._sampler.policy
        known = [self._kept.get((request.name, request.agent)) for request in requests]
        samples = self._sampler.sample(requests, known)
        if requests:
            state_rm = policy.remember(_seen(requests, policy.device, policy.dtype, known))
            for request, state_m in zip(requests, state_rm, strict=True):
                if request.name is not None:
                    self._kept[request.name, request.agent] = state_m
        return samples


def _seen(
    requests: Sequence[Request[object]],
    device: torch.device,
    dtype: torch.dtype,
    known: Sequence[torch.Tensor | None] = (),
) -> Seen:
    """Return the prompts of requests as one position each, with what is remembered (None: nothing yet)."""
    prompts = [r.prompt if isinstance(r.prompt, ArrayObservation) else ArrayObservation(r.prompt) for r in requests]
    rows = len(prompts)

    def stacked(values: Sequence[object]) -> torch.Tensor:
        found = torch.as_tensor(np.stack([np.asarray(value) for value in values]))
        return found.to(device, dtype if found.is_floating_point() else None)

    def by_name(values: Sequence[object]) -> dict[str, torch.Tensor]:
        named = cast("Sequence[Mapping[str, object]]", values)
        return {name: stacked([value[name] for value in named]) for name in named[0]}

    masks = [None if prompt.legal is None else np.asarray(prompt.legal, dtype=bool) for prompt in prompts]
    shape = next((mask for mask in masks if mask is not None), None)
    state = next((each for each in known if each is not None), None)
    return Seen(
        observation=(by_name if isinstance(prompts[0].values, Mapping) else stacked)([p.values for p in prompts]),
        context=by_name([prompt.context for prompt in prompts]),
        row_n=torch.arange(rows, device=device),
        legal_na=None if shape is None else stacked([np.ones_like(shape) if mask is None else mask for mask in masks]),
        seed_n=torch.tensor([signed(request.seed) for request in requests], dtype=torch.int64),
        memory=None if state is None else torch.stack([torch.zeros_like(state) if m is None else m for m in known]),
    )


def _states(seen: Seen) -> list[ArrayObservation]:
    """Return positions as observations without their context."""
    count = len(seen.row_n)
    masks = [None] * count if seen.legal_na is None else list(seen.legal_na.cpu().numpy())
    if isinstance(seen.observation, Mapping):
        named = {name: _numbers(x) for name, x in seen.observation.items()}
        return [ArrayObservation({name: x[i] for name, x in named.items()}, masks[i]) for i in range(count)]
    values = _numbers(seen.observation)
    return [ArrayObservation(values[i], masks[i]) for i in range(count)]


def _numbers(values: torch.Tensor) -> np.ndarray:
    found: np.ndarray = (values.float() if values.is_floating_point() else values).cpu().numpy()
    return found


_of_tokens = attrgetter("top_p", "top_k", "min_p", "stop", "stop_texts", "entropy_scaling", "sampled")
_UNSET = _of_tokens(Request(None, 1))


def _check_plain(request: Request[object]) -> None:
    if _of_tokens(request) == _UNSET:
        return
    given = {
        "top_p": request.top_p < 1,
        "top_k": request.top_k > 0,
        "min_p": request.min_p > 0,
        "stop": bool(request.stop),
        "stop_texts": bool(request.stop_texts),
        "entropy_scaling": request.entropy_scaling is not None,
        "sampled": request.sampled > 0,
    }
    if named := [name for name, there in given.items() if there]:
        raise InputError(
            f"{named[0]} is set", "it applies only to tokens, and these actions are not tokens", "Leave it out"
        )
