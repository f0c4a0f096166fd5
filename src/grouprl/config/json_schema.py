"""The JSON schema of a configuration, by which editors complete keys, show what they mean, and underline mistakes."""

from __future__ import annotations

from grouprl.config.run import Config
from grouprl.core.json_types import JsonObject
from grouprl.core.numbers import is_number

TEXT: JsonObject = {"type": "string"}
TEXTS: JsonObject = {"type": "array", "items": TEXT}
SHORT_FORMS: dict[tuple[str, str], tuple[JsonObject, ...]] = {
    ("", "model"): (TEXT,),
    ("", "plugins"): (TEXT,),
    ("Reward", "judge"): (TEXT,),
    ("Reward", "model"): (TEXT, TEXTS),
    ("Run", "trackers"): (TEXT, {"type": "object"}),
    ("Placing", "ray"): ({"const": False},),
    **{(section, key): (TEXT,) for section in ("Vllm", "Sglang") for key in ("addresses", "command", "args")},
    **{("Model", key): ({"type": "boolean"},) for key in ("packing", "shared_prefix", "checkpointing")},
}
"""By section and key: what a file may hold besides what the schema's type says; YAML reads on and off as booleans."""

BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
"""JSON Schema's names of bounds, by pydantic's own, which it writes where another check comes first."""


def json_schema() -> JsonObject:
    """Return the schema, draft 2020-12, of what a YAML file may hold.

    Names, types, bounds, defaults and meanings are in it; what does not fit together is not: `grouprl plan` refuses it.
    """
    schema: JsonObject = _in_its_words(Config.model_json_schema())
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A run of grouprl"}
    for (section, key), forms in SHORT_FORMS.items():
        within = schema["$defs"][section] if section else schema
        full = within["properties"][key]
        words = {name: full.pop(name) for name in ("description", "default", "title") if name in full}
        within["properties"][key] = {**words, "anyOf": [*full.pop("anyOf", [full] if full else []), *forms]}
    return schema


def _in_its_words(value: JsonObject) -> JsonObject:
    """Return a part of a schema with JSON Schema's names of bounds, at any depth."""
    return {BOUNDS.get(key, key) if is_number(each) else key: _inner(each) for key, each in value.items()}


def _inner(value: object) -> object:
    if isinstance(value, dict):
        return _in_its_words(value)
    return [_inner(each) for each in value] if isinstance(value, list) else value
