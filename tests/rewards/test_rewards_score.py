"""Scoring: every form of the contract, every value checked, nothing silently zero."""

import asyncio
import math
import sys
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError, MissingExtra
from grouprl.records.scores import Problem
from grouprl.rewards import combine, score
from grouprl.rewards.contract import LONGEST_MESSAGE
from grouprl.rewards.validation import Terms, verdicts_of


def run(reward, completions=("a", "b"), columns=None, **options):
    columns = columns if columns is not None else [{} for _ in completions]
    return score(reward, list(completions), columns, ids=[f"q{i}" for i in range(len(completions))], **options)


def test_plain_function_gets_only_the_columns_it_names():
    def reward(completion, answer):
        return completion == answer

    scores = run(reward, ["1", "2"], [{"answer": "1", "other": 0}, {"answer": "1", "other": 0}])
    assert scores.reward_b.tolist() == [1.0, 0.0]
    assert scores.reward_b.dtype == np.float64
    assert scores.correct_b.tolist() == [True, False]
    assert scores.status_b.tolist() == ["ok", "ok"]
    assert scores.components == {}
    assert scores.problems == []


def test_kwargs_function_gets_every_column():
    seen = []
    run(lambda completion, **columns: seen.append(columns) or 0.0, ["x"], [{"a": 1, "b": 2}])
    assert seen == [{"a": 1, "b": 2}]


def test_optional_column_keeps_its_default_where_absent():
    def reward(completion, scale=10.0):
        return scale

    assert run(reward, ["x", "y"], [{"scale": 2.0}, {}]).reward_b.tolist() == [2.0, 10.0]


@pytest.mark.parametrize("value", [Decimal("0.25"), Fraction(1, 4), np.float16(0.25), torch.tensor(0.25)])
def test_every_kind_of_a_real_number_is_a_reward(value):
    assert run(lambda completion: value).reward_b.tolist() == [0.25, 0.25]
    assert run(lambda completion: {"part": value}).components["part"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("value", [Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1e400")])
def test_a_decimal_that_is_no_finite_number_is_none(value):
    assert run(lambda completion: value).status_b.tolist() == ["bad_value"] * 2


def test_an_exception_without_a_text_is_the_samples_alone():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def reward(completion):
        if completion == "a":
            raise Mute
        return 1.0

    scores = run(reward)
    assert scores.status_b.tolist() == ["error", "ok"]
    assert "the reward raised Mute, whose text raises RuntimeError" in str(scores.problems[0])


def test_halves_of_characters_do_not_reach_the_files_of_a_run():
    def reward(completion):
        if completion == "a":
            raise ValueError("odd \ud800")
        return {"part\udfff": 1.0}

    scores = run(reward)
    assert scores.status_b.tolist() == ["error", "bad_value"]
    assert "raised ValueError: odd \\ud800" in scores.problems[0].what
    assert "component 'part\\udfff' has half a character in its name" in scores.problems[1].what
    assert all((problem.what + problem.trace).encode() for problem in scores.problems)


def test_missing_column_names_the_sample_and_the_nearest_column():
    with pytest.raises(InputError, match=r"needs the column 'answer', which sample q1 lacks.*'answers'"):
        run(lambda completion, answer: 1.0, ["x", "y"], [{"answer": 1}, {"answers": 1}])


def test_batch_form_gets_lists():
    def reward(completions, answer):
        assert isinstance(completions, list)
        assert isinstance(answer, list)
        return [float(c == a) for c, a in zip(completions, answer, strict=True)]

    scores = run(reward, ["1", "2"], [{"answer": "1"}, {"answer": "1"}])
    assert scores.reward_b.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple])
def test_batch_form_may_return_arrays(make):
    assert run(lambda completions: make([0.5, 1.0])).reward_b.tolist() == [0.5, 1.0]


def test_batch_form_with_a_column_that_some_samples_lack():
    with pytest.raises(InputError, match="sample q1 lacks"):
        run(lambda completions, **columns: [0, 0], ["x", "y"], [{"a": 1}, {}])


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([1.0], "returned 1 values for 2 completions"),
        ([1.0, 1.0, 1.0], "returned 3 values for 2 completions"),
        (1.0, "returned float, not a list"),
        ("11", "returned str, not a list"),
        (None, "returned NoneType, not a list"),
    ],
)
def test_batch_form_of_wrong_length_or_type(value, what):
    scores = run(lambda completions: value)
    assert scores.status_b.tolist() == ["bad_value"] * 2
    assert np.isnan(scores.reward_b).all()
    assert [p.sample_id for p in scores.problems] == ["q0", "q1"]
    assert all(what in p.what for p in scores.problems)


