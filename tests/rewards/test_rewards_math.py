"""`math_equal`: golds read whole, exact numbers, one rule for the final answer, and an end on every expression."""

import time

import pytest

from grouprl.rewards import math_equal, score
from grouprl.rewards.catalogue.golds import refused_golds
from grouprl.rewards.math.math_text import answer_of, literal

pytest.importorskip("math_verify")

RIGHT = [
    ("2\\pi", "\\boxed{2\\pi}"),
    ("2\\sqrt{2}", "\\boxed{2\\sqrt{2}}"),
    ("3+4i", "\\boxed{3+4i}"),
    ("2x+2", "\\boxed{2(x+1)}"),
    ("x \\geq 5", "\\boxed{x \\ge 5}"),
    ("x \\geq 5", "\\boxed{5 \\le x}"),
    ("10^{12}", "\\boxed{10^{12}}"),
    ("10^{12}", "\\boxed{1000000000000}"),
    ("5!", "\\boxed{120}"),
    ("12, 7", "\\boxed{12, 7}"),
    ("12, 7", "\\boxed{7, 12}"),
    ("0.5", "so it is $\\frac{1}{2}$"),
    ("$(x+1)^2$", "\\boxed{x^2+2x+1}"),
    ("395", "The answer is 395."),
    ("395", "\\boxed{x=395}"),
    ("395", "17*23+4 = 395"),
    ("395", "\\boxed{17\\cdot 23+4=395}"),
    ("\\frac{1}{2}", "\\boxed{0.5}"),
    ("\\dfrac{3}{4}", "\\boxed{\\frac34}"),
    ("(1,2)", "\\boxed{(1, 2)}"),
    ("\\{1,2\\}", "\\boxed{\\{2,1\\}}"),
    ("1,234", "\\boxed{1234}"),
    ("1234", "\\boxed{1{,}234}"),
    ("\\text{Tuesday}", "\\boxed{\\text{tuesday}}"),
    ("(B)", "\\boxed{\\text{(B)}}"),
    ("B", "\\boxed{B}"),
    ("50\\%", "\\boxed{50\\%}"),
    ("5\\text{ cm}", "\\boxed{5}"),
    ("5", "\\boxed{5\\text{ cm}}"),
    ("90^\\circ", "\\boxed{90^\\circ}"),
    ("90", "\\boxed{90^{\\circ}}"),
    ("[0,1)\\cup(2,3]", "\\boxed{(2,3]\\cup [0,1)}"),
    ("(-\\infty, 3)", "\\boxed{(-\\infty,3)}"),
    ("y=2x+1", "\\boxed{y = 2x + 1}"),
    ("x=5", "\\boxed{5}"),
    ("\\frac{\\sqrt{3}}{2}", "\\boxed{\\frac{\\sqrt3}{2}}"),
    ("\\frac{\\sqrt{3}}{3}", "\\boxed{\\frac{1}{\\sqrt{3}}}"),
    ("-7", "\\boxed{-7}"),
    ("-7", "It is −7"),
    ("3.14", "\\boxed{3.14}"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\boxed{\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}}"),
    ("0.\\overline{3}", "\\boxed{\\frac{1}{3}}"),
    ("#### 42", "#### 42"),
    ("work 5+2 #### 7", "<answer>7</answer>"),
    ("3\\frac{1}{2}", "\\boxed{\\frac{7}{2}}"),
    ("1.5\\times10^{3}", "\\boxed{1500}"),
    ("\\$5", "\\boxed{\\$5.00}"),
    ("42", "42"),
    ("42", "**42**"),
    ("\\frac{\\pi}{3}", "\\boxed{\\frac{\\pi}{3}}"),
    ("\\frac{\\pi}{3}", "\\boxed{\\pi/3}"),
    ("3x+\\frac{1}{2}", "\\boxed{\\frac{6x+1}{2}}"),
    ("2\\pi r", "\\boxed{2 \\pi r}"),
    ("1+\\sqrt{5}", "\\boxed{\\sqrt{5}+1}"),
    ("\\log_2 3", "\\boxed{\\log_{2}{3}}"),
    ("e^2", "\\boxed{e^{2}}"),
    ("x^2+y^2=4", "\\boxed{y^2+x^2=4}"),
    ("-\\frac{1}{2}", "\\boxed{-\\frac12}"),
    ("\\emptyset", "\\boxed{\\emptyset}"),
    ("5\\pm\\sqrt{3}", "\\boxed{5\\pm\\sqrt{3}}"),
    ("4210_{7}", "\\boxed{4210_7}"),
    ("1010_2", "\\boxed{(01010)_2}"),
    ("1A_{16}", "\\boxed{1A_{16}}"),
    ("10", "\\boxed{10_{10}}"),
    ("10", "\\boxed{1010_2 = 10}"),
    ("11,\\! 111,\\! 100", "\\boxed{11111100}"),
    ("6000", "\\boxed{6,\\!000}"),
    ("\\text{June 20}", "\\boxed{\\text{June } 20}"),
    ("\\arctan 2", "\\boxed{\\tan^{-1}(2)}"),
]
WRONG = [
    ("1010_2", "\\boxed{1010}"),
    ("1010_2", "\\boxed{10}"),
    ("1010_2", "\\boxed{1010_3}"),
    ("10", "\\boxed{1010_2}"),
    ("10", "\\boxed{1011_2 = 10}"),
    ("\\text{June 20}", "\\boxed{June 21}"),
    ("20", "\\boxed{June 20}"),
    ("2\\pi", "\\boxed{2}"),
    ("2\\sqrt2", "\\boxed{2}"),
    ("3+4i", "\\boxed{3}"),
    ("2x+2", "\\boxed{2}"),
    ("x\\geq 5", "\\boxed{5}"),
    ("x\\geq 5", "\\boxed{x>5}"),
    ("x\\geq 5", "\\boxed{x \\le 5}"),
    ("10^{12}", "\\boxed{10}"),
    ("5!", "\\boxed{5}"),
    ("12, 7", "\\boxed{7}"),
    ("395", "\\boxed{0=395}"),
    ("395", "\\boxed{394=395}"),
    ("395", "\\boxed{17\\cdot 23+4}"),
    ("55", "\\boxed{\\sum_{i=1}^{10} i}"),
    ("(1,2)", "\\boxed{\\{1,2\\}}"),
    ("(1,2)", "\\boxed{(2,1)}"),
    ("(1,2)", "\\boxed{1,2}"),
    ("2", "\\boxed{2\\%}"),
    ("\\frac13", "\\boxed{0.3333333}"),
    ("395", ""),
    ("395", "\\boxed{}"),
    ("395", "\\boxed{395}\\boxed{394}"),
    ("395", "394"),
    ("3/2", "\\boxed{6/4}"),
    ("2\\sqrt{2}", "\\boxed{\\sqrt{8}}"),
    ("\\frac{\\sqrt{3}}{2}", "\\boxed{\\sin(\\pi/3)}"),
    ("3+4i", "\\boxed{(2+i)^2}"),
    ("2\\pi", "\\boxed{\\pi+\\pi}"),
    ("yes", "\\boxed{yes no}"),
    ("395", "395394"),
    ("395", "\\boxed{395 or 394}"),
    ("395", "\\boxed{395,394}"),
    ("0", "\\boxed{x-x}"),
    ("1", "\\boxed{\\nan}"),
    ("\\infty", "\\boxed{1/0}"),
    ("\\frac{1}{2}", "\\boxed{\\frac{2}{4}}"),
    ("5\\text{ cm}", "\\boxed{5\\text{ m}}"),
]
ENDLESS = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{(10^{100})!}"]
DEEP = [r"\boxed{" + "(" * 3000 + "}", r"\boxed{" + r"\frac{" * 500 + "}" * 501, r"\boxed{" * 20_000, "1" * 100_000]

