"""Settings, commands and options that messages name exist: a remedy that cannot be followed is worse than none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import click
import pytest
import typer.main
from pydantic import BaseModel

from grouprl.cli.app import app
from grouprl.config.run import Config

SRC = Path(__file__).parents[2] / "src" / "grouprl"
PEERS = ("core/foreign/names.py", "core/foreign/trl.py", "methods/", "config/new_files.py")
"""Sources whose texts name settings of other programs, or hold code."""
OF_CODE = ("algorithms/", "training/logprobs.py", "training/steps.py")
"""Sources whose messages are for authors of parts: there `batch` is an object of the code."""
FILES = "json|jsonl|pt|py|safetensors|sh|yaml"


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the sections in the type of a setting."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


SECTIONS = {
    name: {key for model in models_in(field.annotation) for key in model.model_fields}
    for name, field in Config.model_fields.items()
    if list(models_in(field.annotation))
}
SETTING = re.compile(rf"(?<![\w./:@-])({'|'.join(SECTIONS)})\.(?!(?:{FILES})\b)([a-z_]+)(?![\w(])")


def commands_of(command: click.Command, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield each command below one with its options."""
    yield path, {word for each in command.params for word in (*each.opts, *each.secondary_opts)} | {"--help"}
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_of(inner, f"{path} {name}".strip())


COMMANDS = dict(commands_of(typer.main.get_command(app)))


@cache
def texts() -> list[tuple[str, str]]:
    """Return the place and the text of each string of the sources that is no docstring."""
    return list(read_texts())


def read_texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each string of the sources that is no docstring; a value of it is …."""
    for path in sorted(SRC.rglob("*.py")):
        tree, name = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(SRC).as_posix()
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) not in told | inner:
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{name}:{node.lineno}", node.value
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    yield f"{name}:{node.lineno}", "".join(map(str, parts))


def unknown_settings(text: str) -> list[str]:
    """Return the settings that a text names and no configuration has."""
    return [found[0] for found in SETTING.finditer(text) if found[2] not in SECTIONS[found[1]]]


def unknown_options(text: str) -> list[str]:
    """Return the options that a text gives to a command that lacks them; those behind `launch` are another's."""
    wrong = []
    for found in re.finditer(r"grouprl ([a-z](?:(?!\. )[^\n;`'])*)", text):
        words = found[1].split()
        known = next((n for n in (2, 1) if " ".join(words[:n]) in COMMANDS and len(words) >= n), 0)
        options = COMMANDS.get(" ".join(words[:known]), set()) if known and words[0] != "launch" else None
        given = re.findall(r"(?<![\w-])--[a-z][a-z-]+", found[1])
        wrong += [f"{words[0]} {each}" for each in given if options is not None and each not in options]
    return wrong


def unknown_commands(text: str) -> list[str]:
    """Return the commands that a text tells to give, in backquotes or behind a colon, and that do not exist."""
    return [name for name in re.findall(r"(?:`|: )grouprl ([a-z][a-z-]*)", text) if name not in COMMANDS]


def test_settings_that_messages_name_exist() -> None:
    told = [(place, text) for place, text in texts() if not place.startswith((*PEERS, *OF_CODE))]
    assert sum(bool(SETTING.search(text)) for _, text in told) > 200
    assert [(place, wrong) for place, text in told for wrong in unknown_settings(text)] == []


def test_commands_and_options_that_messages_name_exist() -> None:
    told = texts()
    assert sum("grouprl " in text for _, text in told) > 60
    assert [(place, each) for place, text in told for each in unknown_options(text) + unknown_commands(text)] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Raise optim.lr, and optim.rate", ["optim.rate"]),
        ("See: grouprl metods", ["metods"]),
        ("Use `grouprl plan run.yaml --powr 3`", ["plan --powr"]),
        ("Write run.yaml; grouprl launch -n 2 train run.yaml --resume", []),
    ],
)
def test_what_does_not_exist_is_found(text: str, wrong: list[str]) -> None:
    assert unknown_settings(text) + unknown_commands(text) + unknown_options(text) == wrong
