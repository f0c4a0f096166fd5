"""The task of the simulated screen."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from grouprl.core.json_types import JsonObject
from grouprl.envs.builtin.gui_screen import Screen
from grouprl.records.examples import Columns, Example
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task

LABELS = tuple("abcdefghijkl")
FEW = 6
"""The number of labels to choose from on screens with few widgets."""
WORDS = ("ann", "bob", "eve", "ian", "joe", "kim", "lea", "max", "sam", "tom")


@register_task("screen")
class ScreenTask(EnvironmentTask):
    """Operate a simulated screen: tap a named widget, scroll to it, fill in a word.

    The prompt is "c1122 h4576:h>": the widgets of the page, each with its left, top, right and bottom, then the goals.
    Actions are "tap 45", "type bob" and "scroll"; a demonstrated tap names its widget first, "h4576 tap 45". The
    column `needed` holds the number of actions that are needed.
    """

    levels = tuple(
        {"widgets": widgets, "pages": pages, "goals": goals}
        for widgets, pages, goals in ((2, 1, 1), (3, 1, 1), (3, 1, 2), (3, 2, 1), (4, 2, 2), (4, 3, 3))
    )

    widgets: int = Field(2, ge=1, le=4, description="widgets on a page")
    pages: int = Field(1, ge=1, le=3, description="pages, shown one after the other by scrolling")
    goals: int = Field(1, ge=1, le=4, description="goals to be reached in order; every second one is a word to type")
    mixed: bool = Field(False, description="whether pages and goals are only upper bounds for each prompt")
    spare: int = Field(1, ge=0, description="turns beyond those that are needed")
    reward_: Literal["goal", "ui_r1", "gui_r1", "craft_gui"] = Field(
        "goal", alias="reward", description="what is rewarded"
    )
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 14
    """The token budget of a turn: a widget, a tap, the end, and one more."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: those that the farthest goals need, and spare turns."""
        return self.goals * self.pages + self.spare

    @property
    def alphabet(self) -> str:
        """The letters of labels, words and commands, digits, and the signs around them."""
        return "".join(sorted({*"".join((*LABELS, *WORDS)), *"taptypescrollokno"})) + "0123456789 :=,!>"

    def environment(self) -> Screen:
        """Return a fresh episode."""
        return Screen(self.max_turns, self.reward_, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return pages of widgets whose boxes do not overlap, and goals among them."""
        count, wanted = (rng.randint(1, most) if self.mixed else most for most in (self.pages, self.goals))
        labels = rng.sample(LABELS[: max(FEW, self.widgets * self.pages)], self.widgets * count)
        pages = [
            [[label, *box] for label, box in zip(labels[i::count], boxes(self.widgets, rng), strict=True)]
            for i in range(count)
        ]
        goals = [rng.choice(labels) if i % 2 == 0 else f"={rng.choice(WORDS)}" for i in range(wanted)]
        columns: JsonObject = {"pages": pages, "goals": goals}
        screen = self.environment()
        screen.begin(columns, rng)
        return f"{screen.show()}:{','.join(goals)}>", {**columns, "needed": screen.needed}

    def solve(self, example: Example) -> str:
        """Return the actions that are needed, one per line."""
        screen = self.environment()
        screen.begin(example.columns, random.Random(0))
        return "\n".join(screen.way())


def boxes(count: int, rng: random.Random) -> list[tuple[int, int, int, int]]:
    """Return boxes (left, top, right, bottom) in different quarters of the screen."""
    found = []
    for quarter in rng.sample(range(4), count):
        left, top = 5 * (quarter % 2) + rng.randint(0, 2), 5 * (quarter // 2) + rng.randint(0, 2)
        found.append((left, top, left + rng.randint(0, 2), top + rng.randint(0, 2)))
    return found
