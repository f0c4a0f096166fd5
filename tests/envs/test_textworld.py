"""TextWorld's games as tasks, against the library itself (`make worlds`)."""

from __future__ import annotations

import random

import pytest

from grouprl.core.errors import InputError
from grouprl.envs import Demonstrator, Environment
from grouprl.envs.adapters.textgame import cleaned
from grouprl.envs.check import check_environment
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.tasks import load_task

textworld = pytest.importorskip("textworld", reason="textworld is not installed: pip install 'grouprl[textworld]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the games of these tests are kept: making one takes seconds."""
    return str(tmp_path_factory.mktemp("games"))


def generated(folder, **options):
    sizes = {"objects": 3, "quest_length": 1, "games": 2, "held_out": 1, "turns": 6}
    return load_task({"name": "textworld:generated", "folder": folder, **sizes, **options})


def test_a_generated_game_is_the_librarys(folder):
    task = generated(folder)
    example = task.example("train", 0)
    raw = textworld.start(
        example.columns["game"],
        textworld.EnvInfos(admissible_commands=True, objective=True, description=True, policy_commands=True),
    )
    state = raw.reset()
    for part in (state.objective, state.description, "\n".join(state.admissible_commands)):
        assert cleaned(part) in example.prompt
    assert example.prompt.endswith("\n>")
    environment = task.environment()
    assert isinstance(environment, Environment)
    assert isinstance(environment, Demonstrator)
    first = environment.reset(example, 5)
    assert (first.text, first.legal) == (example.prompt, tuple(state.admissible_commands))
    wrong = environment.step("sing a song")
    assert (wrong.valid, wrong.reward, wrong.terminated) == (False, 0.0, False)
    (winning,) = state.policy_commands
    last = environment.step(winning)
    assert (last.valid, last.reward, last.terminated) == (True, 1.0, True)
    assert environment.score() == {"correct": 1.0}
    environment.close()
    raw.close()


def test_the_rules_of_environments_hold(folder):
    task = generated(folder, choices="numbered")
    report = check_environment(task.environment, lambda i: task.example("train", i % 2), episodes=6, max_turns=8)
    assert report.problems == ()


@pytest.mark.parametrize("said", ["\\boxed{}", "\0", "\\", "look\\s", "\x1b[A", "²³½ 😀", "x" * 3000, "|", "@", "\n"])
def test_whatever_is_said_is_answered(said, folder):
    environment = generated(folder).environment()
    environment.reset(generated(folder).example("train", 0), 0)
    step = environment.step(said)
    assert step.observation.text.endswith("\n>")
    assert (step.valid, step.terminated) == (False, False)
    environment.close()


@pytest.mark.parametrize("said", ["save", "RESTORE", "look. save", "script on", "transcripts", "oops restore"])
def test_no_episode_writes_or_reads_files(said, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = generated(folder).environment()
    environment.reset(generated(folder).example("train", 0), 0)
    step = environment.step(said)
    assert step.observation.text.startswith("That is none of the commands.")
    assert not step.valid
    environment.close()
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_actions_and_the_turns_have_a_limit(folder):
    task = generated(folder, choices="numbered", turns=3, invalid=-0.5)
    environment = task.environment()
    first = environment.reset(task.example("train", 0), 0)
    assert first.legal == tuple(map(str, range(len(first.legal))))
    assert f"\n{first.legal[-1]} " in first.text
    for action in ("99", "one"):
        step = environment.step(action)
        assert (step.valid, step.reward, step.truncated) == (False, -0.5, False)
    look = next(i for i, line in enumerate(first.text.splitlines()) if line.endswith(" look"))
    number = first.text.splitlines()[look].split()[0]
    last = environment.step(number)
    assert (last.valid, last.truncated, last.terminated, environment.score()) == (True, True, False, {"correct": 0.0})
    environment.close()


def test_held_out_games_are_others_and_a_game_is_made_once(folder):
    task = generated(folder)
    games = [
        task.example(split, i).columns["game"] for split, count in (("train", 2), ("eval", 1)) for i in range(count)
    ]
    assert len(set(games)) == 3
    again = generated(folder)
    assert [again.example("train", i).columns["game"] for i in range(2)] == games[:2]
    assert generated(folder, seed=1).fingerprint() != task.fingerprint() == again.fingerprint()
    with pytest.raises(InputError, match="The index can be 0"):
        task.example("train", 2)


def test_workers_play_the_same(folder):
    task = generated(folder)
    stage = WorkerStage(task, 1, timeout=60.0, memory_gb=4.0)
    try:
        example = task.example("train", 1)
        (first,) = stage.call("reset", [(0, (example, 3))])
        assert first.text == example.prompt
        here = task.environment()
        here.reset(example, 3)
        for action in ("look", "inventory"):
            assert stage.call("step", [(0, (action,))])[0] == here.step(action)
        here.close()
    finally:
        stage.close()


def test_demonstrations_slip(folder):
    task = generated(folder)
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    shown = {environment.demonstrate(random.Random(i)) for i in range(40)}
    assert len(shown) > 1
    environment.close()


def test_a_game_file_by_path(folder):
    file = generated(folder).example("train", 0).columns["game"]
    task = load_task({"name": f"textworld:{file}", "turns": 4})
    assert (task.size("train"), task.size("eval"), task.listed) == (1, 1, True)
    assert task.name == f"textworld:{file.rpartition('/')[2]}"
    whole = load_task({"name": f"textworld:{folder}", "turns": 4})
    assert whole.size("train") + whole.size("eval") >= 3


def test_a_challenge_by_name(folder):
    task = load_task({"name": "textworld:coin_collector", "settings": {"level": 1}, "games": 1, "folder": folder})
    assert "coin" in task.example("train", 0).prompt


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "textworld:generatd"}, "Did you mean 'generated'"),
        ({"name": "textworld:/nowhere/a.z8"}, "There is no game at"),
        ({"name": "textworld:coin_collector"}, "lacks level"),
        ({"name": "textworld:coin_collector", "settings": {"levl": 1}}, "Did you mean 'level'"),
        ({"name": "textworld:generated", "settings": {"level": 1}}, "have no settings"),
        ({"name": "textworld:generated", "objects": 0}, "greater than or equal to 1"),
    ],
)
def test_what_is_wrong_is_said(options, words, folder):
    with pytest.raises(InputError, match=words):
        load_task({**options, "folder": folder})
