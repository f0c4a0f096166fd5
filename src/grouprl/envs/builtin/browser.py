"""Small pages in a real browser: each page is described in lines, and actions name elements by number."""

from __future__ import annotations

import json
import random
import re
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import read_text
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping
from grouprl.envs.builtin.chromium import BrowserLost, fresh_page, lost_if_it_fails
from grouprl.envs.environment import Observation
from grouprl.envs.game import Game, Outcome

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from grouprl.records.examples import Example

PAGES = Path(__file__).parent / "pages"
ACTION = re.compile(r"(click|type|select|press) (\d{1,3})(?: +(.*))?", re.DOTALL)
KEYS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown", "enter": "Enter"}
MOST_PRESSES = 50
LONGEST_TYPED = 200
MILLISECONDS = 60_000
"""Milliseconds that a single action may take before the browser counts as lost."""
POSSIBLE = {"type": ("field",), "select": ("list",), "press": ("slider", "field", "list")}
"""The kinds of element that each action applies to; any element can be clicked."""
PROMPT = "\n> "
SYSTEM = (
    'You use a web page. Each reply is one action and nothing else: click N, type N "text", select N "option", '
    "press N left|right|up|down|enter TIMES, or done."
)
LOOK = """
() => {
  const lines = [], elements = [], kinds = [];
  const said = (text) => text.replace(/\\s+/g, " ").trim();
  const own = (e) => said([...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent).join(" "));
  const name = (e) => JSON.stringify(e.closest("label") ? own(e.closest("label")) : said(e.textContent));
  const add = (e, words) => {
    elements.push(e);
    kinds.push(words.split(" ")[0]);
    lines.push(`${elements.length} ${words}`);
  };
  const visit = (e) => {
    const style = getComputedStyle(e);
    if (style.display === "none" || style.visibility === "hidden") return;
    const kind = e.tagName.toLowerCase(), role = e.getAttribute("role");
    if (["script", "style"].includes(kind)) return;
    if (role === "tab") add(e, `tab ${name(e)}${e.getAttribute("aria-selected") === "true" ? " open" : ""}`);
    else if (kind === "button") add(e, `button ${name(e)}`);
    else if (kind === "a") add(e, `link ${name(e)}`);
    else if (kind === "select") add(e, `list ${name(e)} ${e.value} of ${[...e.options].map((o) => o.label).join("|")}`);
    else if (kind === "input" && e.type === "checkbox") add(e, `box ${name(e)} ${e.checked ? "on" : "off"}`);
    else if (kind === "input" && e.type === "range") add(e, `slider ${name(e)} ${e.value} of ${e.min}..${e.max}`);
    else if (kind === "input") add(e, `field ${name(e)} ${JSON.stringify(e.value)}`);
    else if (kind === "tr") lines.push([...e.children].map((c) => said(c.textContent)).join(" | "));
    else {
      if (kind !== "label" && own(e)) lines.push(own(e));
      for (const child of e.children) visit(child);
    }
  };
  visit(document.body);
  return { text: lines.join("\\n"), elements, kinds };
}
"""


