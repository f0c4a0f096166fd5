"""A method of existing parts is one file: whatever lists, explains or checks methods knows it from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import grouprl

ROOT = Path(grouprl.__file__).parent
TESTS = Path(__file__).parents[1]
FILE = '''
"""A method of existing parts."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry


def newcomer(base: Method) -> Method:
    """Compose it."""
    return base.with_parts(aggregate=TokenMean())


entry(
    "newcomer",
    newcomer,
    Card(
        title="Newcomer",
        papers=[Paper("On Newcomers", "2601.00001", 2026)],
        summary="GRPO with a token mean.",
        formula="L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i)",
        differs=["Nothing."],
        source="section 3",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[1, 3],
                advantage=[0.70710578, -0.70710578],
                grad=[[-0.176776445], [0.176776445] * 3],
            )
        ],
    ),
    base="grpo",
)
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose grouprl is this one and one more file."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT, folder / "grouprl")  # with what is compiled, which five processes would compile anew
    (folder / "grouprl" / "methods" / "group_relative" / "newcomer.py").write_text(FILE, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def said(environment: dict[str, str], *arguments: str) -> str:
    """Return what a command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("methods",),
        ("methods", "show", "newcomer"),
        ("methods", "diff", "newcomer", "grpo"),
        ("plan", "addition", "--set", "method=newcomer"),
    ],
    ids=" ".join,
)
def test_the_command_line_knows_it(installed: dict[str, str], arguments: tuple[str, ...]) -> None:
    assert "newcomer" in said(installed, "-m", "grouprl", *arguments)


def test_it_gets_its_page(installed: dict[str, str]) -> None:
    code = "import generate_docs; print(generate_docs.pages()['newcomer.md'])"
    scripts = str(TESTS.parent / "scripts")
    assert "On Newcomers" in said({**installed, "PYTHONPATH": f"{installed['PYTHONPATH']}:{scripts}"}, "-c", code)


def test_the_tests_of_the_catalogue_take_it_in(installed: dict[str, str]) -> None:
    """Those that name every method, and those of its own card; none of them has a list to be brought up to date."""
    files = ["methods/test_catalogue.py", "papers/test_papers.py", "methods/test_render.py"]
    chosen = "newcomer or names_every_entry or every_entry_of"
    where = [str(TESTS / name) for name in files]
    out = said(installed, "-m", "pytest", "-n", "0", "-o", "addopts=", "-k", chosen, *where)
    assert "newcomer" in said(installed, "-m", "pytest", "-n", "0", "--collect-only", "-k", "newcomer", where[0])
    assert " passed" in out
