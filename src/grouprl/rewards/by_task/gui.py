"""Rewards of actions on a screen, by their kind, place and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from grouprl.core.errors import InputError, suggest


@dataclass(frozen=True)
class GuiAction:
    """An agent's action on a screen: its kind ("tap", "type", "scroll", …), its place and its text."""

    kind: str
    point: tuple[int, int] | None = None
    text: str = ""


@dataclass(frozen=True)
class GuiTarget:
    """The action that an agent should have taken; the box is (left, top, right, bottom), edges included."""

    kind: str
    box: tuple[int, ...] | None = None
    text: str = ""


def inside(point: tuple[int, int] | None, box: tuple[int, ...]) -> bool:
    """Return whether a point is inside a box or on its edge."""
    left, top, right, bottom = box
    return point is not None and left <= point[0] <= right and top <= point[1] <= bottom


def text_f1(said: str, wanted: str) -> float:
    """Return the harmonic mean of precision and recall over words; 1 if both texts are empty."""
    ours, theirs = Counter(said.lower().split()), Counter(wanted.lower().split())
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * sum((ours & theirs).values()) / (sum(ours.values()) + sum(theirs.values()))


def hits(action: GuiAction, target: GuiTarget) -> bool:
    """Return whether the action is the right one in every part that the target has."""
    placed = target.box is None or inside(action.point, target.box)
    return action.kind == target.kind and placed and action.text == target.text


def ui_r1(action: GuiAction | None, target: GuiTarget) -> float:
    """Return kind + place + format, each 0 or 1: the reward of UI-R1 (Lu et al. 2025, arXiv 2503.21620).

    The place counts only if the kind is right; if the target has no box, the right kind earns it too. An action that
    cannot be read (None) earns none of the three.
    """
    if action is None:
        return 0.0
    kind = action.kind == target.kind
    place = kind and (target.box is None or inside(action.point, target.box))
    return float(kind + place + 1)


def gui_r1(action: GuiAction | None, target: GuiTarget) -> float:
    """Return 0.2 format + 0.8 accuracy, which is 1 iff every part is right: GUI-R1 (Luo et al. 2025, arXiv 2504.10458).

    A text is right if its word F1 is above 0.5.
    """
    if action is None:
        return 0.0
    placed = target.box is None or inside(action.point, target.box)
    worded = not target.text or text_f1(action.text, target.text) > 0.5
    return 0.2 + 0.8 * (action.kind == target.kind and placed and worded)


CRAFT = {"name": 0.4, "arguments": 0.4, "format": 0.2}
"""The weights of the parts of `craft_gui`."""


def craft_gui(action: GuiAction | None, target: GuiTarget) -> float:
    """Return 0.4 kind + 0.4 arguments + 0.2 format: rule parts in [0, 1], as CRAFT-GUI adds them (arXiv 2508.11360).

    If the kind is right, its arguments earn 1 for a place inside the box, or the word F1 of the text; a target with
    neither earns 1. The paper's weights are not known to us.
    """
    if action is None:
        return 0.0
    named = action.kind == target.kind
    said = text_f1(action.text, target.text) if target.box is None else float(inside(action.point, target.box))
    return CRAFT["name"] * named + CRAFT["arguments"] * named * said + CRAFT["format"]


GUI_REWARDS: dict[str, Callable[[GuiAction | None, GuiTarget], float]] = {
    "ui_r1": ui_r1,
    "gui_r1": gui_r1,
    "craft_gui": craft_gui,
}
"""The rewards of a single action, by name."""


def gui_reward(name: str, action: GuiAction | None, target: GuiTarget) -> float:
    """Return the reward `name` of an action; InputError for an unknown name."""
    if name not in GUI_REWARDS:
        raise InputError(f"There is no reward '{name}' of actions on a screen", remedy=suggest(name, GUI_REWARDS))
    return GUI_REWARDS[name](action, target)
