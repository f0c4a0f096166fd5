"""The sampler of this process: requests are completed with the policy's own weights, as they are at the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.core.spans import note
from grouprl.policy.devices import exact_in, name_of
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.protocols import NO_VERSION, Policy, Request, RunEngine, Samples, Trainable
from grouprl.records.rollout import Rollout, as_rollout
from grouprl.rollout.local.decode_loop import Pause, Written, alike, decode
from grouprl.rollout.local.turn_cache import TurnCache

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy
    from grouprl.records.token_policy import TokenPolicy

CACHE_GB = 2.0
"""GiB of keys and values kept between the turns of episodes."""
Prompt = tuple[int, ...]
Value = TypeVar("Value", int, float)
Unfinished = Sequence[Request[Prompt]]
"""Requests whose completions have not ended."""
MakeEngine = Callable[[Trainable], RunEngine]
"""Function that makes the engine of a policy."""


class LocalSampler:
    """Samples from `policy` in this process: an `Engine` that shares the weights, so publishing only sets a number.

    Requests that differ only in prompt, seed, temperature, budget and number of tokens sampled before are decoded
    together; requests of different agents are decoded by the policy of each.

    Args:
        policy: a `CausalPolicy`, or a `Team` of them.
        rows_at_once: largest number of completions sampled at the same time; bounds the memory of the cache.
        cache_gb: GiB of keys and values that a session keeps between its requests; 0: everything is read again.
    """

    def __init__(
        self, policy: Policy | TokenPolicy, *, rows_at_once: int | None = None, cache_gb: float = CACHE_GB
    ) -> None:
        self.policy, self.rows_at_once, self.cache_gb = (
            cast("CausalPolicy | TeamPolicy", policy),
            rows_at_once,
            cache_gb,
        )
        self.version = NO_VERSION

    @property
    def exact(self) -> bool:
        """True if the log-probs are the trainer's: the same weights and products in full precision."""
        return exact_in(name_of(self.policy.dtype), getattr(self.policy, "precision", "float32"))

    def publish(self, version: int, policy: object) -> None:
        """Publish the current weights as version `version`; they are the policy's own, so nothing is copied."""
        if policy is not self.policy:
            raise InputError("another policy's weights are published", "this sampler only samples from its own policy")
        self.version = later(self.version, version)

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; see `grouprl.protocols.Sampler`."""
        return self._sample(requests, None)

    def session(self) -> AbstractContextManager[LocalSession]:
        """Open a session that keeps keys and values by the names of requests, and releases them at the end."""
        return closing(LocalSession(self))

    def sample_until(self, requests: Sequence[Request[Prompt]], pause: Callable[[Unfinished], bool]) -> Samples[int]:
        """Sample what `requests` ask for, or less: `pause` is asked after each token of requests that are decoded
        together; once it is true, what is unfinished is returned truncated.
        """
        return self._sample(requests, None, pause)

    def _sample(
        self,
        requests: Sequence[Request[Prompt]],
        caches: dict[int, TurnCache] | None,
        pause: Callable[[Unfinished], bool] | None = None,
    ) -> Samples[int]:
        """Sample each group of similar requests together."""
        groups: dict[tuple[int, tuple[object, ...]], list[int]] = {}
        for i, request in enumerate(requests):
            owner = request.agent if isinstance(self.policy, TeamPolicy) else 0
            groups.setdefault((owner, alike(request)), []).append(i)
        parts = []
        for (owner, _), rows in groups.items():
            own, member = [requests[i] for i in rows], acting(self.policy, owner)
            memory = (
                caches.setdefault(owner, TurnCache(self.cache_gb)) if caches is not None and self.cache_gb else None
            )
            stop = None if pause is None else _pausing(pause, own)
            written = decode(member, own, rows_at_once=self.rows_at_once, cache=memory, pause=stop)
            note("sampled", own, written)
            parts.append((rows, written))
        return as_samples(merged(parts, len(requests)), exact=self.exact, version=self.version)


class LocalSession:
    """A session in which requests with the same name continue each other."""

    def __init__(self, sampler: LocalSampler) -> None:
        self.sampler = sampler
        self.caches: dict[int, TurnCache] = {}
        """Caches by the number of the agent that owns the weights."""

    def sample(self, requests: Sequence[Request[Prompt]]) -> Samples[int]:
        """Sample what `requests` ask for; tokens that are cached under their names are not read again."""
        return self.sampler._sample(requests, self.caches)

    def close(self) -> None:
        """Release the cached keys and values."""
        self.caches.clear()


def _pausing(pause: Callable[[Unfinished], bool], own: Sequence[Request[Prompt]]) -> Pause:
    """Return `pause` as a function of the numbers of requests among `own`."""
    return lambda numbers: pause([own[i] for i in numbers])


def later(version: int, new: int) -> int:
    """Return the version `new`; raise InputError if it is lower than `version`."""
    if new < version:
        raise InputError(f"version {new} is published after version {version}", "versions never go back")
    return new


def acting(policy: CausalPolicy | TeamPolicy, agent: int) -> CausalPolicy:
    """Return the policy of agent number `agent`; a policy that is not a team acts for every agent."""
    return policy.member(agent) if isinstance(policy, TeamPolicy) else policy


def merged(parts: Sequence[tuple[Sequence[int], Written]], rows: int) -> Written:
    """Return the completions of several groups in the order of all `rows` rows; each group comes with its row
    numbers.
    """
    if len(parts) == 1:
        return parts[0][1]
    if not parts:
        nothing_bt = torch.zeros(0, 0)
        return Written((), nothing_bt, nothing_bt, torch.zeros(0, dtype=torch.bool))
    place = torch.tensor([row for own, _ in parts for row in own]).argsort()
    ids = [ids for _, written in parts for ids in written.ids]
    width = max(map(len, ids))
    logp_bt, entropy_bt = (
        torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in column])[place]
        for column in ([w.logp_bt for _, w in parts], [w.entropy_bt for _, w in parts])
    )
    truncated_b = torch.cat([written.truncated_b for _, written in parts])[place]
    return Written(tuple(ids[i] for i in place.tolist()), logp_bt, entropy_bt, truncated_b)


def as_samples(written: Written, *, exact: bool, version: int) -> Samples[int]:
    """Return completions that one version of the weights sampled, as samples."""
    length_b = np.array([len(ids) for ids in written.ids], dtype=np.int64)
    written_bt = np.arange(written.logp_bt.shape[1]) < length_b[:, None]
    return Samples(
        actions=written.ids,
        logp_bt=written.logp_bt.numpy(),
        truncated_b=written.truncated_b.numpy(),
        exact=exact,
        entropy_bt=written.entropy_bt.numpy(),
        version_bt=None if version == NO_VERSION else np.where(written_bt, version, NO_VERSION),
    )


def generate(
    policy: CausalPolicy | TeamPolicy,
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float | Sequence[float] = 1.0,
    budgets: Sequence[int] | None = None,
    rows_at_once: int | None = None,
    **settings: Any,
) -> Rollout:
    """Sample `n` completions for each prompt from `policy`: a shorthand for a `LocalSampler` and requests with equal
    settings.

    Args:
        policy: the policy to sample from.
        prompts: token ids per prompt.
        n: completions per prompt; those of one prompt are next to each other.
        max_new_tokens: largest number of tokens per completion, including the end token.
        seeds: one per completion, B = len(prompts) * n, in row order.
        temperature: one for all, or one per completion.
        budgets: largest number of tokens per completion, [B], if fewer than `max_new_tokens`.
        rows_at_once: largest number of completions sampled at the same time; bounds the memory of the cache.
        settings: further settings of `Request`, the same for all: greedy, top_p, top_k, stop, stop_texts …

    Raises:
        InputError: wrong number of seeds, an empty prompt, a setting out of range, no room in the model.
    """
    requests = requests_of(
        prompts, n=n, max_new_tokens=max_new_tokens, seeds=seeds, temperature=temperature, budgets=budgets, **settings
    )
    return as_rollout(requests, LocalSampler(policy, rows_at_once=rows_at_once).sample(requests))


def requests_of(
    prompts: Sequence[Sequence[int]],
    *,
    n: int,
    max_new_tokens: int,
    seeds: Sequence[int],
    temperature: float | Sequence[float] = 1.0,
    budgets: Sequence[int] | None = None,
    stop: Sequence[Sequence[int]] = (),
    stop_texts: Sequence[str] = (),
    **settings: Any,
) -> list[Request[Prompt]]:
    """Return the requests for `n` completions of each prompt; see `generate`."""
    if n < 1:
        raise InputError(f"n={n}", "Each prompt needs at least one completion", "Give 1 or more")
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens={max_new_tokens}", "A completion needs at least one token", "Give 1 or more")
    requested = list(prompts)
    if not requested:
        raise InputError("No prompts", "At least one prompt is needed", "Give at least one prompt")
    known = {id(prompt): tuple(map(int, prompt)) for prompt in requested}  # the same prompt often occurs many times
    rows = [known[id(prompt)] for prompt in requested for _ in range(n)]
    if not all(rows):
        raise InputError(
            f"Prompt {rows.index(()) // n} has no tokens", "A prompt needs at least one", "Begin it with bos"
        )
    stops = tuple(tuple(map(int, sequence)) for sequence in stop)
    columns = (
        rows,
        _each("seeds", seeds, len(rows)),
        _each("temperature", temperature, len(rows)),
        _each("budgets", max_new_tokens if budgets is None else budgets, len(rows)),
    )
    over = [budget for budget in columns[3] if budget > max_new_tokens]
    if over:
        raise InputError(f"budgets holds {over[0]}", f"It must be between 1 and {max_new_tokens}")
    return [
        Request(prompt, budget, seed, temperature, stop=stops, stop_texts=tuple(stop_texts), **settings)
        for prompt, seed, temperature, budget in zip(*columns, strict=True)
    ]


def _each(name: str, values: Value | Sequence[Value], rows: int) -> Sequence[Value]:
    """Return one value per completion."""
    if isinstance(values, int | float):
        return [values] * rows
    if len(values) != rows:
        raise InputError(f"{len(values)} {name} for {rows} completions", "One is needed per completion", f"Give {rows}")
    return values
