"""A server of the chat protocols, in a thread of this process.

Chat completions, responses, messages and completions of plain texts (`APIS`) are read into one `ChatRequest`, and one
handler answers it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from grouprl.chat.api import Api
from grouprl.chat.completions_api import CompletionsApi
from grouprl.chat.connection import make_protocol
from grouprl.chat.guard import Guard
from grouprl.chat.limits import Access, ChatLimits, key_of
from grouprl.chat.messages_api import MessagesApi
from grouprl.chat.refusal import Refusal
from grouprl.chat.reply import Completion
from grouprl.chat.request import ChatRequest
from grouprl.chat.responses_api import ResponsesApi
from grouprl.chat.text_api import TextApi
from grouprl.chat.turn_content import told_apart
from grouprl.core.errors import MissingExtra, RunError, shortened
from grouprl.core.json_types import JsonObject

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from grouprl.chat.guard import Receive

Pieces = Callable[[int, str], None]
"""Called with (number of the answer, more of its text), from any thread."""
Pieced = asyncio.Queue[tuple[int, str] | None]
"""The pieces of an answer in the event loop; None after the last one."""
R = TypeVar("R")
START_SECONDS = 20.0
APIS: tuple[Api, ...] = (CompletionsApi(), ResponsesApi(), MessagesApi(), TextApi())
KNOWN = f"available are {', '.join(api.path for api in APIS)} (POST) and /v1/models (GET)"


class Backend(Protocol):
    """The model behind a server, which answers its requests."""

    @property
    def model(self) -> str:
        """Name of the model."""
        ...

    def others(self, key: str) -> tuple[str, ...]:
        """Return further names of the model that requests with this API key may use."""
        ...

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Answer a request of the client with the API key `key`, or raise Refusal.

        A first piece, even an empty one, says that the request is accepted.
        """
        ...

    async def count(self, request: ChatRequest, key: str) -> int:
        """Return the number of tokens in the prompt of a request, or raise Refusal."""
        ...

    def rows(self, key: str) -> list[JsonObject] | None:
        """Return the rows recorded for the client with this key; None if nothing is. Called from any thread."""
        ...

    def ignores(self, key: str) -> bool:
        """Return whether parameters that are not supported, and unknown names of models, are ignored in requests with
        this key instead of refused.
        """
        ...

    def refused(self, key: str, error: Refusal) -> None:
        """Take note that a request with this key was refused, by the server or the backend."""
        ...


def api_at(path: str) -> Api:
    """Return the protocol at a path; errors on any other path have OpenAI's form."""
    return next((api for api in APIS if path.startswith(api.path)), APIS[0])


