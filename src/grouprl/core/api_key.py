"""Keys of endpoints: read from the environment, and kept out of everything that is said or written."""

from __future__ import annotations

import os

from grouprl.core.errors import InputError

HIDDEN = "[the API key]"
"""Placeholder for a key in texts."""


def key_of(variable: str) -> str:
    """Return the key in an environment variable, without the blanks around it; "" if there is none.

    Raises:
        InputError: no header can hold it. The message does not contain the key.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    return checked_key(key, f"the API key in {variable}")


def checked_key(key: str, what: str) -> str:
    """Return a key that a header can hold.

    Raises:
        InputError: it has characters other than printable ASCII; the message calls it `what`.
    """
    if not (key.isascii() and key.isprintable()):
        place = next(i for i, char in enumerate(key) if not (char.isascii() and char.isprintable()))
        raise InputError(
            f"{what} has a character at place {place + 1} that no header can hold",
            "keys consist of printable ASCII characters",
            "Copy it again",
        )
    return key


def without_key(text: str, key: str) -> str:
    """Return a text without the key that was sent: endpoints quote it in their errors, which are kept and shown."""
    return text.replace(key, HIDDEN) if key else text
