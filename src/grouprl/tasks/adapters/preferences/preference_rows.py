"""One row of preference data: its prompt, its completions and their rewards, in the formats that TRL reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonMapping
from grouprl.records.examples import Chat, Message
from grouprl.records.scores import LARGEST
from grouprl.tasks.adapters.jsonl import parse_strictly, reason_of

PICTURES = ("image", "images")
"""Columns of pictures, which no policy here reads."""
SHOWN = ("tools", "chat_template_kwargs")
"""Columns beside the messages that the chat template gets."""
WORDS = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}
"""Labels as a CSV file writes them."""
WRITTEN = re.compile(r"""\s*\[\s*\{\s*(['"])(?:role|content)\1\s*:""")
"""The beginning of chat messages that stand in a text, as JSON or as Python writes them."""


@dataclass(frozen=True)
class Names:
    """The columns of a data set whose names are options; the others have the names that TRL gives them."""

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    tie: str | None = None
    completion: str = "completion"
    ratings: tuple[str, ...] = ()
    reference: str | None = "reference"


@dataclass(frozen=True)
class Judged:
    """A prompt and its completions, each text or a list of chat messages, with a reward per completion."""

    prompt: object
    completions: tuple[object, ...]
    rewards: tuple[float, ...]
    tied: bool = False
    """Whether none of the completions is better than another, although they were compared."""
    components: Mapping[str, float] = field(default_factory=dict)
    """The parts of the reward of each completion, by name."""


@dataclass(frozen=True)
class Format:
    """A format of preference data, known by its columns."""

    name: str
    columns: tuple[str, ...]
    says: str
    read: Callable[[JsonMapping, Names, str], Judged] = field(compare=False)


def format_of(row: JsonMapping, names: Names, label: str) -> Format:
    """Return the format of a data set, decided by the columns of a row: the first of `formats` whose columns it has.

    Raises:
        InputError: labels of steps, both scores and a ranking, or columns of no format.
    """
    if names.ratings:
        columns = (names.prompt, names.completion, *names.ratings)
        return Format("ratings", columns, "a completion with a number for each attribute", rated)
    if {"completions", "labels"} <= row.keys() and not {names.chosen, names.rejected} <= row.keys():
        raise InputError(
            f"{label} has a label for each step of a completion ('completions', 'labels')",
            "a label of this task belongs to a whole completion",
            "Use the task step_labels:FILE for a process reward model, or write one row per completion, with prompt, "
            "completion and label",
        )
    if {"completions", "scores", "ranking"} <= row.keys():
        raise InputError(f"{label} has 'scores' and 'ranking'", "one of them orders the completions", "Leave one out")
    known = formats(names)
    found = next((each for each in known if set(each.columns) <= row.keys()), None)
    if found is None:
        needed = "; ".join(f"{', '.join(each.columns)} ({each.name})" for each in known)
        raise InputError(
            f"{label} has the columns {', '.join(row) or 'none'}",
            f"preference data has the columns {needed}",
            "Rename the columns, or name those of pairs with the options 'prompt', 'chosen' and 'rejected'",
        )
    return found


def formats(names: Names) -> tuple[Format, ...]:
    """Return the formats in the order in which they are looked for."""
    pair, prompt = (names.chosen, names.rejected), names.prompt
    better = "a pair, and a completion better than both to imitate"
    triples = () if names.reference is None else (Format("triples", (prompt, *pair, names.reference), better, triple),)
    return (
        *triples,
        Format("pairs", (prompt, *pair), "two completions of a prompt, the better one named", explicit_pair),
        Format("pairs with their prompt inside", pair, "the beginning that two texts share is the prompt", pair_inside),
        Format("scored lists", (prompt, "completions", "scores"), "completions with a score each", scored_list),
        Format("ranked lists", (prompt, "completions", "ranking"), "completions with a rank each, 1 best", ranked_list),
        Format("labels", (prompt, names.completion, "label"), "a completion that is right or wrong", labelled),
        Format("demonstrations", (prompt, names.completion), "a completion to imitate", demonstrated),
    )


def common_prompt(chosen: Sequence[object], rejected: Sequence[object]) -> int:
    """Return how many characters or messages of two completions are their prompt: those that they begin with alike.

    A space before the first difference belongs to the completions. If one is the beginning of the other, the last
    character or message of the shorter one is its completion. This is the rule of `extract_prompt` in TRL 1.16, except
    where nothing is shared: there TRL may take all but the last character of the chosen one.
    """
    alike = zip(chosen, rejected, strict=False)
    shared = next((place for place, (one, other) in enumerate(alike) if one != other), None)
    if shared is None:
        return max(0, min(len(chosen), len(rejected)) - 1)
    return shared - 1 if shared and chosen[shared - 1] == " " else shared


def explicit_pair(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a pair whose prompt is a column; one of text beside whole conversations is a copy of their beginning."""
    prompt, chosen, rejected = row[names.prompt], row[names.chosen], row[names.rejected]
    if isinstance(prompt, str) and is_conversation(chosen) and is_conversation(rejected):
        place = common_prompt(chosen, rejected)
        if place:
            prompt, chosen, rejected = chosen[:place], chosen[place:], rejected[place:]
    return _pair(row, names, label, prompt, chosen, rejected)


def triple(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return the completion to imitate, the winner and the loser of a pair: TRL's TPO has the first as `reference`."""
    pair = explicit_pair(row, names, label)
    assert names.reference is not None
    gold = _completion(row, names.reference, label)
    return Judged(pair.prompt, (*pair.completions, gold), (1.0, 0.0, 2.0), pair.tied)


def pair_inside(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a pair whose prompt is the beginning that both texts, or both conversations, share."""
    chosen, rejected = row[names.chosen], row[names.rejected]
    both = isinstance(chosen, str) and isinstance(rejected, str)
    if not both and not (is_conversation(chosen) and is_conversation(rejected)):
        raise InputError(
            f"'{names.chosen}' and '{names.rejected}' in {label} are {shortened(chosen)} and {shortened(rejected)}",
            f"without a column '{names.prompt}' both are texts or both are conversations, which begin with the prompt",
        )
    place = common_prompt(chosen, rejected)
    if not place:
        raise InputError(
            f"'{names.chosen}' and '{names.rejected}' in {label} have no common beginning",
            f"without a column '{names.prompt}' the prompt is what both begin with",
            f"Add the column '{names.prompt}', or leave the row out",
        )
    return _pair(row, names, label, chosen[:place], chosen[place:], rejected[place:])


def scored_list(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a list of completions whose rewards are their scores."""
    return _listed(row, names, label, [finite_number(each, "score", label) for each in _list(row, "scores", label)])


def ranked_list(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a list of completions by rank (1 is best): the reward is how far a rank is above the worst one."""
    ranks = [finite_number(each, "rank", label) for each in _list(row, "ranking", label)]
    if any(rank < 1 or rank != int(rank) for rank in ranks):
        raise InputError(
            f"The ranking in {label} is {shortened(row['ranking'])}", "ranks are whole numbers from 1, the best"
        )
    return _listed(row, names, label, [max(ranks) - rank for rank in ranks])


def labelled(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a single completion with reward 1 or 0."""
    given = row["label"]
    value = WORDS.get(given.strip().lower()) if isinstance(given, str) else given
    if value not in (0, 1) or value is None:
        raise InputError(f"The label in {label} is {shortened(given)}", "a label is true or false, or 1 or 0")
    return Judged(row[names.prompt], (_completion(row, names.completion, label),), (float(value),))


def demonstrated(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a single completion with reward 1."""
    return Judged(row[names.prompt], (_completion(row, names.completion, label),), (1.0,))


def rated(row: JsonMapping, names: Names, label: str) -> Judged:
    """Return a single completion whose reward is the mean of its ratings, which are its components."""
    found = {name: finite_number(row[name], f"rating '{name}'", label) for name in names.ratings}
    reward = sum(found.values()) / len(found)
    return Judged(row[names.prompt], (_completion(row, names.completion, label),), (reward,), components=found)


def is_conversation(given: object) -> bool:
    """Return whether a cell holds chat messages: a list that begins with a mapping that has a role."""
    return isinstance(given, list | tuple) and bool(given) and isinstance(given[0], Mapping) and "role" in given[0]


def without_nulls(row: JsonMapping) -> JsonMapping:
    """Return a row whose messages, tools and template variables have no null keys, at any depth.

    A table fills in the keys that the other mappings of a column have: an argument of another tool's call, a parameter
    of another tool.
    """
    return {name: _whole(value) if name in SHOWN else _spoken(value) for name, value in row.items()}


def _spoken(cell: object) -> object:
    if is_conversation(cell):
        return _whole(cell)
    return [_spoken(each) for each in cell] if isinstance(cell, list | tuple) else cell


def _whole(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _whole(each) for key, each in value.items() if each is not None}
    return [_whole(each) for each in value] if isinstance(value, list | tuple) else value


def announced(prompt: str | tuple[Message, ...], row: JsonMapping, label: str) -> str | tuple[Message, ...]:
    """Return a prompt of messages with the tools and variables of its row, which the chat template gets; text as it is.

    Raises:
        InputError: as `chat_settings` does.
    """
    tools, variables = chat_settings(row, label)
    if isinstance(prompt, str) or not (tools or variables):
        return prompt
    return cast(tuple[Message, ...], Chat(cast(Sequence[JsonMapping], prompt), tools, variables))


def chat_settings(row: JsonMapping, label: str) -> tuple[Sequence[JsonMapping], JsonMapping]:
    """Return the tools and the template's variables of a conversation, from `tools` and `chat_template_kwargs`.

    Raises:
        InputError: they are not a list of schemas (or its JSON) and a mapping.
    """
    given, variables = row.get("tools"), row.get("chat_template_kwargs")
    tools = (_parsed(given, label) if isinstance(given, str) else given) or []
    if not isinstance(tools, list | tuple) or not all(isinstance(each, Mapping) for each in tools):
        raise InputError(f"The tools in {label} are {shortened(tools)}", "tools are a list of JSON schemas")
    if not isinstance(variables or {}, Mapping):
        raise InputError(f"'chat_template_kwargs' in {label} is {shortened(variables)}", "it must be a mapping")
    return tuple(tools), dict(variables or {})


def _parsed(tools: str, label: str) -> object:
    try:
        return parse_strictly(tools)
    except (ValueError, RecursionError) as error:
        what = f"The tools in {label} are not JSON: {reason_of(error)}"
        raise InputError(what, "tools are a list of schemas") from error


def _pair(row: JsonMapping, names: Names, label: str, prompt: object, chosen: object, rejected: object) -> Judged:
    cells = {names.chosen: chosen, names.rejected: rejected}
    if _begins_with(chosen, prompt):
        raise InputError(
            f"'{names.chosen}' in {label} begins with the messages of '{names.prompt}'",
            "beside a column with the prompt a completion holds what comes after it",
            f"Leave out '{names.prompt}': it is then found as what both conversations begin with",
        )
    winner, loser = (_completion(cells, column, label) for column in cells)
    return Judged(prompt, (winner, loser), (1.0, 0.0), winner == loser or _tie(row, names.tie, label))


def _begins_with(completion: object, prompt: object) -> bool:
    """Return whether a conversation begins with the messages of a prompt."""
    if not (isinstance(completion, list | tuple) and isinstance(prompt, list | tuple) and prompt):
        return False
    return list(completion[: len(prompt)]) == list(prompt)


def _tie(row: JsonMapping, column: str | None, label: str) -> bool:
    if column is None:
        return False
    value = row.get(column)
    value = WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    if value not in (0, 1) or value is None:
        raise InputError(f"The column '{column}' in {label} is {shortened(row.get(column))}", "a tie is true or false")
    return bool(value)


def _listed(row: JsonMapping, names: Names, label: str, rewards: Sequence[float]) -> Judged:
    given = _list(row, "completions", label)
    if len(given) < 2 or len(given) != len(rewards):
        raise InputError(
            f"{label} has {len(given)} completions and {len(rewards)} scores or ranks",
            "a list has at least two completions, and one score or rank for each",
        )
    texts = tuple(_completion({"completions": each}, "completions", label) for each in given)
    return Judged(row[names.prompt], texts, tuple(rewards), len(set(rewards)) == 1)


def _list(row: JsonMapping, column: str, label: str) -> Sequence[object]:
    value = row[column]
    if not isinstance(value, list | tuple):
        remedy = "A CSV file holds no lists: use JSON lines or Parquet" if isinstance(value, str) else ""
        raise InputError(
            f"'{column}' in {label} is {shortened(value)}", "it must be a list, one entry per completion", remedy
        )
    return value


def finite_number(given: object, what: str, label: str) -> float:
    """Return a score, rank or margin as a number; a CSV file has it as text. Raises InputError if it is not a number,
    or is larger than a reward may be.
    """
    given = _number_in(given) if isinstance(given, str) else given
    if isinstance(given, bool) or not isinstance(given, int | float) or not abs(given) <= LARGEST:
        raise InputError(
            f"A {what} in {label} is {shortened(given)}", f"a {what} is a finite number within ±{LARGEST:g}"
        )
    return float(given)


def _number_in(text: str) -> object:
    """Return the number that a text spells, else the text, such as 1_0, which only Python reads as a number."""
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _completion(row: JsonMapping, column: str, label: str) -> object:
    """Return a completion, after a check of its form; its messages are checked when they are read."""
    if column not in row:
        raise InputError(
            f"The column '{column}' is missing in {label}", f"the first row has it; it has {', '.join(row)}"
        )
    given = row[column]
    refuse_written(row, (column,), label)
    if isinstance(given, str) and given:
        return given
    if not is_conversation(given):
        raise InputError(
            f"The completion '{column}' in {label} is {given!r}"[:400],
            "a completion is text, or a list of messages that begins and ends with one of the assistant",
        )
    roles = [each.get("role") if isinstance(each, Mapping) else None for each in given]
    if roles[0] != "assistant":
        raise InputError(
            f"The completion '{column}' in {label} begins with a message of the role {roles[0]!r}",
            "completions of a group answer one prompt, and the assistant's message comes first",
            "Leave the row out, or give the prompt in a column of its own",
        )
    if roles[-1] != "assistant":
        raise InputError(
            f"The completion '{column}' in {label} ends with a message of the role {roles[-1]!r}",
            "only what the assistant writes is learned, so its message comes last",
        )
    return given


def refuse_written(row: JsonMapping, columns: Iterable[str], label: str) -> None:
    """Raise InputError for a cell of one of the columns that is a text with chat messages written out."""
    for column in columns:
        given = row.get(column)
        if isinstance(given, str) and WRITTEN.match(given) and given.rstrip().endswith("]"):
            raise InputError(
                f"The column '{column}' in {label} is {shortened(given)}",
                "these are chat messages written out as text, and would be learned as text, brackets and all",
                "Give lists of messages: JSON lines and Parquet hold them, a CSV file does not",
            )


def refuse_pictures(row: JsonMapping, label: str) -> None:
    """Raise InputError for a row with a picture; an empty cell of such a column does not count."""
    for column in PICTURES:
        if row.get(column) not in (None, "", [], ()):
            raise InputError(
                f"{label} has the column '{column}'",
                "policies here read text, and would be trained on prompts without their pictures",
                "Leave out the rows that need a picture, and the column",
            )
