"""A server among clients that abuse it: each is refused in words and in bounded time, and honest ones are served on."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from chat_policies import chatting
from grouprl.chat.limits import Access, ChatLimits, host_name

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'grouprl[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")
from grouprl.chat import Endpoint
from grouprl.serve import Retention, Service

SECONDS = 30.0
"""Within which everything is answered or hung up on; the limits below are shorter."""
LIMITS = ChatLimits(
    body_bytes=200_000,
    bodies_bytes=2_000_000,
    header_seconds=0.6,
    body_seconds=0.8,
    idle_seconds=1.0,
    stall_seconds=1.0,
    answer_seconds=20.0,
    connections=40,
)
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def policy():
    return chatting()


@contextmanager
def serving(policy, limits=LIMITS, access=None, **settings):
    service = Service(policy, "tiny", max_tokens=8, **settings)
    endpoint = Endpoint(service, limits=limits, access=access)
    try:
        yield endpoint
    finally:
        endpoint.close()
        service.close()


@pytest.fixture(scope="module")
def server(policy):
    with serving(policy) as endpoint:
        yield endpoint


def talk(endpoint, sent, seconds=SECONDS, parts=(), pause=0.0):
    """Send bytes, then further parts with pauses; return (status or 0 for a hang-up, body)."""
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=seconds) as s:
        got = b""
        with suppress(ConnectionError):
            s.sendall(sent)
            for part in parts:
                s.settimeout(max(pause, 0.001))
                with suppress(TimeoutError):
                    got = s.recv(65536)
                    break
                s.sendall(part)
        s.settimeout(max(0.01, end - time.monotonic()))
        with suppress(ConnectionError):
            while more := s.recv(65536):
                got += more
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def framed(body, path="/v1/chat/completions", method="POST", **headers):
    """An HTTP request that ends its connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = {"host": "127.0.0.1", "content-length": str(len(body)), "connection": "close", **named}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def post(endpoint, requested, **headers):
    body = requested if isinstance(requested, bytes) else json.dumps(requested).encode()
    return talk(endpoint, framed(body, **headers))


def check_honest(endpoint, **headers):
    """An honest client is served, and is told what it was always told."""
    begin = time.monotonic()
    status, body = post(endpoint, HELLO, **headers)
    assert status == 200, body
    assert time.monotonic() - begin < SECONDS
    answer = json.loads(body)
    assert answer["usage"]["completion_tokens"] in range(1, 5)
    return answer["choices"][0]["message"]["content"]


def rows_of(endpoint, key):
    """The rows of a key; None where nothing is kept of it."""
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=SECONDS)
    connection.request("GET", "/v1/rows", headers={"authorization": f"Bearer {key}"})
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    assert reply.status in (200, 404), body
    return body["data"] if reply.status == 200 else None


def nested(depth):
    return b'{"messages": [{"role": "user", "content": "x"}], "tools": ' + b"[" * depth + b"]" * depth + b"}"


def said(content="x", **more):
    return {"messages": [{"role": "user", "content": content, **more}], "max_tokens": 2}


def calling(call):
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": call}], "max_tokens": 2}


