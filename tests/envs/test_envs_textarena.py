"""TextArena's games as tasks, against the library itself."""

import random
import sys
from functools import partial

import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs import Demonstrator, Environment, Judging
from grouprl.envs.check import check_environment
from grouprl.tasks import Example, load_task

textarena = pytest.importorskip("textarena", reason="textarena is not installed: pip install 'grouprl[agents]'")

GUESS, TICTACTOE = "textarena:GuessTheNumber-v0", "textarena:TicTacToe-v0"


def begun(task, index=0):
    environment = task.environment()
    return environment, environment.reset(task.example("train", index), 0)


@pytest.mark.parametrize(
    "name",
    [
        "ThreePlayerTicTacToe-v0",
        "GuessTheNumber-v0",
        "TicTacToe-v0",
        "KuhnPoker-v0",
        "Nim-v0-train",
        "TowerOfHanoi-v0",
    ],
)
def test_the_games_are_sound(name):
    task = load_task(f"textarena:{name}")
    report = check_environment(task.environment, partial(task.example, "train"), episodes=24, agents=task.agents)
    assert report.problems == ()
    assert isinstance(task.environment(), Environment)
    assert isinstance(task.environment(), Demonstrator)
    assert isinstance(task.environment(), Judging)


def test_a_game_for_one_is_the_librarys():
    task = load_task(GUESS)
    assert (task.agents, task.max_turns, task.max_new_tokens) == (("",), 40, 16)
    for index in range(4):
        environment, first = begun(task, index)
        raw = textarena.make("GuessTheNumber-v0-raw")
        raw.reset(num_players=1, seed=task.example("train", index).columns["seed"])
        target = raw.state.game_state["game_number"]
        assert first.text == raw.get_observation()[1][0][1] + "\n"
        wrong = 1 if target > 2 else 20
        step = environment.step(f"I say [{wrong}].")
        hint = "higher" if wrong < target else "lower"
        assert step.observation.text == f"The target number is {hint}.\n"  # what is new, without the player's own words
        assert (step.reward, step.valid, step.terminated) == (0.0, True, False)
        last = environment.step(f"[{target}]")
        assert last.terminated
        assert environment.scores() == {"": {"outcome": 1.0, "correct": 1.0}}
        assert environment.score() == {"outcome": 1.0, "correct": 1.0}


def test_two_play_against_each_other():
    task = load_task({"name": TICTACTOE, "boards": True})
    assert task.agents == ("0", "1")
    environment, seen = begun(task)
    assert (seen.agent, seen.text.startswith("You are Player 0 in Tic Tac Toe.")) == ("0", True)
    seen = environment.step("[4]").observation
    assert seen.agent == "1"
    assert seen.text.startswith("You are Player 1 in Tic Tac Toe.")
    assert "Player 0: [4]" in seen.text
    assert "Player 1: " not in seen.text
    seen = environment.step("[0]").observation
    assert seen.agent == "0"
    assert "You are Player" not in seen.text  # it was told before: messages are drained
    assert "Player 1: [0]" in seen.text
    assert "Player 0: " not in seen.text  # its own words stand before it already
    wrong = environment.step("[0]")
    assert (wrong.valid, wrong.observation.agent, "already occupied" in wrong.observation.text) == (False, "0", True)
    for action in ("[2]", "[1]", "[6]"):
        last = environment.step(action)
    assert last.terminated
    assert environment.scores() == {
        "0": {"outcome": 1.0, "correct": 1.0},
        "1": {"outcome": -1.0, "correct": 0.0},
    }


def test_two_invalid_moves_lose():
    environment, _ = begun(load_task(TICTACTOE))
    assert not environment.step("what?").terminated
    last = environment.step("what?")
    assert (last.terminated, last.valid) == (True, False)
    assert environment.scores()["0"]["outcome"] == -1.0


