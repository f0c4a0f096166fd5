"""A console on which printed text cannot control the terminal.

The output of a model, a tool or an environment may contain control sequences that make a terminal change its title,
fill the clipboard, clear the screen or write backwards; here they are shown as visible characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the text direction, and lone surrogates."""
PICTURES = 0x2400
"""Code point from which Unicode has pictures of the control characters below 32."""


def harmless(text: str) -> str:
    """Return the text with a visible character in place of each one that would control the terminal."""
    return CONTROL.sub(lambda found: _sign(ord(found[0])), text)


def _sign(number: int) -> str:
    if number < 32:
        return chr(PICTURES + number)
    return "\u2421" if number == 0x7F else "\ufffd"


class Terminal(Console):
    """Rich's console, which shows control characters in printed text as visible ones (`harmless`)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the printed segments with harmless text; rich's own control codes stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