HUGE = 10**400
BODIES = {
    # what is no JSON, or no object
    "empty": b"",
    "brace": b"{",
    "list": b"[]",
    "number": b"5",
    "text": b'"x"',
    "null": b"null",
    "two objects": b"{}{}",
    "bytes": b"\xff\xfe\xfa",
    "half of utf-8": b'{"model": "\xc3"}',
    "NUL": b"\0" * 1000,
    "NaN": b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    "Infinity": b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}',
    "1e999": b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    "single quotes": b"{'messages': []}",
    "a comment": b"{/* */}",
    "unclosed text": b'{"model": "' + b"a" * 1000,
    "xml": b"<?xml version='1.0'?><a/>",
    "form": b"model=tiny&messages=x",
    # depth and numbers of values
    "deep 65": nested(65),
    "deep 900": nested(900),
    "deep 50000": nested(50_000),
    "deep objects": b'{"a":' * 30_000,
    "deep in ignored": b'{"user": ' + b"[" * 40_000 + b"]" * 40_000 + b"}",
    "many values": b'{"messages": [' + b"0," * 99_000 + b"0]}",
    "many keys": json.dumps({f"k{i}": 0 for i in range(15_000)}).encode(),
    "seed of 5000 digits": b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
    "number of 100000 digits": b'{"messages": [], "n": ' + b"1" * 100_000 + b"}",
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "half a character in a key": b'{"\\udfff": 1}',
    "half a character in a tool": b'{"messages": [{"role":"user","content":"x"}], "tools": [{"a": "\\ud83d"}]}',
    # parameters out of bounds or of odd types
    **{
        f"temperature {x!r:.20}": {**HELLO, "temperature": x}
        for x in (1e-300, 5e-324, 1e-9, -1, 1e30, HUGE, "1", True, [], {})
    },
    **{f"top_p {x!r:.20}": {**HELLO, "top_p": x} for x in (0, -1, 1.1, 1e-300, HUGE, "1", [1])},
    **{f"n {x!r:.20}": {**HELLO, "n": x} for x in (0, -1, 65, 10**9, HUGE, 1.5, "2", True, [2])},
    "n 10**9 streamed": {**HELLO, "n": 10**9, "stream": True},
    **{f"max_tokens {x!r:.20}": {**HELLO, "max_tokens": x} for x in (0, -5, 10**9, HUGE, 2.5, "7", True, [7])},
    **{f"seed {x!r:.20}": {**HELLO, "seed": x} for x in (2**64, -(2**64), HUGE, 1.5, "1", True, [1], {})},
    **{
        f"stop {x!s:.20}": {**HELLO, "stop": x}
        for x in ([""], ["x"] * 17, ["y" * 257], "z" * 1000, [1], {"a": 1}, [[]], 5)
    },
    **{f"{name} {x!r}": {**HELLO, name: x} for name in ("stream", "logprobs") for x in (1, "yes", [])},
    "stream_options": {**HELLO, "stream_options": 5},
    "frequency_penalty": {**HELLO, "frequency_penalty": [["x"] * 1000]},
    "logit_bias": {**HELLO, "logit_bias": {str(i): 1 for i in range(5000)}},
    "unknown parameter": {**HELLO, "max_token": 1},
    "unknown parameter of 100 kB": {**HELLO, "m" * 100_000: 1},
    "model of 100 kB": {**HELLO, "model": "m" * 100_000},
    "model list": {**HELLO, "model": ["tiny"]},
    # messages
    **{f"messages {x!s:.20}": {"messages": x} for x in ([], {}, 5, "x", None, [5], ["x"], [[]], [None], [{}])},
    "messages missing": {},
    "4097 messages": {"messages": [{"role": "user", "content": ""}] * 4097},
    "role 5": {"messages": [{"role": 5, "content": "x"}]},
    "role of 100 kB": {"messages": [{"role": ["r" * 100_000], "content": "x"}]},
    **{f"content {x!s:.20}": said(x) for x in (5, {}, True, [5], [[]], ["x"], [None])},
    **{
        f"part {x!s:.40}": said([x])
        for x in (
            {"type": "text"},
            {"type": "text", "text": 5},
            {"type": "text", "text": None},
            {"type": "text", "text": ["x"]},
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}},
            {"type": "input_audio"},
            {"text": "x"},
            {"type": 5},
        )
    },
    "a character that the model does not have": said("é"),
    "NUL in a text": said("a\0b"),
    "a prompt longer than the room": said("x" * 3000),
    "a prompt too long to be read": said("x" * 150_000),
    "a name that is a list": said(name=["x"]),
    "a tool_call_id that is an object": said(tool_call_id={"a": 1}),
    **{f"tool_calls {x!s:.40}": calling(x) for x in (5, "x", {"a": 1}, True, [5], ["x"], [None], [[]], [{}])},
    **{
        f"call {x!s:.40}": calling([{"id": "a", "type": "function", "function": x}])
        for x in (
            5,
            None,
            {},
            {"name": 5},
            {"name": None},
            {"name": "f", "arguments": 5},
            {"name": "f", "arguments": [1]},
        )
    },
    "a call's id": calling([{"id": 5, "function": {"name": "f"}}]),
    "arguments of 100 kB": calling([{"function": {"name": "f", "arguments": "[" * 100_000}}]),
    # tools
    **{
        f"tools {x!s:.40}": {**HELLO, "tools": x} for x in (5, "x", [5], [{}], {"a": 1}, [{"type": "function"}], [None])
    },
    **{
        f"tool {x!s:.40}": {**HELLO, "tools": [x]}
        for x in (
            {"type": "function", "function": 5},
            {"type": "function", "function": {}},
            {"type": "function", "function": {"name": 5}},
            {"type": "code", "function": {"name": "f"}},
        )
    },
    "513 tools": {**HELLO, "tools": [TOOL] * 513},
    "tools of 100 kB": {**HELLO, "tools": [{**TOOL, "more": "x" * 100_000}]},
}


