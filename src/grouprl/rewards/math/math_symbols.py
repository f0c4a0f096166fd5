"""Comparison of LaTeX formulas by sympy; it may never end, so it runs in a separate process
(`grouprl.rewards.verifier_calls`)."""

from __future__ import annotations

import re
from functools import lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from grouprl.rewards.math.math_answers import same
from grouprl.rewards.math.math_text import literal

DECIMAL = re.compile(r"(?<![\d_{])(\d*)\.(\d+)")
FOREIGN = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{3,}|\d\s*_|\d\s+\d|\.\d+\.|[\"'`;#@&$]{2}|__")
ROOT = r"\\sqrt\s*(?:\{[^{}]*\}|\d)"
PARTS = (
    r"\\frac\s*\{\s*(-?\d+)(?![\d.])(?:[^{}+\-]|\{[^{}]*\})*\}\s*\{\s*(\d+)(?![\d.])(?:[^{}+\-]|\{[^{}]*\})*\}",
    r"(?<![\d.^{])(\d+)\s*(?:\\[a-zA-Z]+|[a-zA-Z])?\s*(?:\{[^{}]*\})?/(\d+)(?![\d.])",
)
"""Fractions whose numerator and denominator are products that begin with whole numbers: 2π/8, 4√2/6."""
TO_BE_DONE = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)
NAMES = r"\\[a-zA-Z]+"
COMPUTED = frozenset(
    (
        "sum",
        "prod",
        "int",
        "lim",
        "binom",
        "dbinom",
        "tbinom",
        "log",
        "ln",
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "gcd",
        "lcm",
        "max",
        "min",
        "bmod",
        "mod",
        "pmod",
        "lfloor",
        "rfloor",
        "lceil",
        "rceil",
        "det",
        "oint",
        "iint",
        "sup",
        "inf",
        "exp",
    )
)
UNDONE = re.compile(
    r"(?<![\w}.^])\d+(?:\.\d+)?\s*(?:[-+*^]|\\(?:cdot|times|div))\s*\(?-?\d+(?![\w.]|\s*\\[a-zA-Z])|\)\s*[\^(]|!"
)
PRODUCT = re.compile(r"(?<![\w}.^])\d+(?:\.\d+)?\s*(?:\*|\\(?:cdot|times|div))\s*\(?-?(?!10\^)\d+(?![\d.])")
OPERATION = re.compile(r"\\(?:frac|sqrt|div|sin|cos|tan|log|ln|exp)(?![a-zA-Z])|[-+/^]")
NO_TERM_BEFORE = ("^", "*", "/", r"\cdot", r"\times", r"\div")
"""Text after which a sign belongs to a factor and does not begin a term."""
WARM = (
    (r"2\sqrt{2}+\frac{\pi}{3}", r"\frac{\pi}{3}+2\sqrt{2}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"x \ge 5", r"5 \le x"),
    ("x^2+y^2=4", "y^2+x^2=4"),
    (r"\log_{2}{3}+e^{x}", r"e^{x}+\log_{2}{3}"),
    (r"\sin(x)^2+3 \cdot 4!", r"3 \cdot 4!+\sin(x)^2"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
)
CONFIG = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)


def warm_up() -> None:
    """Fill the caches of the parser and sympy, which every later call inherits."""
    for gold, said in WARM:
        assert equal(gold, said, False)


def readable(text: str) -> bool:
    """Return whether the parser can read a whole text as mathematics."""
    try:
        _parse(text)
    except Exception:  # on a text that it cannot read the parser may raise anything
        return False
    return True


def equal(gold: str, said: str, evaluated: bool) -> bool:
    """Return whether two formulas are equal: numbers exactly, relations with their direction, the rest symbolically.

    With `evaluated`, a numeric gold needs a fully evaluated number as the answer, and a gold without sums, derivatives
    or integrals needs an answer without them.
    """
    try:
        ours, theirs = _parse(said), _parse(gold)
    except Exception:  # as above
        return False
    relations = (Relational, Boolean)
    if isinstance(ours, relations) or isinstance(theirs, relations):
        return isinstance(ours, relations) and isinstance(theirs, relations) and _same_relation(theirs, ours)
    if not isinstance(ours, sympy.Expr) or not isinstance(theirs, sympy.Expr):
        return type(ours) is type(theirs) and bool(verify(theirs, ours, timeout_seconds=None, float_rounding=12))
    if evaluated and {symbol.name for symbol in theirs.free_symbols} <= {"i"}:
        value = theirs.doit()
        if value.is_Rational:
            written = literal(said)
            return written is not None and sympy.Rational(written.numerator, written.denominator) == value
        if unfinished(said, gold):
            return False
    if evaluated and ours.has(*TO_BE_DONE) and not theirs.has(*TO_BE_DONE):
        return False
    return _same_expression(theirs, ours)


def compared(gold: str, said: str, evaluated: bool) -> bool:
    """Return whether an answer equals the gold, formulas included."""
    return same(gold, said, evaluated, equal)


def formed(said: str, gold: str, form: str) -> bool:
    """Return whether a formula is written in a form.

    "simplified": with no more operations than the gold, or than its own expanded or factored form. "expanded": as a sum
    without products of sums, each power once. "factored": as a product whose factors cannot be factored, where there is
    such a product.
    """
    try:
        expression = _parse(said)
    except Exception:  # as above
        return False
    if not isinstance(expression, sympy.Expr):
        return True
    expression = expression.doit()
    forms = [sympy.expand(expression), sympy.factor(expression)]
    if form == "simplified":
        return operations(said) <= max(operations(gold), *(operations(sympy.latex(each)) for each in forms))
    expanded, factored = forms
    if form == "expanded":
        return bool(expression == expanded) and terms(said) <= len(sympy.Add.make_args(expanded))
    return factored.is_Add or (terms(said) == 1 and all(map(_irreducible, sympy.Mul.make_args(expression))))


def _irreducible(factor: sympy.Expr) -> bool:
    """Return whether a factor is not a product of sums; a number before a sum is allowed."""
    base = factor.as_base_exp()[0]
    return not base.is_Add or sum(power for _, power in sympy.factor_list(base)[1]) == 1


def operations(text: str) -> int:
    """Return the number of operations that a LaTeX text writes out, products aside."""
    return len(OPERATION.findall(text))


def terms(text: str) -> int:
    """Return the number of terms of the sum that a text is, brackets and arguments aside."""
    count, depth = 1, 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        before = text[:place].rstrip()
        count += sign in "+-" and depth == 0 and before != "" and not before.endswith(NO_TERM_BEFORE)
    return count


def unfinished(said: str, gold: str) -> bool:
    r"""Return whether an irrational number still has something to compute, such as `\sqrt{8}` or `\sin(\pi/3)`."""
    names, wanted = re.findall(NAMES, said), re.findall(NAMES, gold)
    if any(name[1:] in COMPUTED and names.count(name) > wanted.count(name) for name in names):
        return True
    if any(names.count(name) > max(1, wanted.count(name)) for name in (r"\pi", r"\infty")):
        return True
    roots, gold_roots = re.findall(ROOT, said), re.findall(ROOT, gold)
    if names.count(r"\sqrt") > wanted.count(r"\sqrt") + 1:
        return True
    if any(roots.count(root) > max(1, gold_roots.count(root)) for root in roots):
        return True
    undone = [found.replace(" ", "") for found in (*UNDONE.findall(said), *PRODUCT.findall(said))]
    if any(found not in gold.replace(" ", "") for found in undone):
        return True
    radicands = re.findall(r"\\sqrt\s*(?:\{(\d+)\}|(\d))", said)
    roots = re.findall(r"\\sqrt\s*(?:\{(\d+)\}|(\d))", gold)
    return any(_has_square(int(a or b)) for a, b in radicands if (a, b) not in roots) or _unreduced(said, gold)


def _has_square(number: int) -> bool:
    return number > 10**12 or number in (0, 1) or any(power > 1 for power in sympy.factorint(number).values())


def _unreduced(said: str, gold: str) -> bool:
    for pattern in PARTS:
        for above, below in set(re.findall(pattern, said)) - set(re.findall(pattern, gold)):
            if int(below) in (0, 1) or sympy.gcd(int(above), int(below)) != 1:
                return True
    return False


@lru_cache(maxsize=256)
def _parse(text: str) -> sympy.Basic:
    """Return the sympy expression of the whole text.

    Raises:
        ValueError: on text that sympy would misread: words, adjacent numbers, digits with an index.
        Exception: any error of the parser.
    """
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    bare = re.sub(r"\\(?:text|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\log_\d", "", text)
    if FOREIGN.search(bare):
        raise ValueError(text)
    normal = normalize_latex(DECIMAL.sub(_as_fraction, text), config=CONFIG)
    found = latex2sympy(
        normal, is_real=not should_treat_as_complex(normal), convert_degrees=False, normalization_config=None
    )
    if found is None or (isinstance(found, sympy.Basic) and found.has(sympy.nan, sympy.zoo)):
        raise ValueError(text)
    return found


def _as_fraction(found: re.Match[str]) -> str:
    whole, behind = found.groups()
    return rf"\frac{{{int((whole or '0') + behind)}}}{{{10 ** len(behind)}}}"


def _same_relation(theirs: object, ours: object) -> bool:
    if isinstance(theirs, sympy.Eq) and isinstance(ours, sympy.Eq):
        first, second = theirs.lhs - theirs.rhs, ours.lhs - ours.rhs
        if not (first.free_symbols and first.free_symbols == second.free_symbols):
            return bool(theirs == ours)
        ratio = sympy.simplify(first / second)
        return not ratio.free_symbols and ratio.is_finite is True and ratio != 0
    if isinstance(theirs, Relational) and isinstance(ours, Relational) and not isinstance(ours, sympy.Eq):
        return _same_inequality(theirs, ours)
    return bool(theirs == ours)


def _same_inequality(theirs: sympy.Rel, ours: sympy.Rel) -> bool:
    for candidate in (ours, ours.reversed):
        if candidate.rel_op == theirs.rel_op:
            return _same_expression(theirs.lhs, candidate.lhs) and _same_expression(theirs.rhs, candidate.rhs)
    return False


def _same_expression(theirs: sympy.Expr, ours: sympy.Expr) -> bool:
    if theirs.free_symbols != ours.free_symbols and not (theirs.free_symbols and ours.free_symbols):
        return False
    # A difference of infinities is not a number, and so never 0.
    if sympy.oo in (theirs, ours) or -sympy.oo in (theirs, ours):
        return bool(theirs == ours)
    difference = (theirs - ours).doit()
    if difference == 0 or sympy.simplify(difference) == 0:
        return True
    return difference.equals(0) is True
