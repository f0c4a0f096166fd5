"""Tokens per second of a server of vLLM: by vLLM's own benchmark client and through grouprl, in turns.

    python scripts/vllm_speed.py .venv-vllm/bin/vllm

On a model of 0.1 M weights and on SmolLM2-135M-Instruct; with prompts that the server has not read before (`cold`) and
with those of the round before (`warm`). The order of the clients changes from round to round. It writes
docs/vllm_speed.json and its table in docs/vllm.md.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from grouprl.config.sections import Vllm
from grouprl.evaluation.pass_at_k import mean_interval
from grouprl.policy import load_policy
from grouprl.protocols import Request
from grouprl.rollout.vllm.engine import VllmEngine
from page_record import fill
from real import RUNS, fetch
from vllm_record import LETTERS, SIZE, machine

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "docs" / "vllm_speed.json", ROOT / "docs" / "vllm.md"
ASKS = {"vLLM's client": None, "vLLM's client, log-probs": {"logprobs": 1}}
"""What vLLM's own client adds to each request."""
OURS = "grouprl"


@dataclass(frozen=True)
class Case:
    """A model, and how much is asked of it at once."""

    name: str
    model: str
    requests: int
    prompt: int
    """Characters of a prompt."""
    budget: int


def prompts(case: Case, seed: int) -> list[str]:
    """Return texts of letters and spaces that differ from the first sign on."""
    rng = random.Random(seed)
    return ["".join(rng.choice("abcdefgh ") for _ in range(case.prompt)) for _ in range(case.requests)]


def of_their_client(
    program: str, address: str, case: Case, texts: Sequence[str], extra: dict[str, Any] | None
) -> float:
    """Return the tokens per second that `vllm bench serve` tells of its requests, all sent at once."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "prompts.jsonl"
        data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        words = [program, "bench", "serve", "--backend", "vllm", "--base-url", address, "--tokenizer", case.model]
        words += ["--dataset-name", "custom", "--dataset-path", str(data), "--custom-output-len", str(case.budget)]
        words += ["--skip-chat-template", "--disable-shuffle", "--num-prompts", str(len(texts)), "--ignore-eos"]
        words += ["--temperature", "1", "--disable-tqdm", "--save-result", "--result-dir", place]
        words += ["--result-filename", "found.json", *([] if extra is None else ["--extra-body", json.dumps(extra)])]
        said = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        if said.returncode:
            raise SystemExit(f"vllm bench serve ended with {said.returncode}:\n{said.stderr[-2000:]}")
        found = json.loads((Path(place) / "found.json").read_text())
    expected = len(texts) * case.budget
    if found["completed"] != len(texts) or found["total_output_tokens"] != expected:
        raise SystemExit(f"vllm bench serve sampled {found['total_output_tokens']} tokens, not {expected}")
    return float(found["output_throughput"])


def of_ours(engine: VllmEngine, policy: Any, case: Case, texts: Sequence[str], seed: int) -> float:
    """Return the tokens per second through the engine, log-probs and versions included."""
    requests = [Request(tuple(policy.encode(text)), case.budget, seed + i) for i, text in enumerate(texts)]
    begun = time.perf_counter()
    found = engine.sample(requests)
    seconds = time.perf_counter() - begun
    count = sum(map(len, found.actions))
    if count != len(texts) * case.budget:
        raise SystemExit(f"the engine sampled {count} tokens, not {len(texts) * case.budget}")
    return count / seconds


def rounds_of(program: str, case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure a case: in each round all clients, cold and then warm, in an order that turns."""
    policy = load_policy(case.model)
    engine = VllmEngine(policy, Vllm(command=(program,)))
    engine.served.ends = lambda request: frozenset()  # type: ignore[method-assign]  # all have the same length
    try:
        engine.publish(0, policy)
        address = engine.fleet.servers[0].wire.address
        clients = [*ASKS, OURS]
        for number in range(-1, rounds):  # round -1 warms the server up and is not recorded
            order = clients[number % 3 :] + clients[: number % 3]
            for place, client in enumerate(order):
                texts = prompts(case, 1000 * number + place)
                for cache in ("cold", "warm"):
                    rate = (
                        of_ours(engine, policy, case, texts, 100 * number)
                        if client == OURS
                        else of_their_client(program, address, case, texts, ASKS[client])
                    )
                    if number >= 0:
                        yield {"model": case.name, "client": client, "cache": cache, "round": number, "rate": rate}
    finally:
        engine.close()


def ratio(rows: Sequence[dict[str, Any]], over: str) -> str:
    """Return the geometric mean of grouprl's rates over another client's, round by round, with its interval of 95 %."""
    own, other = ({row["round"]: row["rate"] for row in rows if row["client"] == name} for name in (OURS, over))
    found = mean_interval(np.array([math.log(own[number] / other[number]) for number in sorted(own)]))
    return f"{math.exp(found.value):.2f} [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a row per model and state of the cache: the clients' medians, and grouprl's ratio to each of vLLM's."""
    heads = [f"{name}, tokens/s" for name in (*ASKS, OURS)] + [f"{OURS} over {name}" for name in ASKS]
    lines = [f"| model | prompts | {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * 3 + " --- |" * 2]
    for model, cache in dict.fromkeys((row["model"], row["cache"]) for row in rows):
        own = [row for row in rows if (row["model"], row["cache"]) == (model, cache)]
        medians = [statistics.median(row["rate"] for row in own if row["client"] == name) for name in (*ASKS, OURS)]
        cells = [f"{rate:,.0f}" for rate in medians] + [ratio(own, name) for name in ASKS]
        lines.append(f"| {model} | {cache} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    program: Annotated[str, typer.Argument(help="The program vllm of its environment.")],
    rounds: Annotated[int, typer.Option(help="Rounds that are recorded.", min=2)] = 5,
    store: Annotated[Path, typer.Option(help="Where the pretrained model is kept.")] = RUNS / "model",
) -> None:
    """Measure both models, and write the record and the table."""
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "model"
        load_policy("tiny", alphabet=LETTERS, seed=1, **SIZE).save(small)
        pretrained, _ = fetch(store)
        cases = [Case("0.1 M", str(small), 128, 160, 64), Case("135 M", pretrained, 32, 400, 64)]
        rows = []
        for case in cases:
            for row in rounds_of(program, case, rounds):
                rows.append(row)
                print(json.dumps(row), flush=True)
    RECORD.write_text(json.dumps({"machine": machine(), "rounds": rows}, indent=1) + "\n", encoding="utf-8")
    fill(PAGE, {"speed": table(rows)})


if __name__ == "__main__":
    sys.exit(typer.run(main))