@pytest.mark.parametrize("name", BODIES)
def test_an_abusive_body_is_refused_in_words(server, name):
    begin = time.monotonic()
    status, body = post(server, BODIES[name], authorization="Bearer abuser")
    assert status in (400, 404), (status, body[:300])
    assert time.monotonic() - begin < SECONDS
    assert len(body) < 2000  # nothing of any length is sent back
    assert json.loads(body)["error"]["message"]
    check_honest(server)


HEADS = {
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "no host at all": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: evil.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    "junk": b"\0\0\0\0\r\n\r\n",
    "a head of 1 MB": b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"a" * 2**20,
    "20000 headers": b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(20_000)),
    "a path of 60 kB": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
    "content-length twice": framed(b"{}").replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n", 1),
    "negative content-length": framed(b"{}", content_length="-1"),
    "content-length of letters": framed(b"{}", content_length="abc"),
    "content-length of 5000 digits": framed(b"{}", content_length="9" * 5000),
    "content-length of 20 digits": framed(b"{}", content_length="9" * 20),
    "a bad chunk": framed(b"zz\r\n", content_length="0").replace(b"content-length: 0", b"transfer-encoding: chunked"),
    "GET of the completions": framed(b"", method="GET"),
    "PUT": framed(b"{}", method="PUT"),
    "DELETE of the rows": framed(b"", path="/v1/rows", method="DELETE"),
    "TRACE": framed(b"", path="/v1/models", method="TRACE"),
    "another path": framed(b"", path="/v1/completions", method="GET"),
    "a path that climbs": framed(b"", path="/v1/../../etc/passwd", method="GET"),
    "a path with escapes": framed(b"", path="/%2e%2e/%00%ff", method="GET"),
    "absolute target": framed(b"", path="http://evil.example/v1/models", method="GET", host="evil.example"),
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example\r\n\r\n",
    "foreign name": framed(b"", "/v1/models", "GET", host="evil.example"),
    "foreign name with a port": framed(b"", "/v1/models", "GET", host="evil.example:8000"),
    "a name like ours": framed(b"", "/v1/models", "GET", host="localhost.evil.example"),
    "a name that begins like an address": framed(b"", "/v1/models", "GET", host="127.0.0.1.evil.example"),
    "an address and more": framed(b"", "/v1/models", "GET", host="127.0.0.1@evil.example"),
    "foreign page": framed(b"{}", origin="https://evil.example"),
    "page of no origin": framed(b"{}", origin="null"),
    "page on another port": framed(b"{}", origin="http://127.0.0.1:3000"),
    "cross-site": framed(b"", "/v1/rows", "GET", sec_fetch_site="cross-site"),
    "preflight": framed(b"", method="OPTIONS", origin="https://evil.example", access_control_request_method="POST"),
    "rows without a key": framed(b"", "/v1/rows", "GET"),
    "rows of nobody": framed(b"", "/v1/rows", "GET", authorization="Bearer nobody"),
    "rows with Basic": framed(b"", "/v1/rows", "GET", authorization="Basic bWU6bWU="),
    "a key of 60 kB": framed(b"", "/v1/models", "GET", authorization="Bearer " + "k" * 60_000),
    "expect and 20 MB": framed(b"", content_length="20000000", expect="100-continue"),
    "300 MB declared": framed(b"x" * 1000, content_length="300000000"),
    "a terabyte declared": framed(b"x" * 1000, content_length=str(10**12)),
    "1 MB": framed(b" " * 1_000_000),
    "1 MB in one text": framed(json.dumps(said("x" * 1_000_000)).encode()),
}


