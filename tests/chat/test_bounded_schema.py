"""Schemas under which numbers end: what they allow, and where a grammar made of them stops."""

from __future__ import annotations

import jsonschema
import pytest

from grouprl.chat.bounded_schema import bounded
from grouprl.chat.lark import JsonValue, lark_of

llguidance = pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'grouprl[grammar]'")
BYTES = llguidance.LLTokenizer("byte")
DIGITS = "1" * 60
NODE = {"$defs": {"node": {"properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/node"}}}}}


def taken(schema, text):
    """The number of characters of a text that a grammar of the bounded schema takes."""
    matcher = llguidance.LLMatcher(BYTES, lark_of(JsonValue(bounded(schema)), {}), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return next((n for n, byte in enumerate(BYTES.tokenize_str(text)) if not matcher.consume_token(byte)), len(text))


@pytest.mark.parametrize(
    ("schema", "start", "more"),
    [
        ({"type": "object"}, '{"a":', 15),
        ({"type": "array"}, "[[", 15),
        ({}, "-", 15),
        ({"type": ["number", "null"]}, "", 15),
        ({"type": "integer", "minimum": 0}, "", 15),
        ({"type": "object", "properties": {"a": {}}}, '{"a": {"b": ', 15),
        ({"type": "object", "properties": {"a": True}, "additionalProperties": True}, '{"c":', 15),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "", 15),
        ({"type": "number"}, "0.", 9),
        ({"type": "object"}, '{"a": 0.', 9),
        ({**NODE, "$ref": "#/$defs/node"}, '{"next": {"x": ', 15),
    ],
)
def test_digits_end(schema, start, more):
    assert taken(schema, start + DIGITS) == len(start) + more


@pytest.mark.parametrize("start", ["{", '{"a"', '{"a":', '{"a":1', '{"a":[', '{"a":[1'])
def test_white_space_ends(start):
    assert taken({"type": "object"}, start + " " * 60) == len(start) + 4


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, '{"a": [1, 2.5, {"b": null}], "c": "x", "d": true, "e": -3, "f": 0.125}'),
        ({}, '["a", {"b": [[]]}]'),
        ({"type": "number", "maximum": 10**17}, "12345678901234567"),
        ({"type": "number", "multipleOf": 0.5}, "2.5"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, '{"x": "y"}'),
        ({"type": "object", "properties": {"type": {"type": "string"}, "items": {"enum": [1]}}}, '{"type": "a"}'),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, '["a", 2, 3]'),
        ({**NODE, "$ref": "#/$defs/node"}, '{"x": 1.5, "next": {"x": 2}}'),
        ({"const": {"a": 123456789012345}}, '{"a":123456789012345}'),
    ],
)
def test_what_the_schema_allows_stays_allowed(schema, text):
    assert taken(schema, text) == len(text)


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "object", "additionalProperties": False}, {"a": 1}, False),
        ({"type": "object"}, {"a": {"b": [None, "x", True]}}, True),
        ({"type": "object"}, {"a": 10**16}, False),
        ({"type": "integer", "minimum": 3}, 2, False),
    ],
)
def test_bounded_schemas_are_schemas(schema, value, fits):
    jsonschema.Draft202012Validator.check_schema(bounded(schema))
    assert jsonschema.Draft202012Validator(bounded(schema)).is_valid(value) is fits
