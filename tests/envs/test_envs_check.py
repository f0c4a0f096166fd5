"""Examining environments: sound ones pass, and every broken rule is named."""

import itertools
import json
import random
import re
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.envs import Observation, Step
from grouprl.envs.check import check_environment
from grouprl.tasks import Example, load_task

COUNTER = itertools.count()


class Walk:
    """Reach cell 3 of a line from cell 0 or 1; legal moves are + and -."""

    def reset(self, example, seed):
        self.at, self.turns, self.luck = example.columns["seed"] % 2, 0, random.Random(seed)
        return Observation(f"{self.at}>", f"{self.at}", legal=("+", "-"))

    def step(self, action):
        if self.at == 3 or self.turns >= 8:
            raise RuntimeError("it is over")
        self.turns += 1
        valid = action in ("+", "-")
        self.at += {"+": 1, "-": -1}.get(action, 0) if self.at + {"+": 1, "-": -1}.get(action, 0) >= 0 else 0
        found = self.at == 3
        cut = self.turns == 8 and not found
        return Step(Observation(f"{self.at}>", f"{self.at}", legal=("+", "-")), float(found), found, cut, valid)

    def score(self):
        return {"correct": float(self.at == 3)}

    def close(self):
        pass


def asked(number):
    return Example(f"walk/{number}", "", {"seed": number})


def examined(environment, **options):
    return check_environment(environment, asked, **options)


def names(report):
    return {finding.name for finding in report.problems}


def altered(change):
    """Return a Walk whose steps are changed by `change(step, walk)`."""

    class Altered(Walk):
        def step(self, action):
            return change(super().step(action), self)

    return Altered


def seen(step, **fields):
    return replace(step, observation=replace(step.observation, **fields))


def test_a_sound_environment_passes_with_its_facts():
    report = examined(Walk)
    assert report.findings == ()
    assert report.facts["episodes"] == 64
    assert report.facts["longest_episode"] == 8
    assert (report.facts["lowest_return"], report.facts["highest_return"]) == (0, 1)
    assert report.facts["nonsense"]["valid"] == 0
    assert report.facts["nonsense"]["turns"] == 8
    assert report.facts["legal"]["valid"] == 1
    assert report.shown.chooser == "legal"


@pytest.mark.parametrize("task", ["guess", "keys", "tictactoe", "calculator"])
@pytest.mark.parametrize("level", [1, 4, 6])
def test_the_built_in_environments_are_sound(task, level):
    task = load_task({"name": task, "level": level})
    report = check_environment(task.environment, lambda number: task.example("train", number))
    assert report.problems == ()
    assert {finding.name for finding in report.advice} <= {"state texts"}
    assert report.facts["demonstrated"]["return"] > report.facts["nonsense"]["return"] == 0
    assert report.facts["longest_episode"] <= task.max_turns
    assert report.shown.chooser == "demonstrated"