@pytest.mark.parametrize("name", HEADS)
def test_an_abusive_request_is_refused(server, name):
    begin = time.monotonic()
    status, body = talk(server, HEADS[name])
    assert status == 0 or 400 <= status < 500, (status, body[:300])
    assert time.monotonic() - begin < SECONDS
    assert len(body) < 2000
    check_honest(server)


SLOW = {
    "silence": (b"", []),
    "half a word": (b"PO", []),
    "half a head": (b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n", []),
    "a head byte by byte": (b"GET / HTTP/1.1\r\nx: ", [b"a"] * 2000),
    "a head header by header": (b"GET / HTTP/1.1\r\n", [b"x: y\r\n"] * 2000),
    "no body": (framed(b"", content_length="100"), []),
    "half a body": (framed(b'{"messages": [', content_length="100"), []),
    "a body byte by byte": (framed(b"", content_length="100000"), [b" "] * 2000),
    "chunks byte by byte": (
        framed(b"", content_length="0").replace(b"content-length: 0", b"transfer-encoding: chunked"),
        [b"1\r\n \r\n"] * 2000,
    ),
    "a body to nowhere": (framed(b"", "/nowhere", content_length="1000"), []),
    "a body to the models": (framed(b"", "/v1/models", "GET", content_length="1000"), []),
    "half a second request": (framed(b"", "/v1/models", "GET", connection="keep-alive") + b"GET /v1/mod", []),
    "silence after a request": (framed(b"", "/v1/models", "GET", connection="keep-alive"), []),
    "a second request byte by byte": (
        framed(b"", "/v1/models", "GET", connection="keep-alive"),
        [b"G"] + [b"a"] * 2000,
    ),
    "empty lines": (b"", [b"\r\n"] * 2000),
}


@pytest.mark.parametrize("name", SLOW)
def test_whoever_does_not_go_on_is_hung_up_on(server, name):
    begin = time.monotonic()
    status, body = talk(server, SLOW[name][0], parts=SLOW[name][1], pause=0.05)
    assert time.monotonic() - begin < SECONDS
    assert status in (0, 200, 400, 404, 408), body
    assert status != 200 or "second" in name or "silence" in name  # whole requests before were answered
    check_honest(server)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("Localhost:80", "localhost"),
        ("localhost.", "localhost"),
        ("127.0.0.1:", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("[::1].example.org", "[::1].example.org"),
        ("[::1]example.org:80", "[::1]example.org:80"),
        ("::1]", "::1]"),
        ("127.0.0.1:80.example.org", "127.0.0.1:80.example.org"),
        ("", ""),
    ],
)
def test_a_host_goes_by_its_whole_name(host, name):
    assert host_name(host) == name


