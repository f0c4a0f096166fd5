"""The adventure, the screen, SQL, search, signals and the team: by hand, and in general."""

import random
import sys

import pytest

from grouprl.core.errors import MissingExtra
from grouprl.envs.builtin.adventure import Adventure
from grouprl.envs.builtin.gui_screen import Screen, read_action
from grouprl.envs.builtin.search import Corpus, Search, corpus_of
from grouprl.envs.builtin.signals import Signals, agreed
from grouprl.envs.builtin.sql import Sql
from grouprl.envs.builtin.subgoals import Subgoals
from grouprl.envs.builtin.team import Team
from grouprl.envs.check import check_environment
from grouprl.tasks import (
    AdventureTask,
    Example,
    ScreenTask,
    SearchTask,
    SignalsTask,
    SqlTask,
    SubgoalsTask,
    TeamTask,
    describe_tasks,
)
from grouprl.tasks.builtin.agents.search import documents, lands, people
from grouprl.tasks.builtin.agents.sql import slips

TASKS = [AdventureTask, ScreenTask, SqlTask, SearchTask, SignalsTask, TeamTask, SubgoalsTask]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]


def began(environment, prompt="?", seed=0, **columns):
    return environment, environment.reset(Example("q", prompt, columns), seed)


def played(environment, *actions):
    return [environment.step(action) for action in actions]


def texts(steps):
    return [step.observation.text for step in steps]


# --- in general -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_every_prompt_is_solved_in_time_by_its_solution_and_spelt_in_the_alphabet(task, level):
    task = task(level=level)
    for index in range(25):
        example = task.example("train", index)
        environment = task.environment()
        shown, rewards = [environment.reset(example, index).text], []
        for action in task.solution(example).splitlines():
            step = environment.step(action)
            assert step.valid
            assert len(action) < task.max_new_tokens
            shown += [action, step.observation.text]
            rewards.append(step.reward)
        assert step.terminated
        assert len(rewards) <= task.max_turns
        assert environment.score()["correct"] == 1
        assert set("".join(shown)) <= set(task.alphabet)
        assert shown[0] == example.prompt
        assert example.level == level


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_demonstrations_fit_a_turn_and_rewards_are_within_bounds(task, level):
    task = task(level=level)
    for index in range(25):
        environment, rng = task.environment(), random.Random(index)
        environment.reset(task.example("train", index), index)
        total, step = 0.0, None
        while step is None or not (step.terminated or step.truncated):
            action = environment.demonstrate(rng)
            assert len(action) < task.max_new_tokens
            assert set(action) <= set(task.alphabet)
            step = environment.step(action)
            total += step.reward
        assert 0 <= total <= (1 if not isinstance(environment, Team | Subgoals) else environment.max_turns)


@pytest.mark.parametrize("task", [AdventureTask, ScreenTask, SqlTask, SearchTask, SignalsTask, TeamTask, SubgoalsTask])
def test_without_noise_demonstrations_are_right(task):
    task = task(noise=0)
    for index in range(40):
        environment, rng = task.environment(), random.Random(index)
        environment.reset(task.example("train", index), index)
        while not environment.step(environment.demonstrate(rng)).terminated:
            pass
        assert environment.correct


@pytest.mark.parametrize(
    "task", [*TASKS, lambda: SearchTask(level=5), lambda: ScreenTask(level=6), lambda: SqlTask(level=6)]
)
def test_check_env_finds_no_problem(task):
    task = task()
    report = check_environment(task.environment, lambda i: task.example("train", i), episodes=24, agents=task.agents)
    assert report.problems == ()
    assert report.shown.chooser == "demonstrated"


# --- adventure ------------------------------------------------------------------------------------------------------

MAP = {
    "doors": {"hall": {"e": "cave"}, "cave": {"w": "hall", "n": "barn"}, "barn": {"s": "cave"}},
    "things": {"cup": "cave", "hat": "hall"},
    "start": "hall",
    "wanted": "cup",
    "target": "barn",
}


def test_adventure_by_hand():
    game, first = began(Adventure(9), **MAP)
    assert (first.state, first.legal) == ("hall+:cave", ("e", "take hat"))
    steps = played(game, "n", "e", "take cup", "n", "drop cup")
    assert texts(steps) == ["!hall e hat>", "cave wn cup>", "cave wn>", "barn s>", "barn s cup>"]
    assert [step.reward for step in steps] == [0, 0, 0.25, 0, 0.75]
    assert [step.valid for step in steps] == [False, True, True, True, True]
    assert [step.observation.state for step in steps][1:] == ["cave+:cave", "cave+cup:", "barn+cup:", "barn+:barn"]
    assert (steps[-1].terminated, game.score()) == (True, {"correct": 1.0})


def test_adventure_finding_is_paid_once_and_other_things_never():
    game, _ = began(Adventure(9), **MAP)
    steps = played(game, "take hat", "e", "drop hat", "take cup", "drop cup", "take cup")
    assert [step.reward for step in steps] == [0, 0, 0, 0.25, 0, 0]
    assert steps[2].observation.text == "cave wn cup hat>"


