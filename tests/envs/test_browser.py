"""Pages in a real browser: each job can be done and is not done for nothing, and nothing typed becomes a script.

`make browser` runs what needs one; without playwright or Chromium it is skipped, and says so.
"""

import os
import signal
import time

import pytest

from grouprl.core.errors import GrouprlError, InputError, MissingExtra
from grouprl.envs.builtin import chromium
from grouprl.envs.builtin.browser import PROMPT, Browser, page_names, page_source, unquoted
from grouprl.envs.builtin.chromium import BrowserLost, check_chromium
from grouprl.envs.playing import total_reward
from grouprl.records.examples import Example
from grouprl.tasks import load_task
from grouprl.tasks.builtin.agents.browser import JOBS
from grouprl.testing import check_environment


def why_not() -> str:
    if "GROUPRL_BROWSER" not in os.environ:
        return "make browser runs it"
    try:
        check_chromium()
    except GrouprlError as error:
        return str(error)
    return ""


needs_chromium = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is one")
HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "'\\\"><svg onload=window.hacked=1>",
    "${window.hacked=1}",
)


def job(kind, number=0, split="train"):
    task = load_task({"name": "browser", "pages": [kind], "turns": 8})
    return task, task.example(split, number)


def test_without_playwright_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "playwright.sync_api", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[browser\]"):
        load_task("browser").environment()


def test_without_a_browser_the_remedy_is_said(monkeypatch):
    pytest.importorskip("playwright")
    monkeypatch.setattr(chromium, "NAMES", ("no-such-browser",))
    with pytest.raises(InputError, match="apt-get install chromium"):
        load_task("browser").environment()
    with pytest.raises(InputError, match="There is no browser '/no/such'"):
        load_task({"name": "browser", "executable": "/no/such"}).environment()


def test_jobs_are_made_up_without_a_browser():
    assert set(page_names()) == set(JOBS)
    for level in range(1, 7):
        task = load_task({"name": "browser", "level": level})
        train, held = ({str(task.example(s, n)) for n in range(30)} for s in ("train", "eval"))
        prompts = {s: {task.example(s, n).prompt for n in range(60)} for s in ("train", "eval")}
        assert not prompts["train"] & prompts["eval"]
        assert len(train) == len(held) == 30
    with pytest.raises(InputError, match="there is no page 'buttns'"):
        load_task({"name": "browser", "pages": ["buttns"]})
    with pytest.raises(InputError, match="There is no page 'x'"):
        page_source("x", {})


def test_typed_texts_are_read_as_json_where_they_are():
    assert unquoted(r'"a\"b"') == 'a"b'
    assert unquoted("plain") == "plain"
    assert unquoted(r'"\ud800"') == r"\ud800"  # half a character could be typed, but not told


def test_what_a_page_shows_cannot_end_its_script():
    assert page_source("buttons", {"names": ["</script><b>"]}).count("</script>") == 3


@needs_chromium
@pytest.mark.parametrize("kind", JOBS)
def test_every_job_can_be_done_and_is_not_done_for_nothing(kind):
    for number, split in ((0, "train"), (0, "eval")):
        task, example = job(kind, number, split)
        assert total_reward(task.environment(), example, task.solve(example).splitlines()) == 1
        assert total_reward(task.environment(), example, ["done"]) == 0
        last = task.solve(example).splitlines()[-1]
        if len(task.solve(example).splitlines()) > 1:
            assert total_reward(task.environment(), example, [last, "done"]) == 0


@needs_chromium
@pytest.mark.parametrize("kind", ["form", "search", "table"])
def test_what_is_typed_never_becomes_a_script(kind):
    task, example = job(kind)
    env = task.environment()
    env.reset(example, 0)
    for text in HOSTILE:
        step = env.step(f"type 1 {text}")
        assert step.valid
        assert env.page.evaluate("[window.hacked ?? 0, document.images.length, location.href]") == [0, 0, "about:blank"]
    env.step("click 2")
    assert env.page.evaluate("[window.hacked ?? 0, document.images.length, location.href]") == [0, 0, "about:blank"]
    env.close()


