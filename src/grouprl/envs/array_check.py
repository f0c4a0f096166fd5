"""Checking an environment over arrays: spelt as text, it is played as any environment of text is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from grouprl.core.errors import InputError
from grouprl.core.hashing import content_number
from grouprl.envs.array_spaces import bounded, counts, fitted, observed, observed_after, of_an_observation, spelt
from grouprl.envs.async_methods import awaited
from grouprl.envs.check import check_environment
from grouprl.envs.environment import Observation, Step
from grouprl.envs.findings import EnvironmentFinding, EnvironmentReport
from grouprl.protocols import Box, DictSpace, Discrete, Environment, MultiDiscrete, Space, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

OFFERED = 4
"""Number of legal actions that an observation offers."""
WIDE = 3.0
"""Largest size of an action's numbers where the space has no bounds."""


def check_array_environment(
    make: Callable[[], object],
    spaces: Spaces,
    example: Callable[[int], Example],
    *,
    episodes: int = 64,
    max_turns: int = 200,
    actions: Sequence[str] = (),
    seed_of: Callable[[Example, int], int] = lambda example, episode: episode,
    seconds: float = 10.0,
    agents: Sequence[str] = ("",),
    limited: bool = False,
) -> EnvironmentReport:
    """Play an environment over arrays in many ways, and report what breaks the rules of `grouprl.envs.Environment`.

    Args:
        make: returns a fresh environment.
        spaces: spaces of its observations and actions.
        example: returns example number i, from 0.
        episodes, max_turns, seed_of, seconds, agents, limited: see `grouprl.envs.check.check_environment`.
        actions: none, since actions are drawn from their space.

    Raises:
        InputError: as `check_environment` does, and if actions are given.
    """
    if actions:
        raise InputError(
            f"the action {actions[0]!r} for an environment over arrays", "its actions are drawn from their space"
        )
    beyond: list[str] = []
    report = check_environment(
        partial(SpeltEnvironment, make, spaces, beyond),
        example,
        episodes=episodes,
        max_turns=max_turns,
        seed_of=seed_of,
        seconds=seconds,
        agents=agents,
        unlisted=False,
        limited=limited,
    )
    return replace(report, findings=(*_of_arrays(report.findings), *_of_bounds(beyond)))


def _of_arrays(findings: Sequence[EnvironmentFinding]) -> Iterator[EnvironmentFinding]:
    """Yield the findings that concern environments over arrays, which are measured by returns, offer some of their
    actions only, take no text, and may draw how an episode begins from its seed, such as the first place of a tour.
    """
    for finding in findings:
        if finding.name == "beginning":
            yield replace(finding, serious=False)
        elif finding.name == "step raises":
            yield replace(finding, rule="step must not raise on an action of its space")
        elif finding.name not in ("no correct", "validity"):
            yield finding


def _of_bounds(beyond: Sequence[str]) -> Iterator[EnvironmentFinding]:
    if beyond:
        rule = "an observation is within the bounds of its space, by which a policy may scale it"
        yield EnvironmentFinding("bounds", False, beyond[0], rule, "Widen the space, or clip what is observed.", "")


