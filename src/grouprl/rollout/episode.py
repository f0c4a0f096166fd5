"""One episode while it is played: its tokens, its turns, and what the environment said or did wrong."""

from __future__ import annotations

import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from grouprl.envs.environment import Environment, Observation, Step
from grouprl.rewards.contract import Failure
from grouprl.tasks.task import Message, Question

ENDINGS = ("terminated", "truncated", "out_of_turns", "out_of_room", "error")
"""Why an episode is over: it reached its end, a limit of the environment's, of turns, or of the model's positions; or
the environment failed."""
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Start:
    """An episode to be played; (question, seed) determine what the environment does."""

    question: Question
    seed: int
    draws: int = 0
    """Seed of the first action; the turn number is added to it."""
    budget: int | None = None
    """Tokens of one turn at most, where they are fewer than everybody's."""
    temperature: float = 1.0


@dataclass
class Turn:
    """One action and what it led to."""

    state: str
    action: str
    reward: float = 0.0
    valid: bool = True
    seen: str = ""


class Episode:
    """An environment in play. `ids` are the tokens behind the prompt; `ended` is None while it is alive."""

    def __init__(self, start: Start, make: Callable[[], Environment]) -> None:
        self.start, self.shown, self.state = start, "", ""
        self.ended: str | None = None
        self.failure: Failure | None = None
        self.prompt: str | tuple[Message, ...] = ""
        self.prompt_ids: list[int] = []
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.turn_of: list[int] = []
        self.logp: list[float] = []
        self.entropy: list[float] = []
        self.turns: list[Turn] = []
        self.components: Mapping[str, float] = {}
        self._environment = self._asked("environment()", make)
        self._see_first()

    @property
    def alive(self) -> bool:
        """Whether the policy acts again."""
        return self.ended is None

    @property
    def length(self) -> int:
        """Tokens so far, the prompt included."""
        return len(self.prompt_ids) + len(self.ids)

    def act(self, ids: list[int], logp: list[float], entropy: list[float], action: str) -> str:
        """Take the policy's tokens, let the environment act on their text, return the next observation's text."""
        turn = Turn(self.state, action)
        self._append(ids, len(self.turns), logp, entropy)
        self.turns.append(turn)
        step = self._asked("step()", lambda: self._environment.step(action))
        if not self._fits(step, Step, "step()") or not self._fits(step.observation, Observation, ""):
            return ""
        if not isinstance(step.reward, numbers.Real) or not math.isfinite(step.reward):
            self._fail(f"step() gave the reward {step.reward!r}, not a finite number")
            return ""
        turn.reward, turn.valid, turn.seen = float(step.reward), bool(step.valid), step.observation.text
        self.state = step.observation.state
        if step.terminated or step.truncated:
            self.finish("terminated" if step.terminated else "truncated")
        return step.observation.text

    def append_seen(self, ids: list[int]) -> None:
        """Take tokens of the environment."""
        self._append(ids, -1, [0.0] * len(ids), [0.0] * len(ids))

    def finish(self, why: str) -> None:
        """End the episode and ask for its score."""
        self.ended = why
        found = self._asked("score()", lambda: self._environment.score())
        if self.failure is not None:
            return
        if not isinstance(found, Mapping) or "reward" in found:
            self._fail("score() returns named components and no 'reward': the sum is made of them")
        else:
            self.components = dict(found)

    def demonstration(self, rng: Any) -> str | None:
        """Return the environment's own idea of an action; None where it has none."""
        environment: Any = self._environment
        action = self._asked("demonstrate()", lambda: environment.demonstrate(rng))
        return action if self._fits(action, str, "demonstrate()") else None

    def close(self) -> None:
        """Give the environment back."""
        if self._environment is not None:
            self._asked("close()", self._environment.close)

    def verdict(self) -> dict[str, float] | Failure:
        """Return the reward components, that of the turns among them; or why there are none."""
        if self.failure is not None:
            return self.failure
        return {"turn_rewards": sum(turn.reward for turn in self.turns), **self.components}

    def transcript(self) -> str:
        """Return the exchange behind the first observation, for people: a line per action and per observation."""
        lines = [line for turn in self.turns for line in (f"> {turn.action}", turn.seen) if line]
        return "\n".join(lines)

    def _see_first(self) -> None:
        if self._environment is None:
            return
        question, seed = self.start.question, self.start.seed
        first = self._asked("reset()", lambda: self._environment.reset(question, seed))
        if self._fits(first, Observation, "reset()"):
            self.shown, self.state = first.text, first.state

    def _append(self, ids: list[int], turn: int, logp: list[float], entropy: list[float]) -> None:
        self.ids += ids
        self.mask += [turn >= 0] * len(ids)
        self.turn_of += [turn] * len(ids)
        self.logp += logp
        self.entropy += entropy

    def _asked(self, what: str, call: Callable[[], Answer]) -> Answer | Any:
        """Return what the environment answers; None, and the episode is over, where it raises."""
        try:
            return call()
        except Exception as error:
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            self._fail(f"{what} raised {type(error).__name__}: {error}", trace)
            return None

    def _fits(self, value: Any, kind: type, what: str) -> bool:
        """Tell whether `value` is of the kind asked for, texts and all; else the episode is over."""
        if self.failure is not None:
            return False
        if not isinstance(value, kind):
            self._fail(f"{what or 'the observation of step()'} is {type(value).__name__}, not {kind.__name__}")
        elif isinstance(value, Observation) and not (isinstance(value.text, str) and isinstance(value.state, str)):
            self._fail(
                f"an observation has text of type {type(value.text).__name__} and a state of type "
                f"{type(value.state).__name__}; both are str"
            )
        return self.failure is None

    def _fail(self, what: str, trace: str = "") -> None:
        """Note the first failure, naming the question and the seed."""
        self.ended = "error"
        if self.failure is None:
            where = f"question '{self.start.question.id}', seed {self.start.seed}, turn {len(self.turns)}"
            self.failure = Failure(f"the environment failed ({where}): {what}", trace, "error")
