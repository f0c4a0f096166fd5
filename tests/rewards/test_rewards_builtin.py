"""The built-in rewards on hand-made cases, and the self-test of rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError
from grouprl.rewards import (
    KnownExample,
    check_reward,
    contains_answer_tag,
    exact_match,
    known_examples,
    load_reward,
    math_equal,
    number_after_bar,
    numeric_match,
    reaches_target,
    regex_format,
    reward_names,
)


@pytest.mark.parametrize("name", [n for n in reward_names() if n != "math_equal"])
def test_every_built_in_reward_passes_its_self_test(name):
    reward = load_reward(name)
    assert check_reward(reward) >= 3
    assert {example.correct for example in reward.examples} == {True, False}


def test_math_equal():
    pytest.importorskip("math_verify")
    assert check_reward(math_equal) == 4
    with pytest.raises(ValueError, match="no expression"):
        math_equal("1", "")


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("42", "42", 1),
        ("x = -3.5", -3.5, 1),
        ("5-3", "3", 0),
        ("(2)-3", "3", 0),  # an operand, as in 5-3
        ("1,234,567", 1234567, 1),
        ("1,23", "23", 0),  # a decimal comma, or two numbers
        ("$.5", "0.5", 1),
        ("1e3.", 1000, 1),
        ("3.0000001", 3, 0),
        ("3.0000001", "3.0", 0),
        ("3.1400000001", "3.14", 1),
        ("1000001", "1000000", 0),
        ("9007199254740993", "9007199254740992", 0),
        ("9007199254740993", "9007199254740993", 1),
        ("12:02", 2, 0),
        ("0x2", 2, 0),
        ("2^3", 3, 0),
        ("1/2", 2, 0),
        ("1/2", 0.5, 1),
        ("0", "0.0000001", 0),
        ("not 3", 3, 0),
        ("week2", 2, 0),
        ("42km", 42, 1),
        ("3.1", 3, 0),
        ("-3", 3, 0),
        ("", 3, 0),
        ("1e999", 3, 0),
    ],
)
def test_numeric_match(completion, answer, expected):
    assert numeric_match(completion, answer) == expected


def test_numeric_match_tolerance_and_bad_data():
    assert numeric_match("3.1", 3, tolerance=0.2) == 1
    with pytest.raises(ValueError, match="no finite number: 'none'"):
        numeric_match("3", "none")


def test_regex_format_with_an_own_pattern():
    assert regex_format("yes\nno", pattern="yes.no") == 1
    assert regex_format("yes no more", pattern="yes.no") == 0


def test_answer_tag_takes_the_last_complete_tag():
    assert contains_answer_tag("<answer>1<answer>4</answer>", "4") == 1
    assert contains_answer_tag("<answer>4</answer> and <answer>5", 4) == 1
    assert contains_answer_tag("<answer>4\n5</answer>", "4\n5") == 1


def test_exact_match_of_numbers():
    assert exact_match("4", 4) == 1


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("1213|132", "132", 1),
        ("|132", "132", 1),
        ("|000132", "132", 1),
        ("|0", "0", 1),
        ("|000", "0", 1),
        ("|", "0", 0),
        ("", "0", 0),
        ("132", "132", 0),
        ("|132|", "132", 0),
        ("132|133", "132", 0),
        ("|1320", "132", 0),
        ("|+132", "132", 0),
        ("|132\n", "132", 0),
        ("|١٣٢", "132", 0),
        ("|²", "2", 0),
        ("|" + "0" * 9999 + "132", "132", 1),
        ("|" + "9" * 9999, "132", 0),
    ],
)
def test_number_after_bar(completion, answer, expected):
    assert number_after_bar(completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "numbers", "target", "expected"),
    [
        ("2+3*7", (2, 3, 7), 23, 1),
        ("(2+3)*7", (2, 3, 7), 35, 1),
        ("7-3-2", (2, 3, 7), 2, 1),
        ("6/4*2", (2, 4, 6), 3, 1),
        ("3+3", (3, 3), 6, 1),
        ("((2))+3", (2, 3), 5, 1),
        ("3", (3, 3), 3, 0),
        ("3+3+3", (3, 3), 9, 0),
        ("2+3", (2, 3, 7), 5, 0),
        ("2+3*7", (2, 3, 7), 35, 0),
        ("2**3", (2, 3), 8, 0),
        ("7//2", (2, 7), 3, 0),
        ("2/0", (0, 2), 0, 0),
        ("-3+2", (2, 3), -1, 0),
        ("2+3=5", (2, 3), 5, 0),
        ("2 + 3", (2, 3), 5, 0),
        ("02+3", (2, 3), 5, 0),
        ("2+", (2, 3), 5, 0),
        ("()", (2, 3), 5, 0),
        ("2(3)", (2, 3), 6, 0),
        ("", (2, 3), 5, 0),
        ("__import__('os')", (2, 3), 5, 0),
        ("2_3", (2, 3), 23, 0),
        ("(" * 5000, (2, 3), 5, 0),
        ("9" * 5000, (2, 3), 5, 0),
    ],
)
def test_reaches_target(completion, numbers, target, expected):
    assert reaches_target(completion, numbers, target) == expected


@given(st.text(alphabet="0123456789+-*/()", max_size=24))
def test_reaches_target_never_raises(completion):
    assert reaches_target(completion, (2, 3, 7, 9), 13) in (0.0, 1.0)


@given(st.text(max_size=60))
def test_text_rewards_never_raise_on_any_text(text):
    for value in (numeric_match(text, 1), exact_match(text, "1"), regex_format(text), contains_answer_tag(text, "1")):
        assert value in (0.0, 1.0)


def test_check_reward_finds_wrong_verdicts_and_failures():
    @known_examples(("4", {"answer": "4"}, True), ("5", {"answer": "4"}, False))
    def always(completion, answer):
        return 1.0

    with pytest.raises(InputError, match=r"'always' gives 1 to '5'.*known to be wrong"):
        check_reward(always)

    def broken(completion):
        raise ValueError("oh")

    with pytest.raises(InputError, match=r"'broken' fails its self-test: sample example 0.*oh"):
        check_reward(broken, [KnownExample("4", {}, True)])


def test_check_reward_without_examples():
    assert check_reward(lambda completion: 1.0) == 0
