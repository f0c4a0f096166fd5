"""The pages on extending grouprl: their files are written, their code runs, their commands succeed."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grouprl
from grouprl.algorithms import BASES
from grouprl.algorithms.part import PARTS, RULES
from grouprl.cli.app import app
from grouprl.config.run import load_config
from grouprl.monitor.glossary import GLOSSARY
from grouprl.plan.plan import plan

FOLDER = Path(__file__).parents[2] / "docs" / "extend"
PAGES = (*RULES, "data_part", "engine", "environment", "listener", "method", "policy")
NAMED = re.compile(r"# (\w+\.(?:py|yaml))\n")


def blocks(page: str) -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of one's own, and no parts or modules left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules, known = set(sys.modules), set(GLOSSARY)
    parts = {kind: set(PARTS[kind]) for kind in PARTS}
    yield
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    for kind, before in parts.items():
        for name in set(PARTS[kind]) - before:
            del PARTS[kind][name]
    for name in set(GLOSSARY) - known:
        del GLOSSARY[name]


def test_there_is_a_page_for_each_kind_of_extension() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*PAGES, "README"}
    front = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if f"]({page}.md)" not in front] == []
    assert [kind for kind in RULES if f"`grouprl.{BASES[kind]}`" not in front] == []


@pytest.mark.parametrize("kind", RULES)
def test_the_template_of_a_kind_is_a_part_of_it(kind: str) -> None:
    (template,) = [text for language, text in blocks(kind) if language == "python" and NAMED.match(text)]
    Path(f"my_{kind}.py").write_text(template)
    before = set(PARTS[kind])
    importlib.import_module(f"my_{kind}")
    (name,) = set(PARTS[kind]) - before
    assert issubclass(PARTS[kind][name], getattr(grouprl, BASES[kind]))
    assert any(language == "yaml" and f"{kind}: " in text and name in text for language, text in blocks(kind))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_works(page: str) -> None:
    for _, text in blocks(page):
        if (named := NAMED.match(text)) is not None:
            Path(named[1]).write_text(text)
    for language, text in blocks(page):
        named = NAMED.match(text)
        if language == "python" and named is None:
            exec(compile(text, f"{page}.md", "exec"), {"__name__": "__page__"})
        elif language == "yaml":
            assert named is not None
            assert plan(load_config(named[1])).refusals == ()
        for line in text.splitlines() if language == "sh" else ():
            command, *arguments = shlex.split(line)
            assert command == "grouprl"
            done = CliRunner().invoke(app, [*arguments, "-q"] if arguments[0] == "train" else arguments)
            assert done.exit_code == 0, (line, done.output, done.exception)
    if any("grouprl train" in text for _, text in blocks(page)):
        assert (Path("trained") / "summary.json").is_file()
