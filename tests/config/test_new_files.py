"""`grouprl new`: each template's own test passes, and its configuration plans without any finding."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grouprl
from grouprl.algorithms.part import PARTS
from grouprl.cli.app import app
from grouprl.config.new_files import KINDS, write_new
from grouprl.core.errors import InputError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own, of which no module and no part is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, known = set(sys.modules), set(PARTS["advantage"])
    yield tmp_path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for name in set(PARTS["advantage"]) - known:
        del PARTS["advantage"][name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_passes_its_test_and_plans(kind: str, project: Path) -> None:
    done = CliRunner().invoke(app, ["new", kind, f"my_{kind}", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[-1] == f"my_{kind}.yaml"
    module = importlib.import_module(f"test_my_{kind}")
    tests = [each for name, each in vars(module).items() if name.startswith("test_")]
    assert tests
    for each in tests:
        each()
    found = [str(each) for each in grouprl.plan(f"my_{kind}.yaml").findings]
    assert [each for each in found if not (kind == "env" and "prompts repeat" in each)] == []  # it begins in four ways


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"kind 'rewad'.*reward"):
        write_new("rewad", "mine", tmp_path)
    for name in ("my-reward", "class", "Mine", "../mine"):
        with pytest.raises(InputError, match="small letters"):
            write_new("reward", name, tmp_path)
    (tmp_path / "test_mine.py").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="exists already"):
        write_new("reward", "mine", tmp_path)
    for name in ("random", "numpy", "grouprl", "winreg"):
        with pytest.raises(InputError, match=f"has a module of this name.*my_{name}"):
            write_new("reward", name, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["test_mine.py"]
    assert [each.name for each in write_new("recipe", "random", tmp_path)] == ["test_random.py", "random.yaml"]
