"""The task of text-to-SQL."""

from __future__ import annotations

import random

from pydantic import Field

from grouprl.envs.builtin.sql import REASONS, Sql
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task

TABLES = ("pet", "car", "job", "map")
COLUMNS = ("age", "fat", "leg", "day", "win", "sun")
ASKED = {"top": "max({})", "low": "min({})", "all": "sum({})", "num": "count({})"}
COMPARED = {"over": ">", "less": "<", "same": "="}


@register_task("sql")
class SqlTask(EnvironmentTask):
    """Write the SQL query that answers a question about a generated table; it is run by SQLite.

    The prompt is "pet(age,fat): top fat, age over 3>", a correct completion
    "select max(fat) from pet where age>3".
    """

    levels = tuple(
        {"columns": columns, "conditions": conditions}
        for columns, conditions in ((2, 0), (2, 1), (3, 1), (4, 1), (4, 2), (6, 3))
    )

    columns: int = Field(2, ge=2, le=len(COLUMNS), description="columns of the table")
    conditions: int = Field(1, ge=0, le=3, description="conditions that the question names")
    rows: int = Field(8, ge=1, le=50, description="rows of the table")
    tries: int = Field(2, ge=1, description="queries allowed: one that fails may be corrected")
    partial: bool = Field(False, description="whether partly right queries are rewarded, as Reasoning-SQL does")
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    @property
    def max_turns(self) -> int:
        """The number of queries allowed."""
        return self.tries

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a turn: the longest query, its end, and a few more."""
        return 30 + 13 * self.conditions

    @property
    def alphabet(self) -> str:
        """The letters of all words, digits, and the signs of prompts and queries."""
        words = (
            *TABLES,
            *COLUMNS,
            *ASKED,
            *COMPARED,
            *REASONS,
            "select",
            "max",
            "min",
            "sum",
            "from",
            "where",
            "and",
            "ok",
        )
        return "".join(sorted(set("".join(words)))) + "0123456789 (),:*<=>!"

    def environment(self) -> Sql:
        """Return a fresh episode."""
        return Sql(self.max_turns, self.partial, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a prompt about a table of random digits."""
        table, names = rng.choice(TABLES), rng.sample(COLUMNS, self.columns)
        values = {name: [rng.randrange(10) for _ in range(self.rows)] for name in names}
        asked, of = rng.choice(list(ASKED)), rng.choice(names)
        named = rng.sample(names, min(self.conditions, self.columns))
        conditions = [(name, rng.choice(list(COMPARED)), rng.randint(1, 8)) for name in named]
        prompt = f"{table}({','.join(names)}): {asked} {of}"
        prompt += "".join(f", {name} {word} {number}" for name, word, number in conditions)
        gold = query(table, ASKED[asked].format(of), [(n, COMPARED[w], k) for n, w, k in conditions])
        return f"{prompt}>", {"table": table, "columns": values, "gold": gold, "wrong": slips(gold, names)}

    def solve(self, example: Example) -> str:
        """Return a correct query."""
        return str(example.columns["gold"])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return the correct query of a few prompts, and an empty one."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)


def query(table: str, what: str, conditions: list[tuple[str, str, int]]) -> str:
    """Return the query for `what` under conditions (column, sign, number)."""
    where = " and ".join(f"{name}{sign}{number}" for name, sign, number in conditions)
    return f"select {what} from {table}" + (f" where {where}" if where else "")


def slips(gold: str, names: list[str]) -> list[str]:
    """Return queries with a mistake: another function, column or sign, no condition, or a column that does
    not exist.
    """
    absent = [name for name in COLUMNS if name not in names][:1]
    found = {gold.partition(" where ")[0], gold.replace("select ", "", 1)}
    for first, second in (("max(", "min("), ("min(", "max("), ("sum(", "max("), ("<", ">"), (">", "<"), ("=", ">")):
        found.add(gold.replace(first, second))
    for word in (name for name in names if name in gold):
        found |= {gold.replace(word, name) for name in (*names, *absent)}
    return sorted(found - {gold})
