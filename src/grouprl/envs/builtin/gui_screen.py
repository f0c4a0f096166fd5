"""A simulated screen: a task is given, and the places to tap are read from the widgets' boxes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.gui import GuiAction, GuiTarget, gui_reward, hits

TAP = re.compile(r"(?:[a-z][0-9]{4} )?tap ([0-9])([0-9])")
TYPE = re.compile(r"type ([a-z]{1,8})")


def read_action(action: str) -> GuiAction | None:
    """Return the parsed action: "tap 25", "type bob" or "scroll"; None if it is none of these.

    A tap may begin with a thought, the intended widget as it is shown: "h2456 tap 25".
    """
    if found := TAP.fullmatch(action):
        return GuiAction("tap", point=(int(found[1]), int(found[2])))
    if found := TYPE.fullmatch(action):
        return GuiAction("type", text=found[1])
    return GuiAction("scroll") if action == "scroll" else None


class Screen(Game):
    """Widgets with their boxes on pages of ten by ten cells, and goals to be reached in order.

    Columns: `pages` (lists of [label, x1, y1, x2, y2], edges included) and `goals` (labels to tap, "=bob" to type).
    "tap 25" touches column 2, row 5; "type bob" writes; "scroll" shows the next page, and the first after the last. An
    action that reaches the next goal is answered with "ok>", a scroll with the page, any other with "no>"; an action
    that cannot be read is invalid and answered with "!>". The state is the page and the goals reached.

    `reward` selects the reward. "goal" pays 1 when all goals are reached. A name of
    `grouprl.rewards.by_task.gui.GUI_REWARDS` scores every action against the right one, averaged over the number
    needed, and the first wrong action ends the episode.
    """

    def __init__(self, max_turns: int, reward: str = "goal", noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` actions; `noise` is the chance of a demonstration's slip."""
        super().__init__(max_turns)
        self.reward, self.noise = reward, noise
        self.pages: list[list[Sequence[Any]]] = []
        self.goals: list[str] = []
        self.page = self.reached = self.needed = 0

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Show the first page."""
        self.pages, self.goals = [list(page) for page in columns["pages"]], list(columns["goals"])
        self.needed = len(self.way())

    @property
    def state(self) -> str:
        """The page and the number of goals reached."""
        return f"{self.page}:{self.reached}"

    @property
    def correct(self) -> bool:
        """True if all goals are reached."""
        return self.reached == len(self.goals)

    def target(self) -> GuiTarget:
        """Return the right action from here."""
        goal = self.goals[self.reached]
        if goal.startswith("="):
            return GuiTarget("type", text=goal[1:])
        box = next((tuple(box) for label, *box in self.pages[self.page] if label == goal), None)
        return GuiTarget("scroll") if box is None else GuiTarget("tap", box=box)

    def act(self, action: str) -> Outcome:
        """Tap, write or scroll."""
        done, target = read_action(action), self.target()
        right = done is not None and hits(done, target)
        reward = 0.0 if self.reward == "goal" else gui_reward(self.reward, done, target) / self.needed
        self.reached += right and target.kind != "scroll"
        if done is not None and done.kind == "scroll":
            self.page = (self.page + 1) % len(self.pages)
        if self.reward == "goal":
            reward = float(self.correct)
        ended = self.correct or (self.reward != "goal" and not right)
        return Outcome(self._answer(done, right), reward, ended, valid=done is not None)

    def demonstrate(self, rng: random.Random) -> str:
        """Return the right action, tapping a widget in its first corner; with a certain chance, a slip."""
        if rng.random() < self.noise:
            return rng.choice([f"tap {rng.randrange(10)}{rng.randrange(10)}", self._any(rng)])
        target = self.target()
        return self._thought(target.box) + self._spell(target)

    def way(self) -> list[str]:
        """Return the actions that reach all goals from the beginning, tapping each box in its first corner."""
        probe, actions = Screen(self.max_turns), []
        probe.pages, probe.goals = self.pages, self.goals
        while not probe.correct:
            actions.append(self._spell(probe.target()))
            probe.act(actions[-1])
        return actions

    def show(self) -> str:
        """Return the text of the page: labels and boxes."""
        return " ".join(f"{label}{x1}{y1}{x2}{y2}" for label, x1, y1, x2, y2 in self.pages[self.page])

    def _answer(self, done: GuiAction | None, right: bool) -> str:
        if done is None:
            return "!>"
        if done.kind == "scroll":
            return f"{self.show()}>"
        return "ok>" if right else "no>"

    def _any(self, rng: random.Random) -> str:
        """Return a random action on this page, in the form of demonstrations."""
        label, *box = rng.choice(self.pages[self.page])
        target = rng.choice([GuiTarget("tap", box=tuple(box)), GuiTarget("scroll"), GuiTarget("type", text=label)])
        return self._thought(target.box) + self._spell(target)

    def _thought(self, box: tuple[int, ...] | None) -> str:
        """Return the widget with this box as it is shown, and a space; "" for no box."""
        found = (label for label, *each in self.pages[self.page] if tuple(each) == box)
        return "".join(f"{label}{''.join(map(str, box or ()))} " for label in found)

    @staticmethod
    def _spell(target: GuiTarget) -> str:
        if target.kind == "type":
            return f"type {target.text}"
        if target.box is None:
            return "scroll"
        return f"tap {target.box[0]}{target.box[1]}"