def test_async_forms_run_together():
    running, most = 0, 0

    async def reward(completion):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        if completion == "b":
            raise ValueError("no b")
        return 1.0

    scores = run(reward, ["a", "b", "c"])
    assert most == 3
    assert scores.status_b.tolist() == ["ok", "error", "ok"]
    assert "no b" in scores.problems[0].what
    assert "ValueError" in scores.problems[0].trace

    async def batch(completions):
        return [0.25] * len(completions)

    assert run(batch).reward_b.tolist() == [0.25, 0.25]


def test_async_reward_inside_a_running_loop():
    async def reward(completion):
        await asyncio.sleep(0)
        return 1.0

    async def notebook():
        return run(reward)

    assert asyncio.run(notebook()).reward_b.tolist() == [1.0, 1.0]


def test_leaving_the_process_is_a_failure_of_one_sample():
    def reward(completion):
        if completion == "b":
            sys.exit(3)
        return 1.0

    async def later(completion):
        return reward(completion)

    for form in (reward, later):
        scores = run(form, ["a", "b", "c"])
        assert scores.status_b.tolist() == ["ok", "error", "ok"]
        assert "raised SystemExit: 3" in scores.problems[0].what


def test_async_verdicts_are_given_up_at_their_limit():
    async def reward(completion):
        await asyncio.sleep(60 if completion == "b" else 0)
        return 1.0

    verdicts = verdicts_of(reward, ["a", "b", "c"], [{}] * 3, ["0", "1", "2"], Terms(timeout=0.2))
    assert [verdict.status for verdict in verdicts] == ["ok", "timeout", "ok"]
    assert "returned nothing within 0.2 s" in verdicts[1].what


def test_an_object_that_cannot_be_looked_at_is_a_bad_value():
    class Cursed:
        def __repr__(self):
            raise RuntimeError("no")

    scores = run(lambda completion: Cursed() if completion == "b" else 1.0, ["a", "b"])
    assert scores.status_b.tolist() == ["ok", "bad_value"]
    assert "an object of type Cursed; reading it raised RuntimeError" in scores.problems[0].what


def test_a_sum_that_overflows_is_a_bad_value():
    huge = {"a": 9e14, "b": 9e14}
    both = combine([("a", lambda completion: 9e14, 1.0), ("b", lambda completion: 9e14, 1.0)])
    weighted = combine([("a", lambda completion: 9e14, 1e300)])
    for reward, total in ((lambda completion: huge, 1.8e15), (both, 1.8e15), (weighted, math.inf)):
        scores = run(reward, ["a"])
        assert scores.status_b.tolist() == ["bad_value"]
        assert f"sum of the reward's components is {total}, not a finite number" in scores.problems[0].what


def test_messages_and_tracebacks_have_an_end():
    def reward(completion):
        raise ValueError("x" * 10**6)

    problem = run(reward, ["a"]).problems[0]
    assert len(problem.what) == len(problem.trace) == LONGEST_MESSAGE
    assert problem.what.startswith("the reward raised ValueError: xxx")


def test_exception_marks_its_sample_only_and_keeps_the_traceback():
    def reward(completion):
        return 1.0 / len(completion)

    scores = run(reward, ["a", "", "ab"])
    assert scores.status_b.tolist() == ["ok", "error", "ok"]
    assert scores.reward_b[[0, 2]].tolist() == [1.0, 0.5]
    assert math.isnan(scores.reward_b[1])
    assert not scores.correct_b[1]
    (problem,) = scores.problems
    assert (problem.sample_id, problem.status, problem.completion) == ("q1", "error", "")
    assert "ZeroDivisionError" in problem.what
    assert "return 1.0 / len(completion)" in problem.trace
    assert "q1" in str(problem)


