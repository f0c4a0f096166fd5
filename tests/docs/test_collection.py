"""Every worker, machine and hour collects the same tests: their names depend on nothing but the code."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from difflib import unified_diff
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
COLLECT = """
import os, sys, pytest
os.cpu_count = lambda: {cores}
sys.exit(pytest.main(["--collect-only", "-q", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider",
                      "--rootdir", {top!r}, "-c", {ini!r}, {what!r}]))
"""
APART = 2.1
"""Seconds between two collections: whole seconds in time stamps then differ."""


def collection(what: Path, folder: Path, seed: int, **surroundings: str) -> subprocess.Popen[str]:
    """Begin to collect the tests below `what` in a process of its own, with its own surroundings."""
    folder.mkdir()
    code = COLLECT.format(cores=seed, top=str(TOP), ini=str(TOP / "pyproject.toml"), what=str(what))
    own = {"PYTHONHASHSEED": str(seed), "HOME": str(folder), "TMPDIR": str(folder), **surroundings}
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=kept | own, stdout=subprocess.PIPE, text=True)


def names(collected: subprocess.Popen[str]) -> list[str]:
    """Return the names of the tests that a process has collected."""
    printed, _ = collected.communicate()
    assert collected.returncode == 0, printed[-2000:]
    return [line for line in printed.splitlines() if "::" in line]


def differences(what: Path, folder: Path) -> list[str]:
    """Return the names that two collections do not share, with a sign in front of each."""
    first = collection(what, folder / "one", 1, TZ="UTC", LC_ALL="C.UTF-8", USER="one")
    time.sleep(APART)
    second = collection(what, folder / "two", 2, TZ="Asia/Tokyo", LC_ALL="C", USER="two")
    one, two = names(first), names(second)
    assert one
    return [line for line in unified_diff(one, two, n=0, lineterm="") if not line.startswith(("---", "+++", "@@"))]


def test_all_tests_have_the_same_names_whoever_collects_them(tmp_path: Path) -> None:
    assert differences(TOP / "tests", tmp_path) == []


@pytest.mark.parametrize(
    "value",
    ["str(hash('a'))", "str(int(time.time()))", "os.getcwd()", "time.tzname[0]", "str(os.cpu_count())"],
    ids=["hash_seed", "time", "folder", "time_zone", "machine"],
)
def test_a_name_that_depends_on_its_surroundings_is_told(value: str, tmp_path: Path) -> None:
    file = tmp_path / "test_by_chance.py"
    file.write_text(
        f"import os, time, pytest\n\n@pytest.mark.parametrize('name', [{value}])\ndef test_one(name):\n    pass\n"
    )
    assert len(differences(file, tmp_path)) == 2
