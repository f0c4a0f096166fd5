"""The record of what the recipes teach: numbers from run folders, and the table of the page."""

import json
from pathlib import Path

import pytest

import recipes


def evaluated(greedy, sampled):
    ends = {"greedy_low": 0.0, "greedy_high": 1.0}
    for kind in ("pass@1", "reward"):
        ends |= {kind: sampled, f"{kind}_low": sampled - 0.1, f"{kind}_high": sampled + 0.1}
    return {f"eval/{key}": value for key, value in {"greedy": greedy, "prompts": 8, **ends}.items()}


@pytest.fixture
def folder(tmp_path):
    lines = [
        {"phase": "warmup", "loss": 1.0},
        {"phase": "eval", **evaluated(0.5, 0.25)},
        *({"phase": "train", "reward_mean": float(paid)} for paid in range(10)),
        {"phase": "eval", **evaluated(0.75, 0.5)},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_a_record_holds_the_ends_of_a_run(folder):
    record = recipes.read("screen", 1, folder, 32.6)
    assert record["reward"] == [1.0, 7.0]  # of 0, 1, 2 and of 5 to 9
    assert (record["before"]["pass@1"], record["after"]["greedy"], record["seconds"]) == (0.25, 0.75, 33)
    row = "| `screen` | 1 | right | 1.00 → 7.00 | 0.250 [0.150, 0.350] | 0.500 [0.400, 0.600] |  | 0.500 → 0.750 | 33 |"
    assert recipes.table([record]).splitlines()[2] == row


def test_a_table_says_what_rose_for_sure_and_the_reward_where_that_is_something_else():
    def side(right, reward):
        named = {"pass@1": right, "reward": reward}
        ends = {f"{kind}{end}": x + by for kind, x in named.items() for end, by in (("_low", -0.1), ("_high", 0.1))}
        return {**named, **ends, "greedy": right}

    record = {"recipe": "ton", "seed": 0, "reward": [0, 1], "before": side(0.5, 1.0), "after": side(0.6, 1.5)}
    row = recipes.table([{**record, "seconds": 9}]).splitlines()[2]
    assert "| `ton` | 0 | reward |" in row
    assert "| 1.000 [0.900, 1.100] → 1.500 [1.400, 1.600] |" in row
    assert recipes.gain({**record, "after": side(0.6, 1.1)}) == "**no**"
    assert recipes.gain({**record, "after": side(0.8, 1.1)}) == "right"
    assert recipes.gain({**record, "after": side(0.1, 1.5)}) == "reward; right fell"
    old = {kind: {k: v for k, v in record[kind].items() if "reward" not in k} for kind in ("before", "after")}
    assert recipes.gain({**record, **old}) == "**no**", "a record of before there was a held-out reward"


def test_a_run_on_stored_pairs_is_recorded_by_its_pairs(tmp_path):
    def evaluated(share):
        named = {"pair_accuracy": share, "pair_accuracy_low": share - 0.1, "pair_accuracy_high": share + 0.1}
        return {"phase": "eval", **{f"eval/{kind}": value for kind, value in named.items()}}

    lines = [evaluated(0.5), {"phase": "train", "loss": 0.7}, evaluated(0.75)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    record = recipes.read("preferences", 0, tmp_path, 5)
    row = recipes.table([record]).splitlines()[2]
    assert row == "| `preferences` | 0 | right |  | 0.500 [0.400, 0.600] | 0.750 [0.650, 0.850] |  |  | 5 |"
    assert recipes.gain({**record, "after": record["before"]}) == "**no**"


def test_what_is_recorded_is_not_run_again_until_the_recipe_changes(folder, tmp_path, monkeypatch):
    (tmp_path / "recipes.md").write_text(f"before\n{recipes.BEGIN}\nold\n{recipes.END}\nafter\n")
    monkeypatch.setattr(recipes, "DOCS", tmp_path)
    ran = []

    def run(name, seed, _):
        ran.append((name, seed))
        return recipes.read(name, seed, folder, 1.0)

    monkeypatch.setattr(recipes, "run", run)
    recipes.main(["screen", "keys"], seeds=2)
    assert ran == [("screen", 0), ("keys", 0), ("screen", 1), ("keys", 1)]
    page = (tmp_path / "recipes.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert [line.split()[1:4:2] for line in page.splitlines() if line.startswith("| `")] == [
        ["`keys`", "0"], ["`keys`", "1"], ["`screen`", "0"], ["`screen`", "1"]
    ]  # fmt: skip
    recipes.main(["screen", "keys"], seeds=2)
    assert len(ran) == 4
    monkeypatch.setattr(recipes, "version", lambda name: "changed")
    recipes.main(["keys"], seeds=1)
    assert ran[4:] == [("keys", 0)]


def test_the_page_shows_what_is_stored():
    page = (recipes.DOCS / "recipes.md").read_text(encoding="utf-8")
    stored = json.loads((recipes.DOCS / "recipes.json").read_text(encoding="utf-8"))
    assert f"{recipes.summary(stored)}\n{recipes.table(stored)}" in page


def test_the_summary_names_what_did_not_gain_and_what_is_not_recorded(monkeypatch):
    def run(name, after):
        sides = (("before", 0.5), ("after", after))
        ends = {side: {"pass@1": x, "pass@1_low": x - 0.1, "pass@1_high": x + 0.1} for side, x in sides}
        return {"recipe": name, **ends}

    monkeypatch.setattr(recipes, "recipe_names", lambda: ["a", "b", "c", "d"])
    said = recipes.summary([run("a", 0.9), run("a", 0.8), run("b", 0.9), run("b", 0.6), run("c", 0.1)])
    assert said == (
        "1 of 4 recipes gained significantly in every recorded seed. **Not shown to learn**: `c`. "
        "**Shown in some seeds only**: `b`. **Without a record**: `d`.\n"
    )


def test_what_is_recorded_is_of_the_recipes_as_they_are():
    stale = [
        each["recipe"]
        for each in json.loads((Path(recipes.__file__).parents[1] / "docs" / "recipes.json").read_text())
        if each["version"] != recipes.version(each["recipe"])
    ]
    assert sorted(set(stale)) == [], "run: python scripts/recipes.py"
