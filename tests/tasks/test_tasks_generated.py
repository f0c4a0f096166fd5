"""The built-in tasks: prompts, splits, demonstrators and verifiers."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grouprl.core.errors import InputError
from grouprl.rewards import check_reward, reaches_target, score
from grouprl.tasks import (
    Addition,
    Chain,
    Countdown,
    Example,
    GeneratedTask,
    Multiplication,
    Ponder,
    Reverse,
    Sorting,
    Summands,
    load_task,
)
from grouprl.tasks.task import split_of

TASKS = [Addition, Multiplication, Chain, Countdown, Sorting, Reverse, Summands, Ponder]
LEVELS = [(task, level) for task in TASKS for level in range(1, len(task.levels) + 1)]


def pass_rate(task, answer, count=2000):
    examples = [task.example("train", index) for index in range(count)]
    scores = score(
        task.reward, [answer(q) for q in examples], [q.columns for q in examples], ids=[q.id for q in examples]
    )
    assert scores.ok_b.all()
    return scores.reward_b.mean()


def requested(prompt, **columns):
    return Example("q", prompt, columns)


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_solutions_are_right_fit_and_are_spelt_in_the_alphabet(task, level):
    task = task(level=level)
    assert pass_rate(task, task.solution, 100) == 1.0
    assert check_reward(task.reward, task.reward_examples()) == 9
    for index in range(100):
        example = task.example("train", index)
        assert example.level == level
        for text in (example.prompt, task.solution(example), task.demonstration(example, 0)):
            assert set(text) <= set(task.alphabet)
        assert len(task.solution(example)) < task.max_new_tokens
        assert len(task.demonstration(example, 0)) < task.max_new_tokens


@pytest.mark.parametrize(
    ("task", "low", "high"),
    [
        (Addition(), 0.47, 0.56),  # 0.3 + 0.7 * 0.55**2 = 0.51
        (Addition(think=0.0), 0.26, 0.35),  # no carry anywhere: 0.55**2 = 0.30
        (Addition(think=1.0, noise=0.2), 0.62, 0.72),  # (0.8 + 0.2 / 20)**2 = 0.656, and lucky pairs
        (Multiplication(), 0.52, 0.64),
        (Chain(), 0.55, 0.67),
        (Countdown(), 0.44, 0.56),
        (Countdown(level=2), 0.30, 0.42),
        (Sorting(), 0.05, 0.12),
        (Sorting(noise=0.2), 0.30, 0.45),
        (Reverse(), 0.37, 0.47),  # (0.85 + 0.15 / 10)**6 = 0.42
    ],
)
def test_demonstrations_are_as_good_as_they_should_be(task, low, high):
    assert low < pass_rate(task, lambda q: task.demonstration(q, seed=0)) < high


@pytest.mark.parametrize(
    "task",
    [Addition(think=1), Multiplication(think=1), Chain(noise=0), Countdown(hit=1), Sorting(noise=0), Reverse(noise=0)],
)
def test_without_noise_and_blurting_demonstrations_are_right(task):
    assert pass_rate(task, lambda q: task.demonstration(q, seed=3), 300) == 1.0


@pytest.mark.parametrize("task", TASKS)
def test_questions_and_demonstrations_are_determined(task):
    first, again, other = task(seed=5), task(seed=5), task(seed=6)
    for index in (0, 7, 10**12):
        example = first.example("train", index)
        assert again.example("train", index) == example
        assert again.demonstration(example, 1) == first.demonstration(example, 1)
    prompts = [[t.example("train", index).prompt for index in range(50)] for t in (first, other)]
    assert prompts[0] != prompts[1]
    demonstrations = [[first.demonstration(first.example("train", i), seed) for i in range(50)] for seed in (0, 1)]
    assert demonstrations[0] != demonstrations[1]
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def test_questions_are_the_same_in_another_process():
    code = (
        "from grouprl.tasks import load_task; task = load_task('sorting'); question = task.example('eval', 3);"
        "print(question.prompt, task.demonstration(question, 9), task.fingerprint())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    task = load_task("sorting")
    example = task.example("eval", 3)
    assert runs == {f"{example.prompt} {task.demonstration(example, 9)} {task.fingerprint()}\n"}


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_by_content_for_every_seed(task):
    train, held_out = task(seed=1), task(seed=2)
    seen = {train.content(train.example("train", index).prompt) for index in range(2000)}
    held = {held_out.content(held_out.example("eval", index).prompt) for index in range(300)}
    assert not seen & held
    assert len({train.example("train", index).id for index in range(100)}) == 100
    assert all(split_of(content) == "eval" for content in held)


def test_mirror_images_are_in_the_same_split():
    assert Addition().content("47+85=") == Addition().content("85+47=")
    assert Multiplication(digits=2, by=2).content("47*85=") == Multiplication(digits=2, by=2).content("85*47=")
    assert Sorting().content("3121>") == Sorting().content("1123>")


def test_one_question_in_ten_is_held_out():
    share = sum(split_of(str(n)) == "eval" for n in range(20_000)) / 20_000
    assert 0.09 < share < 0.11


def test_addition_by_hand():
    task = Addition(think=1.0)
    example = requested("47+85=", answer="132")
    assert task.solution(example) == task.demonstration(example, 0) == "1213|132"
    assert Addition(think=0.0).demonstration(example, 0) == "|022"
    assert Addition(digits=1).solution(requested("2+3=", answer="5")) == "05|05"
    assert task.max_new_tokens == 16


def test_multiplication_by_hand():
    one = requested("47*6=", answer="282")
    assert Multiplication().solution(one) == "4228|282"
    assert Multiplication(think=0.0).demonstration(one, 0) == "|042"  # 4*6 and 7*6 without carries: 4, 2
    two = requested("47*36=", answer="1692")
    assert Multiplication(digits=2, by=2).solution(two) == "4228:0282;2114|1692"
    assert Multiplication(digits=2, by=2, think=0.0).demonstration(two, 0) == f"|{42 + 210:04d}"


def test_chain_by_hand():
    example = requested("7+5*3-8=", answer="8")
    assert Chain().solution(example) == "268|8"  # 12 -> 2, 6, -2 -> 8: from left to right
    assert Chain(think=0.0, noise=0.0).demonstration(example, 0) == "|8"
    assert Chain(modulus=7, length=1).solution(requested("6*6=", answer="1")) == "1|1"


def test_sorting_and_reverse_by_hand():
    assert (
        Sorting(noise=0.0).demonstration(requested("3141592>"), 0)
        == Sorting().solution(requested("3141592>"))
        == "1123459"
    )
    assert sorted(Sorting(noise=1.0).demonstration(requested("3141592>"), 0)) == sorted("3141592")
    assert Reverse().solution(requested("abc>")) == "cba"


def test_reverse_of_mixed_length():
    task = Reverse(length=6, shortest=2)
    lengths = {len(task.example("train", i).columns["answer"]) for i in range(200)}
    assert lengths == {2, 3, 4, 5, 6}
    example = task.example("train", 0)
    assert example.level == len(example.prompt) - 1
    with pytest.raises(InputError, match="Shortest is 7, but length is only 6"):
        load_task({"name": "reverse", "shortest": 7})


def test_reverse_with_hints():
    task = Reverse(length=6, hinted=0.5, noise=1.0)
    examples = [task.example("train", i) for i in range(300)]
    hinted = [q for q in examples if q.prompt.count(">") == 2]
    assert 100 < len(hinted) < 200
    for example in hinted:
        hint, letters, _ = example.prompt.split(">")
        assert example.columns["answer"] == letters[::-1] == task.solution(example)
        assert task.solution(example).startswith(hint)
        assert task.demonstration(example, 0).startswith(hint)
        assert len(hint) in (2, 3, 5)


def test_forms_of_ponder():
    task, example = Ponder(dots=4), requested("abc>", answer="cba")
    forms = [task.form_of(example, text) for text in ("|cba", "..|cba", "...|cba", "cba")]
    assert forms == ["direct", "short", "long", None]


def test_summands_by_hand():
    task = Summands(noise=0.0)
    right = [f"{a}+{7 - a}" for a in range(1, 7)]
    assert all(task.reward(text, answer=7) == 1 for text in right)
    wrong = ("0+7", "7", "3+5", "03+4", "3+4+0", "-1+8", "")
    assert not any(task.reward(text, answer=7) for text in wrong)
    shown = {task.demonstration(Example(str(i), "7=", {"answer": 7}), 0) for i in range(200)}
    assert shown == set(right)


@given(st.integers(0, 10**9))
@settings(max_examples=50, deadline=None)
def test_columns_agree_with_the_prompt(index):
    a, b = Addition(digits=3).example("train", index).prompt[:-1].split("+")
    assert Addition(digits=3).example("train", index).columns == {"answer": str(int(a) + int(b))}
    example = Countdown(level=4).example("eval", index)
    numbers, target = example.prompt[:-1].split(":")
    assert [int(n) for n in numbers.split(",")] == list(example.columns["numbers"])
    assert int(target) == example.columns["target"]
    assert reaches_target(example.columns["answer"], example.columns["numbers"], int(target)) == 1.0
    example = Multiplication(level=4).example("train", index)
    a, b = example.prompt[:-1].split("*")
    assert example.columns == {"answer": str(int(a) * int(b))}


def test_levels():
    assert load_task({"name": "addition", "level": 3}).digits == 3
    assert Addition(digits=3).example("train", 0).level == 3
    assert Addition(digits=5).example("train", 0).level == 0
    assert Addition(level=3).fingerprint() == Addition(digits=3).fingerprint() != Addition(digits=2).fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digit": 3}, "no option 'digit'. Did you mean 'digits'"),
        ({"digits": 0}, "'digits' of task 'addition' is 0. Input should be greater"),
        ({"digits": "two"}, "'digits' of task 'addition' is 'two'"),
        ({"think": 1.5}, "'think'"),
        ({"level": 7}, "levels are 1..6"),
        ({"level": 0}, "'level' of task 'addition' is 0"),
        ({"level": 2, "digits": 2}, "already sets digits"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        Addition(**options)


def test_wrong_requests():
    task = Addition()
    with pytest.raises(InputError, match=r"no split 'evaluation'. Did you mean 'eval'"):
        task.example("evaluation", 0)
    with pytest.raises(InputError, match="no split 'test'"):
        task.size("test")
    with pytest.raises(InputError, match=r"Prompt -1 .* any number from 0"):
        task.example("train", -1)
    assert task.size("train") is None


def test_a_task_with_too_few_questions_says_so():
    class Single(GeneratedTask):
        """One prompt."""

        def generate(self, rng):
            return "1>", {}

        def demonstrate(self, example, rng):
            return "1"

        def solve(self, example):
            return "1"

        @property
        def reward(self):
            return lambda completion: 1.0

    empty = "eval" if split_of("1>") == "train" else "train"
    with pytest.raises(InputError, match=f"no prompt for the split '{empty}'"):
        Single().example(empty, 0)
