"""Programs started for an episode: a function in a thread, or a command."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from grouprl.core.errors import InputError, raised
from grouprl.envs.captured_output import PrintedText, overheard

if TYPE_CHECKING:
    from grouprl.records.examples import Example

MODEL = "policy"
"""The model name that programs use."""
LONGEST_COMPLAINT = 2000


@dataclass(frozen=True)
class Finished:
    """The program has ended, with a result."""

    result: object
    printed: str = ""
    """The end of its output besides its result, if known."""


@dataclass(frozen=True)
class Crashed:
    """The program has ended with an error, or was given up while it was still running."""

    what: str
    printed: str = ""
    """The end of its output, if known and not part of `what`."""


Ending = Finished | Crashed


class Launch(Protocol):
    """A function that starts a program."""

    def __call__(self, example: Example, url: str, key: str, told: Callable[[Ending], None]) -> Callable[[], None]:
        """Start the program for an example, and return a function that stops it; `told` receives its end."""
        ...


@dataclass(frozen=True)
class FunctionLaunch:
    """A program that is a function, plain or async: `function(prompt, base_url=…, api_key=…, **columns) -> result`.

    It gets the arguments that its signature names; `anthropic_base_url` is the same for Anthropic's clients, which add
    "/v1". It runs in a thread, which cannot be stopped from outside; its requests after the end of the episode are
    refused, which ends most programs.
    """

    function: Callable[..., object]

    def __call__(self, example: Example, url: str, key: str, told: Callable[[Ending], None]) -> Callable[[], None]:
        """Start the function."""
        where = {"base_url": url, "anthropic_base_url": without_version(url), "api_key": key}
        given = {**example.columns, **where}

        printed: list[PrintedText] = []

        def run() -> None:
            with overheard() as heard:
                printed.append(heard)
                try:
                    found = self.function(example.prompt, **accepted(self.function, given))
                    told(Finished(asyncio.run(found) if inspect.iscoroutine(found) else found, heard.text))
                except (Exception, SystemExit) as error:
                    told(Crashed(raised(error)[:LONGEST_COMPLAINT], heard.text))

        threading.Thread(target=run, name="program", daemon=True).start()
        return lambda: told(Crashed("it was not at its end", printed[0].text if printed else ""))


@dataclass(frozen=True)
class CommandLaunch:
    """A program that is a command; the prompt replaces `{prompt}` in it, and is also its standard input.

    OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL describe the endpoint, as do the same three variables of ANTHROPIC.
    Its result is its output; it has its own process group, which is killed at the end of the episode.
    """

    command: tuple[str, ...]

    def __call__(self, example: Example, url: str, key: str, told: Callable[[Ending], None]) -> Callable[[], None]:
        """Start the command. Raises InputError if it cannot be started."""
        prompt = example.prompt if isinstance(example.prompt, str) else json.dumps(example.prompt)
        where = {"OPENAI_BASE_URL": url, "ANTHROPIC_BASE_URL": without_version(url)}
        for provider in ("OPENAI", "ANTHROPIC"):
            where |= {f"{provider}_API_KEY": key, f"{provider}_MODEL": MODEL}
        words = [word.replace("{prompt}", prompt) for word in self.command]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **where}, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"The program {self.command[0]!r} cannot be started: {error.strerror}") from error

        def run() -> None:
            out, complaint = process.communicate(prompt.encode())
            result, printed = out.decode(errors="replace").strip(), _last(complaint)
            if process.returncode:
                told(Crashed(f"exit code {process.returncode}: {printed or _last(out) or 'it printed nothing'}"))
            else:
                told(Finished(result, printed))

        threading.Thread(target=run, name="program", daemon=True).start()
        return lambda: _kill(process)


def without_version(url: str) -> str:
    """Return an address without the version at its end."""
    return url.removesuffix("/v1")


def _last(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-LONGEST_COMPLAINT:]


def accepted(function: Callable[..., object], given: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that a function's signature names after its first one, the prompt; all if it takes any."""
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in given.items() if name != next(iter(parameters), None)}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