def test_interrupts_and_missing_packages_are_not_swallowed():
    def interrupted(completion):
        raise KeyboardInterrupt

    def needs_package(completion):
        raise MissingExtra("p", "e", "this")

    with pytest.raises(KeyboardInterrupt):
        run(interrupted)
    with pytest.raises(MissingExtra):
        run(needs_package)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, "1", [1.0], 1j, object(), np.array([1.0]), {}, 10**400]
)
def test_unusable_values_name_the_sample(value):
    scores = run(lambda completion: 1.0 if completion == "good" else value, ["good", "bad"])
    assert scores.status_b.tolist() == ["ok", "bad_value"]
    assert math.isnan(scores.reward_b[1])
    assert scores.problems[0].sample_id == "q1"
    assert scores.problems[0].trace == ""


@pytest.mark.parametrize(
    "value", [1, True, 1.0, np.float32(1), np.bool_(True), np.int64(1), torch.tensor(1.0), np.array(1)]
)
def test_scalars_of_every_kind_count(value):
    assert run(lambda completion: value).reward_b.tolist() == [1.0, 1.0]


def test_none_means_not_applicable():
    scores = run(lambda completion: None if completion == "b" else 1.0)
    assert scores.status_b.tolist() == ["ok", "not_applicable"]
    assert scores.ok_b.tolist() == [True, False]
    assert scores.failed_b.tolist() == [False, False]
    assert scores.problems[0].status == "not_applicable"


def test_dict_without_total_is_summed_with_weights():
    reward = lambda completion: {"right": 1.0, "short": 0.5}  # noqa: E731
    scores = run(reward)
    assert scores.reward_b.tolist() == [1.5, 1.5]
    assert scores.components["short"].tolist() == [0.5, 0.5]
    assert run(reward, weights={"short": 0.1}).reward_b == pytest.approx([1.05, 1.05])


def test_dict_with_total_and_correct():
    scores = run(lambda completion: {"reward": 0.3, "right": 1.0, "correct": completion == "a"})
    assert scores.reward_b.tolist() == [0.3, 0.3]
    assert scores.correct_b.tolist() == [True, False]
    assert set(scores.components) == {"right"}


def test_correct_is_no_component_but_can_be_the_total():
    assert run(lambda completion: {"correct": 1, "style": 0.5}).reward_b.tolist() == [0.5, 0.5]
    assert run(lambda completion: {"correct": 1}).reward_b.tolist() == [1.0, 1.0]
    assert run(lambda completion: {"correct": 0.5}).status_b.tolist() == ["bad_value"] * 2


def test_correct_at():
    assert run(lambda completion: 0.5).correct_b.tolist() == [False, False]
    assert run(lambda completion: 0.5, correct_at=0.5).correct_b.tolist() == [True, True]


def test_components_missing_from_a_sample_are_nan():
    scores = run(lambda completion: {"x": 1.0} if completion == "a" else {"y": 2.0})
    assert scores.reward_b.tolist() == [1.0, 2.0]
    assert scores.components["x"][0] == 1.0
    assert math.isnan(scores.components["x"][1])


def test_bad_component_is_named():
    scores = run(lambda completion: {"x": math.nan})
    assert "component 'x'" in scores.problems[0].what


def test_wrong_weights():
    with pytest.raises(InputError, match=r"no such component.*'short'"):
        run(lambda completion: {"short": 1.0}, weights={"shrot": 1.0})
    with pytest.raises(InputError, match="its own total"):
        run(lambda completion: 1.0, weights={"x": 1.0})
    with pytest.raises(InputError, match="finite"):
        run(lambda completion: {"x": 1.0}, weights={"x": math.nan})


def test_lengths_that_differ():
    with pytest.raises(InputError, match="2 completions, 1 columns and 2 ids"):
        score(lambda completion: 1.0, ["a", "b"], [{}], ids=["0", "1"])


@pytest.mark.parametrize("reward", [3, lambda: 1.0, lambda *, completion: 1.0])
def test_what_is_no_reward(reward):
    with pytest.raises(InputError, match=r"callable|parameter for the completion"):
        run(reward)


def test_no_samples():
    scores = score(lambda completion: 1.0, [], [], ids=[])
    assert scores.reward_b.shape == scores.status_b.shape == (0,)


def test_partial_keeps_its_options():
    def reward(completion, scale):
        return scale

    assert run(partial(reward, scale=3.0)).reward_b.tolist() == [3.0, 3.0]


def test_long_completions_are_shortened_in_problems():
    scores = run(lambda completion: None, ["x" * 10_000])
    assert len(scores.problems[0].completion) < 300


