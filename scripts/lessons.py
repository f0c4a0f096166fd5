"""Practice of a scripted model, recorded in docs/lessons.md: whether what a group teaches reaches later prompts."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import typer

from grouprl.lessons import LessonLibrary, Practice
from grouprl.rewards.judging.judge_client import JudgeClient
from grouprl.storage.run_folder import write_json, write_text
from grouprl.tasks import load_task

TOP = Path(__file__).parents[1]
sys.path.append(str(TOP / "tests" / "support"))
from judge_server import judging  # noqa: E402

JSON, PAGE = TOP / "docs" / "lessons.json", TOP / "docs" / "lessons.md"
BEGIN, END = "<!-- recorded -->", "<!-- /recorded -->"
LESSON = "Write the letters backwards."


def scripted(seed: int) -> Any:
    """Return the model: it reverses at random, always if told to, and finds the lesson when asked."""
    rng = random.Random(seed)

    def answer(request: dict[str, Any]) -> str:
        first, last = request["messages"][0], request["messages"][-1]["content"]
        if first["role"] != "system":
            letters = last.split("\n")[-1][:-1]
            return letters[::-1] if LESSON in last or rng.random() < 0.5 else letters
        if first["content"].startswith("Summarise"):
            return "The letters were written in some order."
        if first["content"].startswith("Compare"):
            return json.dumps({"lesson": LESSON})
        return json.dumps({"changes": [{"change": "add", "text": LESSON}]})

    return answer


def run(seed: int) -> dict[str, Any]:
    """Practise on 20 prompts; return the shares of right completions, and the lessons."""
    task = load_task("reverse", seed)
    train, fresh = ([task.example(split, i) for i in range(n)] for split, n in (("train", 20), ("eval", 256)))
    with judging(scripted(seed)) as (url, got):
        client = JudgeClient(url, "", "", timeout=60.0, tries=1, who="the model", limit="tokens")
        practice, library = Practice(client, task.reward), LessonLibrary()
        before = practice.solved(fresh, library)
        shares = []
        for first in (0, 10):
            library, report = practice.batch(train[first : first + 10], library)
            shares.append(report.share)
        after, requests = practice.solved(fresh, library), len(got) - 2 * len(fresh)
    return {
        "seed": seed,
        "before": list(before),
        "after": list(after),
        "batches": shares,
        "lessons": list(library.lessons),
        "requests": requests,
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return a row per seed."""
    head = "| seed | right before | first batch | second batch | right after | lessons | requests |\n" + "| --- " * 7
    rows = [
        f"| {r['seed']} | {_interval(r['before'])} | {r['batches'][0]:.2f} | {r['batches'][1]:.2f} | "
        f"{_interval(r['after'])} | {len(r['lessons'])} | {r['requests']} |\n"
        for r in records
    ]
    return f"{head}|\n{''.join(rows)}"


def _interval(found: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found)


def main(seeds: int = 3) -> None:
    """Run every seed, and write docs/lessons.json and the table of docs/lessons.md."""
    records = [run(seed) for seed in range(seeds)]
    write_json(JSON, records)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_text(PAGE, f"{before}{BEGIN}\n{table(records)}{END}{rest.partition(END)[2]}")
    typer.echo(table(records), nl=False)


if __name__ == "__main__":
    typer.run(main)