ALTERED = {
    "reward finite": (lambda step, walk: replace(step, reward=float("nan")), "is nan.*ruins the group"),
    "reward size": (lambda step, walk: replace(step, reward=5000.0), "is 5000.*within ±1000"),
    "reward type": (lambda step, walk: replace(step, reward=np.float32(1)), r"float32.*float\(…\)"),
    "step type": (lambda step, walk: ("o", 0.0, False, False, {}), r"gave \('o'.*gives a grouprl.envs.Step"),
    "observation type": (lambda step, walk: replace(step, observation="text"), "'text'.*Observation"),
    "text type": (lambda step, walk: seen(step, text=3), r"3 \(int\).*is a str"),
    "state type": (lambda step, walk: seen(step, state=(1, 2)), r"state is \(1, 2\)"),
    "legal type": (lambda step, walk: seen(step, legal=["+"]), "tuple of str"),
    "legal repeats": (lambda step, walk: seen(step, legal=("+", "-", "+")), "listed once"),
    "terminated type": (lambda step, walk: replace(step, terminated=np.bool_(False)), "True or False"),
    "valid type": (lambda step, walk: replace(step, valid=1), "valid is 1"),
    "info type": (lambda step, walk: replace(step, info=[1]), "info is .*a mapping"),
    "two ends": (lambda step, walk: replace(step, truncated=step.terminated or step.truncated), "both True"),
    "validity": (lambda step, walk: replace(step, valid=True), "called valid, with legal"),
    "long text": (lambda step, walk: seen(step, text="x" * 30_000), "30000 characters"),
    "growing text": (lambda step, walk: seen(step, text="0>" * walk.turns), "from 2 to 16 characters.*what is new"),
    "determinism": (lambda step, walk: seen(step, text=f"{random.random()}"), "played again alone.*Draw chance"),
    "states never repeat": (lambda step, walk: seen(step, state=str(next(COUNTER))), "came twice.*Leave counters"),
    "state differs": (lambda step, walk: seen(step, legal=("+", "-", "=")[: 2 + walk.turns % 2]), "legal actions"),
    "no end": (lambda step, walk: replace(step, terminated=False, truncated=False), "raises this one"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_broken_steps_are_named(name):
    change, message = ALTERED[name]
    report = examined(altered(change), max_turns=8)
    found = {finding.name: finding for finding in report.problems}
    assert name in found
    finding = found[name]
    assert re.search(message, f"{finding.what}. {finding.rule}. {finding.remedy}")
    assert finding.where
    also = {
        "states never repeat": {"determinism"},
        "state differs": {"validity"},
        "no end": {"step raises"},  # of the walk, which knows that it is over
    }.get(name, set())
    assert names(report) - also == {name}


def test_a_raising_step_names_action_line_and_turn():
    class Raising(Walk):
        def step(self, action):
            return super().step(str(int(action)))

    [finding] = examined(Raising).problems
    assert finding.name == "step raises"
    assert "step('+') raised ValueError: invalid literal" in finding.what or "step('-') raised" in finding.what
    assert "test_envs_check.py:" in finding.what
    assert finding.where == "example walk/0, seed 0, turn 1"
    assert finding.episodes == 8


def broken(**methods):
    return type("Broken", (Walk,), methods)


def raising(*_):
    raise OSError("no disk")


class Shared(Walk):
    places: dict = {}  # noqa: RUF012

    def step(self, action):
        self.places["at"] = self.places.get("at", 0) + 1
        return seen(super().step(action), text=f"{self.places['at']}")

    def reset(self, example, seed):
        self.places["at"] = 0
        return super().reset(example, seed)


class Leaking(Walk):
    walked = 0

    def reset(self, example, seed):
        first = super().reset(example, seed)
        return replace(first, text=f"{first.text}{self.walked}")

    def step(self, action):
        self.walked += 1
        return super().step(action)


class Generous(Walk):
    def step(self, action):
        if self.at == 3 or self.turns >= 8:
            return Step(Observation("more"), 1.0)
        return super().step(action)


class Luring(Walk):
    def reset(self, example, seed):
        return replace(super().reset(example, seed), text=f"{seed % 5}>")


class CloseOnce(Walk):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class Showing(Walk):
    def demonstrate(self, rng):
        return 3


@pytest.mark.parametrize(
    ("environment", "name", "message"),
    [
        (Shared, "shared state", "Keep the state on self"),
        (Leaking, "second reset", "afresh"),
        (Generous, "after the end", "gave reward 1.0"),
        (Luring, "beginning", "a group begin alike"),
        (CloseOnce, "close again", "A second close.*closed already"),
        (Showing, "demonstration type", "gave 3"),
        (broken(close=raising), "close", "raised OSError: no disk"),
        (broken(reset=raising), "reset raises", "OSError: no disk"),
        (broken(__init__=raising), "the constructor raises", "OSError"),
        (broken(score=raising), "score raises", "OSError"),
        (broken(score=lambda self: 1.0), "score type", "a dict of str to float"),
        (broken(score=lambda self: {"correct": 0.5}), "correct", "0 or 1"),
        (broken(score=lambda self: {"bonus": float("inf"), "correct": 1}), "score finite", "'bonus' is inf"),
        (broken(reset=lambda self, example, seed: "hello"), "observation type", "'hello'"),
        (broken(reset=lambda self, example, seed: Observation("")), "empty prompt", "the prompt"),
        (broken(step=None), "methods", "lacks step"),
    ],
)
def test_other_broken_rules_are_named(environment, name, message):
    report = examined(environment)
    found = {finding.name: finding for finding in report.problems}
    assert name in found
    finding = found[name]
    assert re.search(message, f"{finding.what}. {finding.rule}. {finding.remedy}")


def test_a_call_that_hangs_is_stopped():
    class Hanging(Walk):
        def step(self, action):
            try:
                time.sleep(60)
            except Exception:
                return

    started = time.monotonic()
    report = examined(Hanging, seconds=0.05)
    assert time.monotonic() - started < 30
    assert names(report) == {"step hangs"}


def test_an_environment_that_cannot_be_played_is_given_up_early():
    report = examined(broken(reset=raising), episodes=1000)
    assert report.problems[0].episodes == 8
    assert report.facts["episodes"] == 0
    assert report.shown is None


def test_advice():
    class Mute(Walk):
        def score(self):
            return {}

    report = examined(Mute)
    assert report.problems == ()
    assert [finding.name for finding in report.advice] == ["no correct"]

    class Flat(Walk):
        def step(self, action):
            return replace(super().step(action), reward=0.0)

        def demonstrate(self, rng):
            return "+"

    assert [finding.name for finding in examined(Flat).advice] == ["equal returns"]

    class Misleading(Walk):
        def demonstrate(self, rng):
            return "-"

    assert [finding.name for finding in examined(Misleading).advice] == ["demonstrations"]
    costly = altered(lambda step, walk: replace(step, reward=step.reward - 2.0 * step.valid))
    assert [finding.name for finding in examined(costly).advice] == ["nonsense pays"]
    halfway = altered(lambda step, walk: seen(step, state="" if walk.turns % 2 else step.observation.state))
    assert "some keys" in {finding.name for finding in examined(halfway).advice}


def test_given_actions_are_tried_where_none_are_listed():
    hidden = broken(
        reset=lambda self, example, seed: replace(Walk.reset(self, example, seed), legal=()),
        step=lambda self, action: seen(Walk.step(self, action), legal=()),
    )
    report = examined(hidden, actions=["+"])
    assert report.problems == ()
    assert report.facts["random"]["correct"] == 1
    assert "legal" not in report.facts


def test_bad_arguments():
    with pytest.raises(InputError, match="episodes is 0"):
        examined(Walk, episodes=0)


# --- the command ----------------------------------------------------------------------------------------------------


def call(*line):
    return CliRunner().invoke(app, ["check-env", *line], env={"COLUMNS": "100"})


def test_the_command_passes_a_task():
    done = call("guess", "--episodes", "24")
    assert done.exit_code == 0
    assert "guess: no problems" in done.stdout
    assert "score {'correct':" in done.stdout


SOUND = """
from grouprl.envs import Observation, Step

class Coin:
    def reset(self, example, seed):
        self.side = "HT"[seed % 2]
        return Observation(f"{self.side}>", legal=("H", "T"))

    def step(self, action):
        return Step(Observation(""), float(action == self.side), terminated=True, valid=action in ("H", "T"))

    def score(self):
        return {"correct": 0.0}

    def close(self):
        pass

class Endless(Coin):
    def step(self, action):
        return Step(Observation("?"), 0.0, valid=action in ("H", "T"))

not_callable = 3
"""


def test_the_command_examines_a_class_in_a_file(tmp_path, monkeypatch):
    (tmp_path / "coins.py").write_text(SOUND)
    monkeypatch.chdir(tmp_path)
    assert call("coins.py:Coin").exit_code == 0
    done = call("coins.py:Endless", "--max-turns", "7", "--episodes", "10")
    assert done.exit_code == 1
    text = " ".join(done.stdout.split())
    assert "✗ no end" in text
    assert "The episode continued after 7 turns" in text
    assert ": 1 problem, " in text
    data = json.loads(call("coins.py:Endless", "--json", "--max-turns", "7").stdout)
    assert (data["ok"], data["environment"], data["problems"][0]["name"]) == (False, "coins.py:Endless", "no end")
    assert call("coins.py:not_callable").exit_code == 2
    assert call("env:coins.py:Coin").exit_code == 0
    # A run cuts episodes of a task at task.turns.
    assert call("env:coins.py:Endless", "--episodes", "10").exit_code == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("addition", "The task 'addition' has no environment. It has a single turn."),
        ("gues", "There is no task 'gues'. Did you mean 'guess'"),
        ("nowhere:Env", "module 'nowhere' of a custom environment cannot be found"),
    ],
)
def test_what_cannot_be_found_is_bad_input(name, message):
    done = call(name)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


