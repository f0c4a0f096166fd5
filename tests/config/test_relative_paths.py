"""Relative paths in a configuration from Python become absolute, and nothing else about it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouprl.config.recipe_list import recipe_names
from grouprl.config.run import absolute_paths, load_config, parse_config, with_absolute_paths


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_not_set_stays_unset(elsewhere: Path) -> None:
    config = with_absolute_paths(parse_config({"task": "addition", "run": {"folder": "here"}}))
    assert config.run.folder == str(elsewhere / "here")
    assert config.run.model_fields_set == {"folder"}
    assert config.sampling.model_fields_set == set()


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_keeps_its_settings(name: str) -> None:
    own = load_config(name, plugins=False).model_dump(mode="json", exclude_unset=True)
    config = parse_config(own | {"run": own.get("run", {}) | {"folder": "here"}}, plugins=False)
    whole = absolute_paths(config.model_dump(mode="json"), Path.cwd())
    assert with_absolute_paths(config).model_dump(mode="json") == whole
