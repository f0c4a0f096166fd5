"""Environments that continue from one training step to the next, and the segments that are collected from them.

A lane is an environment in play. Each step of training takes the same number of actions in each lane; an episode that
ends is followed by the next in the same lane, and one that does not end continues in the next step. What a lane yields
between two resets, or between a reset and the end of the step, is a segment: one row. No segment spans a reset, so no
row holds a transition from the end of one episode to the beginning of another, as gymnasium's vector environments
insert one (`AutoresetMode.NEXT_STEP`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from grouprl.core.errors import InputError, RunError, raised
from grouprl.core.json_types import State
from grouprl.core.timeout import CallClock, TooLong, reached
from grouprl.envs.array_spaces import bounded, observed, observed_after, of_an_observation
from grouprl.envs.async_methods import awaited, close, warn_not_closed
from grouprl.envs.environment import ArrayObservation, Step
from grouprl.protocols import Discrete, Request, SamplingSession, Spaces
from grouprl.records.episode_records import UNDER_WAY
from grouprl.records.scores import LARGEST, RULE
from grouprl.rewards.contract import Failure

if TYPE_CHECKING:
    from grouprl.envs.environment import Environment
    from grouprl.policy.vectors.array_columns import Arrays
    from grouprl.records.examples import Example

Action = int | np.ndarray
Result = TypeVar("Result")
_NUMBERS = (int, float, np.number)


@dataclass(frozen=True)
class Beginning:
    """The prompt and the seed that an episode begins with."""

    index: int
    """Number of the prompt in the task's training split."""
    seed: int


@dataclass
class Segment:
    """Consecutive actions of one episode within one step of training."""

    seed: int
    """Seed of the first action; it increases by one with each action."""
    context: Mapping[str, object]
    states: list[ArrayObservation] = field(default_factory=list)
    """The observation before each action."""
    actions: list[Action] = field(default_factory=list)
    origins: list[np.ndarray | None] = field(default_factory=list)
    """The numbers that each action was made of; see `Samples.origins`."""
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    final: ArrayObservation | None = None
    """The observation after the last action."""
    ended: str = UNDER_WAY
    """One of `grouprl.records.episode_records.ENDINGS`."""
    finished: bool = False
    """Whether the episode ended with the segment, by itself or by a limit."""
    total: float = float("nan")
    """Sum of the rewards of the whole episode, if it is finished."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Components of the finished episode's reward, by the environment."""
    failure: Failure | None = None
    judged: bool = True
    """False if nobody said whether the episode is right or wrong."""


class LateCall(RunError):
    """An environment did not return in time."""


def in_time(method: str, clock: CallClock, act: Callable[..., Result | Awaitable[Result]], *given: object) -> Result:
    """Return the result of `act(*given)`, a call of `method`; a coroutine's is waited for.

    Raises LateCall if it takes longer than a running clock allows.
    """
    try:
        with clock:
            return awaited(act(*given))
    except TooLong as late:
        what = f"{method}() did not return within {clock.seconds:g} s (environment.timeout){reached(late)}"
        raise LateCall(what) from None


class Lane:
    """An environment in play, which can be rebuilt from how its episode began and the actions since.

    Args:
        make: makes an environment.
        spaces: what it shows and takes.
        example: returns the prompt of a number.
        clock: limits the calls of the environment while it runs.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        spaces: Spaces,
        example: Callable[[int], Example],
        clock: CallClock,
    ) -> None:
        self._make, self._spaces, self._example, self._clock = make, spaces, example, clock
        self._environment: Environment | None = None
        self.beginning: Beginning | None = None
        self.shown = ArrayObservation(None)
        self.context: Mapping[str, object] = {}
        self.done: list[Action] = []
        """Actions of the episode so far."""
        self.total = 0.0

    def begin(self, beginning: Beginning) -> None:
        """Begin an episode; whatever the environment raises passes through."""
        self.stop()
        first = in_time("reset", self._clock, self._reset, beginning)
        with of_an_observation():
            self.shown = observed(self._spaces, first, first=True)
        self.context = self.shown.context

    def _reset(self, beginning: Beginning) -> object:
        self._environment, self.beginning, self.done, self.total = self._make(), beginning, [], 0.0
        return self._environment.reset(self._example(beginning.index), beginning.seed)

    def act(self, action: Action) -> Step:
        """Apply an action, show what followed, and return it; whatever the environment raises passes through.

        Raises:
            InputError: the reward is not a number, or the observation is not in its space.
        """
        assert self._environment is not None
        told = (
            int(action)
            if isinstance(self._spaces.action, Discrete)
            else bounded(self._spaces.action, np.array(action))  # a copy: the environment may change it
        )
        step: Step = in_time("step", self._clock, self._environment.step, told)
        if not isinstance(step.reward, _NUMBERS) or not abs(step.reward) <= LARGEST:
            raise InputError(f"step() returned the reward {step.reward!r}", RULE)
        with of_an_observation():
            self.shown = observed_after(self._spaces, step)
        self.done.append(action)
        self.total += float(step.reward)
        return step

    def score(self) -> Mapping[str, float]:
        """Return the environment's own components for the episode."""
        assert self._environment is not None
        return dict(in_time("score", self._clock, self._environment.score))

    def stop(self) -> None:
        """Close the environment; the next segment begins an episode.

        It warns where that fails: what was played counts all the same.
        """
        left, self._environment, self.beginning = self._environment, None, None
        try:
            if left is not None:
                in_time("close", self._clock, close, left)
        except (Exception, SystemExit) as error:
            warn_not_closed("an environment", raised(error))

    def abandon(self) -> None:
        """Forget the environment without closing it, as one that hangs may hang again."""
        self._environment = self.beginning = None

    def state(self) -> State | None:
        """Return how the episode began and what was done in it; None before its first episode."""
        if self.beginning is None:
            return None
        return {
            "index": self.beginning.index,
            "seed": self.beginning.seed,
            "actions": [np.asarray(action).tolist() for action in self.done],
            "kind": str(np.asarray(self.done[0]).dtype) if self.done else "",
            "shown": _written(self.shown.values),
        }

    def restore(self, state: State | None) -> None:
        """Begin the episode of `state` anew and take its actions.

        Raises:
            RunError: the environment shows another observation than before.
        """
        if state is None:
            return
        # Environments cannot be written to a file, so that a lane is played again up to where it was.
        self.begin(Beginning(state["index"], state["seed"]))
        for action in state["actions"]:
            self.act(action if isinstance(action, int) else np.asarray(action, dtype=state["kind"]))
        if _written(self.shown.values) != state["shown"]:
            raise RunError(
                f"an environment is not reproducible: after the same {len(self.done)} actions with the seed "
                f"{state['seed']} it shows another observation than before the run was interrupted. Take all its "
                "randomness from the seed, or leave out task.horizon"
            )