def make_app(backend: Backend, limits: ChatLimits | None = None, access: Access | None = None) -> object:
    """Return the ASGI application.

    Raises:
        MissingExtra: if starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "A server of completions") from error
    paths = _Paths(backend, limits or ChatLimits(), _Work())
    app = Starlette(
        routes=[
            Route("/v1/models", paths.models),
            Route("/v1/models/{name:path}", paths.model_named),
            Route("/v1/rows", paths.rows),
            *(Route(api.path, paths.completed(api), methods=["POST"]) for api in APIS),
            Route(MessagesApi.counting, paths.count, methods=["POST"]),
        ],
        exception_handlers={Refusal: paths.refused, HTTPException: paths.lost, Exception: paths.failed},
    )
    return Guard(
        app, paths.limits, access or Access(), lambda path, error: api_at(path).refusal(error), backend.refused
    )


@dataclass(frozen=True)
class _Paths:
    """The handlers of all paths, and of errors."""

    backend: Backend
    limits: ChatLimits
    work: _Work

    async def models(self, _: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [_model_entry(self.backend)]})

    async def model_named(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        _check_model(self.backend, request.path_params["name"], key_of(request.headers))
        return JSONResponse(_model_entry(self.backend))

    async def rows(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        key = key_of(request.headers)
        if not key:
            raise Refusal("Rows are recorded by API key; send this request with one", "Authorization", 401)
        found = await self.work.off(self.backend.rows, key)
        if found is None:
            raise Refusal("Nothing is recorded for this API key", status=404)
        return StreamingResponse(_listed(found, self.work), media_type="application/json")

    def completed(self, api: Api) -> Callable[[Request], Awaitable[Response]]:
        from starlette.responses import JSONResponse, StreamingResponse

        backend, seconds = self.backend, self.limits.answer_seconds

        async def answer(request: Request) -> Response:
            key = key_of(request.headers)
            parsed = await self.work.off(api.read, await request.body(), backend.ignores(key))
            _check_model(backend, parsed.model, key)
            if parsed.stream:
                events = _events(api, backend, parsed, key, seconds)
                await _while_connected(anext(events), request.receive, None)
                return StreamingResponse(events, media_type="text/event-stream")
            waiting = backend.answer(parsed, key, None)
            completion = await _while_connected(waiting, request.receive, seconds)
            return JSONResponse(await self.work.off(api.whole, parsed, completion, backend.model))

        return answer

    async def count(self, request: Request) -> Response:
        from starlette.responses import JSONResponse

        key = key_of(request.headers)
        parsed = await self.work.off(MessagesApi().counted, await request.body(), self.backend.ignores(key))
        _check_model(self.backend, parsed.model, key)
        return JSONResponse({"input_tokens": await self.backend.count(parsed, key)})

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        return self._told(request, error, error.status)

    async def lost(self, request: Request, error: Exception) -> Response:
        from starlette.exceptions import HTTPException

        assert isinstance(error, HTTPException)
        what = f"{request.method} {shortened(request.url.path, 80)[1:-1]}"
        return self._told(request, Refusal(f"There is no {what}; {KNOWN}", status=404), error.status_code)

    async def failed(self, request: Request, error: Exception) -> Response:
        return self._told(request, _failure(error), 500)

    def _told(self, request: Request, error: Refusal, status: int) -> Response:
        from starlette.responses import JSONResponse

        self.backend.refused(key_of(request.headers), error)
        return JSONResponse(api_at(request.url.path).refusal(error), status)


def _model_entry(backend: Backend) -> JsonObject:
    return {"id": backend.model, "object": "model", "created": 0, "owned_by": "grouprl"}


def _check_model(backend: Backend, model: str, key: str) -> None:
    """Raise Refusal for a model of another name."""
    others = [name for name in backend.others(key) if name]
    if not backend.ignores(key) and model not in ("", backend.model, *others):
        known = f"this server has '{backend.model}'{''.join(f', or {name!r}' for name in others)}"
        raise Refusal(f"There is no model {shortened(model, 80)}; {known}", "model", 404)


class _Work:
    """Threads for slow work, so that no request waits for a large one."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="requests")

    async def off(self, function: Callable[..., R], *arguments: object) -> R:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


async def _while_connected(answer: Awaitable[R], receive: Receive, seconds: float | None) -> R:
    """Wait for an answer until the client disconnects or the time limit is reached."""
    task, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_disconnected(receive))
    try:
        done, _ = await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if gone in done:
            raise Refusal("The client has disconnected", status=499)
        raise _too_slow(seconds)
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _listed(rows: list[JsonObject], work: _Work) -> AsyncIterator[str]:
    """Yield the JSON of a list of rows, row by row."""
    yield '{"object": "list", "data": ['
    for number, row in enumerate(rows):
        yield ("," if number else "") + await work.off(json.dumps, row)
    yield "]}"


def _failure(error: BaseException) -> Refusal:
    return Refusal(f"{type(error).__name__}: {error}", status=500)


def _too_slow(seconds: float | None) -> Refusal:
    return Refusal(f"The answer was not ready within {seconds:g} seconds", status=504)


