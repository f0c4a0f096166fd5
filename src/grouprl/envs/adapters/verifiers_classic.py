"""Environments of `verifiers` before 0.4: `load_environment`, rollouts over messages, rubrics."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.envs.adapters.verifiers import Played
from grouprl.envs.program_launch import MODEL
from grouprl.rewards.contract import Failure

if TYPE_CHECKING:
    import verifiers as vf
    from verifiers.clients import OpenAIChatCompletionsClient

KEPT_STATES = 65_536
"""The number of rollouts that may wait for the others of their group."""
PASS = 0.5
"""The lowest reward of a passed rollout, by the library's rule, unless an environment sets another."""
COUNT = "#"
BLUNDERS = ("EmptyModelResponseError", "InvalidModelResponseError", "ToolError")
"""Errors by which the library ends a rollout because of the policy's output."""
RESERVED = ("reward", "correct")
_complaints: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("complaints", default=None)


class _Heard(logging.Handler):
    """A log handler that records which functions of a rubric raised; the library only logs that and continues with a
    reward of 0.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Record an error that is logged while a rollout is scored."""
        found = _complaints.get()
        if found is not None:
            found.append(record.getMessage())


class ClassicRollouts:
    """An environment that `verifiers.load_environment` returned."""

    def __init__(self, env: vf.Environment, success: float | None = None) -> None:
        """Wrap an environment; `success` is the lowest reward of a correct rollout (None: the environment's own
        threshold).
        """
        self.env = env
        self.success = float(getattr(env, "pass_threshold", PASS)) if success is None else success
        self.grouped = bool(env.rubric.has_group_rewards)
        self._states: OrderedDict[tuple[str, int], vf.State] = OrderedDict()
        self._lock = threading.Lock()
        self._http: tuple[asyncio.AbstractEventLoop, object] | None = None
        hear()

    @property
    def turns(self) -> int | None:
        """The largest number of requests of a rollout; None if the environment has no limit."""
        most = int(getattr(self.env, "max_turns", -1))
        return most if most > 0 else None

    def rows(self) -> tuple[list[JsonObject], list[JsonObject] | None]:
        """Return the rows to train on, and the rows to evaluate on; None if the environment has none of its own."""
        train, held_out = self.env.build_dataset(), self.env.build_eval_dataset()
        return list(train or ()), None if held_out is None else list(held_out)

    async def play(self, row: Mapping[str, object], url: str, key: str) -> Played:
        """Run a rollout against the endpoint at `url`, and score it, unless its group is scored together.

        A rollout that the library ends because of the policy's output, such as an empty completion, earns nothing.

        Raises:
            RuntimeError: if the environment, or a function of its rubric, fails.
        """
        state = await self.env.rollout(dict(row), self._client(url, key), MODEL, {})
        if (error := state.get("error")) is not None:
            if not {each.__name__ for each in type(error).__mro__}.isdisjoint(BLUNDERS):
                return Played({"correct": 0.0}, valid=False)
            raise RuntimeError(_chain(error))
        late = state.get("stop_condition") in ("max_turns_reached", "timeout_reached") and self.turns != 1
        if self.grouped:
            return Played({"correct": 0.0}, late, state=state)
        with _hearing():
            await self.env.rubric.score_rollout(state)
        await self.env.rubric.cleanup(state)
        return Played(self._parts(state), late)

    def keep(self, name: tuple[str, int], state: object) -> None:
        """Keep the state of a rollout until its group is scored."""
        with self._lock:
            self._states[name] = state
            while len(self._states) > KEPT_STATES:
                self._states.popitem(last=False)

    async def score_group(self, names: Sequence[tuple[str, int]]) -> list[dict[str, float] | Failure | None]:
        """Score the rollouts of a group together; None for those that were not played to their end here."""
        with self._lock:
            states = {name: self._states.pop(name) for name in names if name in self._states}
        found: dict[tuple[str, int], dict[str, float] | Failure] = {}
        try:
            if states:
                with _hearing():
                    await self.env.rubric.score_group(list(states.values()))
            for name, state in states.items():
                found[name] = self._parts(state)
                await self.env.rubric.cleanup(state)
        except Exception as error:
            failure = Failure(f"the rubric failed on a group: {error}", "", "error")
            found = dict.fromkeys(states, failure)
        return [found.get(name) for name in names]

    def _parts(self, state: vf.State) -> dict[str, float]:
        """Return the weighted scores by function if they add up to the reward, otherwise the reward as `outcome`."""
        reward, metrics = float(state["reward"]), {k: float(v) for k, v in (state["metrics"] or {}).items()}
        weights = dict(_weights(self.env.rubric))
        parts = {_named(name): weight * metrics[name] for name, weight in weights.items() if weight and name in metrics}
        if not math.isclose(sum(parts.values()), reward, rel_tol=1e-9, abs_tol=1e-9) or not parts:
            parts = {"outcome": reward}
        counts = {f"{COUNT}{name}": value for name, value in metrics.items() if _named(name) not in parts}
        return {**parts, **counts, "correct": float(reward >= self.success)}

    def _client(self, url: str, key: str) -> OpenAIChatCompletionsClient:
        """Return the client through which the environment queries the policy."""
        import httpx
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        if self._http is None or self._http[0] is not asyncio.get_running_loop():
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            shared = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)
            self._http = (asyncio.get_running_loop(), shared)
        return OpenAIChatCompletionsClient(
            AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=self._http[1])
        )


def check_rubric(env: vf.Environment, name: str) -> None:
    """Check that an environment has something that scores; raises InputError if it has nothing."""
    if not [weight for _, weight in _weights(env.rubric) if weight]:
        raise InputError(
            f"The rubric of the environment '{name}' has no function with a weight",
            "every episode would earn nothing",
            "Give its rubric a reward function, or load it with other arguments (task.args).",
        )


def hear() -> None:
    """Listen to the library's loggers, once per process, and do not print its progress."""
    logger = logging.getLogger("verifiers")
    if not any(isinstance(handler, _Heard) for handler in logger.handlers):
        logger.addHandler(_Heard(logging.ERROR))
        if logger.level in (logging.NOTSET, logging.INFO):
            logger.setLevel(logging.WARNING)


@contextmanager
def _hearing() -> Iterator[None]:
    """Raise RuntimeError after the block if an error was logged in it."""
    token = _complaints.set([])
    try:
        yield
        found = _complaints.get()
    finally:
        _complaints.reset(token)
    if found:
        raise RuntimeError(found[0])


def _weights(rubric: vf.Rubric) -> list[tuple[str, float]]:
    """Return the functions of a rubric, or of all rubrics in it, with their weights."""
    if inner := getattr(rubric, "rubrics", None):
        return [each for one in inner for each in _weights(one)]
    names = [getattr(function, "__name__", repr(function)) for function in rubric.funcs]
    return list(zip(names, map(float, rubric.weights), strict=True))


def _named(name: str) -> str:
    return f"rubric.{name}" if name in RESERVED or name.startswith(COUNT) else name


def _chain(error: BaseException) -> str:
    """Return the messages of an error and of its causes."""
    said: list[str] = []
    current: BaseException | None = error
    while current is not None and len(said) < 4:
        said.append(f"{type(current).__name__}: {current}" if str(current) else type(current).__name__)
        current = current.__cause__ or current.__context__
    return ", from ".join(said)