SAME_VALUES = [
    ("x=1, y=2", "x=1, y=2"),
    ("x=1, y=2", "y = 2, x = 1"),
    ("x=1, y=2", "x=1\\text{ and }y=2"),
    ("x=1, y=2", "(x,y)=(1,2)"),
    ("x=1, y=2", "(1,2)"),
    ("x=1, y=2", "1, 2"),
    ("(x,y)=(1,2)", "x=1, y=2"),
    ("(x,y)=(1,2)", "(y,x)=(2,1)"),
    ("(1,2)", "y=2, x=1"),
    ("x=1, x=2", "x=2, x=1"),
    ("x_1=1, x_2=2", "x_1=2, x_2=1"),
    ("1, 2", "x=2, x=1"),
    ("x=\\pm 1, y=2", "y=2, x=\\pm 1"),
    ("2\\sqrt{3}", "2*sqrt(3)"),
    ("2sqrt(3)", "2\\sqrt 3"),
    ("30^\\circ", "30\\degree"),
]
OTHER_VALUES = [
    ("x=1, y=2", "x=2, y=1"),
    ("x=1, y=2", "2, 1"),
    ("x=1, y=2", "(2,1)"),
    ("x=1, y=2", "[1,2]"),
    ("x=1, y=2", "x=1"),
    ("x=1, y=2", "x=1, y=2, z=3"),
    ("x=1, y=2", "x=1, z=2"),
    ("(x,y)=(1,2)", "(y,x)=(1,2)"),
    ("(x,y)=(1,2)", "1, 2"),
    ("(1,2)", "x=2, y=1"),
    ("a=2, b=3", "a=3, b=2"),
]


