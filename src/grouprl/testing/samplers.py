"""Conformance tests of samplers, of the exchange of weights, and of sources of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grouprl.core.errors import InputError
from grouprl.protocols import NO_VERSION, Policy, Request, Sampler, Samples, SampleSource, WeightSync
from grouprl.testing.rules import hold, refuses

ROUNDING = 1e-3
"""Nats by which a log-prob of an exact sampler may differ from the policy's: rounding in single precision."""
Score = Callable[[Sequence[Request[Any]], Samples[Any]], np.ndarray]
"""(requests, their samples) -> [B,T] log-probs that the policy computes for those actions, at each temperature."""


def check_sampler(
    sampler: Sampler[object, object],
    requests: Sequence[Request[object]],
    *,
    logp: Score | None = None,
    pieces: bool = True,
) -> None:
    """Check a sampler against `grouprl.protocols.Sampler`.

    Args:
        sampler: the implementation.
        requests: at least four that it can honour, of at least three different seeds, not greedy, such that some sample
            has several actions and different seeds give different samples. Their names are not used.
        logp: computes the same log-probs by the policy; a sampler that says `exact` must agree with it.
        pieces: whether prompts are sequences of actions, so that a sample can be taken in pieces (`Request.sampled`).

    Raises:
        AssertionError: with the rule that does not hold.
        InputError: requests that cannot test the rules.
    """
    _check_requests(requests)
    _rule(
        isinstance(sampler, Sampler),
        "a sampler has `exact`, `sample` and `session`",
        f"{type(sampler).__name__} lacks one",
    )
    _rule(isinstance(sampler.exact, bool), "`exact` is True or False", repr(sampler.exact))
    whole = sampler.sample(requests)
    check_samples(whole, requests)
    _rule(whole.exact == sampler.exact, "samples have the `exact` of their sampler", f"exact={whole.exact}")
    _check_independence(sampler, requests, whole)
    _check_seeds(sampler, requests, whole)
    with sampler.session() as session:
        named = [replace(request, name=("conformance", i)) for i, request in enumerate(requests)]
        _same("in a session", session.sample(named), whole)
        if pieces:
            _check_pieces(session.sample, named, whole)
    if pieces:
        _check_pieces(sampler.sample, requests, whole)
    if logp is not None and whole.exact:
        gap = float(np.abs(np.where(_present(whole), logp(requests, whole) - whole.logp_bt, 0.0)).max())
        _rule(gap <= ROUNDING, "log-probs of an exact sampler are the policy's", f"they differ by {gap:.3g} nats")


def check_samples(samples: Samples[object], requests: Sequence[Request[object]]) -> None:
    """Check the samples of `requests` against `grouprl.protocols.Samples`. Raises AssertionError with
    the broken rule.
    """
    _rule(len(samples) == len(requests), "one sample per request, in order", f"{len(samples)} for {len(requests)}")
    _rule(isinstance(samples.exact, bool), "`exact` is True or False", repr(samples.exact))
    for i, (actions, request) in enumerate(zip(samples.actions, requests, strict=True)):
        _rule(
            1 <= len(actions) <= request.budget,
            f"sample {i} has 1 to {request.budget} actions",
            f"it has {len(actions)}",
        )
        full = len(actions) == request.budget
        _rule(full or not samples.truncated_b[i], "a truncated sample has used its budget", f"sample {i} has not")
    present_bt = _present(samples)
    for name in ("logp_bt", "entropy_bt"):
        array = getattr(samples, name)
        if array is not None:
            _rule(bool(np.isfinite(array).all()), f"{name} is finite", "it is not")
            _rule(not array[~present_bt].any(), f"{name} is 0 beyond the end of a sample", "it is not")
    if samples.version_bt is not None:
        own = samples.version_bt[present_bt]
        _rule(bool((own >= 0).all()), "actions have versions from 0 on", f"one has {own.min(initial=0)}")
        beyond = samples.version_bt[~present_bt]
        _rule(bool((beyond == NO_VERSION).all()), f"version_bt is {NO_VERSION} beyond the end", "it is not")
        later_bt = present_bt[:, 1:]
        back = later_bt & (np.diff(samples.version_bt, axis=1) < 0)
        _rule(not back.any(), "versions within a sample never go back", "they do")


def check_sync(sync: WeightSync, policy: Policy, *, sample: Callable[[], Samples[object]] | None = None) -> None:
    """Check an exchange of weights against `grouprl.protocols.WeightSync`; it ends with two versions more than it had.

    `sample` samples after a version is published: its actions must carry it. Raises AssertionError with the rule that
    does not hold.
    """
    _rule(
        isinstance(sync, WeightSync),
        "an exchange of weights has `version` and `publish`",
        f"{type(sync).__name__} lacks one",
    )
    first = sync.version
    _rule(isinstance(first, int) and first >= NO_VERSION, f"a version is a number from {NO_VERSION} on", repr(first))
    for version in (first + 1, first + 1, first + 2):  # the same number again replaces it
        sync.publish(version, policy)
        _rule(sync.version == version, f"after publish({version}, …) the version is {version}", str(sync.version))
        if sample is not None:
            samples = sample()
            known = samples.version_bt
            _rule(known is not None, "samples know the versions of their actions once one is published", "they do not")
            assert known is not None
            found = set(known[_present(samples)].tolist())
            _rule(found == {version}, f"samples are now of version {version}", f"they are of {sorted(found)}")
    refuses(lambda: sync.publish(first + 1, policy), "a version below the last one is refused")
    _rule(sync.version == first + 2, "a refused version changes nothing", str(sync.version))


