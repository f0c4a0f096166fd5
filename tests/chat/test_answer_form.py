"""The form that a request asks an answer to have."""

from __future__ import annotations

import pytest

from grouprl.chat.answer_form import read_format
from grouprl.chat.refusal import Refusal


def test_a_schema_that_is_only_named_is_refused() -> None:
    with pytest.raises(Refusal, match="has no schema"):
        read_format("json_schema")


def test_a_schema_is_found_in_either_place() -> None:
    schema = {"type": "object"}
    assert read_format({"type": "json_schema", "json_schema": {"schema": schema}}) == schema
    assert read_format({"type": "json_schema", "schema": schema}) == schema
