"""The card of a method in a notebook."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

import grouprl
from grouprl.methods.as_html import card_html
from grouprl.methods.describe import describe


class Balanced(HTMLParser):
    """A parser that keeps the open tags and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def read(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize("name", ["grpo", "grpo@trl", "ppo", "dpo", "gspo"])
def test_a_card_shows_formula_parts_settings_and_papers(name: str) -> None:
    card = describe(grouprl.methods()[name])
    text = read(grouprl.methods.show(name)._repr_html_()).text
    for part in card["parts"]:
        assert part["words"] in text
    for setting in card["settings"]:
        assert setting["name"] in text
        assert setting["source"] in text
    assert card["formula"] in text
    assert all(paper["title"] in text for paper in card["papers"])
    assert all(line in text for line in card["differs"])


def test_a_card_prints_its_formula_where_nothing_shows_html() -> None:
    shown = grouprl.methods.show("dr_grpo")
    assert repr(shown).startswith("dr_grpo: GRPO Done Right\nL = -1/(B·Lmax)")
    with pytest.raises(grouprl.InputError, match="Did you mean"):
        grouprl.methods.show("dr_grop")


def test_what_a_card_says_is_text_and_no_markup() -> None:
    card = describe(grouprl.methods()["grpo"])
    card |= {"title": "<script>alert(1)</script>", "summary": "a < b & c", "differs": ["<b>"], "formula": "x<y"}
    html = card_html(card)
    assert "<script>" not in html
    assert "a &lt; b &amp; c" in html
    assert "&lt;b&gt;" in html
