"""Strict YAML: keys given twice, recursive values and very large files are refused."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path

import yaml

from grouprl.core.errors import InputError, shortened, unreadable

LONGEST = 1_000_000
"""Largest size of a configuration file, in bytes."""
MOST = 100_000
"""Largest number of values in a configuration, with aliases expanded."""
MERGE = "tag:yaml.org,2002:merge"


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """Build a mapping; keys that a merge (`<<`) brings in may be overridden."""
        own = [pair for pair in node.value if pair[0].tag != MERGE]
        seen: set[Hashable] = set()
        for key_node, _ in own:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key is a list or mapping", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shortened(key)} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Bring merged keys (`<<`) in, each once: a mapping's own first, then those of what it merges, in order.

        PyYAML before 6.0.4 keeps every copy of a key, so that merges of merges multiply, and from then on the wrong one
        wins (https://yaml.org/type/merge.html).
        """
        merged = [value for key, value in node.value if key.tag == MERGE]
        if len(merged) > 1:
            problem = "the key << is given twice: write <<: [*one, *other]"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if merged:
            own = [pair for pair in node.value if pair[0].tag != MERGE]
            node.value = [*self._brought_in(merged[0], {_name(key) for key, _ in own}), *own]
        super().flatten_mapping(node)

    def _brought_in(self, value: yaml.Node, known: set[object]) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the keys of what a merge names, with their values: each once, none of the `known`."""
        found = []
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                found_kind = type(source).__name__.removesuffix("Node").lower()
                problem = f"expected a mapping or list of mappings for merging, but found {found_kind}"
                raise yaml.constructor.ConstructorError(None, None, problem, source.start_mark)
            self.flatten_mapping(source)
            found += [pair for pair in source.value if _name(pair[0]) not in known]
            known |= {_name(key) for key, _ in source.value}
        return found


def _name(key: yaml.Node) -> object:
    """Return the value that shows two keys to be the same."""
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


OTHERWISE = re.compile(r"[-+]?(?:0[0-7_]+|[1-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")
"""Numbers that YAML reads in another base than they seem to have: 010 is 8, 1:30 is 90."""


def _number(loader: _Strict, node: yaml.ScalarNode) -> int | float:
    """Build a number; one that YAML would read in base 8 or 60 is refused.

    Raises:
        yaml.constructor.ConstructorError: for such a number.
    """
    integer = node.tag.endswith(":int")
    value: int | float = loader.construct_yaml_int(node) if integer else loader.construct_yaml_float(node)
    if OTHERWISE.fullmatch(node.value) and node.value.replace("_", "").lstrip("+-0") not in (str(abs(value)), ""):
        raise yaml.constructor.ConstructorError(
            None,
            None,
            f"YAML reads {node.value} as {value}: write it without a leading 0, or in quotes",
            node.start_mark,
        )
    return value


PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_Strict.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix("tag:yaml.org,2002:") in PLAIN
}
_Strict.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.add_constructor("tag:yaml.org,2002:int", _number)
_Strict.add_constructor("tag:yaml.org,2002:float", _number)
"""Dates stay strings, and types that JSON does not have are refused."""


def read_yaml(text: str, where: str) -> object:
    """Return the value of a YAML text; `where` names it in messages.

    Raises:
        InputError: for broken YAML, a key given twice, values nested too deeply or within themselves, or too many.
    """
    try:
        value = yaml.load(text, Loader=_Strict)
        size = _size(value, {})
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise InputError(*_in_words(error, where)) from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply, or within itself", "a configuration must be finite") from None
    if size > MOST:
        raise InputError(f"{where} holds {size} values once its aliases are written out", f"at most {MOST} are read")
    return value


def _in_words(error: Exception, where: str) -> tuple[str, str, str]:
    """Return a message's parts: what is wrong with a YAML text and where, the rule, and the remedy."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return f"{where} is not valid YAML: {unreadable(error)}", "", ""
    if problem.startswith("but "):
        problem = f"{getattr(error, 'context', '')} {problem}"
    line = (mark.get_snippet(indent=0) or "").partition("\n")[0].strip()
    what = f"{where} is not valid YAML: {problem}, in line {mark.line + 1}"
    return what + (f", {shortened(line, 80)}" if line else ""), "", "Indent with spaces" if "'\\t'" in problem else ""


def _size(value: object, known: dict[int, int]) -> int:
    """Return the number of values, with aliases expanded. Raises RecursionError for a value that contains itself."""
    if not isinstance(value, Mapping | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = -1
        inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
        known[id(value)] = 1 + sum(_size(each, known) for each in inner)
    if known[id(value)] < 0:
        raise RecursionError
    return known[id(value)]


def is_file(path: Path) -> bool:
    """Return whether the path is a file; False for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_text(path: Path) -> str:
    """Return a file's text. Raises InputError when it cannot be read or is not UTF-8."""
    try:
        if (size := path.stat().st_size) > LONGEST:
            raise InputError(f"{path} has {size:,} bytes", f"a configuration has at most {LONGEST:,}", "Check the path")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}", "a configuration is text in UTF-8") from error


def check_plain(value: object) -> None:
    """Check that YAML can represent a value exactly.

    Raises:
        ValueError: naming the first value that is not a text, finite or infinite number, truth value, null, list or
            mapping of texts to these.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                comma = " A comma parts keys: write 1000 and 0.2, not 1,000 and 0,2" if inner is None else ""
                raise ValueError(f"the key {shortened(key)} is not a text.{comma}".removesuffix("." * (not comma)))
            check_plain(key)
            check_plain(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_plain(inner)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the text {shortened(value)} holds half a character") from None
    elif not isinstance(value, bool | int | float | None):
        raise ValueError(f"{shortened(value)} is of type {type(value).__name__}, which no configuration file can hold")
    elif value != value:
        raise ValueError("nan is not a number")