class Pair:
    """Two who count to four in turn; every second word is a call that begins afresh."""

    agents = ("one", "two")

    def reset(self, example, seed):
        self.count = example.columns["seed"] % 2
        return Observation(f"{self.count}>", f"{self.count}", "one", legal=("+",))

    def step(self, action):
        if self.count >= 4:
            raise RuntimeError("it is over")
        self.count += action == "+"
        over = self.count >= 4 or action != "+"
        who = "two" if self.count % 2 else "one"
        seen = Observation(f"{self.count}>", f"{self.count}", who, legal=("+",), fresh=who == "two")
        return Step(seen, terminated=over, valid=action == "+", rewards={"two": 0.25 * (action == "+")})

    def scores(self):
        return {"one": {"correct": float(self.count == 4), "sum": self.count / 4}, "two": {"correct": 1.0}}

    def score(self):
        raise AssertionError

    def close(self):
        pass


def told(**changes):
    """Return a Pair some of whose methods are others."""
    return type("Told", (Pair,), changes)


def test_several_agents_pass():
    report = examined(Pair, agents=Pair.agents)
    assert not report.problems
    assert report.facts["highest_return"] == 1.0


def step_with(**fields):
    def step(self, action):
        given = {name: value for name, value in fields.items() if name != "seen"}
        return replace(seen(Pair.step(self, action), **fields.get("seen", {})), **given)

    return step


