"""OpenEnv servers as tasks: the library's own where it is installed, and one made from the protocol's facts."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Environment
from grouprl.envs.adapters.openenv import OpenEnvWording
from grouprl.envs.check import check_environment
from grouprl.tasks import Example, load_task

pytest.importorskip("websockets", reason="websockets is not installed: pip install 'grouprl[agents]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")

PLACES = 4
PYTHON = os.environ.get("OPENENV_PYTHON", sys.executable)
"""A Python that has openenv-core, for the library's own server."""


def has_openenv():
    return subprocess.run([PYTHON, "-c", "import openenv.core"], capture_output=True).returncode == 0


@pytest.fixture(scope="module", params=["by hand", "real"])
def url(request):
    if request.param == "real" and not has_openenv():
        pytest.skip("openenv-core is not installed, nor named by OPENENV_PYTHON")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = PYTHON if request.param == "real" else sys.executable
    command = [
        python,
        str(Path(__file__).parents[1] / "support" / "openenv_servers.py"),
        str(port),
        str(PLACES),
        request.param,
    ]
    process = subprocess.Popen(command)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def begun(url, seed=3, **options):
    environment = load_task({"name": f"openenv:{url}", **options}).environment()
    return environment, environment.reset(Example("q", "", {"seed": seed}), 0)


def target(seed):
    return random.Random(seed).randint(1, 9)


def test_an_episode(url):
    environment, first = begun(url)
    assert first.text == "1-9?"
    assert isinstance(environment, Environment)
    wrong = target(3) % 9 + 1
    step = environment.step(str(wrong))
    assert step.observation.text == ("<" if target(3) < wrong else ">")
    assert (step.reward, step.terminated, step.valid) == (0.0, False, True)  # the server's reward is null
    last = environment.step(str(target(3)))
    assert (last.observation.text, last.reward, last.terminated, last.truncated) == ("=", 1.0, True, False)
    assert environment.score() == {"correct": 1.0}
    with pytest.raises(InputError, match="no episode was under way"):
        environment.step("1")
    environment.close()
    environment.close()


def test_what_cannot_be_read_is_invalid(url):
    environment, _ = begun(url, invalid=-0.5)
    for action in ("nine", "", "1.5", "[1]", '{"number": 1}'):
        step = environment.step(action)
        assert (step.valid, step.reward, step.observation.text) == (False, -0.5, "!")
    assert environment.step("1").valid
    environment.close()


def test_what_the_server_complains_of_is_a_failure(url):
    environment, _ = begun(url)
    with pytest.raises(RuntimeError, match="EXECUTION_ERROR: unlucky"):
        environment.step("13")
    environment.close()


def test_sessions_do_not_share_and_have_an_end(url):
    pairs = [begun(url, seed)[0] for seed in range(PLACES)]
    for seed, environment in enumerate(pairs):
        assert environment.step(str(target(seed))).terminated
    with pytest.raises((InputError, RuntimeError), match=r"no room for another session|closed the session"):
        begun(url)
    for environment in pairs:
        environment.close()


def test_the_environment_is_sound(url):
    task = load_task({"name": f"openenv:{url}", "turns": 5})
    report = check_environment(
        task.environment, lambda number: task.example("train", number), episodes=16, actions=tuple("123456789")
    )
    assert report.problems == ()
    assert task.description.endswith("actions are the field 'number'.")


def test_errors_in_words(url):
    with pytest.raises(InputError, match=r"no field 'numbr'.*Did you mean 'number'"):
        load_task({"name": f"openenv:{url}", "field": "numbr"})
    with pytest.raises(InputError, match=r"no 'board'.*It has text"):
        begun(url, show="board")
    with pytest.raises(InputError, match="cannot be asked for its schema"):
        load_task("openenv:http://127.0.0.1:9")
    with pytest.raises(InputError, match="Option 'url'"):
        load_task("openenv:localhost")


def test_observations_and_actions_as_text():
    plain = OpenEnvWording()
    assert plain.observation({"text": "seen"}) == "seen"
    assert plain.observation({"a": 1, "b": [2]}) == '{"a": 1, "b": [2]}'
    assert plain.action('{"x": 1}') == {"x": 1}
    assert plain.action("[1]") is None
    for spoiled in ('{"x": NaN}', r'{"x": "\ud800"}', f'{{"x": {"9" * 5000}}}', "[" * 100_000):
        assert plain.action(spoiled) is None, spoiled[:40]  # else the server fails, which costs the policy nothing
    assert OpenEnvWording("b").observation({"a": 1, "b": [2]}) == "[2]"
    assert OpenEnvWording(field="code").action("print(1)") == {"code": "print(1)"}
    assert OpenEnvWording(field="n", kind="number").action("1.5") == {"n": 1.5}


def test_without_the_library(url, monkeypatch):
    task = load_task(f"openenv:{url}")
    monkeypatch.setitem(sys.modules, "websockets.sync.client", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[agents\]"):
        task.environment().reset(Example("q", "", {"seed": 0}), 0)


class Says:
    """A socket on which a server gives one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def send(self, message):
        pass

    def recv(self, seconds=None):
        return self.answers.pop(0)

    def close(self):
        pass


def playing(monkeypatch, answer):
    from grouprl.envs.adapters.openenv import OpenEnvEnvironment

    begin = json.dumps({"type": "observation", "data": {"observation": {"text": "go"}}})
    monkeypatch.setattr(OpenEnvEnvironment, "_opened", lambda self: Says(begin, answer))
    environment = OpenEnvEnvironment("http://there", OpenEnvWording(field="text"), max_turns=5)
    environment.reset(Example("q", "", {"seed": 3}), 0)
    return environment


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"reward": "1"}, "the reward '1'. A reward is one finite number"),
        ({"reward": [1.0]}, r"the reward \[1.0\]. A reward is one finite number"),
        ({"reward": 1.0, "done": "false"}, "done = 'false'. done must be true or false"),
        ({"reward": float("nan")}, "the reward nan"),
    ],
)
def test_rewards_and_ends_of_a_server_are_what_they_must_be(monkeypatch, data, said):
    environment = playing(monkeypatch, json.dumps({"type": "observation", "data": {"observation": {"a": 1}, **data}}))
    with pytest.raises(InputError, match=said):
        environment.step("x")


@pytest.mark.parametrize(
    "answer", ["{", "[1]", '{"type": "observation", "data": []}', '{"type": "observation", "data": {"reward": 1}}']
)
def test_an_answer_of_another_form_is_shown(monkeypatch, answer):
    with pytest.raises(RuntimeError, match="the server's answer"):
        playing(monkeypatch, answer).step("x")