# --- screen ---------------------------------------------------------------------------------------------------------

PAGES = [[["save", 1, 1, 2, 3]], [["mail", 5, 5, 9, 9]]]


def test_actions_on_a_screen_are_read_strictly():
    assert read_action("tap 25").point == (2, 5)
    assert read_action("type bob").text == "bob"
    assert read_action("scroll").kind == "scroll"
    assert read_action("h2456 tap 25") == read_action("tap 25")
    assert [read_action(text) for text in ("h245 tap 25", "h2456tap 25", "h2456 scroll")] == [None] * 3
    assert [read_action(text) for text in ("tap 2", "tap 255", "type ", "type Bob", "scroll ", "")] == [None] * 6


def test_screen_by_hand():
    game, first = began(Screen(6), pages=PAGES, goals=["mail", "=bob"])
    assert first.state == "0:0"
    steps = played(game, "tap 55", "scroll", "tap 99", "tap 99", "oops", "type bob")
    assert texts(steps) == ["no>", "mail5599>", "ok>", "no>", "!>", "ok>"]
    assert [step.valid for step in steps] == [True, True, True, True, False, True]
    assert [step.observation.state for step in steps] == ["0:0", "1:0", "1:1", "1:1", "1:1", "1:2"]
    assert [step.reward for step in steps] == [0, 0, 0, 0, 0, 1]
    assert steps[-1].terminated


@pytest.mark.parametrize(("reward", "whole", "miss"), [("ui_r1", 3.0, 2.0), ("gui_r1", 1.0, 0.2)])
def test_step_rewards_of_a_screen_are_shares_and_end_at_the_first_miss(reward, whole, miss):
    game, _ = began(Screen(6, reward), pages=PAGES, goals=["mail", "=bob"])
    steps = played(game, "scroll", "tap 55", "type bob")
    assert [step.reward for step in steps] == pytest.approx([whole / 3] * 3)
    other, _ = began(Screen(6, reward), pages=PAGES, goals=["save"])
    step = other.step("tap 45")
    assert (step.reward, step.terminated, other.correct) == (pytest.approx(miss), True, False)


def test_the_screens_that_are_drawn_have_boxes_that_do_not_overlap():
    task = ScreenTask(level=5)
    for index in range(30):
        for page in task.example("train", index).columns["pages"]:
            cells = [(x, y) for _, a, b, c, d in page for x in range(a, c + 1) for y in range(b, d + 1)]
            assert len(set(cells)) == len(cells)
            assert all(0 <= x <= 9 and 0 <= y <= 9 for x, y in cells)


# --- sql ------------------------------------------------------------------------------------------------------------

PET = {"table": "pet", "columns": {"age": [1, 5, 7], "fat": [9, 4, 2]}, "gold": "select max(fat) from pet where age>3"}


def test_sql_by_hand_one_failure_may_be_mended():
    game, _ = began(Sql(2), **PET, wrong=["x"])
    steps = played(game, "select max(leg) from pet", "select max(fat) from pet where 3<age")
    assert texts(steps) == ["!column>", "ok"]
    assert [step.valid for step in steps] == [False, True]
    assert steps[0].observation.state == "select max(leg) from pet"
    assert game.score() == {"correct": 1.0, "execution": 1.0}


def test_sql_pays_partly_right_queries_only_if_asked_to():
    wrong = "select min(fat) from pet where age>3"
    plain, partial = began(Sql(2), **PET, wrong=["x"])[0], began(Sql(2, partial=True), **PET, wrong=["x"])[0]
    for game in (plain, partial):
        assert game.step(wrong).terminated
    assert plain.score() == {"correct": 0.0, "execution": 0.0}
    score = partial.score()
    assert (score["execution"], score["syntax"], score["schema"]) == (0, pytest.approx(1 / 6), pytest.approx(1 / 6))
    assert 0 < score["ngram"] < 1 / 6


def test_sql_failures_are_named_and_nothing_written_is_nothing_earned():
    game, _ = began(Sql(5, partial=True), **PET, wrong=["x"])
    said = texts(played(game, "select 1 from cat", "drop table pet", "", "selec", "select age from pet where"))
    assert said == ["!table>", "!refused>", "!error>", "!error>", "!error>"]
    assert began(Sql(2), **PET, wrong=["x"])[0].score() == {"correct": 0.0, "execution": 0.0}


def test_slips_are_never_the_right_query_and_most_give_other_rows():
    gold = "select max(fat) from pet where age>3"
    found = slips(gold, ["age", "fat"])
    assert gold not in found
    assert {
        "select min(fat) from pet where age>3",
        "select max(fat) from pet",
        "select max(fat) from pet where age<3",
    } <= set(found)
    assert any("leg" in each for each in found)


# --- search ---------------------------------------------------------------------------------------------------------

DOCUMENTS = ("bako lives miru", "bako eats plum", "tofe lives miru", "miru in peru")


