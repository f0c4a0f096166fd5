"""The JSON schema of a configuration takes what a run takes, and refuses what it refuses."""

from __future__ import annotations

import re

import jsonschema
import pytest

from grouprl.config.json_schema import json_schema
from grouprl.config.run import recipe_names, recipes_folder
from grouprl.config.sections.section import as_number
from grouprl.config.yaml_files import read_yaml

SCHEMA = json_schema()
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def as_an_editor_reads(value: object) -> object:
    """YAML 1.2 reads 3e-3 as a number."""
    if isinstance(value, dict):
        return {key: as_an_editor_reads(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_an_editor_reads(each) for each in value]
    return as_number(value)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid(name: str) -> None:
    text = (recipes_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    CHECK.validate(as_an_editor_reads(read_yaml(text, name)))


@pytest.mark.parametrize(
    "given",
    [
        {"model": "tiny", "plugins": "own.py"},
        {"model": {"packing": True}, "reward": {"judge": "http://127.0.0.1:8000/v1"}},
        {"reward": {"model": ["a", "b"]}, "run": {"trackers": "wandb"}},
        {"sampling": {"vllm": {"command": "vllm", "args": "--enforce-eager"}, "sglang": {"addresses": "http://a:1"}}},
    ],
)
def test_short_forms_are_valid(given: dict) -> None:
    CHECK.validate(given)


@pytest.mark.parametrize(
    "given",
    [
        {"stepps": 3},
        {"steps": "many"},
        {"optim": {"rate": 1}},
        {"batch": {"prompts": 0}},
        {"eval": 3},
        {"sampling": {"top_p": True}},
    ],
)
def test_mistakes_are_refused(given: dict) -> None:
    assert not CHECK.is_valid(given)


def test_every_key_says_what_it_means() -> None:
    silent = [
        f"{name}.{key}"
        for name, section in SCHEMA["$defs"].items()
        for key, value in section.get("properties", {}).items()
        if not re.search(r"\w{3}", value.get("description", ""))
    ]
    assert silent == []
