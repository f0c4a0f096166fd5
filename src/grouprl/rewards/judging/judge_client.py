"""Requests to an OpenAI-compatible endpoint, with a time limit, a size limit on the reply, and retries."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TypeVar, cast

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import read_json
from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonMapping

LARGEST_REPLY = 4 * 2**20
"""Most bytes of a reply; a larger one is not read to its end."""
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""HTTP statuses after which the same request may succeed."""
LONGEST_PAUSE = 30.0
T = TypeVar("T")


class NoAnswer(Exception):
    """The endpoint gave no usable answer: `late` if it took too long, `lasting` if a retry would not help."""

    def __init__(self, what: str, *, late: bool = False, lasting: bool = False, pause: float = 0.0) -> None:
        super().__init__(what)
        self.what, self.late, self.lasting, self.pause = what, late, lasting, pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: the API key is meant for the configured address only."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class JudgeClient:
    """A client of the judge's endpoint: its address, its key and its time limit."""

    url: str
    """Address of the endpoint, including the version, such as http://127.0.0.1:8000/v1."""
    model: str
    key_env: str
    """Environment variable that holds the API key; if it is unset, no key is sent."""
    timeout: float
    """Time limit of one request, in seconds."""
    tries: int

    def complete(self, messages: Sequence[Mapping[str, str]], settings: JsonMapping) -> str:
        """Return the text of one completion; raise NoAnswer if there is none."""
        given = {"messages": list(messages), **settings, **({"model": self.model} if self.model else {})}
        found = self._send(f"{self.url.rstrip('/')}/chat/completions", given)
        try:
            choice = cast(JsonMapping, found)["choices"][0]
            text = choice["message"]["content"]
        except (KeyError, IndexError, TypeError):
            raise NoAnswer("the judge's endpoint sent no completion") from None
        if choice.get("finish_reason") == "length":
            raise NoAnswer("the judge's reply was cut off; increase reward.judge.tokens", lasting=True)
        if not isinstance(text, str):
            raise NoAnswer("the judge's endpoint sent a completion without text")
        return text

    def tried(self, attempt: Callable[[str], T]) -> T:
        """Return what `attempt` returns; while a retry may help, call it again with the last complaint.

        Raises:
            NoAnswer: the failure of the last try.
        """
        complaint = ""
        for number in range(self.tries):
            try:
                return attempt(complaint)
            except NoAnswer as error:
                complaint = error.what
                if error.lasting or number + 1 == self.tries:
                    raise
                time.sleep(min(LONGEST_PAUSE, max(error.pause, 0.5 * 2**number)))
        raise AssertionError

    def _send(self, url: str, given: JsonMapping) -> object:
        """Send a request in a thread, which is abandoned if the reply does not arrive in time."""
        found: Queue[object] = Queue()

        def run() -> None:
            try:
                found.put(self._reply(url, given))
            except NoAnswer as error:
                found.put(error)
            except Exception as error:  # a network may raise anything
                found.put(NoAnswer(f"the judge's endpoint {self.url}: {type(error).__name__}: {error}"))

        threading.Thread(target=run, name="judge", daemon=True).start()
        try:
            answer = found.get(timeout=self.timeout)
        except Empty:
            raise NoAnswer(f"the judge's reply did not come within {self.timeout:g} s", late=True) from None
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    def _reply(self, url: str, given: JsonMapping) -> object:
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        request = urllib.request.Request(url, json.dumps(given).encode(), headers)
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(request, timeout=self.timeout) as reply:
                body = reply.read(LARGEST_REPLY + 1)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        if len(body) > LARGEST_REPLY:
            raise NoAnswer(f"the judge's reply has more than {LARGEST_REPLY} bytes")
        try:
            return read_json(body)
        except Refusal as error:
            raise NoAnswer(f"the judge's endpoint did not send JSON: {error.message}") from None


def check_url(url: str) -> None:
    """Raise InputError if `url` is not the address of an endpoint."""
    if not url.startswith(("http://", "https://")) or any(c.isspace() for c in url):
        raise InputError(
            f"reward.judge.url is {shortened(url)}",
            "it must be the address of an OpenAI-compatible endpoint",
            "For instance http://127.0.0.1:8000/v1, where 'grouprl serve MODEL' runs",
        )


def _refused(error: urllib.error.HTTPError) -> NoAnswer:
    said = error.read(2000).decode(errors="replace")
    pause = error.headers.get("retry-after", "") if error.headers else ""
    seconds = float(pause) if pause.replace(".", "", 1).isdigit() else 0.0
    what = f"the judge's endpoint answered {error.code}: {said[:300]}"
    return NoAnswer(what, lasting=error.code not in AGAIN, pause=seconds)
