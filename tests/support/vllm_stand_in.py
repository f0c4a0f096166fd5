"""An endpoint that talks like a server of vLLM, for the errors of such talk: it samples by a rule, or as a policy does.

As a script it is a program `vllm` of its own: `python vllm_stand_in.py serve FOLDER --port N …`; it needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

GENERATE = "/inference/v1/generate"
Fault = Callable[[str, Any, Any], Any]
"""(path, request, answer) -> what is sent in its place: an answer, (status, bytes), or None for a broken connection."""


class MadeUp:
    """Completions that follow from seeds alone; log-probs are -1."""

    def load(self, message: dict[str, Any]) -> None:
        """Weights change nothing."""

    def complete(self, ids: list[int], settings: dict[str, Any]) -> tuple[list[int], list[float], str]:
        digest = hashlib.sha256(f"{ids}{settings.get('seed')}".encode()).digest()
        found = [3 + byte % 8 for byte in digest[: settings["max_tokens"]]]
        return found, [-1.0] * len(found), "length"

    def score(self, ids: list[int]) -> list[float]:
        return [-1.0] * (len(ids) - 1)


class StandIn:
    """The state of one server; `fault` may change any answer."""

    def __init__(self, brain: Any = None, fault: Fault | None = None) -> None:
        self.brain, self.fault = brain or MadeUp(), fault
        self.down: tuple[str, bytes] | None = None
        """A call that fails before it does anything, and what is said then."""
        self.label, self.paused, self.active = "default", False, False
        self.says = {"grouprl_weights": "2", "grouprl_device": "cpu", "grouprl_name": f"here/{id(self)}"}
        """What its worker says to calls."""
        self.group: Any = None
        self.rank = 0
        self.parts = 0
        """How many pieces of weights it has received."""
        self.at_part: Callable[[int], object] = lambda number: None
        """Called before it receives a piece."""
        self.lacks: set[str] = set()
        """What it has no memory for as it sleeps."""
        self.adapters: dict[str, str] = {}
        """Folders of adapters by their names; a model that is named must be among them."""
        self.got: list[tuple[str, Any]] = []
        self.lock, self.going = threading.RLock(), threading.Condition()

    def answer(self, path: str, body: Any) -> Any:
        route = path.partition("?")[0]
        self.got.append((path, body))
        if self.down and route == self.down[0]:
            return (500, self.down[1])
        if route == GENERATE:
            return self._generate(body)
        with self.lock:
            extra = [path.partition("?tags=")[2]] if route == "/wake_up" else []
            return getattr(self, "at" + route.replace("/", "_"))(body, *extra)

    def _generate(self, body: dict[str, Any]) -> Any:
        with self.going:
            self.going.wait_for(lambda: not self.paused, 30)
        with self.lock:
            settings, ids = body["sampling_params"], body["token_ids"]
            if "model" in body:
                if body["model"] not in self.adapters:
                    return 404, json.dumps({"error": f"The model `{body['model']}` does not exist."}).encode()
                self.brain.adapt(self.adapters[body["model"]])
            if "prompt_logprobs" in settings:
                told = [{str(t): {"logprob": x}} for t, x in zip(ids[1:], self.brain.score(ids), strict=True)]
                return {"prompt_logprobs": [None, *told]}
            found, logp, why = self.brain.complete(ids, settings)
            content = [{"token_id": t, "logprob": x} for t, x in zip(found, logp, strict=True)]
            span = {"version": self.label, "start": 0, "end": len(found)}
            choice = {"token_ids": found, "logprobs": {"content": content}, "finish_reason": why}
            return {"choices": [{**choice, "stop_reason": None, "weight_versions": [span]}]}

    def at_health(self, body: Any) -> Any:
        return None

    def at_version(self, body: Any) -> Any:
        return {"version": "0.32.0"}

    def at_v1_models(self, body: Any) -> Any:
        return {"data": [{"id": "policy", "max_model_len": 512}]}

    def at_weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def at_pause(self, body: Any) -> Any:
        self.paused = True

    def at_resume(self, body: Any) -> Any:
        with self.going:
            self.paused = False
            self.going.notify_all()

    def at_collective_rpc(self, body: Any) -> Any:
        return {"results": [self.says.get(body["method"], "yes")]}

    def at_get_world_size(self, body: Any) -> Any:
        return {"world_size": 1}

    def at_init_weight_transfer_engine(self, body: Any) -> Any:
        from grouprl.rollout.vllm.server_plugin import grouprl_group

        info = body["init_info"]
        self.rank = info["first"]
        store = grouprl_group.opened_store(info["host"], info["port"], info["seconds"], trainer=False)
        meeting = grouprl_group.Meeting(info["name"], info["first"], info["size"], info["host"], info["seconds"])
        return self._or_500(lambda: setattr(self, "group", grouprl_group.joined(store, meeting)))

    def _or_500(self, act: Callable[[], object]) -> Any:
        try:
            act()
        except RuntimeError as error:
            return 500, json.dumps({"error": {"message": f"Call to collective_rpc method failed: {error}"}}).encode()
        return {}

    def _receive(self, parts: list[Any]) -> None:
        import torch

        for number, part in enumerate(parts):
            start, end = part[0][3], part[-1][3] + part[-1][4]
            self.at_part(number)
            flat = torch.empty(end - start, dtype=torch.uint8)
            self.group.broadcast(flat)
            self.parts += 1
            moved = [[name, kind, shape, first - start, size] for name, kind, shape, first, size in part]
            self.brain.load({"places": moved, "bytes": flat.numpy().tobytes()})
        self.group.store.set(f"loading/{self.rank}", self.says.get("loading", "0.1"))

    def at_sleep(self, body: Any) -> Any:
        self.paused, self.lacks = True, {"weights", "kv_cache"}

    def at_wake_up(self, body: Any, tags: str) -> Any:
        self.lacks -= {tags}
        if not self.lacks:
            self.at_resume(None)

    def at_update_weight_version(self, body: Any) -> Any:
        self.label = body["new_version"]

    def at_v1_load_lora_adapter(self, body: Any) -> Any:
        name, path = body["lora_name"], body["lora_path"]
        if not name:
            return 400, b'{"error": {"message": "Both names must be provided."}}'
        if name in self.adapters:
            return 400, b'{"error": {"message": "The lora adapter has already been loaded."}}'
        if not os.path.isfile(os.path.join(path, "adapter_model.safetensors")):
            return 404, b'{"error": {"message": "No adapter found"}}'
        self.adapters[name] = path
        return 200, b"Success: LoRA adapter added successfully."

    def at_v1_unload_lora_adapter(self, body: Any) -> Any:
        found = self.adapters.pop(body["lora_name"], None)
        return (200, b"Success") if found else (404, b'{"error": {"message": "cannot be found"}}')

    def at_reset_prefix_cache(self, body: Any) -> Any:
        return None

    def at_start_weight_update(self, body: Any) -> Any:
        if self.active:
            return 500, b'{"error": {"message": "a weight update is already active"}}'
        self.active = True
        return {}

    def at_update_weights(self, body: Any) -> Any:
        assert self.active, "it was begun"
        assert "weights" not in self.lacks, "it is awake"
        if "parts" in body["update_info"]:
            done = self._or_500(lambda: self._receive(body["update_info"]["parts"]))
            self.active = done == {}  # as vLLM has it
            return done
        self.brain.load(body["update_info"])
        return {}

    def at_finish_weight_update(self, body: Any) -> Any:
        self.active, self.label = False, (body or {}).get("weight_version", self.label)
        return {}


def handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(None)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            self._reply(json.loads(content) if content else None)

        def _reply(self, body: Any) -> None:
            answer = stand_in.answer(self.path, body)
            if stand_in.fault is not None:
                answer = stand_in.fault(self.path, body, answer)
                if answer is None and self.path.startswith(GENERATE):
                    answer = Raw()
                if isinstance(answer, Raw):
                    self.close_connection = True
                    answer.send(self.connection)
                    return
            status, sent = answer if isinstance(answer, tuple) else (200, json.dumps(answer).encode())
            self.send_response(status)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class Raw:
    """What is sent in the place of an answer, as bytes one behind the other, and how the connection ends."""

    def __init__(self, *pieces: bytes, pause: float = 0.0, reset: bool = False) -> None:
        self.pieces, self.pause, self.reset = pieces, pause, reset

    def send(self, connection: socket.socket) -> None:
        for piece in self.pieces:
            connection.sendall(piece)
            time.sleep(self.pause)
        if self.reset:  # a close that does not wait for what is left sends RST
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        else:
            connection.shutdown(socket.SHUT_RDWR)


class Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Clients that leave are part of the tests."""


@contextmanager
def standing_in(stand_in: StandIn) -> Iterator[str]:
    """The address of a stand-in."""
    server = Listening(("127.0.0.1", 0), handler(stand_in))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def main(words: list[str]) -> None:
    """Serve until killed; a request of a prompt [9, 9, 9] ends the process, and `GRL_NEVER_UP` one that starts."""
    if os.environ.get("GRL_NEVER_UP"):
        print("ValueError: the model does not fit", flush=True)
        sys.exit(3)

    def deadly(path: str, body: Any, answer: Any) -> Any:
        if path == GENERATE and body["token_ids"] == [9, 9, 9] and not os.path.exists(os.environ["GRL_DIED"]):
            open(os.environ["GRL_DIED"], "w").close()
            print("RuntimeError: the end", flush=True)
            os._exit(1)
        return answer

    if os.environ.get("GRL_CHILD"):  # as vLLM's workers are processes of their own
        stubborn = "import signal, time; signal.signal(15, 1); signal.signal(2, 1); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", stubborn])
    port = int(words[words.index("--port") + 1])
    Listening(("127.0.0.1", port), handler(StandIn(fault=deadly))).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