def test_what_looks_odd_and_is_honest_is_served(server):
    """A server that refuses everything would pass all of the above."""
    plain = check_honest(server)
    assert plain == check_honest(server)  # the seed decides
    assert check_honest(server, host="localhost:8000") == check_honest(server, host="[::1]:80") == plain
    assert check_honest(server, origin="http://127.0.0.1", host="127.0.0.1") == plain
    assert check_honest(server, origin="http://localhost:80", host="localhost:80") == plain
    odd = [
        {**HELLO, "temperature": 0},
        {**HELLO, "temperature": 1e-4},
        {**HELLO, "temperature": 100, "top_p": 1e-6},
        {**HELLO, "n": 64, "max_tokens": 1},
        {**HELLO, "seed": 2**64 - 1},
        {**HELLO, "seed": -(2**63)},
        {**HELLO, "stop": ["q" * 256] * 16},
        {**HELLO, "user": "me", "metadata": {"a": [1]}, "frequency_penalty": 0.0, "temperature": 1},
        {**HELLO, "tools": [TOOL]},
        said([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        said("x" * 1900),
        said(""),
        said("~!{}<|user|>\n"),
        calling([{"id": "a", "function": {"name": "f", "arguments": "{"}}]),
        calling([{"id": "a", "function": {"name": "f", "arguments": {"a": 1}}}]),
        calling(None),
        calling([]),
        {"messages": [{"role": "odd", "content": "x"}] * 100, "max_tokens": 1},
        {**HELLO, "tools": [{**TOOL, "deep": [[[[[[[[[[1]]]]]]]]]]}]},
    ]
    for requested in odd:
        status, body = post(server, requested)
        assert status == 200, (requested, body)


def test_a_chunked_body_is_read(server):
    body = json.dumps(HELLO).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (body[:10], body[10:])) + b"0\r\n\r\n"
    sent = framed(b"", content_length="0").replace(b"content-length: 0", b"transfer-encoding: chunked") + chunks
    assert talk(server, sent)[0] == 200


def test_a_body_that_is_too_large_is_told_so_even_while_it_is_sent(server):
    """Up to eight times the limit is read and thrown away, so that the client is there to hear it."""
    status, body = post(server, b" " * 1_500_000)
    assert status == 413
    assert b"at most 200000 bytes" in body


@pytest.mark.parametrize("size", [20_000_000, 300_000_000])
def test_large_bodies_neither_end_the_server_nor_hold_it_up(server, size):
    """The body is really sent, as far as the server listens; an honest client is served meanwhile."""
    block = b"x" * 2**20
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as s, suppress(ConnectionError):
        s.sendall(framed(b"", content_length=str(size)))
        s.sendall(block)
        check_honest(server)
        for _ in range(size // len(block)):
            s.sendall(block)
        s.shutdown(socket.SHUT_WR)
    check_honest(server)


def test_an_endless_chunked_body_is_cut_off(server):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    head = framed(b"", content_length="0").replace(b"content-length: 0", b"transfer-encoding: chunked")
    begin = time.monotonic()
    status, _ = talk(server, head + chunk * 100)
    assert status in (0, 408, 413)
    assert time.monotonic() - begin < SECONDS
    check_honest(server)


def test_connections_are_bounded_and_come_back(server):
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) for _ in range(LIMITS.connections)]
    try:
        status, _ = talk(server, b"")
        assert status == 503
        time.sleep(LIMITS.header_seconds * 2)
        check_honest(server)  # the silent ones were hung up on
    finally:
        for each in held:
            each.close()


def test_no_more_characters_are_made_into_tokens_than_the_model_has_room_for(policy):
    """However many the one who serves allows: thirty million took a server's memory, and then the server."""
    service = Service(policy, "tiny", prompt_chars=50_000_000)
    try:
        longest = max(map(len, policy.tokenizer.get_vocab()))
        assert service.prompt_chars == max(longest, 16) * policy.max_positions
    finally:
        service.close()
    with serving(policy, ChatLimits(body_bytes=100_000_000), prompt_chars=50_000_000) as endpoint:
        status, reply = post(endpoint, said("a" * 30_000_000))[:2]
        assert status == 400
        assert "30000002 characters" in str(reply)


def test_bodies_that_are_read_at_once_are_bounded(policy):
    with serving(policy, ChatLimits(body_bytes=200_000, bodies_bytes=250_000, body_seconds=2.0)) as endpoint:
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=SECONDS) as s:
            s.sendall(framed(b" " * 150_000, content_length="199999"))
            time.sleep(0.2)
            status, body = post(endpoint, b" " * 150_000)
            assert status == 503, body
            check_honest(endpoint)
        check_honest(endpoint)
        assert post(endpoint, b" " * 150_000)[0] == 400  # what was held is given back


