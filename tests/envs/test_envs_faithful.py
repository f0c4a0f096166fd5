"""The faithful writer and Wordle: by hand, in general, and what is left out of their loss."""

import random
from dataclasses import replace

import pytest
import torch

from fake_context import FakeContext
from grouprl.algorithms.filter.papers.excluded import DropAgent, DropSpan
from grouprl.algorithms.part import RunFacts
from grouprl.envs.builtin.faithful import READER, WRITER, Faithful
from grouprl.envs.builtin.wordle import Wordle, marks
from grouprl.envs.check import check_environment
from grouprl.methods.compose import compose
from grouprl.orchestrator.text_features import add_texts, spans
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.tokens import Tokens
from grouprl.rewards import check_reward
from grouprl.tasks import Example, FaithfulTask, WordleTask, load_task
from small import small

TASKS = [FaithfulTask, WordleTask]
LEVELS = [(task, level) for task in TASKS for level in range(1, 7)]
CONTEXT = "bako lives miru,nim eats corn"


def began(environment, prompt="?", seed=0, **columns):
    return environment, environment.reset(Example("q", prompt, columns), seed)


def faithful(*actions):
    environment, _ = began(Faithful(), context=CONTEXT, asked="nim eats", answer="corn")
    steps = [environment.step(action) for action in actions]
    return environment, steps


# --- in general -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_every_prompt_is_solved_by_its_solution_and_spelt_in_the_alphabet(task, level):
    task = task(level=level)
    for index in range(25):
        example = task.example("train", index)
        environment = task.environment()
        shown = [environment.reset(example, index).text]
        for action in task.solution(example).splitlines():
            step = environment.step(action)
            assert step.valid
            assert len(action) < task.max_new_tokens
            shown += [action, step.observation.text]
        assert step.terminated
        assert environment.score()["correct"] == 1
        assert set("".join(shown)) <= set(task.alphabet)
        assert shown[0] == example.prompt


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_demonstrations_fit_a_turn(task, level):
    task = task(level=level)
    for index in range(25):
        environment, rng = task.environment(), random.Random(index)
        environment.reset(task.example("train", index), index)
        step = None
        while step is None or not (step.terminated or step.truncated):
            action = environment.demonstrate(rng)
            assert len(action) < task.max_new_tokens
            assert set(action) <= set(task.alphabet)
            step = environment.step(action)
        assert environment.turns <= task.max_turns


@pytest.mark.parametrize("name", ["faithful", "wordle"])
def test_they_keep_the_rules_of_environments(name):
    task = load_task(name)
    report = check_environment(task.environment, lambda i: task.example("train", i), episodes=24, agents=task.agents)
    assert report.problems == ()
    assert check_reward(task.reward, task.reward_examples()) >= 5


# --- the faithful writer --------------------------------------------------------------------------------------------


def test_the_reader_sees_the_long_answer_in_place_of_the_text():
    _, (step,) = faithful("2|nim eats corn|corn")
    assert step.observation.text == step.observation.state == "nim eats corn:nim eats>"
    assert step.observation.agent == READER
    assert step.observation.fresh


@pytest.mark.parametrize(
    ("written", "read", "paid"),
    [
        ("2|nim eats corn|corn", "1|nim eats corn|corn", (1, 1, 1, 1)),
        ("2|nim eats corn|corn", "1|x|leek", (1, 0, 1, 1)),
        ("2|nim eats corn|leek", "1|x|corn", (0, 1, 1, 1)),  # the reader may be right where the writer is not
        (f"2|{CONTEXT}|corn", "2|x|corn", (1, 1, 1, 0)),  # the whole text is too long
        ("2|nim|corn", "1|x|corn", (1, 1, 1, 0)),  # 3 of 29 characters are too few
        ("2||corn", None, (1, 0, 1, 0)),  # no long answer, nothing to read
        ("corn", None, (0, 0, 0, 0)),
        ("|nim eats corn|corn", None, (0, 0, 0, 0)),
    ],
)
def test_four_rewards_by_hand(written, read, paid):
    environment, steps = faithful(*(action for action in (written, read) if action is not None))
    assert steps[-1].terminated
    found = environment.scores()[WRITER]
    assert tuple(found[name] for name in ("accuracy", "influence", "format", "length")) == paid
    assert environment.scores()[READER] == {"correct": float(paid[1])}
    assert environment.score() == found


def test_bounds_of_the_length_are_not_reached():
    environment, _ = began(Faithful(), context="x" * 10, asked="x", answer="y")
    environment.step("1|xx|y")
    assert environment.scores()[WRITER]["length"] == 0
    environment, _ = began(Faithful(), context="x" * 10, asked="x", answer="y")
    environment.step("1|xxx|y")
    assert environment.scores()[WRITER]["length"] == 1


def test_with_a_copying_reader_influence_is_that_the_answer_is_in_the_long_one():
    task, rng = FaithfulTask(facts=3), random.Random(0)
    seen = set()
    for index in range(80):
        example = task.example("train", index)
        environment = Faithful()
        environment.reset(example, 0)
        step = environment.step(environment.demonstrate(rng) if index % 2 else "1|bako eats none|none")
        if step.terminated:
            continue
        long, answer = environment.said[2], example.columns["answer"]
        told = next((f.split()[-1] for f in long.split(",") if f.startswith(example.columns["asked"])), "none")
        environment.step(f"1|x|{told}")
        held = f"{example.columns['asked']} {answer}" in long
        assert environment.scores()[WRITER]["influence"] == held
        seen.add(held)
    assert seen == {True, False}


