"""Built-in rewards: usable alone, by name in a configuration, and as examples of how to write one.

Each is 1.0 or 0.0 and carries known-right and known-wrong completions (`check_reward`). A column that makes no sense,
such as an answer without a number for `numeric_match`, raises: it is a fault of the data, not of the model.
"""

from __future__ import annotations

import importlib.util
import re
from fractions import Fraction
from typing import Literal, get_args

from grouprl.core.errors import MissingExtra
from grouprl.rewards.contract import known_examples
from grouprl.rewards.math.last_number import last_number
from grouprl.rewards.math.math_answers import has_form, is_formula, read_gold, same_answer
from grouprl.rewards.math.math_text import answer_of, tidy
from grouprl.rewards.verifier_calls import Apart

Form = Literal["any", "simplified", "expanded", "factored"]
ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
THINK_THEN_ANSWER = r"\s*<think>(?:(?!</?think>).)*</think>\s*<answer>(?:(?!</?answer>).)*</answer>\s*"


@known_examples(
    (" Paris\n", {"answer": "Paris"}, True),
    ("paris", {"answer": "Paris"}, False),
    ("", {"answer": "Paris"}, False),
)
def exact_match(completion: str, answer: object) -> float:
    """Return 1 iff the completion is the answer; white space around either is ignored."""
    return float(completion.strip() == str(answer).strip())


@known_examples(
    ("12 apples and 1,200 pears, so 1,212.", {"answer": "#### 1212"}, True),
    ("5-3=2", {"answer": 2}, True),
    ("the answer is 1212 of 1300", {"answer": "1212"}, False),
    ("no number", {"answer": "0"}, False),
    ("790/2", {"answer": "395"}, False),
)
def numeric_match(completion: str, answer: object, tolerance: float | None = None) -> float:
    """Return 1 iff the last number in the completion is the last number in the answer.

    `grouprl.rewards.math.last_number` defines what counts as a number. A percent sign or unit after it is ignored,
    because golds omit them. A fraction that is not in lowest terms counts only if the gold is written that way, since
    790/2 may be the problem itself. Without `tolerance` an integer must match exactly, whatever its size, and any other
    number to a relative 1e-6; with it, the two may differ by that much, absolutely or relative to the larger one.

    Raises:
        ValueError: if the answer holds no finite number.
    """
    gold, said = last_number(str(answer)), last_number(completion)
    if gold is None:
        raise ValueError(f"the column 'answer' holds no finite number: {answer!r}")
    if said is None or not (said.finished or said.written == gold.written):
        return 0.0
    expected, found = gold.value, said.value
    gap: Fraction = abs(found - expected)
    size: Fraction = max(abs(found), abs(expected))
    if tolerance is None:
        return float(gap == 0 if expected.denominator == 1 else gap <= Fraction(1, 10**6) * size)
    return float(gap <= Fraction(str(tolerance)) * max(Fraction(1), size))


@known_examples(
    ("<think>2+2</think>\n<answer>4</answer>", {}, True),
    ("<think>2+2</think> so <answer>4</answer>", {}, False),
    ("<think><think></think><answer>4</answer>", {}, False),
    ("4", {}, False),
)
def regex_format(completion: str, pattern: str = THINK_THEN_ANSWER) -> float:
    """Return 1 iff the whole completion matches the pattern, in which '.' matches line ends too.

    The default asks for one <think>…</think> and then one <answer>…</answer>. Any other pattern runs in a separate
    process, because a model may find a text on which it takes forever; such a text does not match.

    Raises:
        re.error: if `pattern` is not a regular expression.
    """
    if pattern == THINK_THEN_ANSWER:  # this one ends on every text
        return float(fullmatch(pattern, completion))
    re.compile(pattern)
    return float(_fullmatch_apart(pattern, completion) is True)


@known_examples(
    ("<think>2+2</think><answer> 4 </answer>", {"answer": "4"}, True),
    ("<answer>4</answer><answer>5</answer>", {"answer": "4"}, False),
    ("<answer>4", {"answer": "4"}, False),
    ("4", {"answer": "4"}, False),
)
def contains_answer_tag(completion: str, answer: object) -> float:
    """Return 1 iff the text inside the last <answer>…</answer> is the answer, white space around it ignored."""
    inside = ANSWER_TAG.findall(completion)
    return float(bool(inside) and inside[-1].strip() == str(answer).strip())


@known_examples(
    ("so it is $\\frac{1}{2}$", {"answer": "0.5"}, True),
    ("\\boxed{x^2+2x+1}", {"answer": "$(x+1)^2$"}, True),
    ("so it is $\\frac{1}{3}$", {"answer": "0.5"}, False),
    ("", {"answer": "0.5"}, False),
)
def math_equal(completion: str, answer: object, evaluated: bool = True, form: Form = "any") -> float:
    r"""Return 1 iff the completion's final answer equals the gold, which is read as a whole.

    The final answer is the content of the last `\\boxed{…}`; if nothing is boxed, the further rules of
    `grouprl.rewards.math.math_text` apply. Numbers are compared exactly, elements of tuples and intervals in order,
    elements of sets and lists in any order. Sympy compares formulas in a separate process with limited time and memory;
    an answer on which it exceeds them is wrong.

    Args:
        completion: the model's text.
        answer: the gold: LaTeX with or without dollar signs, or a worked solution with a box.
        evaluated: whether a numeric gold must be met by a fully evaluated number, so that a copy of the problem in the
            box is not an answer.
        form: how a gold that is a formula must be met. "any" pays every equal formula, a copy of the problem included;
            "simplified", "expanded" and "factored" are defined in `grouprl.rewards.math.math_symbols.formed`.

    Raises:
        MissingExtra: without the package math-verify.
        ValueError: if the answer cannot be parsed whole, or there is no such form.
    """
    if form not in get_args(Form):
        raise ValueError(f"there is no form {form!r}: {', '.join(get_args(Form))}")
    if importlib.util.find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "math", "The reward 'math_equal'")
    gold = read_gold(str(answer))
    said = answer_of(completion)
    text = None if said is None else tidy(said)
    if not text or not same_answer(gold, text, evaluated):
        return 0.0
    return float(form == "any" or not is_formula(gold) or has_form(text, gold, form))


def fullmatch(pattern: str, text: str) -> bool:
    """Return whether a whole text matches a pattern in which '.' matches line ends too."""
    return re.fullmatch(pattern, text, re.DOTALL) is not None


_fullmatch_apart = Apart("grouprl.rewards.catalogue.builtin:fullmatch")
