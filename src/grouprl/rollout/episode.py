"""One episode while it is played: the contexts of its agents, its turns, and failures of the environment."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard, TypeVar

from grouprl.chat.turn_content import THOUGHTS
from grouprl.envs.async_methods import warn_not_closed
from grouprl.envs.environment import Observation, Step, stated
from grouprl.protocols import NO_VERSION
from grouprl.records.episode_records import UNDER_WAY, Record, Turn, transcript
from grouprl.records.examples import Example, Message
from grouprl.records.scores import LARGEST, RULE
from grouprl.rewards.contract import Failure

Kind = TypeVar("Kind")
LATE = ("truncated", "out_of_turns", "out_of_room", UNDER_WAY)
"""Endings by a limit, after which the episode would have continued."""


@dataclass(frozen=True)
class Start:
    """An episode to be played; the prompt and the seed determine what the environment does."""

    example: Example
    seed: int
    action_seed: int = 0
    """Seed of the first action; the turn number is added to it."""
    budget: int | None = None
    """Largest number of tokens of one turn, if fewer than for the other episodes."""
    temperature: float = 1.0
    prefix: tuple[tuple[int, ...], ...] = ()
    """Token ids of the first turns: they are not sampled, but played in the environment before the policy continues."""
    prefix_observations: tuple[str, ...] = ()
    """Observations after each turn of the prefix when it was first played; a different observation is an error."""
    train_prefix: bool = False
    """Whether tokens of the prefix count as the policy's own."""
    turns: int | None = None
    """Largest number of turns, if fewer than for the other episodes."""
    opening: str | tuple[Message, ...] | None = None
    """Shown to the policy in place of the first observation; None: the observation itself."""


@dataclass
class Context:
    """The observations and actions of one agent, which become a row. `ids` are the tokens after the prompt."""

    agent: str
    number: int
    """Number of the row within the episode, from 0, in the order in which rows begin."""
    caller: int
    """Number of the row that was active when this one began, -1 for none."""
    messages: tuple[Message, ...] | str
    """The prompt of the row."""
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    turn_of: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    """Version of the weights that sampled each token; `NO_VERSION` for tokens that were not sampled."""
    turns: list[Turn] = field(default_factory=list)
    talk: list[tuple[Message, ...]] = field(default_factory=list)
    """The exchange after the prompt: the messages of each turn and of each observation."""
    text: str = ""
    """The text of the row before its last action, if a chat template renders it; '' until it is needed."""

    @property
    def length(self) -> int:
        """Number of tokens so far, including the prompt."""
        return len(self.prompt_ids) + len(self.ids)

    def append_action(
        self,
        turn: Turn,
        ids: list[int],
        logp: list[float],
        entropy: list[float],
        own: bool,
        versions: Sequence[int],
    ) -> None:
        """Append the tokens of a turn; `own` says whether they are trained on, `versions` which weights sampled
        each.
        """
        self._append(ids, own, len(self.turns), logp, entropy)
        self.version += versions if own else [NO_VERSION] * len(ids)
        self.turns.append(turn)
        self.talk.append((Message(role="assistant", content=turn.action),))

    def append_seen(self, ids: list[int], shown: Observation) -> None:
        """Append the tokens of an observation."""
        self._append(ids, False, -1, [0.0] * len(ids), [0.0] * len(ids))
        self.version += [NO_VERSION] * len(ids)
        self.talk.append(shown_messages(shown))

    def branch(self, turns: Mapping[int, Turn]) -> Context:
        """Return an independent copy; `turns` are the copies of its turns by the identity of the originals."""
        return replace(
            self,
            ids=[*self.ids],
            mask=[*self.mask],
            turn_of=[*self.turn_of],
            logp=[*self.logp],
            entropy=[*self.entropy],
            version=[*self.version],
            turns=[turns[id(turn)] for turn in self.turns],
            talk=[*self.talk],
        )

    def _append(self, ids: list[int], own: bool, turn: int, logp: list[float], entropy: list[float]) -> None:
        self.ids += ids
        self.mask += [own] * len(ids)
        self.turn_of += [turn] * len(ids)
        self.logp += logp
        self.entropy += entropy