async def _accepted(task: asyncio.Task[Completion], queue: Pieced, seconds: float | None) -> None:
    """Wait until the backend accepts a request, which it says by a first piece; raise Refusal if it refuses it."""
    try:
        # None is the end of the task: a refusal is raised here, and any other end is put back for the reader.
        if await asyncio.wait_for(queue.get(), seconds) is None:
            task.result()
            queue.put_nowait(None)
    except BaseException as error:
        task.cancel()
        raise _too_slow(seconds) if isinstance(error, asyncio.TimeoutError) else error from None


async def _events(
    api: Api, backend: Backend, request: ChatRequest, key: str, seconds: float | None
) -> AsyncIterator[str]:
    """Yield the events of a stream: text as it is sampled (as a whole if it may hold tool calls), then the end.

    The first text is empty, and says that the backend has accepted the request: one that it refuses has a status.

    Raises:
        Refusal: the request was refused before anything was yielded.
    """
    loop, queue, stream = (
        asyncio.get_running_loop(),
        Pieced(),
        api.stream(request, backend.model),
    )
    sent, thought, texts = [0] * request.n, [0] * request.n, [""] * request.n
    end = None if seconds is None else loop.time() + seconds

    def pieces(index: int, text: str) -> None:
        # From the sampling thread: asyncio queues may only be touched in their own loop.
        loop.call_soon_threadsafe(queue.put_nowait, (index, text))

    task = asyncio.ensure_future(backend.answer(request, key, pieces))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    await _accepted(task, queue, seconds)
    wrong: Refusal | None = None
    try:
        yield ""
        for event in stream.begin():
            yield api.written(event)
        while (found := await asyncio.wait_for(queue.get(), None if end is None else end - loop.time())) is not None:
            index, text = found
            texts[index] += text
            thinking, answer = ("", texts[index]) if request.raw else told_apart(texts[index])
            parts = (thinking[thought[index] :], True), (answer[sent[index] :], False)
            sent[index], thought[index] = len(answer), len(thinking)
            for event in (event for part, inside in parts if part for event in stream.piece(index, part, inside)):
                yield api.written(event)
        for event in stream.end(task.result()):
            yield api.written(event)
    except Refusal as error:
        wrong = error
    except TimeoutError:
        wrong = _too_slow(seconds)
    except Exception as error:
        wrong = _failure(error)
    finally:
        task.cancel()
    if wrong is not None:
        backend.refused(key, wrong)
        for event in stream.refuse(wrong):
            yield api.written(event)
    if api.end:
        yield api.end


class Endpoint:
    """A running server: `url` is the base_url for clients, and `close` ends the server."""

    def __init__(
        self,
        backend: Backend,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ChatLimits | None = None,
        access: Access | None = None,
    ) -> None:
        """Start the server in a thread; port 0 takes any free port.

        Raises:
            MissingExtra: if uvicorn or starlette is not installed.
            RunError: if the port is taken.
        """
        self.backend = backend
        limits, access = limits or ChatLimits(), access or Access()
        app = make_app(backend, limits, replace(access, hosts=(*access.hosts, host)))
        try:
            import uvicorn
        except ImportError as error:
            raise MissingExtra("uvicorn", "serve", "A server of completions") from error
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=make_protocol(limits),
            ws="none",
            log_level="error",
            lifespan="off",
            proxy_headers=False,
            timeout_keep_alive=round(limits.idle_seconds),
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)
        self._up = threading.Event()
        self._thread.start()
        self._wait(host, port)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://{host}:{self.port}/v1"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._server.server_state.connections)

    def close(self) -> None:
        """Stop serving; may be called twice."""
        self._server.should_exit = True
        self._thread.join(START_SECONDS)

    def _serve(self) -> None:
        try:
            self._server.run()
        except SystemExit:
            pass  # uvicorn exits if it cannot start; _wait reports it
        finally:
            self._up.set()

    def _wait(self, host: str, port: int) -> None:
        for _ in range(int(START_SECONDS * 100)):
            if self._server.started:
                return
            if self._up.wait(0.01):
                break
        raise RunError(f"The server could not start on {host}:{port}; the port may be taken")
