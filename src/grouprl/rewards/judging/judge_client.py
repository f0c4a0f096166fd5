"""Requests to an OpenAI-compatible endpoint, with a time limit, a size limit on the reply, and retries."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import read_json
from grouprl.core.api_key import key_of, without_key
from grouprl.core.errors import InputError, shortened
from grouprl.core.http_client import HttpClient, HttpError, HttpLate, HttpReply, HttpTooLong
from grouprl.core.json_types import JsonMapping
from grouprl.rewards.judging.judge_costs import Pace, Tally, cost_metrics, told_tokens
from grouprl.rewards.judging.verdict_store import VerdictStore

LARGEST_REPLY = 4 * 2**20
"""Largest number of bytes of a reply; a larger one is not read to its end."""
AGAIN = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""HTTP statuses after which the same request may succeed."""
LONGEST_PAUSE = 30.0
"""The longest time between two tries in seconds, if the endpoint does not say how long to wait."""
LONGEST_ASKED = 300.0
"""Seconds that an endpoint may ask to wait; one that asks for more has no answer."""
T = TypeVar("T")


class NoAnswer(Exception):
    """The endpoint gave no usable answer: `late` if it took too long, `lasting` if a retry would not help."""

    def __init__(self, what: str, *, late: bool = False, lasting: bool = False, pause: float = 0.0) -> None:
        super().__init__(what)
        self.what, self.late, self.lasting, self.pause = what, late, lasting, pause


class UnusableReply(NoAnswer):
    """The model replied, but not in the form that was asked for; it is told so when it is asked again."""


