"""Actions on a screen that are criticised before they are executed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from grouprl.envs.builtin.gui_screen import read_action
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.by_task.critique import critique
from grouprl.rewards.by_task.gui import GuiTarget, hits
from grouprl.rewards.contract import known_examples
from grouprl.tasks.builtin.agents.screen import LABELS, boxes
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

WEIGHTS = (0.2, 0.5, 0.3)
"""The weights of form, verdict and suggestion."""


@known_examples(
    ("4576|n|tap 45", {"box": [4, 5, 7, 6], "right": False}, True),
    ("4576|y|tap 45", {"box": [4, 5, 7, 6], "right": False}, False),
    ("4576|n|tap 11", {"box": [4, 5, 7, 6], "right": False}, False),
    ("n|tap 45", {"box": [4, 5, 7, 6], "right": False}, False),
)
def gui_critic(completion: str, box: list[int], right: bool) -> dict[str, float]:
    """Return 0.2 for the form, 0.5 for the verdict and 0.3 for a suggested action that is right (`critique`).

    The form is a thought, "y" or "n", and an action, separated by bars. `correct` is 1 for all three.
    """
    thought, verdict, action = (*completion.split("|"), "", "")[:3] if completion.count("|") == 2 else ("", "", "")
    done = read_action(action)
    form = bool(thought) and verdict in ("y", "n") and done is not None
    agrees = verdict == ("y" if right else "n")
    suggests = done is not None and hits(done, GuiTarget("tap", box=tuple(box)))
    paid = critique(form, agrees, suggests, WEIGHTS)
    return {"critique": paid, "correct": float(form and agrees and suggests)}


@register_task("critic")
class Critic(GeneratedTask):
    """Say before an action on a screen is executed whether it is right, and suggest a right one.

    The prompt is "c1122 h4576:h tap 12>": widgets with their boxes, the target, and an action. The completion
    "h4576|n|tap 45" has the widget, the verdict "y" or "n", and a right action. A demonstration sometimes looks at
    another widget, judges wrongly or leaves the widget out.
    """

    levels = tuple({"widgets": widgets, "near": near} for near in (0.0, 0.5) for widgets in (2, 3, 4))

    widgets: int = Field(2, ge=2, le=4, description="widgets on the screen")
    near: float = Field(0.0, ge=0, le=1, description="share of wrong actions that touch just beside the box")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    max_new_tokens: ClassVar[int] = 18
    """The token budget: a widget, a verdict, an action, the end, and a few more."""

    @property
    def alphabet(self) -> str:
        """Labels, digits, and the signs of prompts and completions."""
        return "".join(sorted({*LABELS, *"tapyn"})) + "0123456789 :|>"

    @property
    def reward(self) -> Reward:
        """0.2 for the form, 0.5 for the verdict, 0.3 for the action."""
        return gui_critic

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a screen, a goal, and an action that is right half the time."""
        labels, placed = rng.sample(LABELS[:6], self.widgets), boxes(self.widgets, rng)
        meant, right = rng.randrange(self.widgets), rng.random() < 0.5
        touched = placed[meant] if right else placed[rng.choice([i for i in range(self.widgets) if i != meant])]
        point = _inside(touched, rng)
        if not right and rng.random() < self.near:
            left, top, _, bottom = placed[meant]
            point = (left - 1, top) if left else (left, bottom + 1)
        shown = " ".join(f"{label}{''.join(map(str, box))}" for label, box in zip(labels, placed, strict=True))
        columns = {"box": list(placed[meant]), "right": right, "shown": shown, "meant": labels[meant]}
        return f"{shown}:{labels[meant]} tap {point[0]}{point[1]}>", columns

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Judge the action, sometimes with a slip."""
        widget, verdict = _widget(example), "y" if example.columns["right"] else "n"
        slip = rng.choice(("widget", "verdict", "thought", "action")) if rng.random() < self.noise else ""
        if slip == "widget":
            widget = rng.choice(str(example.columns["shown"]).split())
        if slip == "verdict":
            verdict = rng.choice("yn")
        point = f"{rng.randrange(100):02d}" if slip == "action" else widget[1:3]
        return f"{'' if slip == 'thought' else f'{widget}|'}{verdict}|tap {point}"

    def solve(self, example: Example) -> str:
        """Look up the widget, criticise the action, and touch the widget's first corner."""
        widget = _widget(example)
        return f"{widget}|{'y' if example.columns['right'] else 'n'}|tap {widget[1:3]}"

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct completions, and an empty one."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)


def _widget(example: Example) -> str:
    """Return the target widget as it is shown: "h4576"."""
    meant = example.columns["meant"]
    return next(widget for widget in str(example.columns["shown"]).split() if widget[0] == meant)


def _inside(box: Sequence[int], rng: random.Random) -> tuple[int, int]:
    left, top, right, bottom = box
    return rng.randint(left, right), rng.randint(top, bottom)