def test_a_problem_shows_its_completion_where_there_may_be_one():
    assert str(Problem("s0", "error", "no", "")) == "sample s0: no (completion: '')"
    assert str(Problem("s0", "error", "no", "ab", by="environment")) == "sample s0: no (completion: 'ab')"
    assert str(Problem("s0", "error", "no", "", by="environment")) == "sample s0: no"  # actions are no text


def test_combine_weighs_and_names_the_parts():
    right = lambda completion, answer: completion == answer  # noqa: E731
    shape = lambda completions: [{"length": len(c)} for c in completions]  # noqa: E731
    reward = combine([("right", right, 1.0), ("shape", shape, 0.1)])
    scores = run(reward, ["7", "88"], [{"answer": "7"}] * 2)
    assert scores.reward_b == pytest.approx([1.1, 0.2])
    assert scores.components["right"].tolist() == [1.0, 0.0]
    assert scores.components["shape/length"].tolist() == [1.0, 2.0]
    assert scores.correct_b.tolist() == [True, False]
    by_shape = combine([("right", right, 1.0), ("shape", shape, 0.1)], correct="shape")
    assert run(by_shape, ["7", "88"], [{"answer": "7"}] * 2).correct_b.tolist() == [True, True]


def test_combined_parts_that_do_not_apply_are_left_out():
    sometimes = lambda completion: None if completion == "b" else 1.0  # noqa: E731
    never = lambda completion: None  # noqa: E731
    scores = run(combine([("sometimes", sometimes, 1.0), ("always", lambda completion: 0.5, 2.0)]))
    assert scores.reward_b.tolist() == [2.0, 1.0]
    assert math.isnan(scores.components["sometimes"][1])
    assert scores.correct_b.tolist() == [True, False]
    assert run(combine([("never", never, 1.0)])).status_b.tolist() == ["not_applicable"] * 2


def test_a_failing_part_fails_the_sample():
    scores = run(combine([("fine", lambda completion: 1.0, 1.0), ("broken", lambda completion: math.nan, 1.0)]))
    assert scores.status_b.tolist() == ["bad_value"] * 2
    assert "in 'broken'" in scores.problems[0].what


def test_combined_reward_is_callable_and_nests():
    inner = combine([("a", lambda completion: 1.0, 1.0), ("b", lambda completion: 1.0, 1.0)])
    outer = combine([("inner", inner, 0.5)])
    assert outer("x") == {"reward": 1.0, "inner": 2.0, "inner/a": 1.0, "inner/b": 1.0, "correct": 1.0}
    assert combine([("n", lambda completion: None, 1.0)])("x") is None
    with pytest.raises(InputError, match="in 'n'"):
        combine([("n", lambda completion: "x", 1.0)])("x")


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "no rewards"),
        ([("a", len, 1.0), ("a", len, 1.0)], {}, "They must differ"),
        ([("correct", lambda completion: 1, 1.0)], {}, "They must differ"),
        ([("a", lambda completion: 1, math.inf)], {}, "finite"),
        ([("a", lambda completion: 1, 1.0)], {"correct": "b"}, "no reward 'b'"),
        ([("a", 5, 1.0)], {}, "not callable"),
    ],
)
def test_wrong_combinations(parts, options, message):
    with pytest.raises(InputError, match=message):
        combine(parts, **options)


def test_weights_of_a_combined_reward_are_set_in_combine():
    with pytest.raises(InputError, match="combine"):
        run(combine([("a", lambda completion: 1.0, 1.0)]), weights={"a": 2.0})


VALUES = st.one_of(
    st.none(),
    st.floats(),
    st.booleans(),
    st.text(max_size=3),
    st.dictionaries(st.sampled_from("xyz"), st.floats(), max_size=3),
)


@given(st.lists(VALUES, max_size=8))
def test_reward_is_nan_exactly_where_the_status_is_not_ok(values):
    scores = run(lambda completion, value: value, ["t"] * len(values), [{"value": v} for v in values])
    assert (np.isnan(scores.reward_b) == (scores.status_b != "ok")).all()
    assert np.isfinite(scores.reward_b[scores.ok_b]).all()
    assert not scores.correct_b[~scores.ok_b].any()
    assert len(scores.problems) == int((~scores.ok_b).sum())