class Browser(Game):
    """A job on one page, in a fresh context of a headless Chromium.

    Columns: `page` (its name), `given` (what it shows), `expected` (the state that it must have in the end), and for
    demonstrations `solution` and `slips` (actions). An observation lists the content of the page in lines, and numbers
    the elements that can be acted on; `click 3`, `type 2 "text"`, `select 4 "x"` and `press 5 right 3` act on them,
    `done` ends the episode, as does submitting the page. An action that cannot be read, names no such element or is not
    possible is invalid and answered with '!' and the reason. In the end the page's state is read from outside, and
    earns 1 if it is as expected: typed text never becomes a script, a link or a part of the page, and the page cannot
    reach anything else. The state key is the text shown.
    """

    def __init__(self, max_turns: int, *, executable: str = "", system: str = SYSTEM, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` actions; `executable` is the path of the browser, '' for the
        system's.
        """
        super().__init__(max_turns)
        self.executable, self.system, self.noise = executable, system, noise
        self.columns: JsonMapping = {}
        self.page: Page = None
        self.followed = 0
        self.seen, self.right = "", False
        self._things: Locator = None
        self._kinds: list[str] = []

    def begin(self, columns: JsonMapping, rng: random.Random) -> None:
        """Open the page."""
        self.columns = {"solution": (), "slips": (), **columns}
        source = page_source(columns["page"], columns["given"])
        self.page = fresh_page(self.executable)
        with lost_if_it_fails("opened a page"):
            self.page.set_default_timeout(MILLISECONDS)
            self.page.set_content(source)
        self._look()

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode; the first observation is the job and the content of the page."""
        super().reset(example, seed)
        text = f"{str(example.prompt).removesuffix(PROMPT)}\n{self.seen}"
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return Observation(text + PROMPT, self.state, messages=(*system, {"role": "user", "content": text}))

    @property
    def state(self) -> str:
        """The text shown."""
        return self.seen

    @property
    def correct(self) -> bool:
        """True if the page's state is as expected; known when the episode is over."""
        return self.right

    def act(self, action: str) -> Outcome:
        """Apply an action to the page."""
        complaint = "" if action == "done" else self._do(action)
        self._look()
        with lost_if_it_fails("told its state"):
            found = self.page.evaluate("window.pageState")
        ended = action == "done" or bool(found.pop("over"))
        self.right = ended and found == self.columns["expected"]
        text = f"! {complaint}\n{self.seen}" if complaint else self.seen
        return Outcome(f"\n{text}{PROMPT}", float(self.right), ended=ended, valid=not complaint)

    def close(self) -> None:
        """Close the page and its context; the browser stays for the next episode."""
        super().close()
        if self.page is not None:
            page, self.page = self.page, None
            try:
                with lost_if_it_fails("closed a page"):
                    page.context.close()
            except BrowserLost:
                return  # the episode is over anyway; the next one starts a new browser

    def demonstrate(self, rng: random.Random) -> str:
        """Return the next action of the solution, or a slip with a certain chance."""
        if self.columns["slips"] and rng.random() < self.noise:
            return str(rng.choice(self.columns["slips"]))
        solution = self.columns["solution"]
        return str(solution[self.followed]) if self.followed < len(solution) else "done"

    def _observe(self, text: str) -> Observation:
        shown = super()._observe(text)
        message = {"role": "user", "content": text.strip().removesuffix(PROMPT.strip()).strip()}
        return Observation(text, shown.state, messages=(message,))

    def _look(self) -> None:
        with lost_if_it_fails("told what is shown"):
            self._things = self.page.evaluate_handle(LOOK)
            found = self._things.evaluate("found => [found.text, found.kinds]")
        self.seen, self._kinds = str(found[0]), list(found[1])

    def _do(self, action: str) -> str:
        """Carry out an action; return why it is impossible, '' if it was done."""
        read = ACTION.fullmatch(action)
        if read is None:
            return "not an action"
        kind, number, rest = read.group(1), int(read.group(2)), (read.group(3) or "").strip()
        kinds = self._kinds
        if not 1 <= number <= len(kinds):
            return f"there is no {number}"
        if kinds[number - 1] not in POSSIBLE.get(kind, kinds):
            return f"{number} is no {' or '.join(POSSIBLE[kind])}"
        with lost_if_it_fails("acted"):
            thing = self._things.evaluate_handle("(found, n) => found.elements[n - 1]", number).as_element()
            complaint = _act_on(thing, kind, rest)
        solution = self.columns["solution"]
        self.followed += self.followed < len(solution) and action == solution[self.followed]
        return complaint


def _act_on(thing: Locator, kind: str, rest: str) -> str:
    """Act on an element; return why that is impossible, '' if it was done."""
    if kind == "click":
        thing.click()
    elif kind == "type":
        thing.fill(unquoted(rest)[:LONGEST_TYPED])
    elif kind == "select":
        if unquoted(rest) not in thing.evaluate("e => [...e.options].map((o) => o.label)"):
            return "the list has no such option"
        thing.select_option(label=unquoted(rest))
    else:
        return _press(thing, *rest.partition(" ")[::2])
    return ""


def _press(thing: Locator, key: str, times: str) -> str:
    known = KEYS.get(key.lower())
    if known is None or not re.fullmatch("[0-9]{0,4}", times):
        return f"press takes {', '.join(KEYS)} and how often"
    for _ in range(min(int(times or 1), MOST_PRESSES)):
        thing.press(known)
    return ""


def page_source(name: str, given: JsonMapping) -> str:
    """Return the source of a page that shows `given`.

    Only its own scripts run: they carry a random number that is different each time.

    Raises:
        InputError: there is no such page.
    """
    if name not in page_names():
        raise InputError(f"There is no page {name!r}", f"the pages are {', '.join(page_names())}")
    shown = json.dumps(dict(given), ensure_ascii=True).replace("<", "\\u003c")
    parts = {"nonce": secrets.token_hex(16), "style": _part("shared.css"), "shared": _part("shared.js"), "given": shown}
    source = _part(f"{name}.html")
    for key, value in parts.items():
        source = source.replace("{{" + key + "}}", value)
    return source


@cache
def page_names() -> tuple[str, ...]:
    """Return the names of the available pages."""
    return tuple(sorted(path.stem for path in PAGES.glob("*.html")))


@cache
def _part(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def unquoted(text: str) -> str:
    """Return the text inside quotes, or the whole text if it is not quoted."""
    try:
        found = read_text(text) if text.startswith('"') else text
    except Refusal:
        return text.strip('"')
    return found if isinstance(found, str) else text
