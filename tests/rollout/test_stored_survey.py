"""A look at stored rows before a run: where prompt and completion meet, what is cut, and what an evaluation can say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import parse_config
from grouprl.plan.plan import Plan, plan

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}


def planned(folder: Path, rows: Sequence[Any], size: int = 2, **changes: Any) -> Plan:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"name": f"pairs:{path}", **changes.pop("task", {})}
    batch = {"prompts": 4, "group_size": size}
    return plan(parse_config({"task": options, "model": TINY, "method": "grpo", "batch": batch, **changes}))


PAIRS = [{"prompt": f"q{n}:", "chosen": "yes", "rejected": "n" * (n + 1)} for n in range(20)]


def test_a_plan_says_the_format_the_boundary_and_that_nothing_is_cut(tmp_path: Path) -> None:
    found = planned(tmp_path, PAIRS)
    notes = " ".join(found.notes)
    assert "the columns prompt, chosen, rejected make it pairs" in notes
    assert "q1:' | 'yes<eos>' or 'nn<eos>' (rows.jsonl:2)" in notes or "q0:' | 'yes<eos>' or 'n<eos>'" in notes
    assert "no row is cut: the longest of the 20 groups has 26 tokens" in notes  # bos, q19:, 20 letters, end
    assert found.refusals == ()
    assert found.batch.max_new_tokens == 21


@pytest.mark.parametrize(
    ("way", "said"),
    [
        # rows of 5 + n (n < 10) or 6 + n tokens; those of 11 to 19 lose 1 to 9 where 16 are kept
        ("keep_start", "45 tokens of 9 rows are cut, of the 20 groups"),
        ("drop", "9 of the 20 groups are left out"),
    ],
)
def test_a_plan_counts_what_is_cut(tmp_path: Path, way: str, said: str) -> None:
    found = planned(tmp_path, PAIRS, task={"max_length": 17, "truncation": way})
    assert f"the longest row has 26 tokens, and 17 are kept: {said} (truncation: {way})" in " ".join(found.notes)


def test_a_row_that_would_lose_every_token_is_refused_by_its_name(tmp_path: Path) -> None:
    rows = [*PAIRS, {"prompt": "long prompt:", "chosen": "a", "rejected": "b"}]
    found = planned(tmp_path, rows, task={"max_length": 12})
    assert any("rows.jsonl:21" in refusal and "max_length" in refusal for refusal in found.refusals)


def test_a_run_without_a_group_that_fits_is_refused(tmp_path: Path) -> None:
    found = planned(tmp_path, PAIRS, task={"max_length": 7, "truncation": "drop"})
    assert any("every group is left out: the shortest has a row of 8 tokens" in refusal for refusal in found.refusals)


def test_a_run_without_a_held_out_group_that_fits_is_refused(tmp_path: Path) -> None:
    """It would train, and end in an evaluation without anything to score."""
    held_out = tmp_path / "eval.jsonl"
    held_out.write_text(json.dumps({"prompt": "qq:", "chosen": "yes", "rejected": "n" * 40}))
    found = planned(tmp_path, PAIRS, task={"max_length": 30, "truncation": "drop", "eval": str(held_out)})
    assert any(
        "every held-out group is left out: the shortest has a row of 45 tokens" in each for each in found.refusals
    )


@pytest.mark.parametrize(
    ("row", "most", "why"),
    [
        ({"chosen": "aaaax", "rejected": "aaaay"}, 8, "where max_length cuts them before they differ"),
        ({"completions": ["a", "a"], "scores": [1, 2]}, 99, "where a completion stands twice, with different rewards"),
    ],
)
def test_completions_whose_tokens_are_the_same_are_told(row: Any, most: int, why: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}:", **row} for n in range(10)]
    notes = " ".join(planned(tmp_path, rows, task={"max_length": most}).notes)
    assert "10 of the 10 groups have a better and a worse completion of the same tokens" in notes
    assert why in notes
    assert "of the same tokens" not in " ".join(planned(tmp_path, PAIRS, task={"max_length": 99}).notes)


def test_single_completions_leave_an_evaluation_nothing_to_prefer(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "completion": "c", "label": n % 2 == 0} for n in range(20)]
    found = planned(tmp_path, rows, size=1, method="reinforce")
    assert any("an evaluation has none to prefer" in note for note in found.notes)


def test_a_limit_of_sampling_is_refused_where_nothing_is_sampled(tmp_path: Path) -> None:
    found = planned(tmp_path, PAIRS, sampling={"max_new_tokens": 8})
    assert any("sampling.max_new_tokens limits what is sampled" in refusal for refusal in found.refusals)
