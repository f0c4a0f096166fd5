"""A console on which no text can act on the terminal.

What a model, a tool or an environment writes may hold the control sequences that make a terminal change its title,
fill the clipboard, clear the screen or write backwards; here they are shown as signs.
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
"""Control characters but tab and line feed, those that turn the direction of writing, and halves of characters."""
PICTURES = 0x2400
"""Where Unicode has pictures of the control characters below 32."""


def harmless(text: str) -> str:
    """Return the text with a sign in place of each character that a terminal would act on."""
    return CONTROL.sub(lambda found: _sign(ord(found[0])), text)


def _sign(number: int) -> str:
    if number < 32:
        return chr(PICTURES + number)
    return "\u2421" if number == 0x7F else "\ufffd"


class Terminal(Console):
    """Rich's console; control characters within what is printed are shown as signs (`harmless`)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of what is printed; rich's own control codes stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)
