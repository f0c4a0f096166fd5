"""Questions about a table, answered by a query that is actually run."""

from __future__ import annotations

import random
from collections.abc import Mapping

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.sql import PARTIAL, QueryError, run_query, sql_components, sql_reward

REASONS = {"column": "no such column", "table": "no such table", "refused": "not authorized", "error": ""}
"""The answer to each kind of failed query, and SQLite's message for it."""


class Sql(Game):
    """A question such as "pet(age,fat): top fat, age over 3>" and a database; an action is a query.

    Columns: `table`, `columns` (name -> values), `gold` (a right query) and `wrong` (queries for a demonstration's
    slips). A query that runs ends the episode; one that fails is invalid and answered with the reason and '>', and
    another may be tried. The state is the failed queries. With `partial`, the reward has the components of
    Reasoning-SQL; otherwise it is 1 for the right rows.
    """

    def __init__(self, max_turns: int, partial: bool = False, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` queries; `noise` is the chance of a demonstration's slip."""
        super().__init__(max_turns)
        self.partial, self.noise = partial, noise
        self.tables: dict[str, Mapping[str, list[int]]] = {}
        self.gold, self.query = "", ""
        self.wrong: list[str] = []
        self.failed: list[str] = []

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the table."""
        self.tables = {columns["table"]: columns["columns"]}
        self.gold, self.wrong = columns["gold"], list(columns["wrong"])

    @property
    def state(self) -> str:
        """The failed queries, "-" before the first."""
        return ";".join(self.failed) or "-"

    @property
    def correct(self) -> bool:
        """True if the last query returns the right rows."""
        return bool(self.query) and sql_components(self.query, self.gold, self.tables)["execution"] == 1

    def act(self, action: str) -> Outcome:
        """Run a query."""
        self.query = action
        try:
            run_query(action, self.tables)
        except QueryError as error:
            self.failed.append(action)
            return Outcome(f"!{_reason(str(error))}>", valid=False)
        return Outcome("ok", ended=True)

    def score(self) -> dict[str, float]:
        """Return the reward of the last query, by component."""
        components = sql_components(self.query, self.gold, self.tables) if self.query else dict.fromkeys(PARTIAL, 0.0)
        weights = PARTIAL if self.partial else {"execution": 1.0}
        return {"correct": components["execution"], **sql_reward(components, weights)}

    def demonstrate(self, rng: random.Random) -> str:
        """Return the right query, or with a certain chance a wrong one."""
        return rng.choice(self.wrong) if rng.random() < self.noise else self.gold


def _reason(message: str) -> str:
    """Return the kind of an error as one word, because SQLite's long message is of no use to a small model."""
    return next(word for word, said in REASONS.items() if said in message)