@dataclass
class LaneStep:
    """A lane within one step: how its episodes are numbered and its actions seeded."""

    lane: Lane
    beginnings: Callable[[int], Beginning]
    """Beginning of the n-th episode that starts in this step."""
    action_seed: int
    temperature: float
    segments: list[Segment] = field(default_factory=list)
    failed: bool = False
    begun: int = 0


def collect(
    places: Sequence[LaneStep], session: SamplingSession[ArrayObservation, Action], horizon: int, max_turns: int
) -> None:
    """Take `horizon` actions in every lane, all lanes together; segments are added to each place.

    A lane whose environment fails rests until the next step.
    """
    for place in places:
        _open(place, 0)
    for step in range(horizon):
        living = [place for place in places if not place.failed]
        if not living:
            return
        samples = session.sample([_request(place, step) for place in living])
        assert samples.logp_bt is not None
        logp = samples.logp_bt[:, 0].tolist()
        entropy = [0.0] * len(living) if samples.entropy_bt is None else samples.entropy_bt[:, 0].tolist()
        origins = [(None,)] * len(living) if samples.origins is None else samples.origins
        for place, (origin,) in zip(living, origins, strict=True):
            place.segments[-1].origins.append(origin)
        for place, (action,), *told in zip(living, samples.actions, logp, entropy, strict=True):
            _advance(place, action, *told, max_turns=max_turns, seed=place.action_seed + step + 1)
    # An episode that ended with the last action has opened a segment that nothing was played in; the episode that it
    # began is continued in the next step.
    for place in places:
        if not place.failed and not place.segments[-1].actions:
            place.segments.pop()


def _request(place: LaneStep, step: int) -> Request[ArrayObservation]:
    shown, context = place.lane.shown, place.lane.context
    shown = replace(shown, context=context) if context else shown
    return Request(shown, 1, (place.action_seed + step) % 2**64, place.temperature)


def _open(place: LaneStep, seed: int) -> None:
    """Begin a segment, and an episode if none is under way."""
    segment = Segment((seed or place.action_seed) % 2**64, {})
    place.segments.append(segment)
    if place.lane.beginning is None:
        try:
            place.lane.begin(place.beginnings(place.begun))
        except (Exception, SystemExit) as error:
            _fail(place, segment, error)
            return
        place.begun += 1
    segment.context = place.lane.context


def _advance(place: LaneStep, action: Action, logp: float, entropy: float, *, max_turns: int, seed: int) -> None:
    """Take one action; where the episode ends, score it and begin the next one."""
    lane, segment = place.lane, place.segments[-1]
    segment.states.append(lane.shown)
    segment.actions.append(action)
    segment.logp.append(logp)
    segment.entropy.append(entropy)
    try:
        step = lane.act(action)
        late = not step.terminated and (step.truncated or len(lane.done) >= max_turns)
        segment.rewards.append(float(step.reward))
        segment.final = lane.shown
        if step.terminated or late:
            segment.finished, segment.total = True, lane.total
            segment.ended = "terminated" if step.terminated else "truncated" if step.truncated else "out_of_turns"
            segment.components = lane.score()
            lane.stop()
            _open(place, seed)
    except (Exception, SystemExit) as error:
        _fail(place, segment, error)


def _fail(place: LaneStep, segment: Segment, error: BaseException) -> None:
    lane = place.lane
    where = f"prompt {lane.beginning.index}, seed {lane.beginning.seed}, " if lane.beginning else ""
    late = isinstance(error, LateCall)
    what = f"the environment failed ({where}turn {len(lane.done)}): {error if late else raised(error)}"
    segment.failure = Failure(what, "", "timeout" if late else "error", "environment")
    segment.ended, place.failed, lane.beginning = "error", True, None
    if late:
        lane.abandon()


def _written(values: Arrays | object) -> object:
    """Return an observation as plain values."""
    if isinstance(values, Mapping):
        return {name: np.asarray(value).tolist() for name, value in values.items()}
    return np.asarray(values).tolist()
