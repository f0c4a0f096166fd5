"""Checking an environment by playing it."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from grouprl.core.errors import InputError, raised
from grouprl.envs.async_methods import awaited
from grouprl.envs.cross_episode_checks import examine_agents, examine_episodes, summary
from grouprl.envs.environment import Observation, Step
from grouprl.envs.findings import CheckedEpisode, EnvironmentReport, Findings
from grouprl.envs.playing import over
from grouprl.envs.value_checks import examine_observation, examine_score, examine_scores, examine_step
from grouprl.processes.fork_guard import ending_forks

if TYPE_CHECKING:
    from grouprl.envs.environment import Environment
    from grouprl.records.examples import Example

METHODS = ("reset", "step", "score", "close")
PER_PROMPT = 16
"""Episodes of one example, so that beginnings can be compared and states can repeat."""
HOPELESS = 8
"""Episodes after which an environment is given up if none of them could be played."""
NONSENSE = ("", "?", "\n", "xyzzy " * 20, "0", "-1", "☃", "<answer></answer>")


class _TooLong(BaseException):
    """Raised when a call exceeds its time; no `except Exception` of an environment catches it."""


class _Stop(Exception):
    """Raised when an episode cannot continue; the reason is among the findings."""


def check_environment(
    make: Callable[[], object],
    example: Callable[[int], Example],
    *,
    episodes: int = 64,
    max_turns: int = 200,
    actions: Sequence[str] = (),
    seed_of: Callable[[Example, int], int] = lambda example, episode: episode,
    seconds: float = 10.0,
    agents: Sequence[str] = ("",),
    unlisted: bool = True,
    limited: bool = False,
) -> EnvironmentReport:
    """Play an environment in many ways and report what breaks the rules of `grouprl.envs.Environment`.

    Args:
        make: returns a fresh environment.
        example: returns example number i, from 0.
        episodes: the number of episodes; each is played twice, for comparison.
        max_turns: turns after which an episode should have ended.
        actions: actions to try if the environment neither lists legal actions nor demonstrates any.
        seed_of: the seed of an episode; by default every episode has its own.
        agents: the names of the agents that may act; the episode's reward belongs to the first.
        seconds: time that a single call may take (watched in the main thread only).
        limited: whether whoever trains in it limits episodes, so that they need no end of their own.
        unlisted: whether actions that no observation lists as legal are tried, too: random words, and nonsense.

    Raises:
        InputError: if `episodes` or `max_turns` is below 1.
    """
    if min(episodes, max_turns) < 1:
        raise InputError(f"episodes is {episodes} and max_turns {max_turns}", "both are at least 1")
    examiner = _Examiner(make, max_turns, actions, seconds, agents, unlisted, limited)
    played: list[CheckedEpisode] = []
    for number in range(episodes):
        example_now = example(number // PER_PROMPT)
        episode = examiner.examine(example_now, seed_of(example_now, number), number)
        if episode is not None:
            played.append(episode)
        elif not played and number + 1 >= HOPELESS:
            break
    examiner.findings.episode = ""
    examine_episodes(played, examiner.findings)
    examine_agents(played, examiner.findings, agents)
    shown = next((each for each in played if each.chooser == "demonstrated"), None)
    shown = shown or next((each for each in played if each.chooser == "legal"), played[0] if played else None)
    return EnvironmentReport(tuple(examiner.findings.by_name.values()), summary(played), shown)


class _Examiner:
    def __init__(
        self,
        make: Callable[[], object],
        max_turns: int,
        actions: Sequence[str],
        seconds: float,
        agents: Sequence[str],
        unlisted: bool,
        limited: bool,
    ) -> None:
        self.agents, self.unlisted, self.limited = tuple(agents), unlisted, limited
        self.make, self.max_turns, self.actions, self.seconds = make, max_turns, tuple(actions), seconds
        self.findings = Findings()

    def examine(self, example: Example, seed: int, number: int) -> CheckedEpisode | None:
        """Play an episode twice, and try what an environment must refuse; None if it could not be played."""
        self.findings.episode = f"example {example.id}, seed {seed}"
        try:
            environment = self._made()
            can_show = callable(getattr(environment, "demonstrate", None))
            choosers = [*["demonstrated"] * can_show, "legal", *["random"] * self.unlisted]
            chooser = "nonsense" if self.unlisted and number % 8 == 7 else choosers[number % len(choosers)]
            episode = self._play(environment, example, seed, chooser, number)
            if episode.ended:
                self._after_the_end(environment)
            self._close(environment)
            self._compare(episode, self._replay(episode, example, None), "alone")
            other = self._made()
            self._compare(episode, self._replay(episode, example, other), "beside another object")
            self._close(other)
            self._second_reset(example, seed, episode)
        except _Stop:
            return None
        return episode

    def _play(self, environment: Environment, example: Example, seed: int, chooser: str, number: int) -> CheckedEpisode:
        first = self._reset(environment, example, seed)
        chooser = "random" if chooser == "legal" and not first.legal else chooser
        episode = CheckedEpisode(example.id, seed, chooser, first)
        rng = random.Random(number)
        while len(episode.steps) < self.max_turns and not episode.ended:
            action = self._choose(environment, episode, rng)
            self._step(environment, episode, action)
        if not episode.ended and not self.limited:
            rule = f"an episode ends, terminated or truncated, within {self.max_turns} turns"
            remedy = "Count turns and set truncated=True at a limit; --max-turns raises this one."
            what = f"The episode continued after {self.max_turns} turns of {chooser} actions"
            self.findings.add("no end", what, rule, remedy)
        self._score(environment, episode)
        return episode

    def _replay(self, episode: CheckedEpisode, example: Example, other: Environment | None) -> CheckedEpisode:
        """Play the same actions in a fresh object, with steps of another object in between."""
        environment = self._made()
        if other is not None:
            self._reset(other, example, episode.seed + 1)
        again = CheckedEpisode(episode.example, episode.seed, "", self._reset(environment, example, episode.seed))
        other_ended = other is None
        for action in episode.actions:
            if other is not None and not other_ended:
                beside = self.call("step", other.step, episode.actions[-1])
                other_ended = beside.terminated or beside.truncated
            self._step(environment, again, action)
            if again.ended:
                break
        self._score(environment, again)
        self._close(environment)
        return again

    def _compare(self, one: CheckedEpisode, two: CheckedEpisode, how: str) -> None:
        rule = "(example, seed, actions) determine everything that an environment returns"
        remedy = "Draw chance from random.Random(seed) made in reset(); no clock, set order or global generator."
        if how != "alone":
            rule = "objects share nothing: many of them are played at the same time"
            remedy = "Keep the state on self, not on the class or the module."
        name = "determinism" if how == "alone" else "shared state"
        if difference := _difference(one, two):
            turn, before, after = difference
            if name == "shared state" and "determinism" in self.findings.by_name:
                return
            what = f"The same episode, played again {how}, gave {after} where it had given {before}"
            self.findings.add(name, what, rule, remedy, turn=turn)

    def _second_reset(self, example: Example, seed: int, episode: CheckedEpisode) -> None:
        """Reset an object twice: it may refuse, but must not begin differently."""
        environment = self._made()
        self._reset(environment, example, seed)
        try:
            if episode.actions:
                with self._limit("step"):
                    awaited(environment.step(episode.actions[0]))
            with self._limit("reset"):
                second = awaited(environment.reset(example, seed))
        except (Exception, SystemExit):
            return
        finally:
            self._close(environment)
        if _plain(second) != _plain(episode.first):
            what = f"A second reset() with the same example and seed gave {_text(second)} after {_text(episode.first)}"
            rule = "an object is one episode: a second reset() raises, or begins the same episode afresh"
            self.findings.add("second reset", what, rule, "Set every attribute in reset(), or raise.")

    def _after_the_end(self, environment: Environment) -> None:
        """Act after the end: the environment may refuse, but nothing may change."""
        try:
            with self._limit("step"):
                late = awaited(environment.step("0"))
        except (Exception, SystemExit):
            return
        if not isinstance(late, Step) or late.reward or not over(late):
            given = f"reward {late.reward}" if isinstance(late, Step) else repr(late)
            what = f"step() after the end gave {given}" + (
                "" if isinstance(late, Step) and over(late) else " and went on"
            )
            rule = "after the end, step() raises, or gives no reward and stays ended"
            self.findings.add("after the end", what, rule, "Remember the end.")

    def _choose(self, environment: Any, episode: CheckedEpisode, rng: random.Random) -> str:
        legal = episode.observations[-1].legal
        if episode.chooser == "nonsense":
            return rng.choice(NONSENSE)
        if episode.chooser == "demonstrated":
            action = self.call("demonstrate", environment.demonstrate, rng)
            if not isinstance(action, str):
                rule = "demonstrate() gives an action, a str"
                self.findings.add("demonstration type", f"demonstrate() gave {action!r}", rule, "str(…).")
                raise _Stop
            return action
        if legal and (episode.chooser == "legal" or rng.random() < 0.7):
            return rng.choice(legal)
        texts = " ".join(observation.text for observation in episode.observations[-2:])
        return rng.choice(self.actions or (*texts.split(), *sorted(set(texts)), *"0123", "a", "b"))

    def _step(self, environment: Environment, episode: CheckedEpisode, action: str) -> None:
        turn, legal = len(episode.steps) + 1, episode.observations[-1].legal
        step = self.call("step", environment.step, action, turn=turn)
        episode.actions.append(action)
        begun = {each.agent for each in episode.observations}
        if not examine_step(step, action, legal, turn, self.findings, self.agents, begun):
            raise _Stop
        episode.steps.append(step)

    def _reset(self, environment: Environment, example: Example, seed: int) -> Observation:
        first = self.call("reset", environment.reset, example, seed)
        if not examine_observation(first, None, self.findings, self.agents):
            raise _Stop
        return first

    def _score(self, environment: Any, episode: CheckedEpisode) -> None:
        if callable(getattr(environment, "scores", None)):
            scores = self.call("scores", environment.scores)
            if not examine_scores(scores, self.findings, self.agents):
                raise _Stop
            episode.score = dict(scores.get(self.agents[0], {}))
            return
        score = self.call("score", environment.score)
        if not examine_score(score, self.findings):
            raise _Stop
        episode.score = dict(score)

    def _made(self) -> Environment:
        environment = self.call("the constructor", self.make)
        if missing := self.call("looking up its methods", _missing, environment):
            what = f"{type(environment).__name__} lacks {', '.join(missing)}"
            self.findings.add("methods", what, f"an environment has the methods {', '.join(METHODS)}")
            raise _Stop
        return environment

    def _close(self, environment: Any) -> None:
        for turn, name in enumerate(("close", "close again")):
            try:
                with self._limit("close"):
                    awaited(environment.close())
            except (Exception, SystemExit) as error:
                rule = "close() releases all resources, must not raise, and may be called twice"
                what = f"{'A second ' if turn else ''}close() raised {raised(error)}"
                self.findings.add(name, what, rule, "Remember in an attribute that the environment is closed.")
                return

    def call(self, name: str, function: Callable[..., object], *arguments: object, turn: int | None = None) -> Any:
        """Call a method of the environment.

        Raises:
            _Stop: if it raised or took too long, which becomes a finding.
        """
        try:
            with self._limit(name):
                return awaited(function(*arguments))
        except (Exception, SystemExit) as error:
            if isinstance(error, _Stop):
                raise
            given = f"({arguments[0]!r})" if name == "step" else ""
            what = f"{name}{given} raised {raised(error)}"
            rule = "an environment answers every text: what it cannot understand is an observation with valid=False"
            if name != "step":
                rule = f"{name} must not raise"
            self.findings.add(f"{name} raises", what, rule, turn=turn)
            raise _Stop from error

    @contextmanager
    def _limit(self, name: str) -> Iterator[None]:
        """Stop a call that takes too long, if alarms can be set, and end forked processes that return from it or are
        left running.
        """
        with ending_forks("the environment", name), self._alarm(name):  # a fork that came back would examine, too
            yield

    @contextmanager
    def _alarm(self, name: str) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
            yield
            return

        def ring(number: int, frame: object) -> None:
            raise _TooLong

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            yield
        except _TooLong:
            rule = f"a call returns within {self.seconds:g} seconds"
            self.findings.add(
                f"{name} hangs", f"{name} did not return", rule, "Set a time limit on whatever the call waits for."
            )
            raise _Stop from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _missing(environment: object) -> list[str]:
    return [name for name in METHODS if not callable(getattr(environment, name, None))]


def _difference(one: CheckedEpisode, two: CheckedEpisode) -> tuple[int, str, str] | None:
    """Return the first turn in which two episodes differ, and the values of both; turn 0 is the beginning."""
    if _plain(one.first) != _plain(two.first):
        return 0, _text(one.first), _text(two.first)
    for turn, (before, after) in enumerate(zip(one.steps, two.steps, strict=False), start=1):
        if _plain(before) != _plain(after):
            return turn, _text(before), _text(after)
    if one.score != two.score:
        return len(one.steps), f"the score {one.score}", f"the score {two.score}"
    return None


def _plain(found: Any) -> tuple[Any, ...]:
    """Return everything that is compared, which excludes `info`."""
    if hasattr(found, "observation"):
        rewards = tuple(sorted(found.rewards.items()))
        return (*astuple(found.observation), found.reward, found.terminated, found.truncated, found.valid, rewards)
    return astuple(found) if hasattr(found, "text") else (found,)


def _text(found: Any) -> str:
    if hasattr(found, "observation"):
        ended = ", the end" if found.terminated or found.truncated else ""
        return f"{_text(found.observation)} with reward {found.reward:g}{ended}"
    text = repr(getattr(found, "text", found))
    key = f" in state {found.state!r}" if getattr(found, "state", "") else ""
    return (text if len(text) <= 60 else text[:59] + "…") + key
