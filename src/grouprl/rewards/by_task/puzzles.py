"""Verifiers of the built-in puzzles: strict, and safe on any text a model may write."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from fractions import Fraction

from grouprl.rewards.contract import known_examples

DIGITS = re.compile(r"[0-9]+")
EXPRESSION = re.compile(r"[0-9+\-*/()]+")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


@known_examples(
    ("1213|132", {"answer": "132"}, True),
    ("|0132", {"answer": "132"}, True),
    ("1|132|131", {"answer": "132"}, False),
    ("132", {"answer": "132"}, False),
    ("|132 ", {"answer": "132"}, False),
)
def number_after_bar(completion: str, answer: str) -> float:
    """Return 1 iff what follows the last '|' is exactly the answer, a natural number; leading zeros are allowed."""
    _, bar, written = completion.rpartition("|")
    if not bar or not DIGITS.fullmatch(written):
        return 0.0
    return float(written.lstrip("0") == answer.lstrip("0"))


@known_examples(
    ("2*3+7", {"numbers": (2, 3, 7), "target": 13}, True),
    ("(7-3)/2", {"numbers": (2, 3, 7), "target": 2}, True),
    ("7+3*2=13", {"numbers": (2, 3, 7), "target": 13}, False),
    ("6+7", {"numbers": (2, 3, 7), "target": 13}, False),
    ("7*3*2", {"numbers": (2, 3, 7), "target": 13}, False),
)
def reaches_target(completion: str, numbers: Sequence[int], target: int) -> float:
    """Return 1 iff the completion is an expression of + - * / ( ) that uses every number once and equals the target.

    The text is parsed and walked, never run; division is exact.
    """
    # A few signs and brackets per number are plausible; more than that is padding, and could exhaust the parser.
    longest = sum(len(str(number)) + 6 for number in numbers)
    if len(completion) > longest or not EXPRESSION.fullmatch(completion):
        return 0.0
    return float(uses_and_reaches(completion, numbers, target))


def uses_and_reaches(expression: str, numbers: Sequence[int], target: int) -> bool:
    """Return whether an expression uses every number once, nothing else, and equals the target exactly."""
    try:
        used: list[int] = []
        value = _evaluate(ast.parse(expression.replace(" ", ""), mode="eval").body, used)
    except (SyntaxError, ZeroDivisionError, NotImplementedError, ValueError, RecursionError, MemoryError):
        return False
    return sorted(used) == sorted(numbers) and value == target


def _evaluate(node: ast.expr, used: list[int]) -> Fraction:
    """Return the value of an arithmetic expression and append the numbers it uses."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        used.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate(node.left, used), _evaluate(node.right, used))
    raise NotImplementedError(ast.dump(node))
