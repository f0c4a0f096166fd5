"""A planner that chooses the next step on a screen, and an actor that carries it out without knowing the goals."""

from __future__ import annotations

import random
import re
from typing import Literal

from grouprl.envs.builtin.gui_screen import Screen, read_action
from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.gui import GuiTarget, ui_r1

PLANNER, ACTOR = "planner", "actor"
SUBGOAL = re.compile(r"(tap) ([a-z])|(type) ([a-z]{1,8})|(scroll)")
THOUGHT = re.compile(r"[a-z]\d\d (?=tap )")
"""The intended widget as it is shown, which may precede a tap."""
PARTS = 3
"""The parts of an action that can be right: its format, its kind, and its place or text."""


def read_subgoal(text: str) -> tuple[str, str] | None:
    """Return the kind and argument of "tap h", "type bob" or "scroll"; None if the text is none of these."""
    found = SUBGOAL.fullmatch(text)
    if found is None:
        return None
    return found[1] or found[3] or found[5], found[2] or found[4] or ""


class Subgoals(Game):
    """The planner sees a page of widgets and the goals, "c25 h47:h>", and writes a sub-goal, "tap h"; the actor sees
    the page and the sub-goal, "c25 h47|tap h>", and acts, "tap 47", or "h47 tap 47" with the widget before the action.

    Columns: `pages` (lists of [label, x, y]), `goals` (labels to tap, "=bob" to type), `done` (the number of steps
    already taken) and `whole`. Unless it is `whole`, an episode is a single step: in each of `attempts` attempts at the
    same sub-goal, each in its own context, the actor earns a third for a right format, a right kind, and a right place
    or text, compared with the right action. The planner earns `format`, 1 for a sub-goal that can be read; `execution`,
    the actor's average reward; and, with `judge` "kind", `judge`, 1 for the right kind of sub-goal, as a judge that
    cannot read the widgets would see it. In a `whole` episode the two continue until all goals are reached, with one
    attempt at each.
    """

    def __init__(
        self, max_turns: int, attempts: int = 4, judge: Literal["none", "kind"] = "none", noise: float = 0.3
    ) -> None:
        """Prepare an episode; `noise` is the chance of a slip in a demonstration."""
        super().__init__(max_turns)
        self.attempts, self.judge, self.noise = attempts, judge, noise
        self.screen, self.whole = Screen(max_turns), False
        self.subgoal: str | None = None
        self.target = GuiTarget("scroll")
        self.earned: list[float] = []
        self.told: dict[str, list[float]] = {"format": [], "execution": []}

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Take the steps that are already done."""
        pages = [[[label, x, y, x, y] for label, x, y in page] for page in columns["pages"]]
        self.screen.begin({"pages": pages, "goals": columns["goals"]}, rng)
        self.whole = bool(columns["whole"])
        for action in self.screen.way()[: columns["done"]]:
            self.screen.act(action)
        self.target = self.screen.target()
        if self.judge != "none":
            self.told["judge"] = []

    @property
    def agent(self) -> str:
        """The planner, then the actor."""
        return PLANNER if self.subgoal is None else ACTOR

    @property
    def fresh(self) -> bool:
        """True: both agents begin a new context at each step, and the actor at each attempt."""
        return self.turns > 0

    @property
    def state(self) -> str:
        """The page and the goals reached; for the actor also the sub-goal."""
        return self.screen.state + ("" if self.subgoal is None else f"|{self.subgoal}")

    @property
    def correct(self) -> bool:
        """True if all goals are reached; in a single step, whether most attempts were right."""
        return self.screen.correct if self.whole else 2 * sum(x == 1 for x in self.earned) > self.attempts

    def show(self) -> str:
        """Return the text of the page: labels and places."""
        return " ".join(f"{label}{x}{y}" for label, x, y, *_ in self.screen.pages[self.screen.page])

    def planner_prompt(self) -> str:
        """Return the planner's prompt: the page, and the remaining goals."""
        return f"{self.show()}:{','.join(self.screen.goals[self.screen.reached :])}>"

    def act(self, action: str) -> Outcome:
        """Plan, or act."""
        return self._plan(action) if self.subgoal is None else self._try(action)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the outcome, and the components of the planner's reward, averaged over its sub-goals."""
        told = {name: sum(values) / max(1, len(self.told["format"])) for name, values in self.told.items()}
        return {PLANNER: {"correct": float(self.correct), **told}, ACTOR: {"correct": float(self.correct)}}

    def demonstrate(self, rng: random.Random) -> str:
        """Return the right sub-goal, or the action for the sub-goal; with a certain chance, a slip."""
        slips = rng.random() < self.noise
        if self.subgoal is None:
            return self._other(rng) if slips else self._right()
        kind, argument = read_subgoal(self.subgoal) or ("", "")
        touches = [f"{label}{x}{y} tap {x}{y}" for label, x, y, *_ in self.screen.pages[self.screen.page]]
        right = [touch for touch in touches if touch[0] == argument] if kind == "tap" else [self.subgoal]
        return right[0] if right and not slips else rng.choice(touches)

    def _plan(self, action: str) -> Outcome:
        """Take a sub-goal; one that cannot be read ends the episode."""
        read = read_subgoal(action)
        self.told["format"].append(float(read is not None))
        if read is None:
            return Outcome("", ended=True, valid=False)
        if "judge" in self.told:
            self.told["judge"].append(float(read[0] == self.target.kind))
        self.subgoal = action
        return Outcome(f"{self.show()}|{action}>")

    def _try(self, action: str) -> Outcome:
        """Score an attempt; in a whole episode, also carry it out."""
        action = THOUGHT.sub("", action)
        done = read_action(action)
        self.earned.append(ui_r1(done, self.target) / PARTS)
        last = self.whole or len(self.earned) == self.attempts
        if last:
            self.told["execution"].append(self.earned[-1] if self.whole else sum(self.earned) / self.attempts)
        if self.whole:
            self.screen.act(action)
            self.subgoal, ended = None, self.screen.correct
            self.target = self.target if ended else self.screen.target()
            return Outcome("" if ended else self.planner_prompt(), self.earned[-1], ended, valid=done is not None)
        seen = "" if last else f"{self.show()}|{self.subgoal}>"
        return Outcome(seen, self.earned[-1], ended=last, valid=done is not None)

    def _right(self) -> str:
        """Return the right sub-goal."""
        if self.target.kind == "type":
            return f"type {self.target.text}"
        goal = self.screen.goals[self.screen.reached]
        return "scroll" if self.target.box is None else f"tap {goal}"

    def _other(self, rng: random.Random) -> str:
        """Return a random sub-goal on this page."""
        label = rng.choice(self.screen.pages[self.screen.page])[0]
        return rng.choice([f"tap {label}", "scroll", f"type {rng.choice(['bob', 'eve', 'tom'])}"])
