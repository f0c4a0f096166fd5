"""Patterns and references in tools' schemas: a policy's arguments meet them under a clock, and nothing is fetched."""

from __future__ import annotations

import re
import time
from typing import Annotated

import pytest
from pydantic import Field

from grouprl.chat.turn_content import Call
from grouprl.core.errors import InputError
from grouprl.rewards.contract import Crowded
from grouprl.tools import Toolbox, ToolError, as_tool, foreign_schema, tool
from grouprl.tools.foreign_schema import check_arguments, check_schema

NESTED = "(a+)+$"
EVIL = "a" * 40 + "!"
"""A text on which the pattern takes longer than anyone waits."""
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": NESTED}}}


@tool(seconds=3.0)
def letters(a: Annotated[str, Field(pattern=re.compile(NESTED))]) -> str:
    """Return the letters."""
    return a


def unclocked(a: Annotated[str, Field(pattern=re.compile(NESTED))]) -> str:
    """Return the letters."""
    return a


unclocked.tool_options = letters.tool_options.__class__(seconds=None)  # type: ignore[attr-defined]


def test_a_compiled_pattern_meets_a_policys_text_under_the_tools_clock():
    toolbox = Toolbox([letters])
    assert toolbox.call(Call("letters", {"a": "aaa"})).text == "aaa"
    assert toolbox.call(Call("letters", {"a": "b"})).status == "malformed"
    result = toolbox.call(Call("letters", {"a": EVIL}))
    assert (result.status, result.text) == ("timeout", "error: no result within 3 s")
    assert toolbox.call(Call("letters", {"a": "aa"})).text == "aa"
    toolbox.close()


def test_a_compiled_pattern_without_a_clock_is_refused():
    with pytest.raises(InputError, match=r"'unclocked' has a compiled pattern.*seconds="):
        as_tool(unclocked)


def test_a_servers_pattern_has_a_clock():
    pytest.importorskip("jsonschema")
    check_arguments(SCHEMA, {"a": "aaa"})
    with pytest.raises(ToolError, match="a: 3 is not of type 'string'"):
        check_arguments(SCHEMA, {"a": 3})
    began = time.monotonic()
    with pytest.raises(ToolError, match=r"the arguments cannot be checked: more than 1 s of processor time"):
        check_arguments(SCHEMA, {"a": EVIL})
    assert time.monotonic() - began < 30


def test_a_machine_that_is_too_busy_is_not_the_policys_fault(monkeypatch):
    def busy(*given):
        raise Crowded("no processor")

    monkeypatch.setattr(foreign_schema, "_fault_apart", busy)
    with pytest.raises(TimeoutError, match="could not be checked: no processor"):
        check_arguments(SCHEMA, {"a": "aaa"})


@pytest.mark.parametrize("where", ["file:///etc/passwd", "http://127.0.0.1:9/x.json", "other.json#/a", "/etc/passwd"])
@pytest.mark.parametrize("key", ["$ref", "$dynamicRef"])
def test_a_schema_that_refers_to_files_or_addresses_is_refused(where, key):
    pytest.importorskip("jsonschema")
    with pytest.raises(InputError, match="its own parts only"):
        check_schema({"type": "object", "properties": {"a": {"anyOf": [{key: where}]}}}, "a tool")


def test_a_reference_that_got_past_is_not_followed(tmp_path):
    pytest.importorskip("jsonschema")
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "the secret"}')
    with pytest.raises(ToolError) as caught:
        check_arguments({"properties": {"a": {"$ref": secret.as_uri()}}}, {"a": 1})
    assert "the secret" not in str(caught.value)


def test_own_parts_may_be_referred_to():
    pytest.importorskip("jsonschema")
    whole = {"type": "integer"}
    schema = {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "n:x"}}, "$defs": {"n": {"$id": "n:x", **whole}}}
    check_schema(schema, "a tool")
    check_arguments(schema, {"a": 1, "b": 2})
    with pytest.raises(ToolError, match="b: 'x' is not of type 'integer'"):
        check_arguments(schema, {"b": "x"})


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"properties": {"a": {"pattern": "("}}}, {"required": 1}])
def test_what_is_no_schema_is_refused(schema):
    pytest.importorskip("jsonschema")
    with pytest.raises(InputError, match="is not a JSON schema"):
        check_schema(schema, "a tool")
