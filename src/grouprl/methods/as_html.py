"""The card of a method as HTML, for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from grouprl.core.json_types import JsonObject
from grouprl.methods.describe import describe
from grouprl.methods.registry import Entry


class ShownCard:
    """The card of a catalogue entry, which a notebook shows as a page; `data` holds the same as plain data."""

    def __init__(self, entry: Entry) -> None:
        self.data = describe(entry)

    def __repr__(self) -> str:
        """Return name, title and formula."""
        return f"{self.data['name']}: {self.data['title']}\n{self.data['formula']}"

    def _repr_html_(self) -> str:
        """Return the card for a notebook."""
        return card_html(self.data)


def card_html(card: JsonObject) -> str:
    """Return a card as HTML from its plain data (`describe`): formula, parts, settings, sources, what differs."""
    papers = [f"{p['title']} ({p['year']})" + (f", arXiv:{p['arxiv']}" if p["arxiv"] else "") for p in card["papers"]]
    parts = [(p["stage"], p["part"], p["words"], p["formula"]) for p in card["parts"]]
    settings = [(s["name"], s["default"], s["type"], s["source"]) for s in card["settings"]]
    pieces = [
        f"<h3>{escape(card['name'])}: {escape(card['title'])}</h3>",
        _paragraph(card["recorded"]["words"]),
        _paragraph(card["summary"]),
        f"<pre>{escape(card['formula'])}</pre>",
        _table(("stage", "part", "what it does", "formula"), parts),
        _table(("setting", "default", "type", "source"), settings),
        _listed("Differs from the paper", card["differs"]),
        _listed("Reduces to", card["reduces"]),
        _listed("Papers", papers),
    ]
    return f"<div>{''.join(pieces)}</div>"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _listed(title: str, lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<p><b>{title}</b></p><ul>{items}</ul>" if items else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    named = "".join(f'<th style="text-align:left">{name}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{named}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f'<td style="text-align:left">{escape("none" if value is None else str(value))}</td>'
