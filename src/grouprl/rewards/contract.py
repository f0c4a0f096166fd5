"""The forms of a reward function, and the way it is called.

A reward is a plain function. Three forms are accepted, and each may be `async`:

- one completion: `reward(completion: str, **columns) -> float | bool | dict[str, float] | None`
- many completions, if the first parameter is named `completions`: `reward(completions: list[str], **columns) -> list`,
  where each column is a list too
- a `CombinedReward`, made by `grouprl.rewards.combine`

A function receives only the columns it names, or all of them if it takes `**kwargs`. `None` means "does not apply".
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from grouprl.core.errors import InputError, MissingExtra, RunError, described, suggest, writable
from grouprl.processes.fork_guard import ending_forks
from grouprl.records.examples import Columns
from grouprl.records.scores import By

Reward: TypeAlias = Callable[..., object]
Function = TypeVar("Function", bound=Reward)
LONGEST_MESSAGE = 4000
"""Largest number of characters kept of a message or a traceback."""


@dataclass(frozen=True)
class KnownExample:
    """A completion whose correctness is known: a reward is checked on it before it is trusted."""

    completion: str
    columns: Columns
    correct: bool


class Crowded(RunError):
    """The machine, not the completion, took too long for a verdict; a second try may succeed."""


@dataclass(frozen=True)
class Failure:
    """The failure of a reward or an environment: a message, and the traceback if it raised."""

    what: str
    trace: str = ""
    status: Literal["error", "bad_value", "timeout"] = "bad_value"
    by: By = "reward"
    lost: bool = False
    """Whether an environment hung, ended its process or cannot be rendered: none of its episodes could continue, so
    its prompt is set aside."""


@dataclass(frozen=True)
class Signature:
    """The parameters of a reward function: one completion or a list, and the columns it takes."""

    batch: bool
    required: tuple[str, ...]
    optional: tuple[str, ...]
    everything: bool

    def pick(self, columns: Columns, reward: Reward, sample_id: str) -> dict[str, object]:
        """Return the columns that the function takes.

        Raises:
            InputError: if a required column is absent.
        """
        for name in self.required:
            if name not in columns:
                raise missing_column(name, columns, reward, f"sample {sample_id}")
        if self.everything:
            return dict(columns)
        return {name: columns[name] for name in (*self.required, *self.optional) if name in columns}


def missing_column(name: str, columns: Columns, reward: Reward, where: str) -> InputError:
    """Return the error for a reward that needs an absent column."""
    remedy = suggest(name, columns) if columns else "The sample has no columns."
    what = f"Reward '{reward_name(reward)}' needs the column '{name}', which {where} lacks"
    rule = "the first parameter is the completion, whatever its name; the others are columns of the prompts"
    return InputError(what, rule, remedy)


def known_examples(*examples: tuple[str, Columns, bool]) -> Callable[[Function], Function]:
    """Declare known-right and known-wrong completions for a reward, for `check_reward`."""

    def attach(function: Function) -> Function:
        function.examples = tuple(KnownExample(*example) for example in examples)  # type: ignore[attr-defined]
        return function

    return attach


def reward_name(reward: object) -> str:
    """Return the name by which messages refer to a reward."""
    inner = getattr(reward, "func", reward)  # functools.partial keeps its function in .func
    return getattr(inner, "__name__", type(inner).__name__)


def inspect_reward(reward: Reward) -> Signature:
    """Read from a reward's parameters how to call it.

    Raises:
        InputError: if it is not callable or has no parameter for the completion.
    """
    if not callable(reward):
        raise InputError(f"The reward {reward!r} is not callable", "a reward must be a function", "Pass a function")
    parameters = list(inspect.signature(reward).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise InputError(
            f"Reward '{reward_name(reward)}' has no parameter for the completion",
            "the first parameter receives the completion (or, named 'completions', the list of them)",
            "Add a first parameter 'completion'",
        )
    named = [p for p in parameters[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return Signature(
        batch=parameters[0].name == "completions",
        required=tuple(p.name for p in named if p.default is p.empty),
        optional=tuple(p.name for p in named if p.default is not p.empty),
        everything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def takes_batch(reward: Reward) -> bool:
    """Return whether a plain reward receives all completions in one call."""
    return inspect_reward(reward).batch


def is_async(reward: Reward) -> bool:
    """Return whether a plain reward is a coroutine function, so that its calls are worth awaiting together."""
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)


def call_each(
    reward: Reward, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str]
) -> Iterator[object | Failure]:
    """Call a plain reward of single completions lazily, on one sample after the other.

    Errors are treated as in `call_reward`.
    """
    signature = inspect_reward(reward)
    for text, of_sample, sample_id in zip(completions, columns, ids, strict=True):
        kwargs = signature.pick(of_sample, reward, sample_id)
        yield _await_all([_attempt(partial(reward, text, **kwargs))], None)[0]


def call_reward(
    reward: Reward,
    completions: Sequence[str],
    columns: Sequence[Columns],
    ids: Sequence[str],
    timeout: float | None = None,
) -> list[object | Failure]:
    """Call a plain reward on every sample; return its values, with a `Failure` for each call that raised.

    Calls of an async reward that take longer than `timeout` seconds are given up. `Exception` and `SystemExit` are
    caught; an interrupt ends the run. A missing optional package or column concerns all samples and is raised.
    """
    signature = inspect_reward(reward)
    picked = [signature.pick(c, reward, i) for c, i in zip(columns, ids, strict=True)]
    if signature.batch:
        limit = None if timeout is None else timeout * len(completions)
        return _call_batch(reward, list(completions), _as_lists(picked, reward, ids), limit)
    values = [_attempt(partial(reward, text, **kwargs)) for text, kwargs in zip(completions, picked, strict=True)]
    return _await_all(values, timeout)


def _call_batch(
    reward: Reward, completions: list[str], columns: dict[str, list[object]], timeout: float | None
) -> list[object | Failure]:
    value = _await_all([_attempt(partial(reward, completions, **columns))], timeout)[0]
    if not isinstance(value, Failure):
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, (list, tuple)):
            value = Failure(f"the batch reward returned {type(value).__name__}, not a list of a value per completion")
        elif len(value) != len(completions):
            value = Failure(f"the batch reward returned {len(value)} values for {len(completions)} completions")
    return [value] * len(completions) if isinstance(value, Failure) else list(value)


def _as_lists(picked: list[dict[str, object]], reward: Reward, ids: Sequence[str]) -> dict[str, list[object]]:
    names = list(dict.fromkeys(name for kwargs in picked for name in kwargs))
    for kwargs, sample_id in zip(picked, ids, strict=True):
        for name in names:
            if name not in kwargs:
                raise missing_column(name, kwargs, reward, f"sample {sample_id}")
    return {name: [kwargs[name] for kwargs in picked] for name in names}


def _attempt(call: Callable[[], object]) -> object | Failure:
    try:
        with ending_forks("the reward"):
            return call()
    except MissingExtra:
        raise
    except (Exception, SystemExit) as error:
        return _failure(error)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Crowded):
        return Failure(str(error)[:LONGEST_MESSAGE], status="timeout")
    what, trace = f"the reward raised {described(error)}", traceback.format_exc()
    return Failure(what[:LONGEST_MESSAGE], writable(trace[-LONGEST_MESSAGE:]), "error")


def overdue(seconds: float) -> str:
    """Return the message for a completion whose scoring took too long."""
    return f"the reward returned nothing within {seconds:g} s"


def _await_all(values: list[object], timeout: float | None) -> list[object]:
    """Replace awaitables in `values` by their results, awaited together for at most `timeout` seconds each."""
    if not any(inspect.isawaitable(value) for value in values):
        return values

    async def guarded(value: Awaitable[object]) -> object:
        try:
            with ending_forks("the reward"):
                return await value
        except MissingExtra:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return _failure(error)

    async def settle(value: object) -> object:
        if not inspect.isawaitable(value):
            return value
        task = asyncio.ensure_future(guarded(value))
        done, _ = await asyncio.wait([task], timeout=timeout)
        if done:
            return task.result()
        assert timeout is not None
        task.cancel()
        return Failure(overdue(timeout), status="timeout")

    async def settle_all() -> list[object]:
        return list(await asyncio.gather(*(settle(value) for value in values)))

    return _run_event_loop(settle_all)


def _run_event_loop(main: Callable[[], Coroutine[object, object, list[object]]]) -> list[object]:
    """Run a coroutine to its end, in a new thread if this one already runs an event loop (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(lambda: asyncio.run(main())).result()