@dataclass(frozen=True)
class JudgeClient:
    """A client of the judge's endpoint: its address, its key, its limits, and counts of what it was asked."""

    url: str
    """Address of the endpoint, including the version, such as http://127.0.0.1:8000/v1."""
    model: str
    key_env: str
    """Environment variable that holds the API key; if it is unset, no key is sent. One that no header can hold raises
    InputError."""
    timeout: float
    """Time limit of one request, in seconds."""
    tries: int
    who: str = "the judge"
    """The name of the model that answers, for messages."""
    limit: str = "reward.judge.tokens"
    """The setting that limits a reply."""
    per_minute: int | None = None
    """The largest number of requests in a minute; None: no limit."""
    shared_pace: Path | None = None
    """The file in which several processes keep that limit together; None: each has its own."""
    tally: Tally = field(default_factory=Tally, compare=False, repr=False)
    pace: Pace = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pace", Pace(self.per_minute, self.shared_pace))
        key_of(self.key_env)

    def complete(self, messages: Sequence[Mapping[str, str]], settings: JsonMapping) -> str:
        """Return the text of one completion; raise NoAnswer if there is none."""
        given = {"messages": list(messages), **settings, **({"model": self.model} if self.model else {})}
        self.pace.wait()
        self.tally.add(requests=1)
        found = self._send(given)
        self.tally.add(**told_tokens(found))
        try:
            choice = cast(JsonMapping, found)["choices"][0]
            text = _one_text(choice["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise NoAnswer(f"{self.who}'s endpoint sent no completion") from None
        if choice.get("finish_reason") == "length":
            raise NoAnswer(f"{self.who}'s reply was cut off; increase {self.limit}", lasting=True)
        if not isinstance(text, str):
            raise NoAnswer(f"{self.who}'s endpoint sent a completion without text")
        return text

    def tried(self, attempt: Callable[[str], T]) -> T:
        """Return what `attempt` returns; while a retry may help, call it again with what was wrong with the last reply.

        After a try without a reply, this text is "": the request stays as it was, and so does the worth of its reply.

        Raises:
            NoAnswer: the failure of the last try.
        """
        complaint = ""
        for number in range(self.tries):
            try:
                return attempt(complaint)
            except NoAnswer as error:
                complaint = error.what if isinstance(error, UnusableReply) else ""
                if error.lasting or number + 1 == self.tries:
                    raise
                time.sleep(max(error.pause, min(LONGEST_PAUSE, 0.5 * 2**number)))
        raise AssertionError

    def answered(
        self,
        store: VerdictStore | None,
        request: object,
        counts: Sequence[int],
        attempt: Callable[[str], tuple[float, ...]],
    ) -> tuple[float, ...]:
        """Return the scores that are kept for a request, or those of `attempt` (see `tried`), which are then kept.

        Equal requests wait for each other, so that only one is sent. `counts` are the numbers of scores that a kept
        answer may have.

        Raises:
            NoAnswer: the failure of the last try; failures are not kept.
        """
        if store is None:
            return self.tried(attempt)
        with store.alone(request):
            if (kept := store.find(request, *counts)) is not None:
                self.tally.add(kept=1)
                return kept
            return store.keep(request, self.tried(attempt), *counts)

    def costs(self) -> dict[str, float]:
        """Return metrics of what was asked since the last call, and forget them."""
        return cost_metrics(self.tally.read())

    def _send(self, given: JsonMapping) -> object:
        key = key_of(self.key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            client = HttpClient(self.url, headers, proxies=True)
            reply = client.exchange("POST", "/chat/completions", given, self.timeout, LARGEST_REPLY)
        except HttpLate:
            raise NoAnswer(f"{self.who}'s reply did not come within {self.timeout:g} s", late=True) from None
        except HttpTooLong:
            raise NoAnswer(f"{self.who}'s reply has more than {LARGEST_REPLY} bytes") from None
        except HttpError as error:
            raise NoAnswer(f"{self.who}'s endpoint {self.url}: {error}") from None
        if not 200 <= reply.status < 300:
            raise _refused(reply, self.who, key)
        try:
            return read_json(reply.content)
        except Refusal as error:
            raise NoAnswer(f"{self.who}'s endpoint did not send JSON: {error.message}") from None


def check_url(url: str, key: str = "reward.judge.url") -> None:
    """Raise InputError if `url`, the value of the setting `key`, is not the address of an endpoint."""
    if not url.startswith(("http://", "https://")) or any(c.isspace() for c in url):
        raise InputError(
            f"{key} is {shortened(url)}",
            "it must be the address of an OpenAI-compatible endpoint",
            "For instance http://127.0.0.1:8000/v1, where 'grouprl serve MODEL' runs",
        )
    parts = urlsplit(url)
    if parts.username is not None:
        raise InputError(
            f"{key} holds a user or a password before '@{shortened(parts.netloc.rpartition('@')[2])}'",
            "addresses are written into the run's files, and secrets are not",
            "Leave it out, and put the API key into the environment variable that key_env names",
        )
    if parts.query or parts.fragment:
        raise InputError(
            f"{key} has more than a path behind its host: {'?' if parts.query else '#'}…",
            "the path of each request is put behind the address",
            "Leave it out; put a key into the environment variable that key_env names",
        )


def _one_text(content: object) -> object:
    """Return the text that a list of parts holds, as some endpoints send it; anything else as it is."""
    if not isinstance(content, list):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text") or None


def _refused(reply: HttpReply, who: str, key: str) -> NoAnswer:
    said = without_key(reply.content[:2000].decode(errors="replace"), key)
    seconds, elsewhere = asked_pause(reply.headers.get("retry-after", "")), reply.headers.get("location", "")
    if 300 <= reply.status < 400 and elsewhere:
        said = f"it redirects to {without_key(elsewhere, key)}, which is not followed; give the address itself"
    what = f"{who}'s endpoint answered {reply.status}: {said[:300]}"
    return NoAnswer(what, lasting=reply.status not in AGAIN or seconds > LONGEST_ASKED, pause=seconds)


def asked_pause(header: str) -> float:
    """Return the seconds that a header Retry-After asks to wait, a number or a date; 0 if it says neither."""
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", header):
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
