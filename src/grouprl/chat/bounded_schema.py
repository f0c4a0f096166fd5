"""JSON schemas under which every number ends: digits are bounded wherever a schema leaves them open."""

from __future__ import annotations

from collections.abc import Mapping

from grouprl.core.json_types import JsonMapping, JsonObject

LARGEST = 10**15
"""Bound on numbers whose schema sets none, because endless digits cannot be read as a number."""
FINEST = 1e-9
"""Numbers whose schema sets no step are multiples of this, so that digits after the point end, too."""
ANY = "any_value"
"""Name of the definition of any JSON value."""
ONE = ("additionalProperties", "items", "contains", "then", "else")
"""Keys whose value is a schema of something that is written."""
SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
ELSEWHERE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Keys beside which the value is described elsewhere."""


def bounded(schema: JsonMapping) -> JsonObject:
    """Return a schema that allows the same JSON, with at most 15 digits before and 9 after the point of each number.

    Numbers get bounds where they have none; values without a schema (of objects, of arrays, anything) get one of any
    value whose numbers are bounded.
    """
    found = _bounded(schema)
    return {**found, "$defs": {**found.get("$defs", {}), ANY: _any()}}


def _any() -> JsonObject:
    own = {"$ref": f"#/$defs/{ANY}"}
    return {
        "anyOf": [
            {"type": "object", "additionalProperties": own},
            {"type": "array", "items": own},
            *({"type": kind} for kind in ("string", "boolean", "null")),
            {"type": "number", **_limits({})},
        ]
    }


def _limits(schema: JsonMapping) -> JsonObject:
    """Return the bounds that a schema of numbers lacks."""
    low = {} if {"minimum", "exclusiveMinimum"} & set(schema) else {"minimum": -LARGEST}
    high = {} if {"maximum", "exclusiveMaximum"} & set(schema) else {"maximum": LARGEST}
    step = {} if "multipleOf" in schema or schema.get("type") == "integer" else {"multipleOf": FINEST}
    return {**low, **high, **step}


def _bounded(schema: JsonMapping) -> JsonObject:
    if not set(schema) - {"title", "description", "default", "examples", "$schema", "$defs", "definitions"}:
        return {**_inside(schema), "$ref": f"#/$defs/{ANY}"}
    found, kinds = _inside(schema), _kinds(schema)
    if set(ELSEWHERE) & set(schema):
        return found
    if {"number", "integer"} & kinds:
        found |= _limits(schema)
    if "object" in kinds:
        found.setdefault("additionalProperties", {"$ref": f"#/$defs/{ANY}"})
    if "array" in kinds:
        found.setdefault("items", {"$ref": f"#/$defs/{ANY}"})
    return found


def _kinds(schema: JsonMapping) -> set[str]:
    """Return the types that a schema allows; a schema with properties but without a type is one of objects."""
    given = schema.get("type", "object" if "properties" in schema else ("object", "array", "number"))
    return {given} if isinstance(given, str) else set(given)


def _inside(schema: JsonMapping) -> JsonObject:
    """Return a schema whose parts are bounded."""
    found = dict(schema)
    for key in ONE:
        if isinstance(found.get(key), Mapping):
            found[key] = _bounded(found[key])
        elif found.get(key) is True:
            found[key] = {"$ref": f"#/$defs/{ANY}"}
    for key in SEVERAL:
        if isinstance(found.get(key), list):
            found[key] = [_bounded(each) if isinstance(each, Mapping) else each for each in found[key]]
    for key in NAMED:
        if isinstance(found.get(key), Mapping):
            parts = found[key].items()
            found[key] = {name: _bounded(each) if isinstance(each, Mapping) else each for name, each in parts}
    return found
