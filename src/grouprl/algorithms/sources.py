"""Sources of rows in a step: their names in settings, and in sentences."""

from __future__ import annotations

from typing import Literal

Source = Literal["guided", "demonstration", "replay", "reference", "verification", "extra", "review"]


PLURAL: dict[str, str] = {
    "guided": "guided completions",
    "demonstration": "demonstrations",
    "replay": "replayed completions",
    "reference": "completions of the initial policy",
    "verification": "verifications",
    "extra": "extra completions",
    "review": "reviews",
}
