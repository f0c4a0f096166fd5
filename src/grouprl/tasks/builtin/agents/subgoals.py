"""The task of a planner and an actor on a screen."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.gui_screen import Screen
from grouprl.envs.builtin.subgoals import ACTOR, PLANNER, Subgoals
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import KnownExample
from grouprl.tasks.builtin.agents.screen import LABELS, WORDS
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.generated import MAX_SAMPLES, too_few
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request, split_of


@register_task("subgoals")
class SubgoalsTask(EnvironmentTask):
    """A planner names the next step on a screen, and an actor without the goals takes it; trained step by step.

    The planner's prompt is "c25 h47:h>": the widgets of the page and the remaining goals; its completion is "tap h",
    "type bob" or "scroll". The actor's prompt is "c25 h47|tap h>", its completion "h47 tap 47". A training prompt is a
    single step somewhere on a path; a held-out one is a whole path.
    """

    levels = tuple(
        {"widgets": widgets, "pages": pages, "goals": goals}
        for widgets, pages, goals in ((2, 1, 1), (2, 1, 2), (2, 2, 1), (3, 2, 2), (4, 2, 3), (4, 3, 4))
    )

    widgets: int = Field(2, ge=1, le=4, description="widgets on a page")
    pages: int = Field(2, ge=1, le=3, description="pages, shown one after the other by scrolling")
    goals: int = Field(2, ge=1, le=4, description="goals to be reached in order; every second one is a word to type")
    attempts: int = Field(4, ge=1, le=16, description="attempts of the actor at each sub-goal of a single step")
    judge: Literal["none", "kind"] = Field("none", description="whether the kind of each sub-goal is rated")
    spare: int = Field(1, ge=0, description="steps of a whole path beyond those that are needed")
    noise: float = Field(0.3, ge=0, le=1, description=POOR)

    agents: ClassVar[tuple[str, ...]] = (PLANNER, ACTOR)
    """The planner, whose outcome is the episode's, and the actor."""
    max_new_tokens: ClassVar[int] = 12
    """The token budget of a turn: a widget, "tap", a place, the end, and one more."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: two per step of a whole path, or a sub-goal and its attempts."""
        return max(2 * (self.goals * self.pages + self.spare), 1 + self.attempts)

    @property
    def alphabet(self) -> str:
        """The letters of labels, words and commands, digits, and the signs around them."""
        return "".join(sorted({*"".join((*LABELS, *WORDS)), *"taptypescroll"})) + "0123456789 :=,|>"

    def environment(self) -> Subgoals:
        """Return a fresh episode."""
        return Subgoals(self.max_turns, self.attempts, self.judge, self.noise)

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` of a split: a single step in training, otherwise a whole path."""
        check_request(self.name, split, index, None)
        rng = generator(self.seed, self.name, split, index)
        for _ in range(MAX_SAMPLES):
            columns = dict(self.generate(rng)[1]) | ({} if split == "train" else {"whole": True, "done": 0})
            prompt = self._first(columns)
            if split_of(prompt) == split:
                return Example(f"{self.name}/{split}/{index}", prompt, columns, self._level_number())
        raise too_few(self.name, split)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return pages of widgets at different places, goals among them, and the number of steps already done."""
        labels = rng.sample(LABELS, self.widgets * self.pages)
        cells = [rng.sample(range(100), self.widgets) for _ in range(self.pages)]
        pages = [
            [[label, cell // 10, cell % 10] for label, cell in zip(labels[i :: self.pages], cells[i], strict=True)]
            for i in range(self.pages)
        ]
        goals = [rng.choice(labels) if i % 2 == 0 else f"={rng.choice(WORDS)}" for i in range(self.goals)]
        columns = {"pages": pages, "goals": goals, "done": 0, "whole": False}
        columns["done"] = rng.randrange(len(self._screen(columns).way()))
        return self._first(columns), columns

    def solve(self, example: Example) -> str:
        """Return the correct sub-goals and actions, one per line."""
        episode, lines = self.environment(), []
        episode.noise = 0.0
        episode.reset(example, 0)
        rng, ended = random.Random(0), False
        while not ended:
            lines.append(episode.demonstrate(rng))
            ended = episode.step(lines[-1]).terminated
        return "\n".join(lines)

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct episodes, and an empty one: in an episode played from text the actor's rewards count as well
        as the outcome.
        """
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)

    def _first(self, columns: Columns) -> str:
        """Return the planner's first prompt."""
        episode = self.environment()
        episode.begin(columns, random.Random(0))
        return episode.planner_prompt()

    @staticmethod
    def _screen(columns: Columns) -> Screen:
        screen = Screen(1)
        pages = [[[label, x, y, x, y] for label, x, y in page] for page in columns["pages"]]
        screen.begin({"pages": pages, "goals": columns["goals"]}, random.Random(0))
        return screen
