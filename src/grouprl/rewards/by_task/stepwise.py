"""Rewards of reasoning in numbered steps: the share of key steps that occur, and the order of steps (R1-VL)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.rewards.contract import known_examples


@dataclass(frozen=True)
class Headings:
    """The headings of a completion's sections; `step` holds "{}" for its number."""

    opening: tuple[str, ...]
    step: str
    final: str

    @property
    def step_pattern(self) -> str:
        """Regular expression of a step's heading; its group is the number."""
        return re.escape(self.step).replace(r"\{\}", r"(\d{1,9})")

    @property
    def any_pattern(self) -> str:
        """Regular expression of any heading, without groups."""
        plain = [re.escape(text) for text in (*self.opening, self.final)]
        return "|".join([*plain, self.step_pattern.replace("(", "(?:")])


R1_VL = Headings(("### Image Description:", "### Rationales:"), "### Step {}:", "### The final answer is:")
"""The headings in R1-VL."""
LINES = Headings(("?",), "{}:", "=")
"""Short headings, with one line per section: "?7+5+8", "1:12", "2:20", "=20"."""


def key_step_share(text: str, groups: Sequence[str | Sequence[str]], headings: Headings = R1_VL) -> float:
    """Return the share of `groups` with a text that occurs in the steps, ignoring case; 0 without groups.

    StepRAR of Zhang et al. 2025 (arXiv:2503.12937), released code.
    """
    said = " ".join(step_texts(text, headings)).lower()
    alternatives = [[group] if isinstance(group, str) else group for group in groups]
    return sum(any(each.lower() in said for each in group) for group in alternatives) / max(1, len(groups))


def step_texts(text: str, headings: Headings = R1_VL) -> list[str]:
    """Return the text under each step's heading, up to the next line that begins with a heading."""
    pattern = rf"{headings.step_pattern}\s*(.*?)(?=\n(?:{headings.any_pattern})|\Z)"
    return [found[2] for found in re.finditer(pattern, text, re.DOTALL)]


def in_order(text: str, headings: Headings = R1_VL) -> bool:
    """Return whether no section is missing, the steps are numbered 1 to n, and the final answer follows them.

    StepRVR of Zhang et al. 2025 (arXiv:2503.12937), released code: the position of the opening sections is ignored.
    """
    if any(heading not in text for heading in (*headings.opening, headings.step.format(1), headings.final)):
        return False
    steps = list(re.finditer(headings.step_pattern, text))
    numbers = [int(found[1]) for found in steps]
    return numbers == list(range(1, len(numbers) + 1)) and text.index(headings.final) >= steps[-1].end()


def final_line(text: str, headings: Headings = R1_VL) -> str:
    """Return the line of the final answer; the whole text if it has no such heading."""
    _, found, said = text.partition(headings.final)
    return said.strip().split("\n")[0].strip() if found else text.strip()


def _scored(
    completion: str, answer: str, key_steps: Sequence[str | Sequence[str]], headings: Headings
) -> dict[str, float]:
    right = float(final_line(completion, headings) == answer)
    share, order = key_step_share(completion, key_steps, headings), in_order(completion, headings)
    return {"accuracy": right, "key_steps": share, "valid_steps": float(order), "correct": right}


_TEXT = "### Image Description: two dots\n### Rationales: add\n### Step 1: 3 + 4 = 7\n### The final answer is: 7"


@known_examples(
    (_TEXT, {"answer": "7", "key_steps": [["3 + 4", "4 + 3"]]}, True),
    (_TEXT, {"answer": "8", "key_steps": []}, False),
)
def step_rewards(completion: str, answer: str, key_steps: Sequence[str | Sequence[str]]) -> dict[str, float]:
    """Return `accuracy`, `key_steps` and `valid_steps` of a completion under R1-VL's headings; `step_grpo` weighs them.

    The accuracy compares the final line as text; the authors first compare it symbolically.
    """
    return _scored(completion, answer, key_steps, R1_VL)


@known_examples(
    ("?7+5\n1:12\n=12", {"answer": "12", "key_steps": ["12"]}, True),
    ("?7+5\n1:13\n=13", {"answer": "12", "key_steps": ["12"]}, False),
)
def line_step_rewards(completion: str, answer: str, key_steps: Sequence[str | Sequence[str]]) -> dict[str, float]:
    """Return the components of `step_rewards` for a completion with the short headings `LINES`."""
    return _scored(completion, answer, key_steps, LINES)
