"""Built-in rewards: usable alone, by name in a configuration, and as examples of how to write one.

Each is 1.0 or 0.0 and carries known-right and known-wrong answers (`check_reward`). A column that makes no sense,
such as an answer without a number for `numeric_match`, raises: it is a fault of the data, not of the model.
"""

from __future__ import annotations

import math
import re
from typing import Any

from grouprl.errors import MissingExtra
from grouprl.rewards.contract import known_examples

# A sign counts as part of a number only where it cannot be a minus between two operands.
NUMBER = re.compile(r"(?:(?<![\w).])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|(?<!\d)\.\d+")
ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
THINK_THEN_ANSWER = r"\s*<think>(?:(?!</?think>).)*</think>\s*<answer>(?:(?!</?answer>).)*</answer>\s*"


@known_examples(
    (" Paris\n", {"answer": "Paris"}, True),
    ("paris", {"answer": "Paris"}, False),
    ("", {"answer": "Paris"}, False),
)
def exact_match(completion: str, answer: Any) -> float:
    """Return 1 iff the completion is the answer; white space around either is ignored."""
    return float(completion.strip() == str(answer).strip())


@known_examples(
    ("12 apples and 1,200 pears, so 1,212.", {"answer": "#### 1212"}, True),
    ("5-3=2", {"answer": 2}, True),
    ("the answer is 1212 of 1300", {"answer": "1212"}, False),
    ("no number", {"answer": "0"}, False),
)
def numeric_match(completion: str, answer: Any, tolerance: float = 1e-6) -> float:
    """Return 1 iff the last number in the completion is the last number in the answer.

    The two may differ by `tolerance`, absolutely or relative to the larger one. Thousands separators are read.

    Raises:
        ValueError: if the answer holds no finite number.
    """
    expected = _last_number(str(answer))
    if expected is None:
        raise ValueError(f"the column 'answer' holds no finite number: {answer!r}")
    found = _last_number(completion)
    return float(found is not None and math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance))


@known_examples(
    ("<think>2+2</think>\n<answer>4</answer>", {}, True),
    ("<think>2+2</think> so <answer>4</answer>", {}, False),
    ("<think><think></think><answer>4</answer>", {}, False),
    ("4", {}, False),
)
def regex_format(completion: str, pattern: str = THINK_THEN_ANSWER) -> float:
    """Return 1 iff the whole completion matches the pattern, in which '.' matches line ends too.

    The default asks for one <think>…</think> and then one <answer>…</answer>.
    """
    return float(re.fullmatch(pattern, completion, re.DOTALL) is not None)


@known_examples(
    ("<think>2+2</think><answer> 4 </answer>", {"answer": "4"}, True),
    ("<answer>4</answer><answer>5</answer>", {"answer": "4"}, False),
    ("<answer>4", {"answer": "4"}, False),
    ("4", {"answer": "4"}, False),
)
def contains_answer_tag(completion: str, answer: Any) -> float:
    """Return 1 iff the text inside the last <answer>…</answer> is the answer, white space around it ignored."""
    inside = ANSWER_TAG.findall(completion)
    return float(bool(inside) and inside[-1].strip() == str(answer).strip())


@known_examples(
    ("so it is $\\frac{1}{2}$", {"answer": "0.5"}, True),
    ("\\boxed{x^2+2x+1}", {"answer": "$(x+1)^2$"}, True),
    ("so it is $\\frac{1}{3}$", {"answer": "0.5"}, False),
    ("", {"answer": "0.5"}, False),
)
def math_equal(completion: str, answer: Any) -> float:
    """Return 1 iff math-verify finds the completion's final expression equal to the answer.

    Its own timeouts are off: they rest on SIGALRM, which fails outside the main thread and there makes every score 0.
    An expression on which sympy never ends therefore has to be stopped by whoever calls this in a process of its own.

    Raises:
        MissingExtra: without the package math-verify.
        ValueError: if the answer cannot be parsed.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise MissingExtra("math-verify", "math", "The reward 'math_equal'") from error
    text = str(answer)
    expected = parse(text, parsing_timeout=None) or parse(f"${text}$", parsing_timeout=None)
    if not expected:
        raise ValueError(f"the column 'answer' holds no expression that can be parsed: {answer!r}")
    return float(verify(expected, parse(completion, parsing_timeout=None), timeout_seconds=None))


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text)
    number = float(found[-1].replace(",", "")) if found else math.inf
    return number if math.isfinite(number) else None
