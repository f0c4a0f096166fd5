"""Rewards of read documents: each kind of block, text, formulas and tables, is compared in its own way (FD-RL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from grouprl.rewards.contract import known_examples

Kind = Literal["text", "formula", "table"]
Table: TypeAlias = tuple[tuple[str, ...], ...]
KINDS: tuple[Kind, ...] = ("text", "formula", "table")
LONGEST = 2000
"""Largest number of characters of a page that is compared; a longer one scores 0."""


def kind_of(line: str) -> Kind:
    """Return what a line of a page is: a formula between dollar signs, a row of a table with "&", or text."""
    if len(line) > 1 and line[0] == line[-1] == "$":
        return "formula"
    return "table" if "&" in line else "text"


def blocks(page: str) -> dict[Kind, list[str]]:
    """Return the lines of a page by their kind, in their order; a kind that does not occur is left out."""
    found: dict[Kind, list[str]] = {}
    for line in page.split("\n"):
        if line:
            found.setdefault(kind_of(line), []).append(line)
    return found


def edits(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the edit distance of two sequences: the fewest items to insert, delete or exchange."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def likeness(a: str, b: str) -> float:
    """Return 1 - edit distance / length of the longer text; 1 for two empty ones."""
    return 1 - edits(a, b) / max(len(a), len(b), 1)


def table_of(lines: Sequence[str]) -> Table:
    """Return the cells of a table's rows, which "&" separates."""
    return tuple(tuple(line.split("&")) for line in lines)


def table_likeness(a: Table, b: Table) -> float:
    """Return the tree-edit similarity of two tables, TEDS: 1 - edit distance of the trees / nodes of the larger.

    A tree has the table as its root, rows below it, and cells below these. Inserting or deleting a node costs 1;
    exchanging cells costs 1 - `likeness` of their texts (Zhong et al. 2020, arXiv:1911.10683, section 5). The distance
    is exact (Zhang and Shasha 1989).
    """
    ours, theirs = _Tree(a), _Tree(b)
    return 1 - _distance(ours, theirs) / max(len(ours.labels), len(theirs.labels))


class _Tree:
    """A table's nodes in postorder: `labels` (the text of a cell; None for rows and the root) and `first`, the number
    of each node's leftmost leaf.
    """

    def __init__(self, table: Table) -> None:
        self.labels: list[str | None] = []
        self.first: list[int] = []
        for row in table:
            start = len(self.labels)
            self.labels += [*row, None]
            self.first += [*range(start, start + len(row)), start]
        self.labels.append(None)
        self.first.append(0)

    @property
    def keyroots(self) -> list[int]:
        """Nodes with a sibling to their left, and the root."""
        return sorted({first: node for node, first in enumerate(self.first)}.values())


def _cost(a: str | None, b: str | None, depth_alike: bool) -> float:
    if a is None or b is None:
        return 0.0 if a is b and depth_alike else 1.0
    return 1 - likeness(a, b)


def _distance(a: _Tree, b: _Tree) -> float:
    """Return the edit distance of two trees, filled in from pairs of smaller subtrees."""
    tree = [[0.0] * len(b.labels) for _ in a.labels]
    for i in a.keyroots:
        for j in b.keyroots:
            _fill(tree, a, b, i, j)
    return tree[-1][-1]


def _fill(tree: list[list[float]], a: _Tree, b: _Tree, i: int, j: int) -> None:
    """Write the distances of all subtrees below the nodes `i` and `j` that begin at their leftmost leaves."""
    low_a, low_b = a.first[i], b.first[j]
    forest = [[float(y) for y in range(j - low_b + 2)]]
    for x in range(low_a, i + 1):
        above, row = forest[-1], [forest[-1][0] + 1]
        for y in range(low_b, j + 1):
            whole = a.first[x] == low_a and b.first[y] == low_b
            if whole:
                roots = (x == len(a.labels) - 1) == (y == len(b.labels) - 1)
                kept = above[y - low_b] + _cost(a.labels[x], b.labels[y], roots)
            else:
                kept = forest[a.first[x] - low_a][b.first[y] - low_b] + tree[x][y]
            row.append(min(above[y - low_b + 1] + 1, row[-1] + 1, kept))
            if whole:
                tree[x][y] = row[-1]
        forest.append(row)


MEASURES: dict[Kind, Callable[[list[str], list[str]], float]] = {
    "text": lambda a, b: likeness("\n".join(a), "\n".join(b)),
    "formula": lambda a, b: likeness("\n".join(a), "\n".join(b)),
    "table": lambda a, b: table_likeness(table_of(a), table_of(b)),
}
"""The comparison of the lines of each kind."""


@known_examples(
    ("ab c\n$a+b$\n1&2", {"answer": "ab c\n$a+b$\n1&2"}, True),
    ("ab c\n$a+b$\n1&3", {"answer": "ab c\n$a+b$\n1&2"}, False),
    ("ab c", {"answer": "ab c\n1&2"}, False),
    ("ab c\n1&2", {"answer": "ab c"}, False),
    ("", {"answer": "ab c"}, False),
)
def document(completion: str, answer: str) -> dict[str, float]:
    """Return FD-RL's reward of a page that was read: the mean over its kinds of block, each by its own measure.

    Text and formulas earn 1 - edit distance / length of the longer, tables their TEDS (`table_likeness`). `correct` is
    1 only for the page itself. Differs: formulas by edits where the paper may render them (its measure is not known to
    us); a kind that the page lacks and the completion has counts as 0, so that nothing can be added without a loss.
    """
    right = blocks(answer)
    said = blocks(completion) if len(completion) <= LONGEST else {}
    kinds = [kind for kind in KINDS if kind in right or kind in said]
    earned = {kind: MEASURES[kind](said[kind], right[kind]) for kind in kinds if kind in said and kind in right}
    shares = {str(kind): earned.get(kind, 0.0) / max(1, len(kinds)) for kind in KINDS}
    return shares | {"correct": float(completion == answer)}
