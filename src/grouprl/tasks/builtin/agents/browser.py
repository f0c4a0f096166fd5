"""Generated jobs on small web pages: the content of a page, the job, and the required final state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar

from pydantic import Field, field_validator

from grouprl.core.errors import suggest
from grouprl.core.json_types import JsonObject
from grouprl.envs.builtin.browser import PROMPT, SYSTEM, Browser
from grouprl.envs.builtin.chromium import check_chromium
from grouprl.records.examples import Example
from grouprl.rewards import KnownExample
from grouprl.tasks.builtin.agents.terminal_kinds import WORDS
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR, BoundedTurns, typed_signs
from grouprl.tasks.registry import register_task


@dataclass(frozen=True)
class PageJob:
    """A job on a web page."""

    words: str
    """The job, as a sentence."""
    page: str
    given: JsonObject
    """The content of the page."""
    expected: JsonObject
    """The required final state of the page."""
    solution: list[str]
    slips: list[str]


def _words(rng: random.Random, count: int) -> list[str]:
    return rng.sample(WORDS, count)


def _buttons(rng: random.Random, size: int) -> PageJob:
    names = _words(rng, size + 1)
    number = rng.randrange(len(names))
    clicks = [f"click {n + 1}" for n in range(len(names)) if n != number]
    expected = {"pressed": names[number]}
    return PageJob(f'Click "{names[number]}".', "buttons", {"names": names}, expected, [f"click {number + 1}"], clicks)


def _form(rng: random.Random, size: int) -> PageJob:
    fields = rng.sample(("Name", "Town", "Pet", "Job", "Code"), min(size, 4))
    values = _words(rng, len(fields))
    told = ", ".join(f"{field} {value}" for field, value in zip(fields, values, strict=True))
    typed = [f'type {n} "{value}"' for n, value in enumerate(values, 1)]
    wrong = [f'type 1 "{values[-1]}"', f'type 1 "{fields[0]}"', f"click {len(fields) + 1}"]
    expected = {"values": values}
    solution = [*typed, f"click {len(fields) + 1}"]
    return PageJob(f"Enter {told} and send.", "form", {"fields": fields}, expected, solution, wrong)


def _list(rng: random.Random, size: int) -> PageJob:
    names = _words(rng, size + 2)
    wanted = rng.choice(names[1:])  # the first one is chosen before anybody acts
    given = {"label": rng.choice(("Fruit", "Size", "Colour")), "names": names}
    wrong = [f'select 1 "{name}"' for name in names if name != wanted] + ["click 2", "click 1"]
    return PageJob(f"Order {wanted}.", "list", given, {"chosen": wanted}, [f'select 1 "{wanted}"', "click 2"], wrong)


def _tabs(rng: random.Random, size: int) -> PageJob:
    names, buttons = _words(rng, size), _words(rng, 3)
    tabs = {name: rng.sample(buttons, 3) for name in names}
    number = rng.randrange(1, len(names))  # the first one is open before anybody acts
    place = rng.randrange(3)
    wanted = tabs[names[number]][place]
    last = f"click {len(names) + place + 1}"
    wrong = [f"click {len(names) + n + 1}" for n in range(3)] + [f"click {n + 1}" for n in range(len(names))]
    expected = {"tab": names[number], "pressed": wanted}
    words = f'In the tab "{names[number]}" click "{wanted}".'
    return PageJob(words, "tabs", {"tabs": tabs}, expected, [f"click {number + 1}", last], wrong)


def _search(rng: random.Random, size: int) -> PageJob:
    words = _words(rng, size + 3)
    wanted = words[0]
    titles = [f"{wanted} {other}" for other in words[1 : size + 1]] + [f"{words[-2]} {words[-1]}"]
    rng.shuffle(titles)
    found = [title for title in titles if wanted in title.split()]
    number = rng.randrange(len(found))
    wrong = [f'type 1 "{words[-1]}"', "click 2", *(f"click {n + 3}" for n in range(len(found)) if n != number)]
    solution = [f'type 1 "{wanted}"', "click 2", f"click {number + 3}"]
    expected = {"opened": found[number]}
    words_told = f"Search for {wanted} and open result {number + 1}."
    return PageJob(words_told, "search", {"titles": titles}, expected, solution, wrong)


def _checks(rng: random.Random, size: int) -> PageJob:
    names = _words(rng, size + 1)
    while True:
        before, wanted = ([name for name in names if rng.random() < 0.4] for _ in range(2))
        changed = [f"click {n}" for n, name in enumerate(names, 1) if (name in before) != (name in wanted)]
        if wanted and 0 < len(changed) <= 3:
            break
    save = f"click {len(names) + 1}"
    wrong = [f"click {n + 1}" for n in range(len(names))] + [save]
    words = f"Tick only {', '.join(wanted)} and save."
    given = {"names": names, "ticked": before}
    return PageJob(words, "checks", given, {"ticked": wanted}, [*changed, save], wrong)


def _slider(rng: random.Random, size: int) -> PageJob:
    most = 5 * size
    before, wanted = rng.sample(range(most + 1), 2)
    way, times = ("right" if wanted > before else "left"), abs(wanted - before)
    given = {"label": rng.choice(("Volume", "Light", "Speed", "Heat")), "most": most, "value": before}
    other = "left" if way == "right" else "right"
    wrong = [f"press 1 {other} {times}", f"press 1 {way} {times + 1}", f"press 1 {way} {wanted + 1}", "click 2"]
    words = f"Set {given['label']} to {wanted} of {most}."
    return PageJob(words, "slider", given, {"value": wanted}, [f"press 1 {way} {times}", "click 2"], wrong)


def _table(rng: random.Random, size: int) -> PageJob:
    names, towns = _words(rng, size + 1), _words(rng, size + 1)
    ages = rng.sample(range(20, 90), size + 1)
    rows = [list(row) for row in zip(names, ages, towns, strict=True)]
    row, place = rng.choice(rows), rng.choice((1, 2))
    head = ["Name", "Age", "Town"]
    wrong = [f'type 1 "{other[place]}"' for other in rows if other is not row] + [
        f'type 1 "{row[3 - place]}"',
        "click 2",
    ]
    words = f"Send the {head[place].lower()} of {row[0]}."
    solution = [f'type 1 "{row[place]}"', "click 2"]
    return PageJob(words, "table", {"head": head, "rows": rows}, {"answer": str(row[place])}, solution, wrong)


JOBS: dict[str, Callable[[random.Random, int], PageJob]] = {
    "buttons": _buttons,
    "list": _list,
    "slider": _slider,
    "table": _table,
    "tabs": _tabs,
    "form": _form,
    "search": _search,
    "checks": _checks,
}
"""Makers of jobs by kind of page, easiest first."""


CHROMIUM_GB = 0.5
"""Memory of a headless Chromium with one small page and its helper processes, in GiB, rounded up."""


@register_task("browser")
class BrowserTask(BoundedTurns, EnvironmentTask):
    """Do small jobs on web pages in a headless Chromium: click, fill a form, choose, search, read a table.

    The prompt is 'Click "plum".' with the contents of the page in lines, `2 button "plum"`; an action is `click 2`,
    `type 1 "salmon"`, `select 1 "fern"`, `press 1 right 4` or `done`. The page's final state decides the reward. It
    needs the extra `browser` and Chromium.
    """

    levels = tuple(
        {"pages": pages, "things": things}
        for pages, things in (
            (("buttons",), 2),
            (("buttons", "list"), 3),
            (("buttons", "list", "slider", "table"), 3),
            (tuple(JOBS), 3),
            (tuple(JOBS), 4),
            (("form", "search", "checks"), 6),
        )
    )

    pages: tuple[str, ...] = Field(tuple(JOBS), min_length=1, description=f"kinds of pages: {', '.join(JOBS)}")
    things: int = Field(3, ge=2, le=9, description="approximate number of things on a page")
    turns: int = Field(6, ge=1, description="most actions")
    tokens: int = Field(32, ge=1, description="token budget of an action, its end included")
    executable: str = Field("", description="the browser's program; '': the system's Chromium or Chrome")
    system: str = Field(SYSTEM, description="the first message to a policy with a chat template")
    noise: float = Field(0.3, ge=0, le=1, description=POOR)

    needs_clock: ClassVar[bool] = True
    """True, because a browser may hang, which should cost only its own episode."""
    started_gb: ClassVar[float] = CHROMIUM_GB
    """The memory of a worker's Chromium."""

    @field_validator("pages")
    @classmethod
    def _known(cls, pages: tuple[str, ...]) -> tuple[str, ...]:
        for page in pages:
            if page not in JOBS:
                raise ValueError(f"there is no page '{page}'. {suggest(page, JOBS)}")
        return pages

    @property
    def alphabet(self) -> str:
        """The characters that can be typed, and the newline."""
        return typed_signs("\r\t\x0b\x0c")

    def environment(self) -> Browser:
        """Return a fresh episode.

        Raises:
            MissingExtra: playwright is not installed.
            InputError: there is no Chromium.
        """
        check_chromium(self.executable)
        return Browser(self.turns, executable=self.executable, system=self.system, noise=self.noise)

    def generate(self, rng: random.Random) -> tuple[str, dict[str, object]]:
        """Return a job on one of the pages."""
        job = JOBS[rng.choice(self.pages)](rng, self.things)
        return f"{job.words}{PROMPT}", {name: value for name, value in asdict(job).items() if name != "words"}

    def solve(self, example: Example) -> str:
        """Return the actions, one per line."""
        return "\n".join(example.columns["solution"])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return no examples, because they would need a browser."""
        return ()
