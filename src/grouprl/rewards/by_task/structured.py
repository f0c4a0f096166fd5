"""Rewards of JSON completions: objects with the right values, and tool calls."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from grouprl.core.json_types import JsonMapping, JsonObject, same_value
from grouprl.rewards.contract import known_examples

CALLS = re.compile(
    r"\s*(?:<think>(?:(?!</?think>).)+</think>\s*)?<tool_call>\n(?P<calls>[^<>]*)\n</tool_call>\s*", re.DOTALL
)
Call = JsonMapping
BRACKETS = re.compile(r"[\[\]{}]")
DEEPEST = 100
"""Largest number of levels of nesting of a JSON object; a deeper one cannot be read."""


@known_examples(
    ('{"age": 7, "name": "ann"}', {"answer": '{"name": "ann", "age": 7}'}, True),
    ('{"name": "ann"}', {"answer": '{"name": "ann", "age": 7}'}, False),
    ("ann", {"answer": '{"name": "ann"}'}, False),
)
def json_match(completion: str, answer: str, pairs: float = 0.6, length: float = 0.2) -> dict[str, float]:
    """Return a schema reward after ThinkJSON (Agarwal et al. 2025, arXiv 2502.14905); the right object earns 1.

    The sum of `pairs` times the share of right key-value pairs (among those of either object), `length` times the
    ratio of the numbers of characters, and the rest for being an object. Anything else earns nothing. The paper's
    weights are not known to us.

    Raises:
        ValueError: if the answer is not a JSON object.
    """
    wanted = read_object(answer)
    if wanted is None:
        raise ValueError(f"the column 'answer' is not a JSON object: {answer!r}")
    found = read_object(completion)
    if found is None:
        return {"pairs": 0.0, "length": 0.0, "format": 0.0, "correct": 0.0}
    keys = {*found, *wanted}
    share = sum(key in found and key in wanted and same_value(found[key], wanted[key]) for key in keys) / max(
        1, len(keys)
    )
    ours, theirs = len(completion.strip()), len(answer)
    near = min(ours, theirs) / max(ours, theirs)
    form = 1 - pairs - length
    return {
        "pairs": pairs * share,
        "length": length * near,
        "format": form,
        "correct": float(same_value(found, wanted)),
    }


@known_examples(
    ('n7|{"age": 7}', {"answer": '{"age": 7}'}, True),
    ('{"age": 7}', {"answer": '{"age": 7}'}, True),
    ('{"age": 7}|', {"answer": '{"age": 7}'}, False),
)
def json_after_thought(completion: str, answer: str, pairs: float = 0.6, length: float = 0.2) -> dict[str, float]:
    """Return `json_match` of what follows the first bar, or of the whole text if there is none."""
    thought, bar, said = completion.partition("|")
    return json_match(said if bar else thought, answer, pairs, length)


@known_examples(
    (
        '<tool_call>\n{"name": "add", "parameters": {"a": 1}}\n</tool_call>',
        {"answer": '{"name": "add", "parameters": {"a": 1}}'},
        True,
    ),
    (
        '<tool_call>\n{"name": "add", "parameters": {"a": 2}}\n</tool_call>',
        {"answer": '{"name": "add", "parameters": {"a": 1}}'},
        False,
    ),
    ('{"name": "add", "parameters": {"a": 1}}', {"answer": '{"name": "add", "parameters": {"a": 1}}'}, False),
)
def tool_calls(completion: str, answer: str, scale: float = 3.0) -> dict[str, float]:
    """Return ToolRL's graded reward (Qian et al. 2025, arXiv 2504.13958): format 0 or 1, calls in [-scale, scale].

    The format is one <tool_call> block, optionally after a thought, with a JSON call on every line: an object with
    "name" and "parameters". `answer` holds the right calls, one per line.

    Raises:
        ValueError: if the answer holds no calls.
    """
    wanted = read_calls(answer)
    if not wanted:
        raise ValueError(f"the column 'answer' holds no tool calls: {answer!r}")
    block = CALLS.fullmatch(completion)
    found = None if block is None else read_calls(block["calls"])
    right = found is not None and same_calls(found, wanted)
    graded = -1.0 if found is None else 2 * call_score(found, wanted) - 1
    return {"format": float(block is not None), "calls": scale * graded, "correct": float(right)}


def same_calls(found: Sequence[Call], wanted: Sequence[Call]) -> bool:
    """Return whether two lists hold the same calls, in any order."""
    left = list(found)
    for call in wanted:
        place = next((i for i, each in enumerate(left) if same_value(_bare(each), _bare(call))), None)
        if place is None:
            return False
        del left[place]
    return not left


def call_score(found: Sequence[Call], wanted: Sequence[Call]) -> float:
    """Return the similarity of the found calls to the wanted ones, in [0, 1], by names, parameters and values.

    The score is match(names), plus match(parameter names) and the number of right values of the best unused found call
    of the same name for every wanted call, over the largest score 1 + Σ (1 + parameters). `match` is the Jaccard index
    of multisets.
    """
    score, unused = overlap([c["name"] for c in found], [c["name"] for c in wanted]), list(found)
    for call in wanted:
        fitting = [
            (_parameter_score(each["parameters"], call["parameters"]), i)
            for i, each in enumerate(unused)
            if each["name"] == call["name"]
        ]
        if fitting:
            best, place = max(fitting, key=lambda pair: (pair[0], -pair[1]))
            score += best
            del unused[place]
    return score / (1 + sum(1 + len(call["parameters"]) for call in wanted))


def overlap(ours: Collection[object], theirs: Collection[object]) -> float:
    """Return the Jaccard index of two multisets; 1 if both are empty."""
    first, second = Counter(ours), Counter(theirs)
    union = sum((first | second).values())
    return sum((first & second).values()) / union if union else 1.0


def read_object(text: str) -> dict[str, object] | None:
    """Return the JSON object in a text; None if it is not one, repeats a key or holds a number that is not finite."""
    if _depth(text) > DEEPEST:
        return None  # a value that can barely be parsed could not be serialised again
    try:
        found = strict_json(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def strict_json(text: str) -> object:
    """Return the value of strict JSON: all numbers are finite, and no object repeats a key.

    Raises:
        ValueError: if the text is not such a value.
        RecursionError: if it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_object)


def _refuse(name: str) -> float:
    raise ValueError(f"{name[:20]} is not a finite number")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse(text)


def _object(pairs: list[tuple[str, object]]) -> JsonObject:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")
    return found


def _depth(text: str) -> int:
    """Return the nesting depth of brackets in a text, including those inside strings."""
    depth = most = 0
    for sign in BRACKETS.findall(text):
        depth += 1 if sign in "[{" else -1
        most = max(most, depth)
    return most


def read_calls(text: str) -> list[dict[str, object]] | None:
    """Return the tool calls of a text, one per line; None if a line is not a tool call."""
    calls = [read_object(line) for line in text.strip().splitlines()]
    good = [call for call in calls if call is not None and _is_call(call)]
    return good if len(good) == len(calls) else None


def _parameter_score(ours: Mapping[str, object], theirs: Mapping[str, object]) -> float:
    return overlap(list(ours), list(theirs)) + sum(
        key in ours and same_value(ours[key], value) for key, value in theirs.items()
    )


def _is_call(call: Mapping[str, object]) -> bool:
    return isinstance(call.get("name"), str) and isinstance(call.get("parameters"), dict)


def _bare(call: Call) -> dict[str, object]:
    return {"name": call["name"], "parameters": call["parameters"]}
