"""Rewards of further application papers: the truth tables that their papers or code state, by hand."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.rewards import check_reward, load_reward
from grouprl.rewards.by_task.bleu import bleu, matches, sentence_bleu, words
from grouprl.rewards.by_task.critique import critique
from grouprl.rewards.by_task.graded import fuzzy_count
from grouprl.rewards.by_task.gui import GuiAction, GuiTarget, craft_gui
from grouprl.rewards.by_task.quality import quality
from grouprl.rewards.by_task.reflection import answers, reflection, target_length, truth_table
from grouprl.rewards.by_task.routes import whole_path
from grouprl.rewards.by_task.search_steps import answering, route_step, word_f1
from grouprl.rewards.by_task.self_search import self_search, valid
from grouprl.rewards.by_task.speedup import afterburner, improvement
from grouprl.rewards.by_task.sql import run_query, sql_components
from grouprl.rewards.by_task.tool_choice import helped
from grouprl.tasks.builtin.single_turn.gui_critic import gui_critic
from grouprl.tasks.builtin.single_turn.speedup import run, shortest, speed_up
from grouprl.tasks.builtin.single_turn.tool_choice import reasons, tool_gain

REWARDS = [bleu, quality, reflection, self_search, route_step, tool_gain, gui_critic, speed_up]


def total(parts):
    return sum(value for name, value in parts.items() if name != "correct")


@pytest.mark.parametrize("reward", REWARDS)
def test_known_examples_hold(reward):
    assert check_reward(reward) >= 3


@pytest.mark.parametrize("name", ["bleu", "quality", "reflection", "self_search", "route_step"])
def test_they_are_found_by_name(name):
    assert load_reward(name).__name__ == name


# --- reflection (SRPO) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "paid"),
    [(False, True, 1.0), (True, True, 0.75), (True, False, 0.25), (False, False, 0.0), (True, None, 0.5)],
)
def test_the_truth_table_of_two_answers(first, second, paid):
    assert truth_table(first, second) == paid
    assert truth_table(False, None) == 0


@pytest.mark.parametrize(("length", "paid"), [(200, 1.0), (250, 0.3679), (150, 0.3679), (300, 0.0183)])
def test_the_target_is_twice_the_first_part(length, paid):
    assert target_length(length, 100) == pytest.approx(paid, abs=1e-4)
    assert target_length(length, 0) == 0


@pytest.mark.parametrize(
    ("text", "accuracy", "form"),
    [
        ("22|4;n;23|5", 1.0, 0.5),
        ("23|5;y;23|5", 0.75, 0.5),
        ("23|5;n;22|4", 0.25, 0.5),
        ("22|4;y;22|4", 0.0, 0.5),
        ("23|5", 0.5, 0.0),
        ("5", 0.5, 0.0),
        ("23|5;;23|5", 0.75, 0.0),  # nothing is said between
        ("23|5;y;23|5;", 0.75, 0.0),  # something follows
        ("|4;n;23|5", 1.0, 0.0),  # no thought
        ("23|5;y", 0.5, 0.0),
        ("23|5;y;5", 0.5, 0.0),  # the second block has no bar, so there is no second answer
    ],
)
def test_reflection_by_hand(text, accuracy, form):
    found = reflection(text, "5")
    assert (found["accuracy"], found["format"]) == (accuracy, form)


def test_the_length_of_a_reflection_counts_a_tenth_and_needs_a_second_answer():
    assert reflection("23|5;y;2|5", "5")["length"] == pytest.approx(0.1)  # 6 characters, twice 3
    assert reflection("23|5;y;23|5", "5")["length"] == pytest.approx(0.1 * math.exp(-((1 / 1.5) ** 2)))
    assert reflection("23|5;y;2|5", "5", length_weight=1)["length"] == pytest.approx(1)
    assert reflection("|;y;2|5", "5")["length"] == 0
    assert reflection("23|5", "5")["length"] == 0
    assert answers("23|5;y;22|4") == ("5", "4")


@given(st.text("1|;y", max_size=14))
def test_no_text_earns_more_than_a_correction(text):
    assert 0 <= total(reflection(text, "1")) <= 1.6 + 1e-9


# --- BLEU (BLEUBERI) ------------------------------------------------------------------------------------------------


def test_bleu_by_hand():
    # 4 of 5 words, 2 of 4 pairs, 1 of 3 triples, none of 2 quadruples; one is added above and below
    by_hand = (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert sentence_bleu("a b c x d", ["a b c d e"]) == pytest.approx(by_hand)


def test_short_texts_pay_for_what_the_shortest_reference_has_more():
    assert sentence_bleu("a b", ["a b c d"]) == pytest.approx(math.exp(1 - 4 / 2))
    assert sentence_bleu("a b", ["a b c d", "a b"]) == 1
    assert sentence_bleu("a b c d", ["a b"]) < 1


def test_the_limits_of_bleu():
    text = "the cat sat on the mat ."
    assert sentence_bleu(text, [text]) == pytest.approx(1)
    assert sentence_bleu("", [text]) == 0
    assert sentence_bleu("q r s t u v w x", [text]) == pytest.approx((1 / 9 / 8 / 7 / 6) ** 0.25)
    assert words("it's 7.") == ["it", "'", "s", "7", "."]
    with pytest.raises(ValueError, match="references"):
        bleu(text, [])


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.lists(st.lists(st.sampled_from("abc")), min_size=1))
def test_another_reference_never_lowers_the_matches(said, references):
    for n in (1, 2, 3, 4):
        assert matches(said, references, n) >= matches(said, references[:-1], n)


def test_clipping():
    assert matches(["the"] * 7, [["the", "cat", "the"]], 1) == 2


# --- quality (Q-Insight) --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rating", "accuracy"), [("3.5", 1), ("3.84", 1), ("3.85", 0), ("3.15", 0), ("3.16", 1), ('"3.5"', 0), ("true", 0)]
)
def test_a_rating_is_right_within_less_than_the_tolerance(rating, accuracy):
    found = quality(f'{{"rating":{rating}}}', "rate", {"rating": 3.5})
    assert (found["format"], found["accuracy"]) == (1, accuracy)


@pytest.mark.parametrize(
    ("text", "accuracy"),
    [
        ('{"flaw":"n","severity":2}', 1.0),
        ('{"flaw":"n","severity":1}', 0.25),
        ('{"flaw":"n"}', 0.25),
        ('{"flaw":"b","severity":2}', 0.0),  # the severity alone
        ('{"severity":2}', 0.0),
    ],
)
def test_severity_counts_only_with_the_class(text, accuracy):
    assert quality(text, "flaw", {"flaw": "n", "severity": 2})["accuracy"] == accuracy


def test_quality_is_a_flat_object():
    for text in ("A", '{"better":"A"', '{"better":{"it":"A"}}', '["A"]'):
        assert quality(text, "best", {"better": "A"}) == {"format": 0, "accuracy": 0, "correct": 0}
    assert total(quality('{"better":"A"}', "best", {"better": "A"})) == 2
    assert total(quality('{"better":"a"}', "best", {"better": "A"})) == 1
    with pytest.raises(ValueError, match="kind"):
        quality("{}", "worst", {})


# --- faster programs (Afterburner) ----------------------------------------------------------------------------------


def test_afterburner_by_hand():
    faster = afterburner(True, True, 2.0, 1.0, well_formed=True)
    assert total(faster) == pytest.approx(0.5 * (0.5 + 0.5 * math.tanh(0.5)) + 0.2)
    assert total(faster) == pytest.approx(0.5655, abs=1e-4)
    assert total(afterburner(False, False, 2, 1, well_formed=True)) == pytest.approx(-0.05)
    assert total(afterburner(True, False, 2, 1, well_formed=True)) == pytest.approx(-0.3)


def test_improvement_is_clipped_at_a_cap_and_at_the_double():
    assert improvement(True, True, 1, 90) == pytest.approx(0.5 + 0.5 * math.tanh(-1))
    assert improvement(True, True, 100, 200, most=90) == 0.5  # both count as 90
    assert improvement(False, True, 0, 3) == 1


@given(st.booleans(), st.floats(0, 200), st.floats(0, 200))
def test_broken_code_never_out_scores_passing_code(passed, before, now):
    assert improvement(passed, True, before, now) > improvement(passed, False, before, now)


def test_programs_run_and_the_shortest_is_the_shortest():
    assert [run(program) for program in ("", "iii", "idid", "d")] == [0, 3, 6, 0]
    reached = {run(format(code, f"0{n}b").replace("0", "i").replace("1", "d")): n for n in (7, 6, 5, 4, 3, 2, 1)
               for code in range(2**n)}  # fmt: skip
    for number in range(1, 25):
        assert run(shortest(number)) == number
        if number in reached:
            assert len(shortest(number)) == reached[number]


def test_speed_up_needs_no_thought_to_pass():
    example = {"number": 6, "program": "iiiiii", "least": 4}
    gain = 0.5 * (0.5 + 0.5 * math.tanh(1 / 3))
    assert speed_up("6.3.1|idid", **example) == {"improvement": pytest.approx(gain), "format": 0.2, "correct": 1}
    assert speed_up("|idid", **example) == {"improvement": pytest.approx(gain), "format": 0, "correct": 1}
    assert speed_up("6.3|iiiiii", **example)["improvement"] == 0.25
    assert speed_up("6|6", **example) == {"improvement": -0.5, "format": 0, "correct": 0}


# --- screens: in parts, and a critic --------------------------------------------------------------------------------

BOX = GuiTarget("tap", box=(4, 5, 7, 6))


@pytest.mark.parametrize(
    ("action", "target", "paid"),
    [
        (GuiAction("tap", (4, 6)), BOX, 1.0),
        (GuiAction("tap", (3, 6)), BOX, 0.6),
        (GuiAction("type", text="x"), BOX, 0.2),
        (None, BOX, 0.0),
        (GuiAction("scroll"), GuiTarget("scroll"), 1.0),
        (GuiAction("type", text="bob ann"), GuiTarget("type", text="bob"), 0.6 + 0.4 * 2 / 3),
    ],
)
def test_craft_gui_adds_its_parts(action, target, paid):
    assert craft_gui(action, target) == pytest.approx(paid)


@given(st.tuples(st.booleans(), st.booleans(), st.booleans()), st.integers(0, 2))
def test_a_critique_is_monotone_in_its_flags(flags, place):
    raised = tuple(flag or i == place for i, flag in enumerate(flags))
    assert critique(*raised, (0.2, 0.5, 0.3)) >= critique(*flags, (0.2, 0.5, 0.3))


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("4576|n|tap 45", 1.0),
        ("4576|n|tap 76", 1.0),
        ("4576|n|tap 11", 0.7),
        ("4576|y|tap 45", 0.5),  # a suggestion without the verdict is not enough
        ("4576|y|tap 11", 0.2),
        ("|n|tap 45", 0.0),
        ("4576|n|4", 0.0),
        ("n|tap 45", 0.0),
        ("4576|m|tap 45", 0.0),
    ],
)
def test_a_critic_by_hand(text, paid):
    assert gui_critic(text, [4, 5, 7, 6], False)["critique"] == pytest.approx(paid)


# --- tools for a reasoner (VisTA) -----------------------------------------------------------------------------------


def test_help_pays_harm_costs_and_the_rest_is_little():
    assert [helped(*case) for case in ((False, True), (True, True), (False, False), (True, False))] == [1, 0.2, 0, -1]


def test_one_tool_decides_and_the_next_one_misleads():
    alone = [number for number in range(200) if reasons(2, number, "")]
    assert 50 < len(alone) < 110
    lost = next(number for number in range(200) if number not in alone)
    assert reasons(2, lost, "2")
    assert not reasons(2, lost, "23")
    assert not reasons(2, alone[0], "3")
    assert [tool_gain(text, 2, lost, 2)["gain"] for text in ("2", "25", "3", "-", "22", "259", "x")] == [
        1, 1, 0, 0, -1, -1, -1
    ]  # fmt: skip
    assert [tool_gain(text, 2, alone[0], 2)["gain"] for text in ("2", "3", "-", "")] == [0.2, -1, 0.2, -1]


# --- asking oneself (SSRL) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("?a b[c]=d", True),
        ("?a b[c]?c in[d]=d", True),
        ("=d", False),
        ("?a b[c]", False),
        ("?a b=d", False),
        ("?a b[c=d", False),
        ("?a b[c]=d=e", False),
        ("?[c]=d", False),
        ("?a b[c]=", False),
        ("x?a b[c]=d", False),
    ],
)
def test_the_form_of_a_self_search(text, good):
    assert valid(text) is good


@pytest.mark.parametrize(
    ("text", "paid"),
    [("?a[b]=d", 1.0), ("=d", 0.8), ("?a[b]=x", 0.2), ("=x", 0.0), ("=x" * 10 + "=d", 0.2), ("=x" * 9 + "=d", 0.8)],
)
def test_self_search_by_hand(text, paid):
    assert total(self_search(text, "d")) == pytest.approx(paid)


# --- steps of a search (R1-Router) ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("miru in@text", 1.0),
        ("miru in@table", 0.5),
        ("miru in@text,table", 0.5),  # more than one retriever is not the right one
        ("bako in@text", 0.75),  # one of two words
        ("in miru@text", 0.75),  # in another order, one of two
        ("miru in in@text", 0.5 + 1 / 3),
        ("bako lives@image", 0.0),
        ("miru in@text,none", 0.0),
        ("miru in@none", 0.5),
        ("miru in@web", 0.0),
        ("miru in", 0.0),
        ("@text", 0.0),
        ("=oslo", 0.0),
    ],
)
def test_a_step_of_retrieval_by_hand(text, paid):
    assert route_step(text, "ret", ["miru in"], "text")["step"] == pytest.approx(paid)


def test_answers_are_right_as_a_whole_unless_they_are_long():
    long = "one two three four five six"
    assert answering("=oslo is it", ["oslo"]) == 0
    assert answering("=Oslo", ["oslo"]) == 1
    assert answering("=oslo", ["oslo fjord"]) == 0
    assert answering("=one two three", [long]) == pytest.approx(2 / 3)
    assert answering("=one two three", [long, "one two three"]) == 1
    assert answering("=one two three", [long, "seven"]) == 0
    assert answering("oslo", ["oslo"]) == 0
    assert word_f1(["a", "a"], ["a", "a", "a", "b"]) == pytest.approx(2 / 3)
    assert word_f1([], []) == 1
    assert word_f1(["b", "a"], ["a", "b"]) == 0.5
    assert word_f1([], ["a"]) == 0
    assert answering("=six five four three two one", [long]) == pytest.approx(1 / 6)
    with pytest.raises(ValueError, match="kind"):
        route_step("=oslo", "end", ["oslo"])


def test_short_answers_of_a_route_are_right_word_for_word():
    asked = {"kind": "ans", "gold": ["oslo"]}
    for said in ("=oslo rome paris", "=not oslo", "=oslo oslo", "=oslo bergen"):
        assert route_step(said, **asked) == {"step": 0.0, "correct": 0.0}
    assert route_step("=Oslo", **asked)["correct"] == 1
    long = {"kind": "ans", "gold": ["a b c d e f"]}
    assert route_step("=a b c d e f", **long) == {"step": 1.0, "correct": 1.0}
    assert route_step("=not a b c d e f", **long)["step"] == pytest.approx(12 / 13)
    assert route_step("=f e d c b a", **long)["correct"] == 0
    asked = {"kind": "ret", "gold": ["miru in"], "retriever": "text"}
    assert route_step("miru in miru in@text", **asked)["step"] == pytest.approx(0.75)


def test_a_rating_beyond_any_float_is_a_wrong_rating():
    said = '{"rating":1' + "0" * 400 + "}"
    assert quality(said, "rate", {"rating": 3.5}) == {"format": 1.0, "accuracy": 0.0, "correct": 0.0}
    assert quality('{"flaw":"n","severity":true}', "flaw", {"flaw": "n", "severity": 1})["accuracy"] == 0.25


def test_graded_numbers_are_exact_beyond_two_to_the_53():
    right = str(2**53 + 1)
    assert fuzzy_count(right, right)["correct"] == 1
    assert fuzzy_count(str(2**53), right)["correct"] == 0
    with pytest.raises(ValueError, match="not a number"):
        fuzzy_count("1", "nan")


def test_a_long_way_is_judged_at_once():
    started = time.monotonic()
    assert whole_path("ud" * 200_000, size=3, start="00", goal="02", walls=["01"])["correct"] == 0
    assert time.monotonic() - started < 60


def test_all_rows_of_two_queries_are_compared():
    table = {"t": {"a": list(range(1500))}}
    query = "select a from t"
    assert len(run_query(query, table)) == 1500
    found = sql_components("select case when a < 1200 then a else 0 end from t", query, table)
    assert found["execution"] == 0
    assert sql_components("select t.a from t", query, table)["execution"] == 1
