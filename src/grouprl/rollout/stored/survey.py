"""A look at stored rows before a run: where prompt and completion meet, how long rows are, what is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.records.examples import Example, Split
from grouprl.records.offline import RowLimit, StoredRow, samples_evaluations
from grouprl.rollout.stored.boundary import StoredTokens, fitted, group_tokens
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grouprl.policy.language.text import TextModel

Rows = Callable[[Example], Sequence[StoredRow]]
SURVEYED = 2000
"""Largest number of groups of each split whose rows are encoded for a plan."""
NAMES: dict[Split, str] = {"train": "training", "eval": "held-out"}
SHOWN = 40
"""Characters of the prompt and of a completion that are shown at a boundary."""


@dataclass(frozen=True)
class Survey:
    """Tokens of the longest prompt and completion, the first reason why a group cannot be used, and notes."""

    prompt: int
    behind: int
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def survey(task: Task, stored_rows: Rows, encoder: TextModel, positions: int | None) -> Survey:
    """Encode the first groups of each split of a task with stored rows, as the run will, and count what is cut."""
    limit: RowLimit = getattr(task, "limit", RowLimit())
    most = min((each for each in (limit.tokens, positions) if each is not None), default=None)
    splits, groups = _groups(task, stored_rows)
    whole = list[list[StoredTokens]]()
    kept = list[list[StoredTokens]]()
    try:
        for example, rows in groups:
            whole.append(group_tokens(encoder, [(example, rows)], RowLimit(), None))
            sampled = most is None or rows[0].ids is not None
            kept.append(whole[-1] if sampled or most is None else fitted(whole[-1], most, limit, example.id))
    except InputError as error:
        return Survey(1, 1, (str(error),))
    left = [row for group in kept for row in group if row.fits]
    if refusal := _none_fits(splits, whole, [group[0].fits for group in kept]):
        return Survey(1, 1, (refusal,))
    return Survey(
        max((len(row.prompt_ids) for row in left), default=0),
        max((len(row.ids) for row in left), default=0),
        notes=(
            *getattr(task, "notes", ()),
            *(_boundary(encoder, groups[0][0], whole[0]) if groups else ()),
            *_lengths(kept, max(map(len, (row for group in whole for row in group)), default=0), most, limit),
            *_alike(groups, kept),
            *(() if samples_evaluations(task) else _lone(groups)),
        ),
    )


def _none_fits(splits: Sequence[Split], whole: Sequence[Sequence[StoredTokens]], fits: Sequence[bool]) -> str:
    """Return why a run cannot work if every group is left out, or every one of a split; "" if some are left in each."""
    for split in dict.fromkeys(splits):
        here = [place for place, each in enumerate(splits) if each == split or not any(fits)]
        if not any(fits[place] for place in here):
            which = f"{NAMES[split]} group" if any(fits) else "group"
            shortest = min(max(map(len, whole[place])) for place in here)
            return f"every {which} is left out: the shortest has a row of {shortest} tokens. Raise max_length"
    return ""


def _groups(task: Task, stored_rows: Rows) -> tuple[list[Split], list[tuple[Example, list[StoredRow]]]]:
    """Return the first groups of each split whose stored rows are read, and the split of each."""
    splits: tuple[Split, ...] = ("train",) if samples_evaluations(task) else ("train", "eval")
    sizes = {split: task.size(split) for split in splits}
    places = [
        (split, number)
        for split, size in sizes.items()
        for number in range(SURVEYED if size is None else min(size, SURVEYED))
    ]
    examples = [task.example(*place) for place in places]
    return [split for split, _ in places], [(example, list(stored_rows(example))) for example in examples]


def _boundary(encoder: TextModel, example: Example, group: list[StoredTokens]) -> Iterator[str]:
    """Show where the prompt of a group ends and its completions begin."""
    written = encoder.tokenizer.decode
    before = str(written(list(group[0].prompt_ids)))[-SHOWN:]
    heads = [str(written(list(row.ids)))[:SHOWN] for row in islice(group, 2)]
    yield (
        f"prompt and completion meet where the prompt's own {len(group[0].prompt_ids)} tokens end, for every row of a "
        f"group: {before!r} | {' or '.join(map(repr, heads))} ({example.id})"
    )


def _lengths(kept: list[list[StoredTokens]], longest: int, most: int | None, limit: RowLimit) -> Iterator[str]:
    """Say how many rows are cut, and how many groups are left out."""
    which = f"of the {len(kept):,} groups" if len(kept) < SURVEYED else f"of the first {len(kept):,} groups"
    if most is None or longest <= most:
        yield f"no row is cut: the longest {which} has {longest:,} tokens, prompt and completion together"
        return
    cut = [row.cut for group in kept for row in group if row.cut]
    gone = sum(not group[0].fits for group in kept)
    what = (
        f"{gone:,} {which} are left out"
        if limit.gives_way == "drop"
        else f"{sum(cut):,} tokens of {len(cut):,} rows are cut, {which}"
    )
    yield f"the longest row has {longest:,} tokens, and {most:,} are kept: {what} (truncation: {limit.gives_way})"


def _alike(groups: list[tuple[Example, list[StoredRow]]], kept: list[list[StoredTokens]]) -> Iterator[str]:
    """Say in how many groups the tokens that are left do not tell a better completion from a worse one."""
    same = [
        (example.id, _reason(rows, group))
        for (example, rows), group in zip(groups, kept, strict=True)
        if group[0].fits and rows[0].ids is None and _undecided(rows, [row.ids for row in group])
    ]
    if same:
        name, why = same[0]
        yield (
            f"{len(same):,} of the {len(groups):,} groups have a better and a worse completion of the same tokens, "
            f"from which no preference is learned; the first is {name}, where {why}"
        )


def _reason(rows: Sequence[StoredRow], group: Sequence[StoredTokens]) -> str:
    if any(row.ends_cut for row in group):
        return "max_length cuts them before they differ"
    if _undecided(rows, [(row.completion, row.messages) for row in rows]):
        return "a completion stands twice, with different rewards"
    return "the texts differ in what the chat template leaves out"


def _undecided(rows: Sequence[StoredRow], said: Sequence[object]) -> bool:
    """Return whether two rows of different rewards say the same."""
    return any(
        one == other and row.reward != each.reward
        for (row, one), (each, other) in combinations(zip(rows, said, strict=True), 2)
    )


def _lone(groups: list[tuple[Example, list[StoredRow]]]) -> Iterator[str]:
    """Say that an evaluation cannot choose among the completions of groups of one."""
    if groups and all(len(rows) == 1 for _, rows in groups):
        yield (
            "every prompt has one completion: an evaluation has none to prefer, and reports the data's own rewards, or "
            "how a reward model ranks the completions of different prompts"
        )
