"""A small endpoint that judges: each request is handed to a function, which says what is sent back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = str | tuple[int, str | bytes] | tuple[int, str | bytes, dict[str, str]]
"""The judge's words, or the status and body of the HTTP response (and its headers)."""


def material(request: dict[str, Any]) -> dict[str, Any]:
    """What a judge is shown: 'shared' and 'trajectories'."""
    return json.loads(request["messages"][1]["content"])


def scores(request: dict[str, Any], value: Callable[[str], float]) -> str:
    """A judge's reply with the value of each trajectory's text."""
    found = [{"id": t["id"], "why": "as asked", "score": value(t["text"])} for t in material(request)["trajectories"]]
    return json.dumps({"scores": found})


@contextmanager
def judging(
    answer: Callable[[dict[str, Any]], Reply], *, usage: Any = None, port: int = 0
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of an endpoint, and the requests it has got, each with its headers under 'headers'.

    `usage` is what it says of the tokens of each of its replies.
    """
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            got.append({**request, "headers": dict(self.headers), "path": self.path})
            reply = answer(request)
            if isinstance(reply, str):
                message = {"role": "assistant", "content": reply}
                told = {} if usage is None else {"usage": usage}
                reply = 200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], **told})
            status, body, *headers = reply
            self.send_response(status)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            content = body if isinstance(body, bytes) else body.encode()
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked may be gone
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", got
    finally:
        server.shutdown()
        server.server_close()
