"""A console on which printed text cannot control the terminal.

The output of a model, a tool or an environment may contain control sequences that make a terminal change its title,
fill the clipboard, clear the screen or write backwards; here they are shown as visible characters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from grouprl.core.encodable import encodable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the text direction, and lone surrogates."""
PICTURES = 0x2400
"""Code point from which Unicode has pictures of the control characters below 32."""
READING = "reading task, model and data …"
"""Text shown while a run or a plan is read: a data set of a million rows takes a minute."""


def harmless(text: str) -> str:
    """Return the text with a visible character in place of each one that would control the terminal."""
    return CONTROL.sub(lambda found: _sign(ord(found[0])), text)


def _sign(number: int) -> str:
    if number < 32:
        return chr(PICTURES + number)
    return "\u2421" if number == 0x7F else "\ufffd"


class Terminal(Console):
    """Rich's console, which shows control characters in printed text as visible ones (`harmless`), and signs that the
    encoding lacks as the nearest.

    `lost` is called, with the reason, when the output is closed, and the console is silent from then on; without it a
    closed output ends the process.
    """

    lost: Callable[[str], None] | None = None

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the printed segments with harmless text; rich's own control codes stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(self._written(segment.text), segment.style)

    def _written(self, text: str) -> str:
        return encodable(harmless(text), self.encoding)

    def on_broken_pipe(self) -> None:
        """Fall silent if someone is told of it, else end the process, as rich does."""
        if self.lost is None:
            super().on_broken_pipe()
        self._fall_silent("no program reads it any more")

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except (OSError, ValueError) as error:
            if self.lost is None or not (isinstance(error, OSError) or self.file.closed):
                raise
            self._fall_silent(getattr(error, "strerror", None) or str(error))

    def _fall_silent(self, reason: str) -> None:
        """Print nothing from now on, and let other prints to the same output vanish, too."""
        told, self.quiet = not self.quiet, True
        del self._buffer[:]
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        if told and self.lost is not None:
            self.lost(reason)