def check_source(
    source: SampleSource[object, object], groups: Callable[[object], Sequence[int]], *, count: int, steps: int
) -> None:
    """Check a source of samples against `grouprl.protocols.SampleSource`; it is started, run for `steps` steps and
    closed.

    `groups` returns the numbers of the prompts of a round, each once. Nothing is trained between the steps, and the
    source gets no results of steps. Raises AssertionError with the rule that does not hold.
    """
    _rule(
        isinstance(source, SampleSource),
        "a source has the members of the protocol",
        f"{type(source).__name__} lacks one",
    )
    _rule(isinstance(source.asynchronous, bool), "`asynchronous` is True or False", repr(source.asynchronous))
    seen: list[int] = []
    try:
        source.begin(lambda sentence: None)
        for _ in range(steps):
            found = source.round(count)
            numbers = [] if found is None else list(groups(found))
            _rule(len(numbers) <= count, f"a round has at most {count} prompts", f"it has {len(numbers)}")
            seen += numbers
            metrics = source.advance(None)
            _rule(all(isinstance(x, float) for x in metrics.values()), "metrics are numbers", repr(metrics))
            _rule(source.state() == source.state(), "reading the state changes nothing", "it does")
        _rule(len(seen) == len(set(seen)), "no prompt is returned twice", f"{len(seen) - len(set(seen))} are")
        _rule(bool(seen), "a source has prompts", "no round had any")
    finally:
        source.close()
        source.close()


def _check_requests(requests: Sequence[Request[object]]) -> None:
    few = len(requests) < 4 or len({request.seed for request in requests}) < 3
    if few or any(request.greedy for request in requests):
        raise InputError(
            f"{len(requests)} requests are given",
            "a sampler is checked on at least four, of at least three seeds, none of them greedy",
        )


def _check_independence(
    sampler: Sampler[object, object], requests: Sequence[Request[object]], whole: Samples[object]
) -> None:
    """Check that a sample depends on its request alone."""
    _same("when the same is requested again", sampler.sample(requests), whole)
    order = list(range(len(requests)))[::-1]
    turned = sampler.sample([requests[i] for i in order])
    _rule(_alike(turned.actions, [whole.actions[i] for i in order]), "the order of requests does not matter", "it does")
    for i in (0, len(requests) // 2):
        alone = sampler.sample([requests[i]])
        _rule(_alike(alone.actions, whole.actions[i : i + 1]), "neighbours do not matter", f"sample {i} alone differs")


def _check_seeds(sampler: Sampler[object, object], requests: Sequence[Request[object]], whole: Samples[object]) -> None:
    """Check that seeds matter for sampled actions, and do not for greedy ones."""
    first = requests[0]
    seeds = [replace(first, seed=request.seed) for request in requests]
    sampled = sampler.sample(seeds).actions
    _rule(not _alike(sampled, [sampled[0]] * len(sampled)), "different seeds give different samples", "all are equal")
    greedy = sampler.sample([replace(request, greedy=True) for request in seeds])
    check_samples(greedy, seeds)
    _rule(
        _alike(greedy.actions, [greedy.actions[0]] * len(seeds)), "the seed of a greedy sample has no effect", "it has"
    )


def _check_pieces(
    sample: Callable[[Sequence[Request[object]]], Samples[object]],
    requests: Sequence[Request[Any]],
    whole: Samples[object],
) -> None:
    """Check that a sample taken in pieces is the sample taken at once."""
    long = [i for i, actions in enumerate(whole.actions) if len(actions) > 1]
    if not long:
        raise InputError(
            "every sample has one action",
            "samples in pieces need several",
            "Use requests whose samples have several actions",
        )
    cuts = [len(whole.actions[i]) // 2 for i in long]
    begun = sample([replace(requests[i], budget=cut) for i, cut in zip(long, cuts, strict=True)])
    rest = sample(
        [
            replace(requests[i], prompt=(*requests[i].prompt, *actions), budget=requests[i].budget - cut, sampled=cut)
            for i, cut, actions in zip(long, cuts, begun.actions, strict=True)
        ]
    )
    joined = [(*a, *b) for a, b in zip(begun.actions, rest.actions, strict=True)]
    _rule(
        _alike(joined, [whole.actions[i] for i in long]),
        "a sample in pieces is the sample taken at once",
        "they differ",
    )
    _rule(bool(begun.truncated_b.all()), "a sample cut by its budget is truncated", "one is not")


def _same(when: str, found: Samples[object], whole: Samples[object]) -> None:
    _rule(_alike(found.actions, whole.actions), f"samples are the same {when}", "they differ")


def _alike(samples: Sequence[Sequence[object]], others: Sequence[Sequence[object]]) -> bool:
    """Return whether two lists of samples hold the same actions, vectors up to rounding."""
    if [len(actions) for actions in samples] != [len(actions) for actions in others]:
        return False
    pairs = [pair for one, other in zip(samples, others, strict=True) for pair in zip(one, other, strict=True)]
    return all(_same_action(one, other) for one, other in pairs)


def _same_action(one: Any, other: Any) -> bool:
    if np.ndim(one) == 0:
        return bool(one == other)
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other, rtol=ROUNDING, atol=ROUNDING))


def _present(samples: Samples[object]) -> np.ndarray:
    """Return [B,T] bool: positions that samples have."""
    length_b = np.array([len(actions) for actions in samples.actions])
    return np.asarray(np.arange(samples.logp_bt.shape[1]) < length_b[:, None])


def _rule(holds: bool, rule: str, found: str) -> None:
    hold(holds, f"{rule}: {found}")
