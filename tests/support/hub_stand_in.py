"""A server here that answers as much of a model hub's API as a push needs, and remembers what it was sent."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TOKEN = "hf_stand_in_token_that_nobody_may_see"


class HubStandIn(ThreadingHTTPServer):
    """Repositories as files by path; `fails` is a status with which every commit is answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.fails: int | None = None
        self.commits = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str, lines: list[dict]) -> None:
        files = self.repositories[repo]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        self.commits += 1


class _Answers(BaseHTTPRequestHandler):
    server: HubStandIn

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        repo = "/".join(urlsplit(self.path).path.split("/")[3:5])
        files = self.server.repositories.get(repo)
        if files is None:
            self.answer(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        elif "/tree/" in self.path:
            self.answer(200, [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in files])
        else:
            siblings = [{"rfilename": name} for name in files]
            self.answer(200, {"id": repo, "sha": "0" * 40, "private": False, "siblings": siblings, "tags": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, {"error": "invalid token"})
        elif path == "/api/repos/create":
            given = json.loads(body)
            repo = f"{given.get('organization')}/{given['name']}"
            self.server.repositories[repo], self.server.private[repo] = (
                {},
                given.get("visibility") == "private",
            )
            self.answer(200, {"url": f"{self.server.address}/{repo}", "name": repo, "id": "1"})
        elif path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            asked = json.loads(body)["files"]
            self.answer(
                200, {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked]}
            )
        elif self.server.fails is not None:
            self.answer(self.server.fails, {"error": "no"})
        else:
            repo = "/".join(path.split("/")[3:5])
            self.server.commit(repo, [json.loads(line) for line in body.splitlines() if line.strip()])
            self.answer(200, {"commitUrl": f"{self.server.address}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40})

    def do_DELETE(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.repositories.pop(f"{given.get('organization')}/{given['name']}", None)
        self.answer(200, {})

    def answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        packed = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(packed)))
        self.end_headers()
        self.wfile.write(packed)


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    """Serve while the block runs."""
    server = HubStandIn()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