def test_an_answer_that_nobody_reads_ends(policy):
    limits = ChatLimits(stall_seconds=0.5)
    with serving(policy, limits) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port)) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = framed(
            json.dumps({**HELLO, "n": 64, "max_tokens": 200, "logprobs": True}).encode(), connection="keep-alive"
        )
        s.sendall(request * 20)
        end = time.monotonic() + 30
        while endpoint.connections and time.monotonic() < end:
            time.sleep(0.1)
        assert not endpoint.connections
        check_honest(endpoint)


def test_time_limit_of_an_answer(policy, monkeypatch):
    from threading import Event

    from grouprl.rollout.local.sampler import LocalSampler

    sample, held = LocalSampler.sample, Event()

    def holding(*given, **settings):
        held.wait(60)
        return sample(*given, **settings)

    monkeypatch.setattr(LocalSampler, "sample", holding)
    with serving(policy, ChatLimits(answer_seconds=1.0)) as endpoint:
        status, body = post(endpoint, HELLO)
        assert status == 504
        assert b"within 1 seconds" in body
        assert b"within 1 seconds" in post(endpoint, {**HELLO, "stream": True})[1]
        held.set()
        check_honest(endpoint)


def test_an_answer_whose_client_went_away_is_not_written_on(policy):
    with serving(policy, ChatLimits()) as endpoint:
        service = endpoint.backend
        with socket.create_connection(("127.0.0.1", endpoint.port)) as s:
            s.sendall(framed(json.dumps({**HELLO, "max_tokens": 2000, "n": 64, "temperature": 5.0}).encode()))
            time.sleep(0.5)
        end = time.monotonic() + SECONDS
        while service.places.taken and time.monotonic() < end:
            time.sleep(0.05)
        assert service.places.taken == 0
        begin = time.monotonic()
        check_honest(endpoint)
        assert time.monotonic() - begin < SECONDS