def test_the_best_document_is_the_one_that_shares_the_rarer_words():
    corpus = Corpus(DOCUMENTS)
    assert [corpus.best(query) for query in ("bako lives", "bako eats", "miru in", "tofe", "nobody")] == [
        0,
        1,
        3,
        2,
        None,
    ]


def test_search_by_hand():
    game, _ = began(Search(DOCUMENTS, 6), answer="peru", path=["bako lives", "miru in"])
    steps = played(game, "s bako lives", "s xyz", "q bako", "s", "s miru in", "a peru")
    assert texts(steps) == ["bako lives miru>", "none>", "!>", "!>", "miru in peru>", ""]
    assert [step.valid for step in steps] == [True, True, False, False, True, True]
    assert [step.observation.state for step in steps] == ["0", "0", "0", "0", "0,3", "0,3"]
    assert (steps[-1].reward, steps[-1].terminated) == (1.0, True)
    assert steps[-1].info == {"searches": 3, "malformed": 2}


@pytest.mark.parametrize(
    ("path", "actions", "reward"),
    [
        ((), ["a peru"], 1.0),
        ((), ["s bako", "a peru"], 0.5),
        (("bako lives",), ["s bako", "a peru"], 1.0),
        (("bako lives",), ["a peru"], 1.0),
        ((), ["a mali"], 0.0),
        ((), ["oops", "a peru"], 0.0),
    ],
)
def test_search_pays_as_sem_does(path, actions, reward):
    game, _ = began(Search(DOCUMENTS, 6, "sem"), answer="peru", path=list(path))
    assert sum(step.reward for step in played(game, *actions)) == reward


def test_every_search_of_a_solution_finds_what_it_is_for():
    for corpus, count in ((0, 40), (1, 300)):
        index = Corpus(documents(corpus, count))
        for name, facts in people(corpus, count).items():
            for relation, what in facts.items():
                assert index.documents[index.best(f"{name} {relation}")] == f"{name} {relation} {what}"
        for town, land in lands(corpus).items():
            assert index.documents[index.best(f"{town} in")] == f"{town} in {land}"


def test_without_the_search_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[search\]"):
        Corpus(DOCUMENTS)
    corpus_of.cache_clear()
    (shown,) = [each for each in describe_tasks() if each.name == "search"]
    assert "grouprl[search]" in shown.demonstration


# --- signals and team -----------------------------------------------------------------------------------------------

THINGS = {"things": ["r3", "g1", "b2"], "shown": ["b2", "r3", "g1"], "meant": "r3"}


def test_signals_by_hand():
    assert agreed("r3") == "ag"
    game, first = began(Signals(), "r3: r3 g1 b2>", **THINGS)
    assert (first.agent, first.fresh, len(first.legal)) == ("speaker", False, 64)
    heard, chosen = played(game, "ag", "r3")
    assert (heard.observation.agent, heard.observation.text) == ("listener", "ag: b2 r3 g1>")
    assert heard.observation.legal == ("b2", "r3", "g1")
    assert (chosen.reward, dict(chosen.rewards), chosen.terminated) == (1.0, {"speaker": 1.0}, True)


def test_signals_what_is_no_message_is_not_heard_and_what_is_no_thing_is_lost():
    game, _ = began(Signals(), **THINGS)
    heard, chosen = played(game, "hello", "r9")
    assert (heard.valid, heard.observation.text) == (False, "??: b2 r3 g1>")
    assert (chosen.valid, chosen.reward, dict(chosen.rewards)) == (False, 0.0, {"speaker": 0.0})


def test_team_by_hand():
    game, first = began(Team(9), "7+5+8=", terms=["7", "5", "8"])
    assert (first.agent, first.fresh, first.state) == ("planner", False, "-")
    steps = played(game, "w7+5", "12", "oops", "w12+8", "x", "w12+8", "21", "a20")
    assert texts(steps) == ["7+5=", "12>", "!>", "12+8=", "?>", "12+8=", "21>", ""]
    assert [step.observation.agent for step in steps] == [
        "worker",
        *["planner"] * 2,
        "worker",
        "planner",
        "worker",
        *["planner"] * 2,
    ]
    assert [step.observation.fresh for step in steps] == [True, False, False, True, False, True, False, False]
    assert [step.valid for step in steps] == [True, True, False, True, False, True, True, True]
    assert [step.reward for step in steps] == [0, 1, 0, 0, 0, 0, 0, 1]
    assert game.scores() == {"planner": {"correct": 1.0}, "worker": {"correct": 1.0}}


def test_team_workers_that_share_are_paid_by_the_outcome():
    game, _ = began(Team(9, shared=True), terms=["7", "5"])
    assert [step.reward for step in played(game, "w7+5", "12", "a12")] == [0, 0, 1]
    assert game.scores()["worker"] == {"correct": 1.0, "outcome": 1.0}
    assert game.scores()["planner"] == {"correct": 1.0}
