"""Exchanges with servers that are slow, endless, or send elsewhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grouprl.core.http_client import HttpClient, HttpError, HttpLate, HttpTooLong

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def serving(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """Yield the address of a server that answers one request as told, and keeps the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                try:
                    answer(connection)
                    while connection.recv(1 << 16):
                        pass  # the rest of the request
                except OSError:
                    pass  # the client has left

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


def get(address: str, seconds: float = 10.0, most: int = 100) -> bytes:
    return HttpClient(address, {}).exchange("GET", "/it", None, seconds, most).content


def drop_by_drop(connection: socket.socket) -> None:
    for byte in HEAD + b"x: y\r\n" * 100:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def test_a_deadline_holds_for_headers_that_come_byte_by_byte() -> None:
    begun = time.monotonic()
    with serving(drop_by_drop) as address, pytest.raises(HttpLate, match=r"within 0\.3 seconds"):
        get(address, seconds=0.3)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("head", [b"content-length: 101\r\n\r\n", b"connection: close\r\n\r\n"])
def test_a_reply_is_read_up_to_its_limit(head: bytes) -> None:
    with serving(lambda c: c.sendall(HEAD + head + b"x" * 101)) as address, pytest.raises(HttpTooLong, match="100"):
        get(address)
    with serving(lambda c: c.sendall(HEAD + b"content-length: 100\r\n\r\n" + b"x" * 100)) as address:
        assert get(address) == b"x" * 100


def test_a_redirect_is_a_reply(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    sent = f"HTTP/1.1 302 Found\r\nlocation: file://{tmp_path}/secret\r\ncontent-length: 0\r\n\r\n".encode()
    with serving(lambda c: c.sendall(sent)) as address:
        reply = HttpClient(address, {}).exchange("GET", "/it", None, 10, 100)
    assert (reply.status, reply.content) == (302, b"")


def test_no_file_is_read() -> None:
    with pytest.raises(HttpError, match="UnsupportedProtocol"):
        get("file:///etc")


def test_an_exchange_is_cut() -> None:
    with serving(lambda c: None) as address:
        client = HttpClient(address, {})
        threading.Timer(0.2, client.cut).start()
        with pytest.raises(HttpError, match="cut"):
            client.exchange("POST", "/it", {"a": 1}, 10, 100)


def test_a_refused_connection_is_described_by_its_cause() -> None:
    with pytest.raises(HttpError, match="ConnectionRefusedError"):
        get("http://127.0.0.1:9")
