"""`grouprl serve` under load and at length: honest clients, many at once, among clients that abuse it.

Writes docs/serve_load.json. `python scripts/serve_load.py --clients 1000 --minutes 5`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chat_policies import chatting  # noqa: E402
from grouprl.storage.run_folder import write_json  # noqa: E402

TOKENS = 16
MOST_GROWTH = 64.0
"""MiB by which the server's resident memory may grow over the second half of the soak."""


@dataclass
class Tally:
    """What came of the requests of one stretch."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    abused: int = 0
    began: float = field(default_factory=time.monotonic)

    def record(self) -> dict[str, Any]:
        took = sorted(self.seconds) or [0.0]
        wall = time.monotonic() - self.began
        return {
            "answers": len(self.seconds),
            "wrong": len(self.wrong),
            "first_wrong": self.wrong[:3],
            "abuses": self.abused,
            "wall_seconds": round(wall, 1),
            "answers_per_second": round(len(self.seconds) / wall, 1),
            "median_seconds": round(statistics.median(took), 3),
            "p99_seconds": round(took[int(len(took) * 0.99)], 3),
            "slowest_seconds": round(took[-1], 3),
        }


async def exchange(port: int, sent: bytes, seconds: float = 300.0) -> tuple[int, bytes]:
    """Send bytes; return (status or 0 for a hang-up, body)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        got = await asyncio.wait_for(reader.read(), seconds)
    except ConnectionError:
        got = b""
    finally:
        writer.close()
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def http_request(body: bytes, key: str) -> bytes:
    """An HTTP request that ends its connection."""
    head = f"host: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}\r\nconnection: close"
    return f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n".encode() + body


async def request(port: int, tally: Tally, number: int, expected: dict[int, str]) -> None:
    """One honest request: served, and with the same text as ever for its seed."""
    seed = number % 50
    requested = {"messages": [{"role": "user", "content": f"Example {seed}"}], "seed": seed, "max_tokens": TOKENS}
    begin = time.monotonic()
    try:
        status, body = await exchange(port, http_request(json.dumps(requested).encode(), f"client {number % 200}"))
        said = json.loads(body)["choices"][0]["message"]["content"] if status == 200 else None
    except (TimeoutError, OSError, ValueError) as error:
        status, said = 0, repr(error)
    if status == 200 and expected.setdefault(seed, said or "") == said:
        tally.seconds.append(time.monotonic() - begin)
    else:
        tally.wrong.append(f"{status}: {said}"[:200])


ABUSES = (
    b"",
    b"PO",
    b"GET / HTTP/1.1\r\nx: ",
    b"\0" * 1000,
    http_request(b"{", "abuser"),
    http_request(b"[" * 50_000, "abuser"),
    http_request(b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e-300}', "abuser"),
    http_request(b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}", "abuser"),
    http_request(json.dumps({"messages": [{"role": "user", "content": "x" * 3_000_000}]}).encode(), "abuser"),
    http_request(b" " * 20_000_000, "abuser"),
    http_request(b"x" * 100, "abuser").replace(b"content-length: 100", b"content-length: 300000000"),
    http_request(b"x" * 100, "abuser").replace(b"content-length: 100", b"content-length: 1000"),
)


async def abuse(port: int, tally: Tally, chance: random.Random) -> None:
    """One abusive request; whatever becomes of it, the connection is given up after a few seconds."""
    tally.abused += 1
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await exchange(port, chance.choice(ABUSES), seconds=chance.uniform(0.1, 15.0))


async def load(port: int, clients: int, each: int) -> dict[str, Any]:
    """`clients` at once, each with `each` requests one after another."""
    tally, expected = Tally(), {}

    async def client(number: int) -> None:
        for turn in range(each):
            await request(port, tally, number * each + turn, expected)

    await asyncio.gather(*(client(number) for number in range(clients)))
    return tally.record()


async def soak(port: int, pid: int, minutes: float, clients: int, seed: int) -> dict[str, Any]:
    """Honest clients and abusers side by side; memory, threads and open files of the server are watched."""
    tally, expected, chance = Tally(), {}, random.Random(seed)
    end, seen = time.monotonic() + 60 * minutes, [watch(pid)]
    numbers = iter(range(10**9))

    async def honest() -> None:
        while time.monotonic() < end:
            await request(port, tally, next(numbers), expected)

    async def hostile() -> None:
        while time.monotonic() < end:
            await abuse(port, tally, chance)

    async def watching() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(60 * minutes / 40)
            seen.append(watch(pid))

    await asyncio.gather(*(honest() for _ in range(clients)), *(hostile() for _ in range(clients // 2)), watching())
    half = seen[len(seen) // 2 :]
    growth = statistics.mean(x["mb"] for x in half[-3:]) - statistics.mean(x["mb"] for x in half[:3])
    ends = {"first": seen[0], "half": half[0], "last": seen[-1], "most": {k: max(x[k] for x in seen) for k in seen[0]}}
    return {**tally.record(), "growth_mb_second_half": round(growth, 1), "server": ends}


def watch(pid: int) -> dict[str, float]:
    """Return the resident memory, threads and open files of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return {"mb": round(int(status["VmRSS"].split()[0]) / 1024, 1), "threads": int(status["Threads"]), "files": files}


def main() -> int:
    """Load and soak a server; the exit code is 1 where an honest request went wrong or memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--each", type=int, default=5, help="requests of each client")
    parser.add_argument("--minutes", type=float, default=5.0, help="of the soak")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        chatting().save(Path(folder) / "model")
        command = [
            sys.executable,
            "-m",
            "grouprl.cli.app",
            "serve",
            f"{folder}/model",
            "--port",
            "0",
            "--keep-mb",
            "16",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
            found = {"load": asyncio.run(load(port, options.clients, options.each))}
            found["load"]["clients"] = options.clients
            print(json.dumps(found["load"]), flush=True)
            found["soak"] = asyncio.run(soak(port, server.pid, options.minutes, 20, options.seed))
            print(json.dumps(found["soak"]), flush=True)
            server.terminate()
    write_json(ROOT / "docs" / "serve_load.json", found)
    return int(any(part["wrong"] for part in found.values()) or found["soak"]["growth_mb_second_half"] > MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
