"""The configuration page is the schema, and every key says what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from configuration import configuration_page, sections
from grouprl.config.run import Config

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_made_from_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), "run: python scripts/generate_docs.py"


@pytest.mark.parametrize(("path", "section"), [("", Config), *sections(Config)])
def test_every_key_says_what_it_means(path: str, section: type) -> None:
    nested = {name.rpartition(".")[2] for name, _ in sections(section)}
    silent = [name for name, field in section.model_fields.items() if name not in nested and not field.description]
    assert silent == []


def test_what_must_be_given_is_said_to_be_so() -> None:
    assert "PydanticUndefined" not in configuration_page()
    assert "| `reward.judge.url` | text | must be given |" in configuration_page()