@needs_chromium
def test_a_script_that_got_into_a_page_would_not_run_and_state_cannot_be_set():
    task, example = job("buttons")
    env = task.environment()
    env.reset(example, 0)
    env.page.evaluate("document.querySelector('main').innerHTML = '<img src=x onerror=\"window.hacked=1\">'")
    env.page.evaluate("() => { try { window.pageState = {over: true} } catch {} }")
    env.page.evaluate("() => { window.pageState.over = true }")
    time.sleep(0.3)
    assert env.page.evaluate("[window.hacked ?? 0, window.pageState.over]") == [0, False]
    env.close()


@needs_chromium
def test_a_page_reaches_nothing():
    task, example = job("buttons")
    env = task.environment()
    env.reset(example, 0)
    tried = "url => fetch(url).then(() => 'reached', () => 'not reached')"
    for url in ("http://127.0.0.1:1/", "http://localhost/", "file:///etc/hostname"):
        assert env.page.evaluate(tried, url) == "not reached"
    env.close()


@needs_chromium
def test_what_cannot_be_done_is_said():
    env = Browser(20)
    given = {"label": "Size", "names": ["a", "b"]}
    columns = {"page": "list", "given": given, "expected": {"chosen": "b"}}
    first = env.reset(Example("b", f"Order b.{PROMPT}", columns), 0)
    assert first.text == f'Order b.\nOrder\n1 list "Size" a of a|b\n2 button "Order"{PROMPT}'
    assert first.messages[-1]["content"] == first.text.removesuffix(PROMPT)
    for action, complaint in (
        ("look", "not an action"),
        ("", "not an action"),
        ("click 3", "there is no 3"),
        ("click 0", "there is no 0"),
        ('type 1 "x"', "1 is no field"),
        ('select 2 "b"', "2 is no list"),
        ('select 1 "c"', "the list has no such option"),
        ("press 1 tab", "press takes left, right, up, down, enter and how often"),
        ("press 1 left " + "9" * 5000, "press takes left, right, up, down, enter and how often"),
    ):
        step = env.step(action)
        assert (step.valid, step.reward, step.terminated) == (False, 0, False)
        assert step.observation.text.startswith(f"\n! {complaint}\n")
    assert env.step('select 1 "b"').valid
    last = env.step("click 2")
    assert (last.reward, last.terminated, env.score()["correct"]) == (1, True, 1)
    env.close()


@needs_chromium
def test_episodes_are_reproducible_and_stand_apart():
    task, example = job("search")
    check_environment(
        task.environment, example, ["click 1", 'type 1 "x"', "nonsense", *task.solve(example).splitlines()]
    )
    one, other = task.environment(), task.environment()
    one.reset(example, 0)
    other.reset(example, 0)
    one.step('type 1 "only here"')
    assert "only here" in one.step("click 1").observation.text
    assert "only here" not in other.step("click 1").observation.text
    one.close()
    other.close()


@needs_chromium
def test_a_crashed_browser_costs_its_own_episode_only():
    task, example = job("buttons")
    env = task.environment()
    env.reset(example, 0)
    for pid in chromium_processes():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(BrowserLost):
        env.step("click 1")
    env.close()
    assert total_reward(task.environment(), example, task.solve(example).splitlines()) == 1


def chromium_processes():
    """Numbers of the processes of browsers below this one."""
    parents, names = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                head, _, rest = stat.read().rpartition(")")
        except OSError:
            continue
        parents[int(entry)], names[int(entry)] = int(rest.split()[1]), head.partition("(")[2]
    below = {os.getpid()}
    for _ in range(20):
        below |= {pid for pid, parent in parents.items() if parent in below}
    return [pid for pid in below if "chrom" in names.get(pid, "")]
