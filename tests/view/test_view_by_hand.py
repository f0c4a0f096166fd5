"""The application by keyboard and by its forms, in a real browser: `make browser`."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from grouprl.envs.builtin.chromium import NAMES
from grouprl.view.app.server import listening, make_view, serve_view
from grouprl.view.app.shown_runs import RunLibrary
from viewed_runs import run_folder

CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or "GROUPRL_BROWSER" not in os.environ, reason="make browser runs it where there is a Chromium"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("runs")
    run_folder(place / "long", steps=3)
    run_folder(place / "short", steps=2)
    run_folder(place / "stopped", steps=2, finished=False)
    opened = listening("127.0.0.1", 0)
    app = make_view(RunLibrary([place]))
    threading.Thread(target=serve_view, args=(app, opened), daemon=True).start()
    return f"http://127.0.0.1:{opened.getsockname()[1]}/"


@pytest.fixture
def page() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_keys_lead_from_a_tab_to_a_group(page: Any, address: str) -> None:
    """Also right after a tab was chosen by its key."""
    page.goto(address)
    page.wait_for_selector(".list")
    page.keyboard.press("3")
    page.wait_for_selector(".pager")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".side")
    assert "#/group?run=long&step=1" in page.url
    page.keyboard.press("b")
    page.wait_for_selector(".list")
    assert "#/rows?run=long&step=1" in page.url


@pytest.mark.parametrize(
    ("tab", "shown"), [("groups?run=long&step=3", "groups have different rewards"), ("rows?run=long&step=3", "of 10")]
)
def test_another_run_is_shown_without_the_step_of_the_one_before(tab: str, shown: str, page: Any, address: str) -> None:
    page.goto(f"{address}#/{tab}")
    page.wait_for_selector("select[name=run]")
    page.select_option("select[name=run]", "short")
    page.wait_for_selector(f"text={shown}")
    assert "step=" not in page.url


def test_findings_of_a_run_that_did_not_reach_its_end_say_so(page: Any, address: str) -> None:
    page.goto(f"{address}#/findings?run=stopped")
    page.wait_for_selector("text=The run was stopped before its end")
    page.goto(f"{address}#/findings?run=short")
    page.wait_for_selector(".findings")
    assert "stopped before its end" not in page.inner_text("#view")