# --- Wordle ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "hidden", "signs"),
    [("abc", "abc", "+++"), ("abc", "cab", "~~~"), ("aab", "abc", "+-~"), ("aba", "bcd", "-~-"), ("bbb", "abb", "-++")],
)
def test_marks_by_hand(guess, hidden, signs):
    assert marks(guess, hidden) == signs


def test_the_word_earns_the_guesses_that_are_left():
    for wrong in range(4):
        environment, _ = began(Wordle(4), words=["abc", "bad", "cab"], hidden="bad", first="abc")
        steps = [environment.step(action) for action in [*["cab"] * wrong, "bad"]]
        assert [step.reward for step in steps] == [0.0] * wrong + [4.0 - wrong]
        assert steps[-1].terminated
    environment, _ = began(Wordle(2), words=["abc", "bad"], hidden="bad", first="abc")
    steps = [environment.step(action) for action in ("xyz", "abc")]
    assert [(step.reward, step.valid) for step in steps] == [(0.0, False), (0.0, True)]
    assert steps[-1].truncated
    assert environment.score() == {"correct": 0.0}


def test_hints_leave_words_out_and_never_the_hidden_one():
    task, rng = WordleTask(noise=1.0), random.Random(1)
    for index in range(30):
        example = task.example("train", index)
        environment, first = task.environment(), example.columns["first"]
        environment.reset(example, 0)
        assert first not in environment.possible
        assert example.prompt[3:] == f"{first}{marks(first, environment.hidden)}>"
        step = None
        while step is None or not (step.terminated or step.truncated):
            step = environment.step(environment.demonstrate(rng))
            assert example.columns["hidden"] in environment.possible
            assert environment.state == " ".join(environment.possible)


# --- what is left out of the loss -----------------------------------------------------------------------------------


def test_rows_of_one_agent_leave_loss_and_statistics():
    batch = small([1.0, 0.0, 1.0], [2, 1, 2]).replace(agent_b=torch.tensor([0, 1, 0]))
    kept = DropAgent()(batch)
    assert kept.active_bt.any(1).tolist() == [True, False, True]
    assert kept.stats_b.tolist() == [True, False, True]
    assert DropAgent(agent=2)(batch).active_bt.equal(batch.active_bt)
    assert DropAgent().idle(RunFacts(agents=1))
    assert not DropAgent().idle(RunFacts(agents=2))
    assert DropAgent(agent=0).refuse(RunFacts(agents=1))
    assert not DropAgent(agent=0).refuse(RunFacts(agents=2))


def test_spans_leave_the_loss_with_their_signs_and_stay_in_the_mask():
    """The completions are "a[b]c[d]", "a[b" (never closed), "]a[bc]" with 1 = "[" and 2 = "]"."""
    completions = [[7, 1, 8, 2, 9, 1, 8, 2], [7, 1, 8], [2, 7, 1, 8, 9, 2]]
    batch = small([1.0] * 3, [8, 3, 6])
    marked_bt = spans(batch, completions, [(1,)], [(2,)])
    assert marked_bt.int().tolist() == [[0, 1, 1, 1, 0, 1, 1, 1], [0] * 8, [0, 0, 1, 1, 1, 1, 0, 0]]
    kept = DropSpan(begin="[", end="]")(batch.replace(marks={"span": marked_bt}))
    assert kept.active_bt.equal(batch.mask_bt & ~marked_bt)
    assert kept.mask_bt.equal(batch.mask_bt)


def test_signs_of_several_tokens_are_found_whole():
    batch = small([1.0], [7])
    assert spans(batch, [[1, 5, 1, 6, 9, 2, 6]], [(1, 6)], [(2, 6)]).int().tolist() == [[0, 0, 1, 1, 1, 1, 1]]
    assert not spans(batch, [[1, 5, 9, 9, 9, 2, 6]], [(1, 6)], [(2, 6)]).any()
    assert not spans(batch, [[1, 6, 9, 9, 9, 2, 6]], [], [(2, 6)]).any()


def test_a_run_marks_the_spans_that_the_method_leaves_out():
    class Policy:
        def encode(self, text):
            return [{"[": 1, "]": 2, " ": 3}[sign] for sign in text]

    samples = replace(
        FakeContext().sample([RolloutRequest(0, 0, Example("q", "q"), 2)]),
        texts=("a[b]", "aa"),
        rollout=Rollout(Tokens(((9,), (9,)), ((7, 1, 8, 2), (7, 7))), *torch.zeros(2, 2, 4), torch.zeros(2) > 0),
    )
    batch = small([1.0, 0.0], [4, 2])
    method = compose({"base": "grpo", "filter": [{"part": "drop_span", "begin": "[", "end": "]"}]}).method
    marked = add_texts(batch, samples, method, None, Policy().encode)
    assert marked.marks["span"].int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 0]]
    assert method.prepare(marked).weight_bt.ne(0).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    plain = compose({"base": "grpo"}).method
    assert not add_texts(batch, samples, plain, None, Policy().encode).marks
