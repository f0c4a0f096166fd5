"""The prompt of a pair, where it stands inside both completions: ours beside TRL's own functions."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
from trl.data_utils import extract_prompt, maybe_extract_prompt

from grouprl.core.errors import InputError
from grouprl.tasks import load_task
from grouprl.tasks.adapters.preferences.preference_rows import common_prompt

ROWS = 3000


SIGNS = ("ab c\n", "ab ", "e\u0301é à", "漢字 かな", "👩‍👧 🙂", "\r\n\t ", "\u00a0 \u200b", "אב ج")
"""Signs of texts: of letters, alone and combined, several code points to a picture, and spaces that are none."""
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def text(rng: random.Random, longest: int = 12) -> str:
    return "".join(rng.choices(rng.choice(SIGNS), k=rng.randint(1, longest)))


def talk(rng: random.Random, turns: int) -> list[dict[str, Any]]:
    roles = ["user", "assistant"] * turns
    said = [{"role": role, "content": text(rng, 3)} for role in roles[:turns]]
    system = [{"role": "system", "content": text(rng, 3)}] if said and rng.random() < 0.2 else []
    return [*system, *said]


def called(rng: random.Random) -> list[dict[str, Any]]:
    """A call of a tool, and what it says, to stand before an answer."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": rng.randint(0, 1)}}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "name": "add", "content": text(rng, 1)}]


def pair(rng: random.Random) -> dict[str, Any]:
    """Two texts or conversations with a common beginning, which may be none, or a whole one of them."""
    if rng.random() < 0.5:
        shared = rng.choice(["", text(rng), f"\n\nHuman: {text(rng)}\n\nAssistant: "])
        return {"chosen": shared + text(rng), "rejected": shared + text(rng)}
    shared_turns = talk(rng, rng.randint(1, 4))
    role = "assistant" if shared_turns[-1]["role"] == "user" else "user"
    ends = [[{"role": role, "content": text(rng, 2)}, *talk(rng, rng.choice([0, 2]))] for _ in range(2)]
    if role == "assistant" and rng.random() < 0.3:
        ends = [[*called(rng), *end] for end in ends]
    cut, tools = rng.random() < 0.1, {"tools": TOOLS} if rng.random() < 0.3 else {}
    return {"chosen": shared_turns + ends[0], "rejected": shared_turns if cut else shared_turns + ends[1], **tools}


@pytest.mark.parametrize("seed", range(2))
def test_the_common_beginning_is_trls(seed: int) -> None:
    """The same prompt and completions on every row; only where nothing is shared does TRL look at the last item."""
    rng = random.Random(seed)
    kinds = {"text": 0, "talk": 0, "nothing shared": 0}
    for _ in range(ROWS):
        row = pair(rng)
        chosen, rejected = row["chosen"], row["rejected"]
        place = common_prompt(chosen, rejected)
        theirs = extract_prompt({name: row[name] for name in ("chosen", "rejected")})
        if chosen[0] != rejected[0]:
            kinds["nothing shared"] += 1
            assert place == 0
            assert len(theirs["prompt"]) == (0 if chosen[-1] != " " else len(chosen) - 1)
            continue
        kinds["text" if isinstance(chosen, str) else "talk"] += 1
        assert theirs == {"prompt": chosen[:place], "chosen": chosen[place:], "rejected": rejected[place:]}
    assert min(kinds.values()) > 100


def spoken(cell: Any) -> Any:
    """Return a cell whose messages have what templates read: a call of a tool says nothing beside it."""
    return cell if isinstance(cell, str) else [{"content": "", **message} for message in cell]


def loaded(path: Path) -> tuple[Any, str]:
    """The task, or why there is none."""
    try:
        return load_task({"name": "pairs", "path": str(path), "eval_fraction": 0, "chat": False}), ""
    except InputError as error:
        return None, str(error)


def test_rows_of_a_file_are_what_trl_makes_of_them(tmp_path: Path) -> None:
    """With and without a prompt column, of the same or of another form than the completions."""
    rng = random.Random(7)
    compared = 0
    for number in range(3000):
        row = pair(rng)
        column = rng.choice([None, "text", "same form"])
        if column:
            row["prompt"] = talk(rng, 1) if column == "same form" and isinstance(row["chosen"], list) else text(rng)
        path = tmp_path / "row.jsonl"
        path.write_text(json.dumps(row))
        task, why_not = loaded(path)
        if task is None:
            assert any(why in why_not for why in REFUSED), (number, why_not)
            continue
        theirs = {name: spoken(cell) for name, cell in maybe_extract_prompt(row).items() if name != "tools"}
        example = task.example("train", 0)
        prompt = example.prompt if isinstance(example.prompt, str) else list(example.prompt)
        assert prompt == theirs["prompt"]
        for ours, side in zip(task.stored_rows(example), ("chosen", "rejected"), strict=True):
            want = theirs[side]
            messages = None if isinstance(want, str) or len(want) == 1 else tuple(want)
            assert ours.messages == messages, (number, row)
            assert messages or ours.completion == (want if isinstance(want, str) else want[0]["content"])
        compared += 1
        shown = getattr(example.prompt, "tools", ())
        assert list(shown) == (TOOLS if "tools" in row and not isinstance(prompt, str) else [])
    assert compared > 1000


REFUSED = (
    "no common beginning",
    "are the same",
    "is better",
    "with a message of the role",
    "begins with the messages of 'prompt'",
)
"""What TRL trains on and we refuse: no prompt, no difference, and completions that the assistant does not write."""
