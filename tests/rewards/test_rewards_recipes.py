"""Rewards that the application papers state: values by hand, and what must not pay."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.core.errors import InputError
from grouprl.core.json_types import same_value
from grouprl.rewards import check_reward, combine, load_reward, score
from grouprl.rewards.by_task.graded import (
    fuzzy_count,
    mean_relative_accuracy,
    relative_gap,
    relaxed_accuracy,
    tolerance_ramp,
    written_number,
)
from grouprl.rewards.by_task.gui import GuiAction, GuiTarget, gui_r1, gui_reward, hits, inside, text_f1, ui_r1
from grouprl.rewards.by_task.recall import knowledge, true_share
from grouprl.rewards.by_task.routes import walk, whole_path
from grouprl.rewards.by_task.search import Searched, exact, formatted, sem
from grouprl.rewards.by_task.sql import (
    PARTIAL,
    QueryError,
    jaccard,
    run_query,
    same_rows,
    sql_components,
    sql_reward,
    sql_tokens,
)
from grouprl.rewards.by_task.structured import (
    call_score,
    json_after_thought,
    json_match,
    overlap,
    read_calls,
    tool_calls,
)
from grouprl.rewards.gates import product
from grouprl.rewards.rubric import concise, worked

GRADED = [fuzzy_count, mean_relative_accuracy, relaxed_accuracy, tolerance_ramp]


def total(reward, completion, **columns):
    return sum(value for name, value in reward(completion, **columns).items() if name != "correct")


@pytest.mark.parametrize(
    "reward", [*GRADED, whole_path, knowledge, json_match, json_after_thought, tool_calls, worked, concise]
)
def test_known_examples_hold(reward):
    assert check_reward(reward) >= 3


@pytest.mark.parametrize(
    "name", ["fuzzy_count", "relaxed_accuracy", "json_match", "tool_calls", "whole_path", "knowledge"]
)
def test_they_are_found_by_name(name):
    assert load_reward(name).__name__ == name


# --- numbers --------------------------------------------------------------------------------------------------------


def test_written_numbers_are_the_whole_text():
    assert [written_number(text) for text in ("1,000", "10%", " -2.5 ", "1000")] == [1000, 10, -2.5, 1000]
    assert [written_number(text) for text in ("", "a 3", "3 4", "1,00", "3.", "9" * 40)] == [None] * 6


@pytest.mark.parametrize(("said", "accuracy"), [(100, 1.5), (120, 1.3), (80, 1.3), (149, 1.01), (150, 0.0), (51, 1.01)])
def test_fuzzy_count_by_hand(said, accuracy):
    assert fuzzy_count(str(said), 100)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(("said", "accuracy"), [("95", 1), ("105", 1), ("94.9", 0), ("105.1", 0)])
def test_relaxed_accuracy_by_hand(said, accuracy):
    assert relaxed_accuracy(said, 100)["accuracy"] == accuracy


@pytest.mark.parametrize(
    ("said", "accuracy"), [("10", 1.0), ("10.5", 1.0), ("11", 0.9), ("12", 0.7), ("15", 0.1), ("16", 0.0), ("4", 0.0)]
)
def test_mean_relative_accuracy_by_hand(said, accuracy):
    assert mean_relative_accuracy(said, 10)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("said", "accuracy"), [(1050, 1.0), (1125, 0.5), (1087.5, (math.cos(math.pi / 4) + 1) / 2), (1200, 0.0)]
)
def test_tolerance_ramp_by_hand(said, accuracy):
    assert tolerance_ramp(str(said), 1000)["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize("reward", GRADED)
def test_graded_rewards_of_zero_and_of_nonsense(reward):
    assert reward("0", 0)["correct"] == 1
    assert reward("0", 0)["accuracy"] >= 1
    assert reward("1", 0)["accuracy"] == 0
    assert reward("many", 7) == {"accuracy": 0, "format": 0, "correct": 0}


@pytest.mark.parametrize("reward", GRADED)
@given(right=st.integers(1, 500), off=st.integers(0, 500))
def test_farther_never_pays_more_and_exact_pays_most(reward, right, off):
    near, far = (reward(str(right + distance), right)["accuracy"] for distance in (off, off + 1))
    assert reward(str(right), right)["accuracy"] >= near >= far


def test_relative_gap_of_zero():
    assert (relative_gap(0, 0), relative_gap(1, 0), relative_gap(3, 4)) == (0, math.inf, 0.25)


# --- JSON and tools -------------------------------------------------------------------------------------------------

CALL = '{"name": "a", "parameters": {"x": 1}}'


def block(*calls):
    return "<tool_call>\n" + "\n".join(calls) + "\n</tool_call>"


@pytest.mark.parametrize(
    ("calls", "paid"),
    [
        ((CALL,), 4.0),
        (('{"name": "a", "parameters": {"x": 2}}',), 2.0),  # S = 1 + 1 + 0 of 3: 1 + (6 * 2/3 - 3)
        (('{"name": "b", "parameters": {"x": 1}}',), -2.0),
        ((CALL, CALL), 3.0),  # S = 1/2 + 1 + 1 of 3
        (("nonsense",), -2.0),
    ],
)
def test_tool_calls_by_hand(calls, paid):
    assert total(tool_calls, block(*calls), answer=CALL) == pytest.approx(paid)


def test_tool_calls_without_the_tags_have_neither_part():
    assert tool_calls(CALL, CALL) == {"format": 0, "calls": -3, "correct": 0}
    assert total(tool_calls, f"<think>hm</think>\n{block(CALL)}", answer=CALL) == 4
    assert tool_calls(block(CALL), CALL, scale=1)["calls"] == 1
    with pytest.raises(ValueError, match="no tool calls"):
        tool_calls(block(CALL), "none")


def test_calls_match_in_any_order_and_each_is_used_once():
    first, second = read_calls(CALL)[0], {"name": "a", "parameters": {"x": 2, "y": True}}
    assert call_score([second, first], [first, second]) == 1
    assert call_score([first], [first, first]) == pytest.approx((0.5 + 2) / 5)
    assert call_score([], [first]) == 0


@pytest.mark.parametrize(
    "text", ["[1]", '{"name": 1, "parameters": {}}', '{"name": "a"}', '{"name": "a", "parameters": []}', "[" * 9999]
)
def test_what_is_no_call(text):
    assert read_calls(text) is None


def test_overlap_counts_and_json_values_keep_their_types():
    assert overlap("aab", "abb") == pytest.approx(2 / 4)
    assert overlap((), ()) == 1
    assert not same_value(True, 1)
    assert same_value({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_json_match_by_hand():
    answer = '{"name":"ann","age":7}'
    whole = json_match(answer, answer)
    assert (whole["pairs"], whole["length"], whole["format"], whole["correct"]) == pytest.approx((0.6, 0.2, 0.2, 1))
    assert json_match('{"age":7,"name":"ann"}', answer)["correct"] == 1
    less = json_match('{"age":7}', answer)
    assert (less["pairs"], less["length"]) == pytest.approx((0.3, 0.2 * 9 / 22))
    assert json_match('{"name":"ann","age":7,"fee":1}', answer)["pairs"] == pytest.approx(0.6 * 2 / 3)
    assert total(json_match, '{"name":"ann"', answer=answer) == 0
    with pytest.raises(ValueError, match="not a JSON object"):
        json_match("{}", "[]")


# --- screens --------------------------------------------------------------------------------------------------------

BOX = GuiTarget("tap", box=(1, 2, 3, 4))
WORD = GuiTarget("type", text="big red dog")


@pytest.mark.parametrize(
    ("action", "target", "first", "second"),
    [
        (GuiAction("tap", (3, 4)), BOX, 3, 1.0),  # the edge counts as inside
        (GuiAction("tap", (4, 4)), BOX, 2, 0.2),
        (GuiAction("tap", (1, 2)), GuiTarget("scroll"), 1, 0.2),  # no place is paid for another kind of action
        (GuiAction("scroll"), BOX, 1, 0.2),
        (GuiAction("scroll"), GuiTarget("scroll"), 3, 1.0),
        (GuiAction("type", text="big red cat"), WORD, 3, 1.0),  # word F1 of 2/3
        (GuiAction("type", text="big cat"), WORD, 3, 0.2),  # word F1 of 0.4
        (None, BOX, 0, 0.0),
    ],
)
def test_rewards_of_actions_on_a_screen(action, target, first, second):
    assert ui_r1(action, target) == first
    assert gui_r1(action, target) == pytest.approx(second)


def test_parts_of_actions_on_a_screen():
    assert inside((1, 2), (1, 2, 1, 2))
    assert not inside(None, (1, 2, 1, 2))
    assert text_f1("a b", "b c") == pytest.approx(0.5)
    assert (text_f1("", ""), text_f1("a", "")) == (1, 0)
    assert not hits(GuiAction("type", text="big red cat"), WORD)
    with pytest.raises(InputError, match="Did you mean 'ui_r1'"):
        gui_reward("ui_r2", None, BOX)


# --- SQL ------------------------------------------------------------------------------------------------------------

TABLES = {"pet": {"age": [1, 5, 7, 5], "fat": [9, 4, 2, 4]}}


@pytest.mark.parametrize(
    ("query", "execution", "syntax", "schema"),
    [
        ("select fat from pet where age>3", 1, 1, 1),
        ("SELECT fat FROM pet WHERE NOT age<=3", 1, 1, 1),
        ("select fat from pet where age>=5 order by fat", 1, 1, 1),  # other order, the right query asks for none
        ("select distinct fat from pet where age>3", 0, 1, 1),  # rows are counted
        ("select fat from pet", 0, 1, 2 / 3),
        ("select fat from", 0, 0, 1 / 3),
        ("", 0, 0, 0),
    ],
)
def test_sql_components_by_hand(query, execution, syntax, schema):
    found = sql_components(query, "select fat from pet where age>3", TABLES)
    assert (found["execution"], found["syntax"], found["schema"]) == pytest.approx((execution, syntax, schema))
    assert 0 <= found["ngram"] <= 1


def test_sql_a_right_query_has_everything_and_a_rewritten_one_less_wording():
    gold = "select fat from pet where age>3"
    assert sql_components(gold, gold, TABLES) == dict.fromkeys(PARTIAL, 1.0)
    assert sum(sql_reward(sql_components(gold, gold, TABLES)).values()) == pytest.approx(1)
    assert sql_components("select fat from pet where 3<age", gold, TABLES)["ngram"] < 1
    assert sql_reward({"execution": 1.0}, {"execution": 2.0}) == {"execution": 1.0}


def test_sql_order_counts_where_it_is_asked_for():
    gold = "select age from pet order by age"
    assert sql_components("select age from pet order by age desc", gold, TABLES)["execution"] == 0
    assert same_rows([(1,), (2,)], [(2,), (1,)], ordered=False)
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)


@pytest.mark.parametrize(
    "query",
    [
        "drop table pet",
        "insert into pet values (1, 2)",
        "attach 'x' as y",
        "pragma table_info(pet)",
        "select randomblob(1000000000)",
        "select load_extension('x')",
        "select 1; select 2",
        "with recursive r(x) as (select 1 union all select x+1 from r) select count(*) from r",
        "select count(*) from " + ", ".join(f"pet as p{i}" for i in range(12)),
        "x" * 3000,
        "select '\0'",
        "select '\ud800'",
    ],
)
def test_sql_that_does_more_than_read_or_too_much_is_refused(query):
    with pytest.raises(QueryError):
        run_query(query, TABLES)


def test_sql_rows_are_bounded_and_tokens_are_small():
    many = "select p0.age from " + ", ".join(f"pet as p{i}" for i in range(7))
    assert len(run_query(many, TABLES)) == 16384
    assert sql_tokens("SELECT a>=3 , 'X y'") == ["select", "a", ">=", "3", ",", "'x y'"]
    assert jaccard(set(), set()) == 1


# --- searching, knowing, ways, rubrics, gates -----------------------------------------------------------------------


def test_sem_orders_the_four_cases():
    right_at_once = sem(Searched(True, 0, needed=False))
    searched_as_needed = sem(Searched(True, 2, needed=True))
    needlessly = sem(Searched(True, 1, needed=False))
    wrong = sem(Searched(False, 1, needed=True))
    assert right_at_once == searched_as_needed > needlessly > wrong == 0
    assert sem(Searched(True, 0, needed=False, well_formed=False)) == 0


def test_exact_and_formatted():
    assert (exact(Searched(True, 9, needed=False)), exact(Searched(False, 0, needed=True))) == (1, 0)
    cases = [Searched(right, 1, needed=True, well_formed=form) for right in (True, False) for form in (True, False)]
    assert [formatted(case) for case in cases] == pytest.approx([1.0, 0.8, 0.2, 0.0])


@pytest.mark.parametrize(
    ("said", "paid"),
    [
        ("bako lives miru|miru", 3),
        ("|?", 2),
        ("bako lives tofe|tofe", 1 - 1 + 2 / 3),
        ("|tofe", 0),
        ("miru", -1),
        ("a|b|miru", -1),
        ("bako|", -1),
    ],
)
def test_knowledge_by_hand(said, paid):
    assert total(knowledge, said, answer="miru", fact="bako lives miru") == pytest.approx(paid)


def test_a_true_thought_never_makes_a_wrong_answer_worth_a_refusal():
    assert total(knowledge, "bako lives miru|tofe", answer="miru", fact="bako lives miru") == 1
    assert (true_share("", "a b"), true_share("a c", "a b"), true_share("a b c", "a b")) == (
        0,
        0.5,
        pytest.approx(2 / 3),
    )


GRID = {"size": 3, "start": "00", "goal": "02", "walls": ["01"]}


@pytest.mark.parametrize(
    ("way", "path", "moves"),
    [
        ("drru", 0.8, 1),
        ("ddrruu", 1.2, 1),
        ("rr", 0, 1),
        ("drr", 0, 1),
        ("uu", 0, 1),
        ("", 0, 0),
        ("drru.", 0, 0),
        ("dudrru", 0, 1),
    ],
)
def test_whole_path_by_hand(way, path, moves):
    found = whole_path(way, **GRID)
    assert (found["path"], found["moves"], found["correct"]) == (pytest.approx(path), moves, float(path > 0))


def test_walk():
    assert walk("ddr", 3, "00", []) == "21"
    assert walk("", 3, "00", []) == "00"
    assert [walk(way, 3, "00", ["01"]) for way in ("r", "l", "x")] == [None] * 3


def test_a_gate_only_takes_away():
    assert product(0.5, [0.5, 1.0]) == 0.25
    assert product(0.5, []) == 0.5
    assert product(3, [0.0, 1.0]) == 0
    for gate in (-0.1, 1.1):
        with pytest.raises(InputError, match="must be within"):
            product(1.0, [gate])


def test_a_critical_part_vetoes_and_its_components_are_still_shown():
    reward = load_reward(
        [
            {"name": "number_after_bar", "weight": 0.6},
            {"name": "grouprl.rewards.rubric:worked", "weight": 0.2, "critical": True},
            {"name": "grouprl.rewards.rubric:concise", "weight": 0.2, "length": 5},
        ]
    )
    texts = ["12|7", "|7", "12345|7", "1|8"]
    found = score(reward, texts, [{"answer": "7"}] * 4, ids=list("abcd"))
    assert found.reward_b.tolist() == pytest.approx([1.0, 0.0, 0.8, 0.4])
    assert found.components["number_after_bar"].tolist() == [1, 1, 1, 0]
    assert found.correct_b.tolist() == [True, True, True, False]


def test_only_parts_that_exist_can_be_critical():
    with pytest.raises(InputError, match="no reward 'x' that could be critical"):
        combine([("worked", worked, 1.0)], critical=["x"])
    with pytest.raises(InputError, match="'critical' of reward 'exact_match' is 1"):
        load_reward([{"name": "exact_match", "critical": 1}])


@given(st.text(max_size=60))
def test_no_text_breaks_a_reward(text):
    answers = {"answer": "7", "fact": "a b 7"}
    for reward, columns in [
        *((graded, {"answer": "7"}) for graded in GRADED),
        (knowledge, answers),
        (json_match, {"answer": json.dumps({"a": 1})}),
        (tool_calls, {"answer": CALL}),
        (whole_path, GRID),
    ]:
        assert all(math.isfinite(value) for value in reward(text, **columns).values())