@pytest.mark.parametrize(("gold", "said"), SAME_VALUES)
def test_unknowns_with_their_values(gold, said):
    assert math_equal(f"\\boxed{{{said}}}", gold) == 1


@pytest.mark.parametrize(("gold", "said"), OTHER_VALUES)
def test_unknowns_with_values_of_others(gold, said):
    assert math_equal(f"\\boxed{{{said}}}", gold) == 0


@pytest.mark.parametrize(("gold", "completion"), RIGHT)
def test_right_answers(gold, completion):
    assert math_equal(completion, gold) == 1


@pytest.mark.parametrize(("gold", "completion"), WRONG)
def test_wrong_answers(gold, completion):
    assert math_equal(completion, gold) == 0


@pytest.mark.parametrize(("gold", "completion"), [pair for pair in RIGHT if "\\boxed" not in pair[0]])
def test_every_gold_is_its_own_answer(gold, completion):
    assert math_equal(f"\\boxed{{{gold.strip('$')}}}" if "####" not in gold else gold, gold) == 1


@pytest.mark.parametrize("completion", [*ENDLESS, *DEEP])
def test_what_never_ends_is_a_wrong_answer_and_no_failure(completion):
    started = time.monotonic()
    scores = score(math_equal, [completion], [{"answer": r"2\pi"}], ids=["a"])
    assert scores.status_b.tolist() == ["ok"]
    assert scores.reward_b.tolist() == [0]
    assert time.monotonic() - started < 60


def test_unevaluated_answers_where_they_are_wanted():
    assert math_equal(r"\boxed{17\cdot 23+4}", "395", evaluated=False) == 1
    assert math_equal(r"\boxed{17\cdot 23+5}", "395", evaluated=False) == 0


@pytest.mark.parametrize(
    "gold", ["2x ) 5", r"\frac{1", "1.5.2", "102_2", "sin 30", "$x$ is $5$", "", "the area of a triangle is 5"]
)
def test_golds_that_cannot_be_read_whole_are_refused(gold):
    with pytest.raises(ValueError, match="no expression that can be parsed"):
        math_equal("5", gold)


def test_rows_are_named_with_their_line():
    rows = [{"answer": "4"}, {"answer": "2x ) 5"}, {"answer": r"2\pi"}]
    (found,) = refused_golds(math_equal, rows, ["line 1 of q", "line 2 of q", "line 3 of q"])
    assert "line 2 of q" in found
    assert "'2x ) 5'" in found


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \boxed{2", None),
        (r"\boxed{\frac{1}{2}} is $0.5$", r"\frac{1}{2}"),
        ("<answer>3</answer> or <answer> 4 </answer>", "4"),
        ("5 #### 6", "6"),
        ("$1$ or $2$", "2"),
        ("The answer is 7. I am sure.", "7"),
        ("not $5$", None),
        ("it isn't 5", None),
        ("first 5, then 6 apples in all", "6"),
        ("", None),
    ],
)
def test_the_rule_for_the_final_answer(completion, expected):
    assert answer_of(completion) == expected


@pytest.mark.parametrize(
    "text", ["nan", "inf", "1e999999", "6/4", "0x2", "12:02", "2^3", "1/0", "5!", "--1", "1" * 5000]
)
def test_what_is_not_written_out_is_no_number(text):
    assert literal(text) is None


def test_numbers_beyond_any_float_are_exact():
    gold = str(2**80 + 1)
    assert math_equal(gold, gold) == 1
    assert math_equal(str(2**80), gold) == 0
