"""JSON schemas that a server wrote: what they may refer to, and the check of a policy's arguments against them.

A schema's patterns are regular expressions, on which a policy may find a text that takes forever, and its references
may name files and addresses. So arguments are checked in a process with a clock, and nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.rewards.contract import Crowded
from grouprl.rewards.verifier_calls import Apart, Spoiled
from grouprl.tools.definition import ToolError

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
SECONDS = 1.0
"""Limit in seconds of processor time of one check."""
LONGEST = 4000
"""Largest number of characters of a complaint."""


def check_schema(schema: JsonMapping, whose: str) -> None:
    """Check that a schema is one, and refers to nothing outside itself.

    Raises:
        InputError: if it is not, or does.
    """
    from jsonschema import SchemaError, validators

    own = {"", *(str(value) for key, value in _entries(schema) if key == "$id")}
    for key, value in _entries(schema):
        if key in REFERENCES and isinstance(value, str) and value.partition("#")[0] not in own:
            rule = "a schema may refer to its own parts only, since files and addresses are not read for it"
            raise InputError(
                f"The schema of {whose} refers to {value[:200]!r}", rule, "Write that part into the schema"
            )
    try:
        validators.validator_for(schema).check_schema(schema)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path)) or "its top"
        raise InputError(f"The schema of {whose} is not a JSON schema, at {where}: {error.message[:200]}") from None


def check_arguments(schema: JsonMapping, given: JsonMapping) -> None:
    """Check arguments against a schema.

    Raises:
        ToolError: with the first argument that does not fit, or if the check itself takes too long.
        TimeoutError: if this machine is too busy to check them.
    """
    try:
        found = _fault_apart(dict(schema), dict(given))
    except Crowded as error:
        raise TimeoutError(f"the arguments could not be checked: {error}") from None
    if isinstance(found, Spoiled):
        raise ToolError(f"the arguments cannot be checked: {found.why}")
    if found:
        raise ToolError(str(found))


def fault(schema: JsonMapping, given: JsonMapping) -> str:
    """Return the first thing that does not fit a schema, with its place; '' if everything fits."""
    from jsonschema import exceptions, validators
    from referencing import Registry

    checker = validators.validator_for(schema)(schema, registry=Registry())  # it knows no way to fetch anything
    wrong = exceptions.best_match(checker.iter_errors(given))
    if wrong is None:
        return ""
    where = ".".join(map(str, wrong.absolute_path))
    return ": ".join(part for part in (where, wrong.message) if part)[:LONGEST]


_fault_apart = Apart("grouprl.tools.foreign_schema:fault", seconds=SECONDS)


def warm_up() -> None:
    """Check once, in the process that forks for each call, so that no fork imports anything."""
    fault({"type": "object"}, {})


def _entries(value: object) -> Iterator[tuple[str, object]]:
    """Yield the entries of all objects in a JSON value."""
    inside = [value]
    while inside:
        each = inside.pop()
        if isinstance(each, dict):
            yield from each.items()
            inside += each.values()
        elif isinstance(each, list):
            inside += each