def test_only_accepted_keys_are_served(policy):
    with serving(policy, access=Access(keys=("first secret", "zweites Geheimnis ß")), secret_keys=True) as endpoint:
        for key in ("", "x", "first", "first secre", "first secret2", "FIRST SECRET", "ß"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            for sent in (framed(json.dumps(HELLO).encode(), **headers), framed(b"", "/v1/models", "GET", **headers)):
                status, body = talk(endpoint, sent)
                assert status == 401, key
                assert b"secret" not in body.replace(b"is not one", b"")
        check_honest(endpoint, authorization="Bearer first secret")
        check_honest(endpoint, authorization="bearer first secret")
        assert len(rows_of(endpoint, "first secret")) == 2


def test_rows_are_their_key_s_own(policy):
    with serving(policy) as endpoint:
        check_honest(endpoint, authorization="Bearer one")
        check_honest(endpoint)
        check_honest(endpoint)
        for key, rows in (("one", 1), ("two", None), ("on", None), ("one ", 1), ("ONE", None)):
            found = rows_of(endpoint, key)
            assert (None if found is None else len(found)) == rows, key
        assert talk(endpoint, framed(b"", "/v1/rows", "GET"))[0] == 401
        assert len(endpoint.backend.recorded) == 1  # of clients without a key nothing is kept


def test_rows_expire(policy):
    with serving(policy, keeping=Retention(seconds=0.3)) as endpoint:
        check_honest(endpoint, authorization="Bearer one")
        assert len(rows_of(endpoint, "one")) == 1
        time.sleep(0.4)
        assert rows_of(endpoint, "one") is None
        assert len(endpoint.backend.recorded) == 0
        check_honest(endpoint, authorization="Bearer one")


def test_rows_are_bounded_and_whoever_takes_most_gives_up_its_own(policy):
    with serving(policy, keeping=Retention(cost=40_000)) as endpoint:
        check_honest(endpoint, authorization="Bearer honest")
        for _ in range(60):
            check_honest(endpoint, authorization="Bearer greedy")
        rows = endpoint.backend.recorded
        assert rows.cost <= 40_000
        assert len(rows.of("honest")) == 1
        assert 1 <= len(rows.of("greedy")) < 60
        assert rows.of("greedy")[-1]["row"] == 59  # the newest are kept
        for number in range(200):
            check_honest(endpoint, authorization=f"Bearer {number}")
        assert rows.cost <= 40_000


def test_keys_are_bounded(policy):
    with serving(policy, keeping=Retention(keys=5)) as endpoint:
        for number in range(12):
            check_honest(endpoint, authorization=f"Bearer {number}")
        assert len(endpoint.backend.recorded) == 5


def test_a_prompt_that_is_slow_to_read_holds_up_nobody(policy, monkeypatch):
    with serving(policy, limits=ChatLimits()) as endpoint:
        service, over, waited = endpoint.backend, threading.Event(), []
        encode = service.recorded.policy.encode_prompt

        def slow(prompt):
            if "slow" in str(prompt):
                waited.append(over.wait(SECONDS))
            return encode(prompt)

        monkeypatch.setattr(policy, "encode_prompt", slow, raising=False)
        with socket.create_connection(("127.0.0.1", endpoint.port)) as s:
            s.sendall(framed(json.dumps(said("slow")).encode()))
            time.sleep(0.2)
            assert talk(endpoint, framed(b"", "/v1/models", "GET"))[0] == 200
            assert post(endpoint, b"{")[0] == 400
            assert not waited, "they stood behind the slow one"
            over.set()
        check_honest(endpoint)


def test_a_template_that_raises_is_that_request_s_own_failure():
    refusing = "{% if m.role == 'odd' %}{{ raise_exception('no odd roles') }}{% endif %}"
    template = "{% for m in messages %}" + refusing + "{{ m.content }}{% endfor %}"
    with serving(chatting(template)) as endpoint:
        status, body = post(endpoint, {"messages": [{"role": "odd", "content": "x"}]})
        assert status == 400
        assert b"no odd roles" in body
        check_honest(endpoint)


def test_a_failure_while_sampling_is_that_request_s_own(policy, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from grouprl.rollout.local.sampler import LocalSampler

    sample = LocalSampler.sample

    def failing(sampler, requests, **settings):
        if any("BAD" in policy.decode(request.prompt) for request in requests):
            raise RuntimeError("x" * 10_000_000)
        time.sleep(0.05)  # so that requests meet
        return sample(sampler, requests, **settings)

    monkeypatch.setattr(LocalSampler, "sample", failing)
    with serving(policy) as endpoint:
        requested = [{**HELLO, **said("BAD" if i % 3 == 0 else "good"), "max_tokens": 40} for i in range(12)]
        with ThreadPoolExecutor(12) as pool:
            got = list(pool.map(lambda each: post(endpoint, each), requested))
        assert [status for status, _ in got] == [500 if i % 3 == 0 else 200 for i in range(12)]
        assert all(len(body) < 2000 for status, body in got if status == 500)


def test_one_key_s_queue_does_not_hold_up_another_s(policy):
    """A key has many completions waiting; a second key's only one comes before most of them."""
    from concurrent.futures import ThreadPoolExecutor

    with serving(policy, at_once=2, limits=ChatLimits()) as endpoint, ThreadPoolExecutor(2) as pool:
        many = framed(json.dumps({**HELLO, "n": 64, "max_tokens": 30}).encode(), authorization="Bearer greedy")
        busy = [pool.submit(talk, endpoint, many, 120.0) for _ in range(2)]
        while endpoint.backend.places.waiting < 110:
            time.sleep(0.01)
        check_honest(endpoint, authorization="Bearer honest")
        assert endpoint.backend.places.waiting > 50
        assert all(each.result()[0] == 200 for each in busy)


def test_more_than_may_wait_are_refused(policy):
    with serving(policy, at_once=1, most_waiting=8, limits=ChatLimits()) as endpoint:
        status, body = post(endpoint, {**HELLO, "n": 64, "max_tokens": 2})
        assert status == 503
        assert b"try again later" in body
        check_honest(endpoint)


def test_there_are_enough_abuses():
    assert len(BODIES) + len(HEADS) + len(SLOW) >= 150
