"""The settings of a process that training, started from Python, has to itself and restores afterwards."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from grouprl.core.errors import InputError

_AT_WORK = threading.RLock()
"""Held by the thread that trains or evaluates; its listeners may evaluate meanwhile."""


@contextmanager
def own_state(what: str) -> Iterator[None]:
    """Run a block with torch's settings of a new process; then restore the caller's settings and random numbers.

    A default type, a block without gradients or an autocast of the caller would change the numbers of a run.

    Raises:
        InputError: another thread trains or evaluates, with the same generators of random numbers.
    """
    if not _AT_WORK.acquire(blocking=False):
        rule = "a process trains or evaluates one at a time, as torch's random numbers are the process's"
        raise InputError(f"{what} in a second thread", rule, "Wait for the other, or start a process of its own")
    try:
        with ExitStack() as stack:
            _enter(stack)
            yield
    finally:
        _AT_WORK.release()


def _enter(stack: ExitStack) -> None:
    """Enter torch's defaults and hide progress bars; the stack undoes both when it is closed."""
    import torch

    stack.callback(random.setstate, random.getstate())
    stack.enter_context(torch.random.fork_rng(list(range(torch.cuda.device_count()))))
    stack.enter_context(torch.inference_mode(False))  # lets gradients in, too
    for device in ("cpu", *["cuda"] * torch.cuda.is_available()):
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float32)
    if (before := torch.get_default_device()) != torch.device("cpu"):
        stack.callback(torch.set_default_device, before)
        torch.set_default_device(None)
    _hide_bars(stack)


def _hide_bars(stack: ExitStack) -> None:
    """Hide progress bars of model files, but not those of downloads, unless the caller hides them."""
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        return
    downloads = not are_progress_bars_disabled()
    stack.callback(_show_bars, downloads)
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()


def _show_bars(downloads: bool) -> None:
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging

    with warnings.catch_warnings(action="ignore"):  # the hub warns where the environment hides its bars
        logging.enable_progress_bar()
        if not downloads:
            disable_progress_bars()
