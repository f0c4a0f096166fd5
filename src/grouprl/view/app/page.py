"""The page of the application: asking its server, or with all of its data inside."""

from __future__ import annotations

import json
from importlib.resources import files

from grouprl.core.json_types import JsonObject
from grouprl.view.report import PageExtras, whole_page

TITLE = "grouprl · view"
TABS = (
    ("runs", "Runs"),
    ("curves", "Curves"),
    ("rows", "Rollouts"),
    ("groups", "Groups"),
    ("findings", "Findings"),
    ("settings", "Settings"),
    ("method", "Method"),
)
SHELL = (
    '<p id="shown" class="muted"></p><div id="view" tabindex="-1"></div>'
    '<p id="said" role="status" class="muted" aria-live="polite"></p>'
    '<dialog id="keys" aria-label="Keys"></dialog>'
)


def live_page() -> str:
    """Return the page that asks its server."""
    return _page(SHELL, asks=True)


def stored_page(data: JsonObject) -> str:
    """Return the page with its data inside, as one file that loads nothing."""
    return _page(f'{SHELL}<script type="application/json" id="stored">{script_text(data)}</script>', asks=False)


def script_text(data: JsonObject) -> str:
    """Return JSON that no text inside can end early when it stands in a script of a page."""
    return as_json(data).replace("<", "\\u003c")


def as_json(data: JsonObject) -> str:
    """Return data as JSON; numbers that are not finite become null, as JSON has none."""
    try:
        return _dumped(data)
    except ValueError:  # rare, and to look at every number takes longer than to write it
        return _dumped(_finite(data))


def _dumped(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _page(body: str, *, asks: bool) -> str:
    links = "".join(f'<a href="#/{name}" data-tab="{name}">{words}</a>' for name, words in TABS)
    style, script = (files("grouprl.view.app").joinpath(name).read_text("utf-8") for name in ("view.css", "view.js"))
    return whole_page(TITLE, links, body, extras=PageExtras(style, script, asks))
