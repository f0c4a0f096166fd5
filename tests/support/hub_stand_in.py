"""A server here that answers as much of a model hub's API as a push needs, and remembers what it was sent."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TOKEN = "hf_stand_in_token_that_nobody_may_see"


class HubStandIn(ThreadingHTTPServer):
    """Repositories as files by path; `fails` is a status with which every commit is answered.

    Weights are stored apart (LFS) if `stored` is True: in parts of `part` bytes if that is given, else in one request;
    `storage_fails` is a status with which the storage answers; if it is `full`, no object is given a place.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.fails: int | None = None
        self.commits = 0
        self.stored, self.part, self.storage_fails, self.full = False, 0, 0, False
        self.objects: dict[str, bytes] = {}
        self.pieces: dict[str, bytes] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str, lines: list[dict]) -> None:
        files = self.repositories[repo]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                files[line["value"]["path"]] = self.objects[line["value"]["oid"]]
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        self.commits += 1

    def upload_of(self, oid: str, size: int) -> dict[str, object]:
        """Where the bytes of an object are to be sent."""
        place = f"{self.address}/storage/{oid}"
        parts = {str(n + 1): f"{place}/{n}" for n in range(math.ceil(size / self.part))} if self.part else {}
        upload = {"href": f"{place}/complete", "header": {"chunk_size": str(self.part), **parts}}
        return {
            "upload": upload if self.part else {"href": place},
            "verify": {"href": f"{self.address}/verify"},
        }


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
        if path.startswith("/storage/"):
            oid, pieces = path.split("/")[2], self.server.pieces
            self.keep(oid, b"".join(pieces[f"{oid}/{part['partNumber'] - 1}"] for part in json.loads(body)["parts"]))
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
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
            modes = [
                ("lfs" if self.server.stored and f["path"].endswith(".safetensors") else "regular", f["path"])
                for f in json.loads(body)["files"]
            ]
            found = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for mode, path in modes]
            self.answer(200, {"files": found})
        elif path.endswith("/objects/batch"):
            asked = [(each["oid"], each["size"]) for each in json.loads(body)["objects"]]
            full = {"error": {"code": 507, "message": f"no room is left, {TOKEN}"}}
            objects = [
                {"oid": o, "size": n, **(full if self.server.full else {"actions": self.server.upload_of(o, n)})}
                for o, n in asked
            ]
            self.answer(200, {"transfer": "multipart" if self.server.part else "basic", "objects": objects})
        elif path == "/verify":
            given = json.loads(body)
            held = self.server.objects.get(given["oid"], b"")
            self.answer(200 if len(held) == given["size"] else 422, {})
        elif self.server.fails is not None:
            self.answer(self.server.fails, {"error": "no"})
        else:
            repo = "/".join(path.split("/")[3:5])
            self.server.commit(repo, [json.loads(line) for line in body.splitlines() if line.strip()])
            self.answer(200, {"commitUrl": f"{self.server.address}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40})

    def do_PUT(self) -> None:
        """The storage is another server than the hub: it is given addresses that are signed, and never the token."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = urlsplit(self.path).path.removeprefix("/storage/")
        if self.server.storage_fails or self.headers.get("Authorization"):
            self.answer(self.server.storage_fails or 400, {"error": "no"})
        elif "/" in name:
            self.server.pieces[name] = body
            self.answer(200, {}, {"ETag": f'"{len(body)}"'})
        else:
            self.keep(name, body)

    def keep(self, oid: str, data: bytes) -> None:
        """Keep an object if it is the one that was announced."""
        right = hashlib.sha256(data).hexdigest() == oid
        if right:
            self.server.objects[oid] = data
        self.answer(200 if right else 422, {})

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
