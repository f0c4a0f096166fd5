"""What watches the tests in CI notices what they leave: an orphan, a file; and nothing where nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "leftovers.py"
ORPHAN = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({})'])"
FILE = "import tempfile; tempfile.mkstemp('{}')"


def watched(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("code", "said"),
    [(ORPHAN.format(300), "left 1 processes:"), (FILE.format("abc"), "left 1 files in the temporary folder:")],
)
def test_what_is_left_is_named(code: str, said: str) -> None:
    found = watched(code)
    assert found.returncode == 1
    assert said in found.stderr


@pytest.mark.parametrize(("code", "exit_code"), [("pass", 0), (ORPHAN.format(1), 0), ("raise SystemExit(3)", 3)])
def test_otherwise_the_exit_code_is_the_command_s(code: str, exit_code: int) -> None:
    found = watched(code)
    assert (found.returncode, found.stderr) == (exit_code, "")
