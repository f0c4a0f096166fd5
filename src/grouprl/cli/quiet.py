"""Output that the command line hides: progress bars of libraries, and with -q all but results and errors."""

from __future__ import annotations

from grouprl.core.terminal import Terminal


class Telling:
    """The switch for showing the progress of the current command; `-q` turns it off."""

    quiet = False


def telling(stderr: bool = False) -> Terminal:
    """Return a console for messages other than results; with -q it prints nothing."""
    return Terminal(stderr=stderr, quiet=Telling.quiet, highlight=False, soft_wrap=True)


def silence_loading_bars() -> None:
    """Hide the progress bars of reading and writing model files, but not those of downloads."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()
    (disable_progress_bars if Telling.quiet else enable_progress_bars)()
