"""The server of the application: questions at /api/NAME, the page at /, and who may see either."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grouprl.chat.limits import Access
from grouprl.chat.refusal import Refusal
from grouprl.core.errors import InputError, MissingExtra, RunError
from grouprl.view.app.answers import QUESTIONS, answered, questions
from grouprl.view.app.page import as_json, live_page
from grouprl.view.app.shown_runs import RunLibrary

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

COOKIE = "grouprl_view_{port}"
"""The cookie that holds the token of the server at a port: a browser has the cookies of one host for all its ports."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only programs of this machine reach."""


def make_view(library: RunLibrary, token: str = "", hosts: Sequence[str] = ()) -> ASGIApp:
    """Return the ASGI application.

    Args:
        library: the runs that it shows.
        token: a secret that each request must carry, as `?token=`, as a bearer token, or in the cookie that the page
            sets; "" for none.
        hosts: names of the server besides its addresses and localhost.

    Raises:
        MissingExtra: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "The viewer of runs") from error
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/api", _index),
            *(Route(f"/api/{name}", _answer(library, name)) for name in QUESTIONS),
        ],
        exception_handlers={InputError: _bad_question, HTTPException: _lost},
    )
    return _Door(app, Access((token,) if token else (), tuple(hosts)))


@dataclass(frozen=True)
class _Door:
    """The application, which only answers requests that are allowed."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request
        from starlette.responses import JSONResponse

        if scope["type"] != "http":
            return
        request = Request(scope)
        given = request.query_params.get("token")
        cookie = COOKIE.format(port=(scope.get("server") or ("", 0))[1])
        key = given or request.cookies.get(cookie)
        headers = dict(request.headers) | ({"authorization": f"Bearer {key}"} if key else {})
        try:
            self.access.check(headers)
        except Refusal as error:
            await JSONResponse({"error": {"message": str(error)}}, error.status)(scope, receive, send)
            return
        await (_entered(cookie, given) if given and request.url.path == "/" else self.app)(scope, receive, send)


def _entered(cookie: str, token: str) -> Response:
    """Return an answer that keeps the token in a cookie, so that no later address shows it."""
    from starlette.responses import RedirectResponse

    answer = RedirectResponse("/", 303)
    answer.set_cookie(cookie, token, httponly=True, samesite="strict")
    return answer


def _page(request: Request) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(live_page(), headers={"cache-control": "no-store", "referrer-policy": "no-referrer"})


def _index(request: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(questions())


def _answer(library: RunLibrary, name: str) -> Callable[[Request], Response]:
    """Return the handler of a question; it runs in a thread, as it reads files."""

    def handle(request: Request) -> Response:
        from starlette.responses import Response as Plain

        given = {key: request.query_params.getlist(key) for key in request.query_params if key != "token"}
        body = as_json(answered(library, name, given))
        return Plain(body, media_type="application/json", headers={"cache-control": "no-store"})

    return handle


async def _bad_question(request: Request, error: Exception) -> Response:
    from starlette.responses import JSONResponse

    parts = {name: getattr(error, name) for name in ("what", "rule", "remedy")}
    return JSONResponse({"error": {"message": str(error), **parts}}, 400)


async def _lost(request: Request, error: Exception) -> Response:
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse

    assert isinstance(error, HTTPException)
    known = ", ".join(f"/api/{name}" for name in QUESTIONS)
    message = f"There is no {request.method} {request.url.path}. There are (GET) /, /api, {known}"
    return JSONResponse({"error": {"message": message}}, error.status_code)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        RunError: the address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(64)
    except OSError as error:
        made.close()
        raise RunError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from error
    return made


def serve_view(app: ASGIApp, opened: socket.socket) -> None:
    """Serve until the process is interrupted.

    Raises:
        MissingExtra: uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve", "The viewer of runs") from error
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[opened])
