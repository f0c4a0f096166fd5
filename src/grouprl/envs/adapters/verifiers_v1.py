"""Environments of `verifiers` 0.4: a taskset, played by an agent in a harness."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import types
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.adapters.verifiers import Played
from grouprl.envs.adapters.verifiers_classic import COUNT, PASS, RESERVED
from grouprl.envs.program_launch import MODEL

HARNESS = "grouprl_direct"
"""Name of the harness that queries the model from this process; the library's own harnesses start a program for each
episode.
"""
MOST_TASKS = 10_000
"""Number of tasks taken from a taskset that never ends."""


class V1Rollouts:
    """An environment that `verifiers.v1` loaded: one agent, each of whose requests the policy completes."""

    grouped, turns = False, None

    def __init__(self, name: str, args: Mapping[str, object], settings: JsonMapping, success: float | None) -> None:
        """Load the environment.

        Args:
            name: the taskset.
            args: options of the taskset.
            settings: further settings of the environment; its agent's harness is `HARNESS` unless they say otherwise.
            success: the lowest reward of a correct episode; None: 0.5.

        Raises:
            InputError: if it has several agents.
        """
        from verifiers.v1.configs.cli.eval import EvalConfig
        from verifiers.v1.utils.loaders import load_environment

        logging.getLogger("verifiers").setLevel(logging.WARNING)
        define_harness()
        agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, **dict(settings.get("agent", {}))}
        whole = {**settings, "taskset": {"id": name, **args}, "agent": agent}
        self.config = EvalConfig.model_validate({"env": whole})
        self.env = load_environment(self.config.env)
        self.success = PASS if success is None else success
        bounded = self.env.taskset if self.env.taskset.bounded else self.env.taskset.take(MOST_TASKS)
        self.tasks = {task.data.idx: task for task in bounded}
        self._whole, self._numbers = whole, itertools.count(1)
        self._serving: asyncio.Task[None] | None = None

    def rows(self) -> tuple[list[JsonObject], None]:
        """Return a row for each task: its number, its prompt, and its other data."""
        return [{**_shown(task.data), "example_id": number} for number, task in self.tasks.items()], None

    async def play(self, row: JsonMapping, url: str, key: str) -> Played:
        """Run an episode of a task against the endpoint at `url`.

        Raises:
            RuntimeError: if the environment, its harness or a reward fails.
        """
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        await self._open()
        variable = f"GROUPRL_EPISODE_KEY_{os.getpid()}_{next(self._numbers)}"
        os.environ[variable] = key
        try:
            (slot,) = self.env.slots(self.tasks[int(row["example_id"])])
            client = EvalClientConfig(base_url=url, api_key_var=variable)
            episode = await self.env.run_slot(slot, ModelContext(MODEL, client, self.config.sampling))
        finally:
            del os.environ[variable]
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "it is not ok")
        (trace,) = episode.traces
        return Played(self._parts(trace), bool(trace.is_truncated))

    def keep(self, name: tuple[str, int], state: object) -> None:
        """Do nothing: no reward of these environments compares a group."""

    def _parts(self, trace: Any) -> dict[str, float]:
        parts = {_named(name): float(r.value) for name, r in trace.rewards.items() if r is not None}
        counts = {f"{COUNT}{name}": float(value) for name, value in trace.metrics.items() if value is not None}
        return {**parts, **counts, "correct": float(trace.reward >= self.success)}

    async def _open(self) -> None:
        """Start the resources that the episodes of this process share."""
        if self._serving is None:
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._serving, self._ready = asyncio.create_task(self._serve(ready)), ready
        await self._ready

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.env.serving():
                ready.set_result(None)
                await asyncio.Event().wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)


def define_harness() -> None:
    """Register the harness `HARNESS` under the name by which the library imports a module."""
    if HARNESS in sys.modules:
        return
    from openai import AsyncOpenAI
    from verifiers.v1 import Harness, HarnessConfig
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.runtimes import ProgramResult

    class Direct(Harness[HarnessConfig]):  # type: ignore[misc,type-arg,unused-ignore]
        """A harness that sends one request for each prompt, without tools, from this process."""

        APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
        EXECUTES_CODE = NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: object,
            runtime: object,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: object,
            tool_interception_url: str | None = None,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
            messages: Any = [*([{"role": "system", "content": system}] if system else []), *said]
            async with _client(AsyncOpenAI, endpoint, secret) as client:
                await client.chat.completions.create(model=ctx.model, messages=messages)
            return ProgramResult(0, "", "")

    module = types.ModuleType(HARNESS)
    vars(module).update(Direct=Direct, __all__=["Direct"])
    Direct.__module__ = HARNESS
    sys.modules[HARNESS] = module


@asynccontextmanager
async def _client(kind: Any, url: str, key: str) -> AsyncIterator[Any]:
    import httpx

    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
        yield kind(base_url=url, api_key=key, max_retries=0, http_client=http)


def single_agent(env: object, name: str) -> None:
    """Check that an environment has a single agent; raises InputError otherwise."""
    seats = list(getattr(env, "_agent_specs", {"agent": None}))
    if len(seats) > 1:
        raise InputError(
            f"The environment '{name}' has the agents {', '.join(seats)}",
            "an environment of verifiers must have one agent here",
            "Train it as your own program (program:…), whose requests name their agents.",
        )


def _shown(data: Any) -> JsonObject:
    """Return a task's data as JSON values, its prompt as chat messages."""
    plain: JsonObject = data.model_dump(mode="json")
    prompt, system = plain.get("prompt"), plain.get("system_prompt")
    said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or ())
    return {**plain, "prompt": [*([{"role": "system", "content": system}] if system else []), *said]}


def _named(name: str) -> str:
    return f"rubric.{name}" if name in RESERVED or name.startswith(COUNT) else name