class Episode:
    """An environment in play, number `number` of those played together; `ended` is None while it is alive."""

    def __init__(self, number: int, start: Start, agents: Sequence[str]) -> None:
        self.number, self.start, self.agents = number, start, tuple(agents)
        self.ended: str | None = None
        self.failure: Failure | None = None
        self.settled = False
        self.contexts: list[Context] = []
        self.turns: list[Turn] = []
        self.shown = Observation("")
        self.components: dict[str, Mapping[str, float]] = {}
        self._latest: dict[str, Turn] = {}
        self._waiting: dict[str, float] = {}
        self._open: dict[str, Context] = {}
        self._actor: Context | None = None

    def branch(self) -> Episode:
        """Return an independent copy, which shares nothing that either of them changes."""
        # Turns and rows are reached from several places, which must lead to the same copy: later rewards go there.
        copied = {id(turn): replace(turn) for turn in self.turns}
        rows = {id(context): context.branch(copied) for context in self.contexts}
        other = copy.copy(self)
        other.contexts = [rows[id(context)] for context in self.contexts]
        other.turns = [copied[id(turn)] for turn in self.turns]
        other.components = dict(self.components)
        other._latest = {agent: copied[id(turn)] for agent, turn in self._latest.items()}
        other._waiting = dict(self._waiting)
        other._open = {agent: rows[id(context)] for agent, context in self._open.items()}
        other._actor = None if self._actor is None else rows[id(self._actor)]
        return other

    @property
    def alive(self) -> bool:
        """True if the episode continues."""
        return self.ended is None

    @property
    def acting(self) -> Context:
        """The context of the agent that acts next, or of the one that acted last."""
        assert self._actor is not None
        return self._actor

    @property
    def led(self) -> tuple[int, ...] | None:
        """Token ids of the next turn if it is part of the prefix, else None."""
        turn = len(self.turns)
        return self.start.prefix[turn] if turn < len(self.start.prefix) else None

    @property
    def addressed(self) -> Context | None:
        """The context that the last observation continues; None if it begins a new one."""
        return None if self.shown.fresh else self._open.get(self.shown.agent)

    @property
    def opening(self) -> str | tuple[Message, ...] | None:
        """Shown in place of the environment's observation at the start of the next row; None for all rows but the
        first.
        """
        return None if self.contexts else self.start.opening

    def begin(self, messages: tuple[Message, ...] | str, prompt_ids: list[int], went_on: Context | None) -> None:
        """Open a context for the agent that acts next; `went_on` is the context that it continues with a new
        rendering.
        """
        caller = -1 if went_on is None else went_on.caller
        if self.shown.fresh and self._actor is not None:
            caller = self._actor.number
        self._actor = Context(self.shown.agent, len(self.contexts), caller, messages, prompt_ids)
        self._open[self.shown.agent] = self._actor
        self.contexts.append(self._actor)

    def go_on(self, context: Context, ids: list[int]) -> None:
        """Append the last observation to a context; its agent acts next."""
        context.append_seen(ids, self.shown)
        self._actor = context

    def act(
        self,
        ids: list[int],
        logp: list[float],
        entropy: list[float],
        action: str,
        versions: Sequence[int] | None = None,
    ) -> None:
        """Record the tokens of a turn, with the version of the weights that sampled each; None: not known."""
        context, own = self.acting, self.led is None or self.start.train_prefix
        turn = Turn(len(self.turns), self.shown.state, action)
        # What others earned this agent before it had a turn of its own.
        turn.reward += self._waiting.pop(context.agent, 0.0)
        context.append_action(turn, ids, logp, entropy, own, versions or [NO_VERSION] * len(ids))
        self.turns.append(turn)
        self._latest[context.agent] = turn

    def see_first(self, first: object) -> None:
        """Record what `reset` returned."""
        if self._fits(first, Observation, "reset()"):
            self.shown = first

    def see(self, step: object) -> None:
        """Record what `step` returned."""
        if not self._fits(step, Step, "step()") or not self._fits(step.observation, Observation, ""):
            return
        turn = self.turns[-1]
        rewards = self._rewards(step)
        if rewards is None:
            return
        told = step.info.get("seconds", 1.0) if isinstance(step.info, Mapping) else 1.0
        seconds = _positive(told)
        if seconds is None:
            self.fail(f"step() says that the action took {told!r} seconds, not a positive number")
            return
        turn.valid, turn.seen, turn.seconds = bool(step.valid), step.observation.text, seconds
        for agent, reward in rewards:
            self._earn(agent, reward)
        expected = self.start.prefix_observations
        if turn.number < len(expected) and turn.seen != expected[turn.number]:
            self.fail(
                f"it is not reproducible: after the same {turn.number + 1} actions with the same seed it showed "
                f"{turn.seen[:80]!r}, where it had shown {expected[turn.number][:80]!r}. Draw everything "
                "random from the seed"
            )
            return
        self.shown = step.observation
        if step.terminated or step.truncated:
            self.ended = "terminated" if step.terminated else "truncated"

    def leave_out(self, unreadable: Callable[[str], bool]) -> bool:
        """Remove characters that the policy cannot read from the last observation; return whether there were any.

        The turn that led to them is then invalid.
        """
        contents = [m["content"] for m in self.shown.messages if isinstance(m.get("content"), str)]
        odd = {character for text in (self.shown.text, *contents) for character in text if unreadable(character)}
        if not odd:
            return False
        gone = str.maketrans(dict.fromkeys(odd, ""))
        messages = tuple(
            {**m, "content": m["content"].translate(gone)} if isinstance(m.get("content"), str) else m
            for m in self.shown.messages
        )
        self.shown = replace(self.shown, text=self.shown.text.translate(gone), messages=messages)
        self.turns[-1].valid, self.turns[-1].seen = False, self.shown.text
        return True

    def record_scores(self, found: Any) -> None:
        """Record the result of `score` or `scores`: (whether it is by agent, components)."""
        if isinstance(found, Failure):
            self.fail_as(found)
            return
        by_agent, given = found
        name = "scores()" if by_agent else "score()"
        each = given if by_agent else dict.fromkeys(self.agents, given)
        if not isinstance(each, Mapping) or not all(isinstance(x, Mapping) for x in each.values()):
            self.fail(f"{name} must return named components{' for each agent' * by_agent}, not {given!r}"[:400])
        elif any("reward" in components for components in each.values()):
            self.fail(f"{name} must return named components and no 'reward', which is their sum")
        elif unknown := set(each) - set(self.agents):
            self._fail_unknown(str(min(unknown, key=str)))
        else:
            self.components = {agent: dict(components) for agent, components in each.items()}

    def verdict(self, context: Context) -> dict[str, float] | Failure:
        """Return the reward components of a row, including those of its turns, or a failure."""
        return self._verdict(context.agent, context.turns, 0.0)

    def outcome(self) -> dict[str, float] | Failure:
        """Return the reward components of the whole episode for its first agent, over all its rows."""
        agent = self.agents[0]
        turns = [turn for context in self.contexts if context.agent == agent for turn in context.turns]
        return self._verdict(agent, turns, self._waiting.get(agent, 0.0))

    def record(self, context: Context) -> Record:
        """Return the record of a row for readers and replay."""
        return Record(context.agent, str(self.ended), tuple(replace(turn) for turn in context.turns))

    def transcript(self, context: Context | None = None) -> str:
        """Return the exchange after the first observation for readers: a line per action and per observation."""
        who = {id(turn): each.agent for each in self.contexts for turn in each.turns}
        turns = self.turns if context is None else context.turns
        return transcript(((who[id(turn)], turn) for turn in turns), _told)

    def fail(
        self,
        what: str,
        trace: str = "",
        status: Literal["error", "bad_value", "timeout"] = "error",
        who: str = "the environment failed",
        *,
        lost: bool = False,
    ) -> None:
        """Record the first failure with the prompt and the seed, and end the episode."""
        self.ended = "error"
        if self.failure is None:
            where = f"prompt '{self.start.example.id}', seed {self.start.seed}, turn {len(self.turns)}"
            self.failure = Failure(f"{who} ({where}): {what}", trace, status, "environment", lost)

    def fail_as(self, found: Failure) -> None:
        """Record a failure of the environment."""
        self.fail(found.what, found.trace, found.status, lost=found.lost)

    def close_failed(self, found: Failure) -> None:
        """Warn that the environment of a finished episode could not be closed; the episode counts."""
        if self.failure is None:
            warn_not_closed("an environment", found.what)

    def _verdict(self, agent: str, turns: Sequence[Turn], more: float) -> dict[str, float] | Failure:
        if self.failure is not None:
            return self.failure
        earned = sum((turn.reward for turn in turns), more)
        return stated({"turn_rewards": earned, **self.components.get(agent, {})})

    def _rewards(self, step: Step) -> list[tuple[str, float]] | None:
        """Return the rewards by agent; if they are invalid, end the episode and return None."""
        if not isinstance(step.rewards, Mapping):
            self.fail(f"step() returned the rewards {step.rewards!r}, but they must be given by agent"[:400])
            return None
        rewards = [(self.acting.agent, step.reward), *step.rewards.items()]
        for agent, reward in rewards:
            if not isinstance(reward, numbers.Real) or not abs(reward) <= LARGEST:
                self.fail(f"step() returned the reward {reward!r}, {RULE}")
                return None
            if agent not in self.agents:
                self._fail_unknown(agent)
                return None
        return [(agent, float(reward)) for agent, reward in rewards]

    def _earn(self, agent: str, reward: float) -> None:
        if agent in self._latest:
            self._latest[agent].reward += reward
        else:
            self._waiting[agent] = self._waiting.get(agent, 0.0) + reward

    def _fits(self, value: object, kind: type[Kind], what: str) -> TypeGuard[Kind]:
        """Return whether `value`, including its texts, has the required type; if not, end the episode."""
        if isinstance(value, Failure):
            self.fail_as(value)
        elif not isinstance(value, kind):
            self.fail(f"{what or 'the observation of step()'} is {type(value).__name__}, not {kind.__name__}")
        elif isinstance(value, Observation) and not (isinstance(value.text, str) and isinstance(value.state, str)):
            self.fail(
                f"an observation has text of type {type(value.text).__name__} and a state of type "
                f"{type(value.state).__name__}; both are str"
            )
        elif isinstance(value, Observation) and value.agent not in self.agents:
            self._fail_unknown(value.agent)
        return self.failure is None

    def _fail_unknown(self, agent: object) -> None:
        known = ", ".join(map(repr, self.agents))
        self.fail(f"it names the agent {agent!r}; the task's agents are {known}. Name it in the task's `agents`")


def _told(turn: Turn) -> str:
    """Return an action as text for readers, with thinking on separate lines."""
    if not turn.thinking:
        return turn.action
    rest = turn.action.partition(turn.thinking)[2].lstrip()
    for _, end in THOUGHTS:
        rest = rest.removeprefix(end).lstrip()
    return f"(thinking) {turn.thinking}\n{rest}"


def shown_messages(shown: Observation) -> tuple[Message, ...]:
    """Return the chat messages of an observation, or its text as a user message if it has none."""
    return shown.messages or (Message(role="user", content=shown.text),)  # type: ignore[return-value]


def _positive(told: object) -> float | None:
    """Return a number as a float; None if it is not one, is not above 0, or no float holds it."""
    try:
        number = float(told) if isinstance(told, numbers.Real) else 0.0
    except OverflowError:
        return None
    return number if 0 < number < math.inf else None
