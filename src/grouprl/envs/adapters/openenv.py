"""A client of OpenEnv servers: an episode is a session over a WebSocket."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import read_text
from grouprl.core.errors import InputError, MissingExtra, shortened
from grouprl.core.http_client import HttpClient, HttpError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.adapters.gymnasium_calls import flag, one_number
from grouprl.envs.environment import Observation, Step
from grouprl.envs.success import End, Success

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from grouprl.records.examples import Example

LARGEST_MESSAGE = 16 << 20
"""Bytes of the largest observation."""
CLOSING = 1.0
"""Seconds that a server may take to close a session itself."""
REFUSED = "VALIDATION_ERROR"
"""The server's code for an action that it cannot read."""
FULL = "CAPACITY_REACHED"
"""The server's code for having no room for another session."""


@dataclass(frozen=True)
class OpenEnvWording:
    """The form in which observations are written and actions are read."""

    shown: str | None = None
    """The field of an observation that is shown; None: its only field, or all fields as JSON."""
    field: str | None = None
    """The field of an action that holds the policy's text; None: the text is the whole action, as JSON."""
    kind: str = "string"
    """The JSON type of that field."""

    def observation(self, data: JsonMapping) -> str:
        """Return the text of an observation. Raises InputError if it lacks the field to be shown."""
        if self.shown is not None and self.shown not in data:
            raise InputError(f"The observation has no '{self.shown}'", f"it has {', '.join(data) or 'nothing'}")
        name = self.shown or (next(iter(data)) if len(data) == 1 else None)
        value = dict(data) if name is None else data[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def action(self, text: str) -> JsonObject | None:
        """Return the action that a text means; None if it means none."""
        if self.field is not None and self.kind == "string":
            return {self.field: text}
        try:
            value = read_text(text)
        except Refusal:
            return None
        if self.field is not None:
            return {self.field: value}
        return value if isinstance(value, dict) else None


class OpenEnvEnvironment:
    """An episode in a session of an OpenEnv server; the example's seed determines its beginning and its chance events.

    An action that the server cannot read is invalid: it costs a turn and is answered with '!'. Any other error of the
    server is a failure. Servers report only that an episode is done, which counts as its end.
    """

    def __init__(
        self,
        url: str,
        wording: OpenEnvWording,
        *,
        max_turns: int,
        instructions: str = "",
        options: Mapping[str, object] | None = None,
        success: Success = Success(),  # noqa: B008 (it is frozen)
        invalid: float = 0.0,
        timeout: float = 30.0,
    ) -> None:
        """Prepare an episode.

        Args:
            url: the address of the server, http:// or https://.
            wording: how observations are shown and actions read.
            max_turns: actions after which the episode is cut off.
            instructions: text before the first observation.
            options: further data of the server's reset.
            success: the lowest total reward of a correct episode.
            invalid: reward of an action that cannot be read.
            timeout: seconds that the server may take to answer.
        """
        self._url, self._wording, self._instructions = url.rstrip("/"), wording, instructions
        self._options, self._success, self._invalid, self._timeout = dict(options or {}), success, invalid, timeout
        self._max_turns, self._turns = max_turns, 0
        self._socket: ClientConnection = None
        self._held = contextlib.ExitStack()
        self._phase, self._total = "new", 0.0
        self._end: End = "none"

    def reset(self, example: Example, seed: int) -> Observation:
        """Open a session and begin the episode.

        Raises:
            InputError: if the object was used before, the example has no seed, or the server cannot be reached.
            RuntimeError: if the server reports an error.
        """
        if self._phase != "new":
            raise InputError("reset() was called twice", "an object is one episode: reset, step until the end, close")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        self._socket, self._phase = self._opened(), "playing"
        data = self._exchange({"type": "reset", "data": {**self._options, "seed": int(example.columns["seed"])}})
        assert data is not None  # only an action may be misunderstood
        return Observation(self._instructions + self._wording.observation(data["observation"]))

    def step(self, action: str) -> Step:
        """Send an action. Raises InputError if no episode is under way, RuntimeError if the server reports an error."""
        if self._phase != "playing":
            raise InputError(f"step({action!r}) was called when no episode was under way")
        self._turns += 1
        late = self._turns >= self._max_turns
        data = self._wording.action(action)
        found = None if data is None else self._exchange({"type": "step", "data": data})
        if found is None:
            self._total += self._invalid
            self._ends("limit" if late else "none")
            return Step(Observation("!"), self._invalid, truncated=late, valid=False)
        paid = found.get("reward")  # null where a server pays nothing yet
        reward, done = one_number(0.0 if paid is None else paid), flag(found.get("done", False), "done")
        self._total += reward
        self._ends("own" if done else "limit" if late else "none")
        seen = Observation(self._wording.observation(found["observation"]))
        return Step(seen, reward, terminated=done, truncated=late and not done)

    def score(self) -> dict[str, float]:
        """Return `correct`: whether the total reward is a success; see `grouprl.envs.success`."""
        return {"correct": float(self._success.reached(self._total, self._end))}

    def _ends(self, end: End) -> None:
        self._end, self._phase = end, "playing" if end == "none" else "ended"

    def close(self) -> None:
        """Close the session."""
        if self._socket is not None:
            from websockets.exceptions import ConnectionClosed

            with contextlib.suppress(ConnectionClosed, TimeoutError):  # the server closes it, at once or soon
                self._socket.send(json.dumps({"type": "close"}))
                self._socket.recv(CLOSING)
        self._held.close()
        self._socket, self._phase = None, "closed"

    def _opened(self) -> ClientConnection:
        try:
            from websockets.sync.client import connect
        except ImportError as error:
            raise MissingExtra("websockets", "agents", f"The OpenEnv server {self._url}") from error
        where = "ws" + self._url.removeprefix("http") + "/ws"
        try:
            opened = connect(where, open_timeout=self._timeout, max_size=LARGEST_MESSAGE, proxy=None)
            return self._held.enter_context(opened)
        except (OSError, TimeoutError) as error:
            raise InputError(f"The OpenEnv server {self._url} cannot be reached: {error}") from error

    def _exchange(self, message: JsonMapping) -> JsonObject | None:
        """Return the server's answer; None if it cannot read an action."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(json.dumps(message))
            reply = self._socket.recv(self._timeout)
        except ConnectionClosed as error:
            raise RuntimeError(f"the server closed the session: {error}") from error
        except TimeoutError:
            raise TimeoutError(f"the server did not answer within {self._timeout:g} seconds") from None
        kind, data = _read(reply)
        if kind != "error":
            if not isinstance(data.get("observation"), Mapping):
                raise RuntimeError(f"the server's answer has no object 'observation': {shortened(reply)}")
            return data
        if data.get("code") == REFUSED and message["type"] == "step":
            return None
        if data.get("code") == FULL:
            raise InputError(
                f"The OpenEnv server {self._url} has no room for another session: {data.get('message')}",
                "all episodes of a step are played at the same time",
                "Let it take more (max_concurrent_envs, SUPPORTS_CONCURRENT_SESSIONS), or sample fewer at a time.",
            )
        raise RuntimeError(f"the server says {data.get('code')}: {data.get('message')}")


def _read(reply: str | bytes) -> tuple[object, JsonObject]:
    """Return the type and the data of a server's answer. Raises RuntimeError if it is not an object with both."""
    try:
        found = json.loads(reply)
    except ValueError as error:
        raise RuntimeError(f"the server's answer is not JSON ({error}): {shortened(reply)}") from error
    data = found.get("data", {}) if isinstance(found, dict) else None
    if not isinstance(data, dict):
        raise RuntimeError(f"the server's answer is not an object with the object 'data': {shortened(reply)}")
    return found.get("type"), data


def action_fields(url: str, timeout: float) -> dict[str, str]:
    """Return the fields of a server's actions with their JSON types, without `metadata`.

    Raises:
        InputError: if the server cannot be reached or has no schema.
    """
    try:
        reply = HttpClient(url, {}, proxies=True).exchange("GET", "/schema", None, timeout, LARGEST_MESSAGE)
        schema = json.loads(reply.content)["action"]
    except (HttpError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"The OpenEnv server {url} cannot be asked for its schema: {error}") from error
    properties = schema.get("properties", {}).items()
    return {name: str(each.get("type", "")) for name, each in properties if name != "metadata"}