@pytest.mark.parametrize(
    ("environment", "agents", "name", "words"),
    [
        (Pair, ("one",), "unknown agent", "'two' is named in an entry of rewards; known are 'one'"),
        (told(step=step_with(rewards={})), ("one",), "unknown agent", "'two' is named in an observation"),
        (told(step=step_with(rewards={"two": "1"})), Pair.agents, "reward type", "The reward of agent 'two' is '1'"),
        (told(step=step_with(rewards={"two": np.inf})), Pair.agents, "reward finite", "The reward of agent 'two'"),
        (told(step=step_with(rewards=1.0)), Pair.agents, "rewards type", "rewards is 1.0"),
        (told(step=step_with(seen={"fresh": 1})), Pair.agents, "fresh type", "fresh is 1"),
        (told(step=step_with(seen={"text": "", "fresh": True})), Pair.agents, "empty prompt", "of agent 'two' is ''"),
        (told(scores=lambda self: 1), Pair.agents, "scores type", "scores() gave 1"),
        (told(scores=lambda self: {"three": {}}), Pair.agents, "unknown agent", "'three' is named in an entry of sc"),
        (told(scores=lambda self: {"one": 1}), Pair.agents, "score type", "gave 1"),
    ],
)
def test_broken_rules_of_agents_are_named(environment, agents, name, words):
    report = examined(environment, agents=agents)
    (finding,) = [finding for finding in report.problems if finding.name == name]
    assert words in finding.what


