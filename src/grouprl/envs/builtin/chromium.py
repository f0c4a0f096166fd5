"""The single browser of a process: a headless Chromium without a network, driven by playwright."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, MissingExtra, RunError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHELLS = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
"""Chromium without windows, in which a fresh context costs a fifth of the time and a third of the computation."""
NAMES = (*SHELLS, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",  # Chromium has no sandbox of its own when root starts it
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
START_SECONDS = 120.0
_held = threading.local()


class BrowserLost(RunError):
    """Error: the browser crashed or does not answer. The episode has failed, and the next one begins with a new
    browser.
    """


def check_chromium(executable: str = "") -> str:
    """Return the path of the browser's program.

    Raises:
        MissingExtra: playwright is not installed.
        InputError: there is no Chromium on this machine, or none at `executable`.
    """
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError as error:
        raise MissingExtra("playwright", "browser", "The task 'browser'") from error
    found = shutil.which(executable) if executable else next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise InputError(
            f"There is no browser {executable!r}" if executable else "There is no Chromium on this machine",
            "the task 'browser' starts Chromium or Chrome",
            "Install it (Debian: apt-get install chromium-headless-shell), or set task.executable to its path.",
        )
    return found


@contextmanager
def lost_if_it_fails(what: str) -> Iterator[None]:
    """Turn errors of the driver into `BrowserLost`, and end the browser, so that the next episode has a new one."""
    from playwright.sync_api import Error

    try:
        yield
    except Error as error:
        close_browser()
        raise BrowserLost(f"The browser was lost while it {what}: {str(error).splitlines()[0]}") from error


def browser(executable: str = "") -> Browser:
    """Return the browser of this thread, started if there is none or it is gone."""
    running = getattr(_held, "browser", None)
    if running is not None and running.is_connected() and _held.executable == executable:
        return running
    close_browser()
    path = check_chromium(executable)
    from playwright.sync_api import Error, sync_playwright

    driver = sync_playwright().start()
    try:
        started = driver.chromium.launch(
            executable_path=path, headless=True, args=list(FLAGS), timeout=1000 * START_SECONDS
        )
    except Error as error:
        driver.stop()
        raise InputError(f"The browser {Path(path).name} does not start: {str(error).splitlines()[0]}") from error
    _held.driver, _held.browser, _held.executable = driver, started, executable
    atexit.register(close_browser)
    return started


def close_browser() -> None:
    """End the browser of this thread, if there is one."""
    driver, running = getattr(_held, "driver", None), getattr(_held, "browser", None)
    _held.driver = _held.browser = None
    for end in (running and running.close, driver and driver.stop):
        if end:
            with contextlib.suppress(Exception):  # it may be gone already
                end()


def fresh_page(executable: str = "") -> Page:
    """Return an empty page in its own context, without access to a network, files or other pages.

    Raises:
        BrowserLost: the browser does not answer.
    """
    running = browser(executable)
    with lost_if_it_fails("made a page"):
        context = running.new_context(offline=True, accept_downloads=False, service_workers="block", locale="en-US")
        context.route("**/*", lambda route: route.abort())
        page = context.new_page()
        context.on("page", lambda other: other.close())
        return page