class SpeltEnvironment:
    """An environment over arrays whose observations are spelt and which takes any text for an action.

    Arrays are checked against their spaces. A text that spells a legal action in JSON is that action; any other stands
    for one that is drawn from it, since a policy over arrays cannot act outside its space.
    """

    def __init__(self, make: Callable[[], object], spaces: Spaces, beyond: list[str]) -> None:
        self._inner = cast("Environment[object, object]", make())
        self._spaces, self._beyond = spaces, beyond
        self._legal: np.ndarray | None = None
        self._shows = 0
        if callable(own := getattr(self._inner, "demonstrate", None)):
            self.demonstrate = partial(_demonstrated, own)

    def __getattr__(self, name: str) -> object:
        """Return other methods (`score`, `close` …) of the environment itself."""
        return getattr(self._inner, name)

    def reset(self, example: object, seed: int) -> Observation:
        """Begin an episode.

        Raises:
            InputError: an observation or its context is not in its space.
        """
        self._shows = 0
        return self._shown(awaited(self._inner.reset(example, seed)), first=True)

    def step(self, action: str) -> object:
        """Act. Raises InputError if an observation is not in its space."""
        step = awaited(self._inner.step(self._meant(action)))
        if not isinstance(step, Step):
            return step
        return replace(step, observation=self._shown(step))

    def _shown(self, found: object, *, first: bool = False) -> Observation:
        """Return the first observation, or that of a step, as text."""
        last = not first and (cast("Step", found).terminated or cast("Step", found).truncated)
        with of_an_observation():
            seen = (
                observed(self._spaces, found, first=True)
                if first
                else observed_after(self._spaces, cast("Step", found))
            )
        self._look_at_bounds(self._spaces.observation, seen.values)
        arrays = {"values": seen.values, **({"context": seen.context} if first and seen.context else {})}
        number = content_number(json.dumps(_listed(arrays)))
        self._legal = None if seen.legal is None else np.asarray(seen.legal)
        self._shows += 1
        seeds = () if last else [content_number(f"{number} {self._shows} {i}") for i in range(OFFERED)]
        offered = dict.fromkeys(json.dumps(_listed(self._drawn(seed))) for seed in seeds)
        text = "; ".join(spelt(each) for each in arrays.values()) + f" #{number % 16**6:06x}"
        return Observation(text, agent=seen.agent, legal=tuple(offered))

    def _look_at_bounds(self, space: Space, values: object) -> None:
        if isinstance(space, DictSpace):
            assert isinstance(values, Mapping)
            for name, inner in space.spaces.items():
                self._look_at_bounds(inner, values[name])
        elif isinstance(space, Box):
            seen = np.asarray(values)
            if not np.allclose(seen, bounded(space, seen), rtol=1e-5, atol=1e-6):
                self._beyond.append(f"An observation was {spelt(seen)}, the bounds are {space.low} and {space.high}")

    def _meant(self, text: str) -> np.ndarray:
        try:
            action = np.asarray(fitted(self._spaces.action, json.loads(text)))
        except (ValueError, InputError):
            return self._drawn(content_number(text))
        return action if self._is_legal(action) else self._drawn(content_number(text))

    def _is_legal(self, action: np.ndarray) -> bool:
        space, legal = self._spaces.action, self._legal
        if legal is None or isinstance(space, Box):
            return True
        masks = np.split(legal, np.cumsum(counts(space))[:-1])
        return all(bool(mask[int(number)]) for mask, number in zip(masks, action.ravel(), strict=True))

    def _drawn(self, seed: int) -> np.ndarray:
        rng, chain = np.random.default_rng(seed % 2**63), self._spaces.chain
        drawn = [_draw(self._spaces.action, self._legal, rng) for _ in range(chain)]
        return drawn[0] if chain == 1 else np.stack(drawn)


def _demonstrated(act: Callable[[object], object], rng: object) -> str:
    return json.dumps(_listed(awaited(act(rng))))


def _draw(space: Space, legal: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Return a random action of its space, one of the legal ones if there is a mask."""
    if isinstance(space, Discrete | MultiDiscrete):
        sizes = counts(space)
        masks = [None] * len(sizes) if legal is None else np.split(legal, np.cumsum(sizes)[:-1])
        picked = [
            rng.integers(n) if mask is None else rng.choice(np.flatnonzero(mask))
            for n, mask in zip(sizes, masks, strict=True)
        ]
        return np.asarray(picked, space.dtype).reshape(space.shape)
    assert isinstance(space, Box)
    low, high = (np.broadcast_to(bound, space.size).reshape(space.shape) for bound in (space.low, space.high))
    return rng.uniform(np.maximum(low, -WIDE), np.minimum(high, WIDE)).astype(space.dtype)


def _listed(values: object) -> object:
    if isinstance(values, Mapping):
        return {name: _listed(value) for name, value in values.items()}
    return np.asarray(values).tolist()