def test_the_board_is_the_state_where_asked():
    environment, first = begun(load_task(TICTACTOE))
    assert first.state == ""
    keyed = load_task({"name": TICTACTOE, "boards": True})
    keys = []
    for moves in (["[0]", "[1]", "[2]"], ["[2]", "[1]", "[0]"]):
        environment, _ = begun(keyed)
        keys.append([environment.step(move).observation.state for move in moves])
    assert keys[0][2] == keys[1][2]
    assert keys[0][0] != keys[1][0]


def test_games_do_not_share_luck():
    """The library draws from the global generator; episodes beside each other must not disturb one another."""
    task = load_task("textarena:KuhnPoker-v0")

    def play(others):
        random.seed(99)
        environment, seen = begun(task, 3)
        texts = [seen.text]
        for _ in range(8):
            if others:
                random.random()
                begun(task, 5)[0].step("[check]")
            step = environment.step("[check]")
            texts.append(step.observation.text)
            if step.terminated:
                return texts
        return texts

    assert play(False) == play(True)
    random.seed(7)
    before = random.getstate()
    begun(task)[0].step("[bet]")
    assert random.getstate() == before


def test_wrappers_of_actions_stay_and_those_of_observations_go():
    for name in ("TicTacToe-v0", "TicTacToe-v0-train", "TicTacToe-v0-raw"):
        environment, first = begun(load_task(f"textarena:{name}"))
        assert first.text.count("You are Player 0") == 1
        step = environment.step("4")
        assert step.valid == (name != "TicTacToe-v0-raw")  # brackets are put around it


def test_a_reward_that_is_no_number_is_a_failure():
    environment, _ = begun(load_task("textarena:Countdown-v0"))  # gives the reason in place of the reward
    environment.step("x")
    with pytest.raises(RuntimeError, match=r"the reward 'Invalid.*not a number"):
        environment.step("x")


def test_a_game_cut_off_is_nobodys():
    task = load_task({"name": TICTACTOE, "turns": 2, "prompt": "Play!"})
    environment, first = begun(task)
    assert first.text.startswith("Play!\n")
    assert not environment.step("[0]").truncated
    last = environment.step("[1]")
    assert (last.terminated, last.truncated) == (False, True)
    assert environment.scores()["0"] == {"outcome": 0.0, "correct": 0.0}
    environment.close()
    environment.close()
    with pytest.raises(InputError, match="no game was under way"):
        environment.step("[1]")
    with pytest.raises(InputError, match="twice"):
        environment.reset(task.example("train", 0), 0)
    with pytest.raises(InputError, match="no column 'seed'"):
        task.environment().reset(Example("q", ""), 0)


@pytest.mark.parametrize(("success", "correct"), [(None, 1.0), (0.5, 1.0), (1.0, 0.0)])
def test_from_which_outcome_a_player_is_right(success, correct):
    """A wrong guess that ends the game after an invalid one is worth how near it came."""
    task = load_task({"name": GUESS, "success": success})
    environment, _ = begun(task)
    for action in ("[1]", "[0]", "[0]"):
        last = environment.step(action)
    assert last.terminated
    assert 0.5 <= environment.score()["outcome"] < 1
    assert environment.score()["correct"] == correct


def test_demonstrations_show_how_actions_are_spelt():
    task = load_task(TICTACTOE)
    shown = task.demonstration(task.example("train", 0), 0).splitlines()
    assert all(action[0] == "[" and action[2] == "]" for action in shown)
    given = load_task({"name": GUESS, "actions": ["[3]"]})
    assert set(given.demonstration(given.example("train", 0), 0).splitlines()) == {"[3]"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("textarena:TicTacTo-v0", "no game 'TicTacTo-v0'.*Did you mean.*'TicTacToe-v0'"),
        ({"name": TICTACTOE, "players": 3}, r"does not begin with 3 player\(s\)"),
        ({"name": GUESS, "config": {"nonsense": 1}}, "refuses 'GuessTheNumber-v0' with"),
        ("textarena:Debate-v0", "refuses 'Debate-v0'.*API key"),
        ("textarena", "written textarena:<id>"),
    ],
)
def test_errors_in_words(spec, message, monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(InputError, match=message):
        load_task(spec)


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[agents\]"):
        load_task(GUESS)
