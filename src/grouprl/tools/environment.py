"""An environment made of a prompt, tools and a reward for the final answer."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grouprl.chat.syntaxes import AUTO, JSON, form_named
from grouprl.chat.tool_calls import MOST_CALLS
from grouprl.chat.turn_content import Call, Malformed, Result, Said
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import Observation, Step
from grouprl.records.examples import Columns
from grouprl.rewards.contract import Reward
from grouprl.rewards.validation import verdicts_of
from grouprl.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from grouprl.records.examples import Example

TURN_SECONDS = 30.0
"""Seconds after which no further call of a turn is made."""


class ToolEnvironment:
    """An environment whose turns call tools until one gives the final answer, which earns the reward.

    A call that cannot be read, names no tool, or has arguments that do not fit is invalid and answered with its fault.
    A tool that fails, or whose result the model cannot read, is also answered with its fault, but the turn is valid.
    The counts `#tool_calls`, `#used_results` (results whose text occurs in a later turn), `#malformed_calls` and
    `#failed_calls` reach the metrics with weight 0. The state consists of the calls and their results: equal histories
    are equal states.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        reward: Reward,
        *,
        form: str = AUTO,
        max_turns: int = 8,
        max_calls: int = MOST_CALLS,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Prepare an episode of at most `max_turns` turns; `reward` scores the answer with the prompt's columns.

        Args:
            toolbox: the tools.
            reward: scores the final answer.
            form: syntax of calls: auto (that of the policy's chat template, or JSON in tags without one), a name of
                `FORMS`, or your own as module:name.
            max_turns: largest number of turns, including that of the answer.
            max_calls: largest number of calls of one turn; further ones are not made, and the model is told so.
            on_close: releases resources of this episode's own tools; it may be called twice.

        Raises:
            InputError: if the form is unknown.
        """
        self._on_close = on_close
        self.toolbox, self.reward, self.max_turns, self.max_calls = toolbox, reward, max_turns, max_calls
        self.form, self._auto = JSON if form == AUTO else form_named(form), form == AUTO
        self._announces = self.form.announces
        self.columns: Columns = {}
        self.results: list[Result] = []
        self._told, self._unused = 0, list[str]()
        self.correct = False
        self.turns = 0
        self._phase = "new"
        self._history = hashlib.blake2b(digest_size=8)

    @property
    def state(self) -> str:
        """A mark of all calls and results so far; "-" before the first."""
        return self._history.hexdigest() if self.results else "-"

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode; the prompt announces the tools if the form does.

        Raises:
            InputError: if this object was used before.
        """
        self._expect("new", "reset()")
        self._phase, self.columns = "playing", example.columns
        prompt = example.prompt
        said = prompt if isinstance(prompt, str) else "\n\n".join(str(message["content"]) for message in prompt)
        if not self._announces:
            return Observation(said, self.state)
        messages = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(map(dict, prompt))
        schemas = self.toolbox.schemas
        return Observation(self.form.introduce(schemas, said), self.state, messages=messages, tools=schemas)

    def step(self, action: str) -> Step:
        """Call tools, or score the final answer.

        Raises:
            InputError: if called before `reset` or after the end, or if the reward fails.
        """
        self._expect("playing", "step()")
        self.turns += 1
        self._unused = [text for text in self._unused if text not in action]
        said = self._read(action)
        if said.answer is not None:
            self._phase = "ended"
            reward, self.correct = self._judge(said.answer)
            return Step(Observation("", self.state), reward, terminated=True)
        results = self._call_all(said.calls)
        for call, result in zip(said.calls, results, strict=False):  # further calls were not made
            self._history.update(f"{call!r}\0{result!r}\0".encode(errors="surrogatepass"))
        self.results += results
        told = [result.text.strip() for result in results if result.status == "ok" and result.text.strip()]
        self._told, self._unused = self._told + len(told), self._unused + told
        truncated = self.turns >= self.max_turns
        self._phase = "ended" if truncated else "playing"
        valid = all(result.status != "malformed" for result in results)
        return Step(self._observed(results), truncated=truncated, valid=valid)

    def score(self) -> dict[str, float]:
        """Return whether the answer was right, and the counts."""
        by_status = [result.status for result in self.results]
        malformed = by_status.count("malformed")
        failed = by_status.count("error") + by_status.count("timeout")
        return {
            "correct": float(self.correct),
            "#tool_calls": float(len(by_status) - malformed),
            "#used_results": float(self._told - len(self._unused)),
            "#malformed_calls": float(malformed),
            "#failed_calls": float(failed),
        }

    def close(self) -> None:
        """End the episode; tools that it shares with other episodes stay open."""
        self._phase = "closed"
        if self._on_close is not None:
            self._on_close()

    def _call_all(self, calls: Sequence[Call | Malformed]) -> list[Result]:
        """Make calls one after the other, within limits, so that a turn cannot exhaust the trainer's time or memory."""
        results: list[Result] = []
        began = time.monotonic()
        for number, call in enumerate(calls):
            if number >= self.max_calls:
                what = f"{len(calls) - number} calls were not made: a turn has at most {self.max_calls} calls"
                results.append(Result("", what, "malformed"))
                break
            if time.monotonic() - began > TURN_SECONDS:
                results.append(Result("", f"not called: the calls before it took {TURN_SECONDS:g} s", "timeout"))
                break
            results.append(self.toolbox.call(call))
        return results

    def _read(self, action: str) -> Said:
        """Return the contents of a turn, as the policy's own syntax has read them if it has."""
        known = getattr(action, "said", None) if self._auto else None
        return known if isinstance(known, Said) else self.form.read_for(action, self.toolbox.tools)

    def _observed(self, results: list[Result]) -> Observation:
        messages: tuple[JsonObject, ...] = ()
        if self._announces:
            messages = tuple({"role": "tool", "name": each.name, "content": each.text} for each in results)
        return Observation(self.form.show(results), self.state, messages=messages)

    def _judge(self, answer: str) -> tuple[float, bool]:
        verdict = verdicts_of(self.reward, [answer], [self.columns], ["the final answer"])[0]
        if verdict.status == "not_applicable":
            return 0.0, False
        if verdict.status != "ok":
            raise InputError(f"The reward of the final answer failed: {verdict.what}")
        return verdict.reward, verdict.correct

    def _expect(self, phase: str, what: str) -> None:
        if self._phase != phase:
            raise InputError(
                f"{type(self).__name__}: {what} of an episode that is {self._phase}",
                "an object plays one episode: call reset, then step until the end, then score and close",
            )
