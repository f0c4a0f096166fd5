"""Any text reaches any output: in the nearest signs of its encoding, JSON as escapes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from grouprl.core.encodable import ESCAPED, PLAIN, encodable
from grouprl.core.terminal import Terminal
from grouprl.core.wording import in_ranges

WEIRD = "ρ → 1−ε · µ … 日本 ✓ \U0001f600"


def test_signs_keep_their_width() -> None:
    assert encodable("1 → 2 − ρ·Σ ✓ é 日", "ascii") == "1 > 2 - r.S + e ?"
    assert encodable("1 → 2 é", "latin-1") == "1 > 2 é"
    for encoding in ("ascii", "latin-1", "cp1252"):
        assert len(encodable(WEIRD, encoding)) == len(WEIRD)
    assert encodable(WEIRD, "utf-8") == WEIRD


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_json_stays_what_it_says(encoding: str) -> None:
    text = json.dumps({"words": WEIRD}, ensure_ascii=False)
    assert json.loads(text.encode(encoding, ESCAPED).decode(encoding)) == {"words": WEIRD}
    assert "→" not in text.encode(encoding, PLAIN).decode(encoding)


def test_a_terminal_of_a_library_writes_to_an_output_of_ascii() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Terminal(file=file).print(WEIRD)
    file.flush()
    assert file.buffer.getvalue().startswith(b"r > 1-e")  # type: ignore[attr-defined]


ODD = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: next(iter(odd)))
@pytest.mark.parametrize("arguments", [("methods", "show", "grpo"), ("methods", "show", "grpo", "--json")])
def test_commands_end_well_on_such_outputs(odd: dict[str, str], arguments: tuple[str, ...]) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    done = subprocess.run(
        [sys.executable, "-m", "grouprl", *arguments], env={**kept, **odd}, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert b"Group Relative Policy Optimization" in done.stdout
    if arguments[-1] == "--json":
        assert "ρ" in json.loads(done.stdout)["formula"]


def test_steps_are_told_in_ranges() -> None:
    assert [in_ranges(steps) for steps in ([3], [1, 2, 3], [1, 2, 5, 7, 8])] == [
        "step 3",
        "steps 1-3",
        "steps 1-2, 5 and 7-8",
    ]