def test_an_agent_that_never_acts_is_noticed():
    report = examined(Pair, agents=("one", "two", "three"))
    assert [finding.what for finding in report.advice if finding.name == "idle agents"] == [
        "In 64 episodes 'three' never acted"
    ]


def test_the_command_knows_the_agents_of_a_class(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "from test_envs_check import Pair as Two\n\n\nclass Pair(Two):\n    pass\n"
    (tmp_path / "pair.py").write_text(source)
    found = call("pair.py:Pair")
    assert found.exit_code == 0, found.output
    task = load_task({"name": "env:pair.py:Pair", "characters": "+01234>"})
    assert task.agents == ("one", "two")


def test_an_environment_that_exits_is_named_and_ends_nothing():
    class Exits(Walk):
        def step(self, action):
            raise SystemExit(3)

    report = examined(Exits)
    assert names(report) == {"step raises"}
    assert "raised SystemExit: 3 at test_envs_check.py:" in report.problems[0].what


def test_half_a_character_is_no_text():
    class Half(Walk):
        def reset(self, example, seed):
            return Observation("go\ud800>")

    (finding,) = examined(Half).problems
    assert (finding.name, finding.what) == ("text characters", "The text holds '\\ud800', half of a character")


def test_what_was_seen_is_cut_where_it_is_long():
    class Long(Walk):
        def step(self, action):
            return Step(Observation("x" * 1_000_000), float("nan") if len(action) > 9 else 0.0)

    report = examined(Long)
    assert {"long text", "reward finite"} <= names(report)
    assert all(len(finding.what) < 420 for finding in report.problems)


def test_a_yaml_file_names_the_task_with_its_options(tmp_path):
    (tmp_path / "run.yaml").write_text("task: {name: guess, numbers: 3}\n")
    done = CliRunner().invoke(app, ["check-env", str(tmp_path / "run.yaml"), "--episodes", "8"])
    assert done.exit_code == 0, done.output
    assert "no problems" in " ".join(done.output.split())


def test_nothing_is_counted_where_nothing_could_be_played(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("class Shop:\n    def __init__(self):\n        raise ValueError('closed')\n")
    done = CliRunner().invoke(app, ["check-env", "shop.py:Shop"], env={"COLUMNS": "100"})
    assert done.exit_code == 1
    assert "the constructor raised ValueError: closed at shop.py:3" in done.output
    assert "visits" not in done.output


FORKS = """
import os
from grouprl.envs import Observation, Step
from grouprl.envs.check import check_environment
from grouprl.tasks import Example

OWN, FORKED = os.getpid(), []


class Forks:
    def reset(self, example, seed):
        return Observation("x")

    def step(self, action):
        if os.getpid() == OWN and len(FORKED) < 3:  # no child of it forks, whatever happens to it
            FORKED.append(os.fork())
        return Step(Observation("ok"), reward=1.0, terminated=True)

    def score(self):
        return {"correct": 1.0}

    def close(self):
        pass


check_environment(Forks, lambda index: Example(str(index), "x", {}), episodes=2)
print("examined", flush=True)
"""


def test_a_child_that_comes_back_from_a_call_examines_nothing():
    """It would go on beside its parent, fork at each call as that does, and fill the machine."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "examined\n")
    assert "a process that the environment forked came back from step; it is ended" in done.stderr


class Unreadable(Walk):
    """Raises where its methods are looked up."""

    @property
    def score(self):
        raise RuntimeError("not yet")


def test_methods_that_cannot_be_looked_up_are_named():
    report = check_environment(Unreadable, lambda index: Example(str(index), "x", {"seed": index}), episodes=2)
    assert any("raised RuntimeError: not yet" in finding.what for finding in report.problems)
