"""RewardBench 1 and 2: rules, intervals and biases by hand, and the command on files written in their format."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import wilson
from grouprl.evaluation.ranking.bench_rows import BenchRow, bench_rows
from grouprl.evaluation.ranking.biases import biases, calibration_error, negative_log_likelihood
from grouprl.evaluation.ranking.reward_bench import bench_scores, best_of, ties_score
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.tasks.table import Table


def row(subset, right=1, wrong=3, name="1"):
    return BenchRow(name, subset, "p", ("x",) * (right + wrong), right)


def test_the_right_one_must_have_the_highest_score_and_ties_share():
    assert best_of(np.array([2.0, 1, 1, 0]), 1, strict=False) == 1
    assert best_of(np.array([1.0, 2, 1, 0]), 1, strict=False) == 0
    assert best_of(np.array([2.0, 2, 1, 2]), 1, strict=False) == pytest.approx(1 / 3)
    assert best_of(np.array([2.0, 2]), 1, strict=True) == 0


def test_subsets_have_intervals_and_their_mean_is_the_result():
    rows = [row("Math"), row("Math"), row("Focus")]
    found = bench_scores(rows, [[2, 1, 0, 0], [0, 1, 0, 0], [3, 1, 1, 2]])
    assert {name: each.value for name, each in found.subsets.items()} == {"Math": 0.5, "Focus": 1}
    assert found.subsets["Math"] == wilson(0.5, 2)
    assert (found.overall, dict(found.rows), found.sections, found.ties) == (0.75, {"Math": 2, "Focus": 1}, {}, {})


def test_sections_of_the_first_version_weigh_rows_and_math_as_all_code():
    pairs = [row("hep-cpp", wrong=1)] * 3 + [row("hep-go", wrong=1)] + [row("math-prm", wrong=1)] * 2
    pairs += [row("donotanswer", wrong=1)]
    scores = [[1, 0]] * 3 + [[0, 1]] + [[1, 0], [0, 1]] + [[0, 0]]
    found = bench_scores(pairs, scores)
    assert found.sections == {"Safety": 0.0, "Reasoning": pytest.approx((3 * 1 + 1 * 0 + 4 * 0.5) / 8)}
    assert found.overall == pytest.approx(0.625 / 2)


def test_the_score_of_ties_by_hand():
    """Question 1: gap 1, spread 0.5, reference gap 0.2. Question 2: a wrong answer above a right one."""
    rows = [
        row("Ties", 2, 1, "tied:1"),
        row("Ties", 1, 1, "ref:1"),
        row("Ties", 2, 1, "tied:2"),
        row("Ties", 1, 1, "ref:2"),
    ]
    found = bench_scores(rows, [[2.5, 2.0, 1.0], [1.2, 1.0], [3.0, 1.0, 2.0], [5.0, 1.0]])
    margin = (math.tanh(0.2 / 0.5 - 1) + math.tanh(-1 / 2 - 1)) / 2
    assert found.ties == {
        "tied": 0.5, "ref": 1.0, "preferred": 0.5, "preferred_hard": 0.0, "margin": pytest.approx(margin),
    }  # fmt: skip
    assert found.subsets["Ties"].value == pytest.approx(0.3 * 0.5 + 0.3 + 0.2 * 0.5 + 0.01 * margin)
    assert found.overall == found.subsets["Ties"].value


def test_equal_right_answers_have_no_spread():
    rows = [row("Ties", 2, 1, "tied:1"), row("Ties", 1, 1, "ref:1")]
    found = bench_scores(rows, [[2.0, 2.0, 1.0], [3.0, 1.0]])
    assert found.ties["margin"] == 1
    assert ties_score(found.ties) == pytest.approx(1.01)
    assert bench_scores(rows, [[1.0, 1.0, 1.0], [1.0, 1.0]]).ties["margin"] == 0


def test_calibration_by_hand():
    """Confidences σ(2) = 0.881 (three pairs, two right) and σ(0.1) = 0.525 (one, right)."""
    gap_p = np.array([2.0, 2.0, -2.0, 0.1])
    high, low = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-0.1))
    assert calibration_error(gap_p) == pytest.approx((abs(2 - 3 * high) + abs(1 - low)) / 4)
    assert negative_log_likelihood(np.zeros(3)).value == pytest.approx(math.log(2))
    assert negative_log_likelihood(np.array([0.0, 1000.0])).value == pytest.approx(math.log(2) / 2)


def test_scores_that_pay_for_length_prefer_longer_texts_more_than_the_labels():
    better, worse = ["aa", "a", "aaa", "a"], ["a", "aa", "a", "b"]
    gap_p = np.array([len(b) - len(w) for b, w in zip(better, worse, strict=True)], dtype=float)
    found = biases(better, worse, gap_p)
    assert found["longer"]["scores"].value == 1
    assert found["longer"]["labels"] == wilson(2 / 3, 3), "the pair of equal lengths says nothing"
    assert "more marks" not in found


def test_marks_of_markdown_are_counted():
    better, worse = ["# A\n- b\n- c", "plain", "**x**"], ["- b", "1. one", "x"]
    found = biases(better, worse, np.array([1.0, -1.0, -1.0]))
    assert found["more marks"]["labels"].value == pytest.approx(2 / 3)
    assert found["more marks"]["scores"].value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"prompt": "p", "chosen": "a"}, "line 3 of f has no column 'rejected'"),
        ({"prompt": [], "chosen": "a", "rejected": "b"}, "a prompt that is not text"),
        ({"prompt": "p", "chosen": [], "rejected": "b"}, "chosen of line 3 of f is"),
        ({"prompt": "p", "chosen": ["a", "b"], "rejected": ["c"], "subset": "Math"}, "2 chosen completions"),
        ({"prompt": "p", "chosen": ["a"], "rejected": ["c"], "subset": "Ties", "id": "7"}, "has the id '7'"),
    ],
)
def test_rows_of_other_forms_are_refused_by_name(data, said):
    with pytest.raises(InputError, match=said):
        list(bench_rows(Table("f", [data], [3], "line")))


def files(folder):
    model = load_reward_model(
        "tiny", alphabet="abcdefgh", hidden=16, layers=1, heads=2, intermediate=16, dtype="float32"
    )
    model.save(folder / "rm")
    first = [{"prompt": "a", "chosen": "bb", "rejected": "c", "subset": "hep-go", "id": 3, "chosen_model": "m"}]
    second = [
        {"prompt": "a", "chosen": ["bb"], "rejected": ["c", "d", "e"], "subset": "Math", "id": "4", "num_correct": 1},
        {"prompt": "a", "chosen": ["bb", "b"], "rejected": ["c"], "subset": "Ties", "id": "tied:1"},
        {"prompt": "a", "chosen": ["b"], "rejected": ["c"], "subset": "Ties", "id": "ref:1"},
    ]
    for name, rows in (("one.jsonl", first), ("two.jsonl", second)):
        (folder / name).write_text("".join(json.dumps(each) + "\n" for each in rows))
    return model


def call(*arguments):
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["rewardbench", *arguments])
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def complaint(*arguments, code):
    """What the command says on its second stream, in one line."""
    result = CliRunner(env={"COLUMNS": "500", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["rewardbench", *arguments])
    assert result.exit_code == code
    return " ".join(result.stderr.split())


def test_the_command_scores_both_versions(tmp_path):
    model = files(tmp_path)
    one = json.loads(call(str(tmp_path / "rm"), str(tmp_path / "one.jsonl"), "--json"))
    good, bad = model.scores(model.tokens_of(["a", "a"], ["bb", "c"])).tolist()
    assert one["subsets"]["hep-go"]["accuracy"] == float(good > bad)
    assert one["negative_log_likelihood"]["value"] == pytest.approx(math.log1p(math.exp(bad - good)), abs=1e-6)
    assert one["prefers"]["longer"]["labels"]["share"] == 1
    said = call(str(tmp_path / "rm"), str(tmp_path / "two.jsonl"))
    assert "Math" in said
    assert "preferred hard" in said
    assert "overall" in said


def test_a_row_that_is_too_long_is_left_out_and_named(tmp_path):
    model = files(tmp_path)
    long = {"prompt": "a" * (model.max_positions + 1), "chosen": "b", "rejected": "c", "subset": "x", "id": 9}
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    found = json.loads(call(str(tmp_path / "rm"), str(tmp_path / "one.jsonl"), "--json"))
    assert found["left_out"] == ["9"]
    assert list(found["subsets"]) == ["hep-go"]


def test_a_row_that_cannot_be_read_is_left_out_with_the_reason(tmp_path):
    files(tmp_path)
    unread = {"prompt": "\u00df", "chosen": "b", "rejected": "c", "subset": "x", "id": 9}
    (tmp_path / "two.jsonl").write_text(json.dumps(unread))
    said = complaint(str(tmp_path / "rm"), str(tmp_path / "two.jsonl"), code=2)
    assert "can read none of the rows" in said
    assert "not in the tokenizer's alphabet" in said
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write(json.dumps(unread) + "\n")
    said = complaint(str(tmp_path / "rm"), str(tmp_path / "one.jsonl"), code=0)
    assert "rows that cannot be read and are left out (1): 9." in said
    assert "not in the tokenizer's alphabet" in said
