"""Pairs for the preference recipes of the folder real: what a pretrained model itself says, one right, one wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import real
from grouprl.evaluation.sample_and_score import Completions, Meter, complete
from grouprl.policy import load_policy
from grouprl.records.examples import Example, Split
from grouprl.rollout.kinds.row_kinds import evaluation_kind
from grouprl.rollout.row_settings import RowSettings, Seeds
from grouprl.storage.run_folder import write_text
from grouprl.tasks import load_task
from grouprl.tasks.task import Task

Line = dict[str, object]
PAIRS, HELD_OUT, LABELS = (real.RECIPES / f"sum_{name}.jsonl" for name in ("pairs", "pairs_held_out", "labels"))
TEMPERATURE, SAMPLES, ROWS = 0.7, 8, 256
"""How completions are sampled, how many of a prompt, and how many at once."""
PROMPTS: dict[Split, int] = {"train": 192, "eval": 80}
"""Different prompts of each split."""
MOST = 2
"""Most pairs of a prompt."""
LONGEST = 17
"""Most tokens of a better completion, with its end: shorter than where `max_length` cuts what did not end."""


def different(task: Task, split: Split, count: int) -> list[Example]:
    """Return the first `count` prompts of a split that differ."""
    found: dict[str, Example] = {}
    index = 0
    while len(found) < count:
        example = task.example(split, index)
        found.setdefault(str(example.prompt), example)
        index += 1
    return list(found.values())


def pairs(examples: Sequence[Example], sampled: Completions) -> Iterator[Line]:
    """Yield the pairs of each prompt: the right completions that end, beside the wrong ones, in the sampled order."""
    for number, example in enumerate(examples):
        rows = range(number * sampled.each, (number + 1) * sampled.each)
        right = [r for r in rows if sampled.scores.correct_b[r] and ends(sampled, r)]
        wrong = [r for r in rows if not sampled.scores.correct_b[r]]
        better, worse = (list(dict.fromkeys(sampled.texts[r].strip() for r in each)) for each in (right, wrong))
        for chosen, rejected in list(zip(better, filter(None, worse), strict=False))[:MOST]:
            yield {"prompt": example.prompt, "chosen": _said(chosen), "rejected": _said(rejected)}


def ends(sampled: Completions, row: int) -> bool:
    """Return whether a completion ended by itself, early enough not to be cut in training."""
    return not sampled.truncated_b[row] and sampled.length_b[row] <= LONGEST


def labels(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield both completions of each pair with labels of their own, the worse ones half of the data later."""
    half = len(lines) // 2
    for better, worse in zip(lines, [*lines[half:], *lines[:half]], strict=True):
        yield {"prompt": better["prompt"], "completion": better["chosen"], "label": True}
        yield {"prompt": worse["prompt"], "completion": worse["rejected"], "label": False}


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def write(path: Path, lines: Sequence[Line]) -> None:
    """Write lines of JSON."""
    write_text(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def main() -> None:
    """Sample what is not there yet."""
    policy = load_policy(real.fetch(real.RUNS / "model")[0])
    task = load_task(f"{real.RECIPES / 'tasks.py'}:Sums")
    settings = RowSettings(task.max_new_tokens, Seeds(0), TEMPERATURE).held_out()
    source = evaluation_kind(task)(task, policy, task.reward, settings)
    splits: tuple[tuple[Split, Path], ...] = (("train", PAIRS), ("eval", HELD_OUT))
    for split, path in splits:
        if path.exists():
            continue
        examples = different(task, split, PROMPTS[split])
        sampled = complete(source, examples, SAMPLES, ROWS, Meter(None, 0))
        write(path, list(pairs(examples, sampled)))
        print(split, len(sampled.texts), sampled.scores.correct_b.mean(), sampled.truncated_b.mean())
    write(LABELS, list(labels([json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()])))


if __name__ == "__main__":
    main()
