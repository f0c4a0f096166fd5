"""A server of the chat completions protocol, in a thread of this process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from grouprl.chat.reply import Completion, as_json, last_pieces, piece
from grouprl.chat.request import ChatRequest, Refusal, read_request
from grouprl.errors import MissingExtra, RunError

Pieces = Callable[[int, str], None]
"""Called with (number of the answer, more of its text), from any thread."""
START_SECONDS = 20.0


class Backend(Protocol):
    """What answers."""

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    def others(self, key: str) -> tuple[str, ...]:
        """Further names that requests with this API key may give the model."""
        ...

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Answer a request of the client whose API key is `key`; raises Refusal."""
        ...

    def rows(self, key: str) -> list[dict[str, Any]] | None:
        """Return what was recorded of the client with this key; None if it never asked."""
        ...


def make_app(backend: Backend) -> Any:
    """Return the ASGI application.

    Raises:
        MissingExtra: if starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "A chat completions server") from error

    async def models(_: Request) -> Any:
        entry = {"id": backend.model, "object": "model", "created": 0, "owned_by": "grouprl"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def rows(request: Request) -> Any:
        found = backend.rows(key_of(request))
        if found is None:
            raise Refusal("Nothing was asked with this API key", status=404)
        return JSONResponse({"object": "list", "data": found})

    async def chat(request: Request) -> Any:
        asked, key = read_request(await request.body()), key_of(request)
        others = [name for name in backend.others(key) if name]
        if asked.model not in ("", backend.model, *others):
            known = f"this is '{backend.model}'{''.join(f', or {name!r}' for name in others)}"
            raise Refusal(f"There is no model '{asked.model}'; {known}", "model", 404)
        if asked.stream:
            return StreamingResponse(_events(backend, asked, key), media_type="text/event-stream")
        return JSONResponse(as_json(asked, await backend.answer(asked, key, None), backend.model))

    async def refused(_: Request, error: Exception) -> Any:
        assert isinstance(error, Refusal)
        return JSONResponse(error.body(), error.status)

    async def lost(request: Request, _: Exception) -> Any:
        error = Refusal(f"There is no {request.url.path}; there is /v1/chat/completions and /v1/models", status=404)
        return JSONResponse(error.body(), error.status)

    async def failed(_: Request, error: Exception) -> Any:
        return JSONResponse(Refusal(f"{type(error).__name__}: {error}", status=500).body(), 500)

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/rows", rows),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        exception_handlers={Refusal: refused, 404: lost, Exception: failed},
    )


def key_of(request: Any) -> str:
    """Return the API key of a request; '' without one."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key if kind.lower() == "bearer" else ""


async def _events(backend: Backend, request: ChatRequest, key: str) -> AsyncIterator[str]:
    """Yield the events of a stream: text as it is drawn (whole where it may hold tool calls), then the end."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()
    sent = [0] * request.n

    def pieces(index: int, text: str) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, (index, text))

    task = asyncio.ensure_future(backend.answer(request, key, None if request.tools else pieces))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (found := await queue.get()) is not None:
            index, text = found
            sent[index] += len(text)
            yield _event(piece(request, backend.model, index, text))
        for chunk in last_pieces(request, task.result(), backend.model, sent):
            yield _event(chunk)
    except Refusal as error:
        yield _event(error.body())
    finally:
        task.cancel()
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


class Endpoint:
    """A server that is up: `url` is the base_url for clients. `close` ends it."""

    def __init__(self, backend: Backend, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start the server in a thread; port 0 is any free one.

        Raises:
            MissingExtra: if uvicorn or starlette is not installed.
            RunError: if the port is taken.
        """
        app = make_app(backend)
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtra("uvicorn", "serve", "A chat completions server") from error
        config = uvicorn.Config(
            app, host=host, port=port, log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)
        self._up = threading.Event()
        self._thread.start()
        self._wait(host, port)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://{host}:{self.port}/v1"

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.should_exit = True
        self._thread.join(START_SECONDS)

    def _serve(self) -> None:
        try:
            self._server.run()
        except SystemExit:
            pass  # what uvicorn does where it cannot begin; _wait says so
        finally:
            self._up.set()

    def _wait(self, host: str, port: int) -> None:
        for _ in range(int(START_SECONDS * 100)):
            if self._server.started:
                return
            if self._up.wait(0.01):
                break
        raise RunError(f"The server could not begin on {host}:{port}; the port may be taken")
