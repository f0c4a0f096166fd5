"""A trajectory as a person sees it: in a terminal, in plain text, on the page."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

import toy_envs
from episode_runs import launch
from grouprl import InputError
from grouprl.algorithms.augment.prefix_turns import led
from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.monitor.metrics import rollout_table
from grouprl.training.loop import train
from grouprl.view.runfiles import read_rollouts
from grouprl.view.trajectory import Trajectory, find, of_step
from grouprl.view.trajectory_page import episode_groups
from grouprl.view.trajectory_text import _outcome, lines
from prefix_runs import sampled as prefix_samples


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warmup = {"steps": 40, "batch": 16, "lr": 1e-2}
    task = f"{toy_envs.__file__}:TeamTask"
    batch = {"prompts": 3, "group_size": 6}
    return launch(tmp_path_factory.mktemp("runs") / "team", task=task, warmup=warmup, batch=batch, method="gigpo")


def called(folder: Path) -> Trajectory:
    """An episode in which the boss called its helper."""
    return next(each for each in of_step(folder) if len(each.rows) > 1)


def shown(trajectory: Trajectory, *, plain: bool = True) -> str:
    styled = {"color_system": "truecolor", "force_terminal": True} if not plain else {}
    console = Console(width=200, record=True, file=io.StringIO(), **styled)
    for line in lines(trajectory, plain=plain):
        console.print(line, soft_wrap=True)
    return console.export_text(styles=not plain)


def test_turns_are_those_of_the_stored_rows_in_order(team: Path) -> None:
    each = called(team)
    assert [turn.number for turn in each.turns] == list(range(len(each.turns)))
    assert each.agents == ("boss", "helper")
    for turn in each.turns:
        row = each.rows[turn.row]
        where = [i for i, of in enumerate(row["turn"]) if of == _place(row, turn.number)]
        assert "".join(p.text for p in turn.said).replace("<eos>", "") == _turn_of(row, turn.number)["action"]
        assert len(turn.said) == len(where) == turn.trained
        assert turn.advantage == pytest.approx(sum(row["advantage"][i] for i in where) / len(where))
        assert turn.reward == _turn_of(row, turn.number)["reward"]


def _turn_of(row: Any, number: int) -> dict[str, Any]:
    return next(turn for turn in row["turns"] if turn["number"] == number)


def _place(row: Any, number: int) -> int:
    return [turn["number"] for turn in row["turns"]].index(number)


def test_the_text_tells_everything(team: Path) -> None:
    each = called(team)
    text = shown(each)
    assert f"prompt {each.prompt} · episode {each.sample} · step 2" in text
    assert "row 0 (boss): reward" in text
    assert "thrift -0.01" in text
    assert f"over because: {each.ended}" in text
    assert "── row 1 begins (helper, called by row 0) ──" in text
    assert "turn 1 · boss · state start · reward -0.1 · advantage " in text
    assert "  > k<eos>" in text
    assert (
        text.index("turn 1") < text.index("row 1 begins") < text.index("turn 2 · helper") < text.index("turn 3 · boss")
    )
    assert "⟦" not in text.replace("⟦ ⟧ not trained on", "")


def test_colours_say_which_tokens_were_pushed_where(team: Path) -> None:
    pushed = next(t for t in of_step(team) if any(turn.advantage for turn in t.turns))
    coloured = shown(pushed, plain=False)
    assert re.search(r"\x1b\[(1;)?3[12]m", coloured)
    assert "⟦" not in coloured


def test_what_was_not_trained_on_is_marked(tmp_path: Path) -> None:
    made, rows = prefix_samples(toy_envs.AskTask())
    branched = made.rows([led(rows, 0, 1)])
    (tmp_path / "rollouts").mkdir()
    length = len(branched.rollout.response_ids[0])
    pq.write_table(rollout_table(3, branched, [[0.5] * length], [None]), tmp_path / "rollouts" / "step-000003.parquet")
    each = find(tmp_path)
    first, second = each.turns
    assert first.trained == 0
    assert second.trained == len(second.said)
    assert second.advantage == 0.5
    text = shown(each)
    assert f"  > ⟦{first.said[0].text}" in text
    assert "turn 1 · state start · reward +0 · not trained on" in text
    assert "not trained on" in shown(each, plain=False)


def test_the_page_shows_the_same(team: Path) -> None:
    _, rows = read_rollouts(team)
    page = "".join(episode_groups(rows, team))
    assert "row 1 begins: helper, called by row 0" in page or "row 0 begins" not in page
    assert '<pre class="said"><span class="t' in page
    assert "<b>turn 1</b>" in page
    assert "&lt;eos&gt;" in page
    report = (team / "report.html").read_text()
    assert 'class="completion episode"' in report
    assert "grouprl show" in report


def test_long_episodes_are_cut_in_the_middle(team: Path) -> None:
    _, rows = read_rollouts(team)
    long = dict(rows[0])
    long["turns"] = [dict(long["turns"][0], number=i) for i in range(40)]
    page = "".join(episode_groups([long], team))
    assert "28 turns left out" in page
    assert page.count('class="turn"') == 12


def test_the_command_finds_lists_and_complains(team: Path) -> None:
    run = CliRunner()
    listed = run.invoke(app, ["show", str(team), "--list"])
    assert listed.exit_code == 0
    assert listed.output.count("ask/train/") == 18
    one = called(team)
    found = run.invoke(app, ["show", str(team), "--prompt", one.prompt, "--sample", str(one.sample)])
    assert "turn 2 · helper" in found.output
    assert run.invoke(app, ["show", str(team)]).exit_code == 0
    for given, words in (
        (["--step", "9"], "step 9 is not stored"),
        (["--prompt", "ask/train/x"], "Did you mean"),
        (["--sample", "77"], "has no completion 77 in step 2. It has 0, 1"),
    ):
        refused = run.invoke(app, ["show", str(team), *given])
        assert refused.exit_code == 2
        assert words in " ".join(refused.output.split())
    with pytest.raises(InputError, match=r"there is no run folder .*nowhere"):
        read_rollouts(team / "nowhere")
    with pytest.raises(InputError, match="no rollouts are stored"):
        find(team / "checkpoints")


def test_single_completions_are_episodes_of_one_turn(tmp_path: Path) -> None:
    task = {"name": "addition", "digits": 1}
    folder = launch(
        tmp_path / "run", task=task, steps=1, batch={"prompts": 2, "group_size": 2}, eval={"final_prompts": 2}
    )
    each = find(folder)
    (turn,) = each.turns
    assert turn.prompt
    assert turn.prompt in shown(each)
    assert "turn 1" in shown(each)
    assert not episode_groups(read_rollouts(folder)[1], folder)


def test_a_row_of_a_reward_model_is_shown_with_its_scores(team: Path) -> None:
    whole = find(team)
    scored = {**whole.rows[0], "score": 0.4213, "scores": [("liked", -1.5)]}
    first = next(line for line in lines(replace(whole, rows=(scored, *whole.rows[1:])), plain=True) if "reward" in line)
    assert " · score 0.421 · liked -1.5" in first.plain
    assert "score" not in "".join(line.plain for line in lines(whole, plain=True) if "reward" in line)


def test_a_measured_reward_is_no_part_of_what_is_paid() -> None:
    row = {"reward": 0.75, "components": [("judge", 0.75), ("gold", 0.25)], "correct": None, "used": True}
    found = _outcome(row, Trajectory(1, "q", 0, (), (row,)))
    assert found == "reward 0.75 = judge 0.75 · gold 0.25, not paid"
    alone = {**row, "components": [("gold", 0.0)]}
    assert _outcome(alone, Trajectory(1, "q", 0, (), (alone,))) == "reward 0.75 · gold 0, not paid"


@pytest.mark.parametrize(
    ("ended", "said"),
    [("under_way", "not over: it continues in the next step"), ("out_of_turns", "over because: out of turns")],
)
def test_a_piece_of_an_episode_is_not_called_over(ended: str, said: str) -> None:
    row = {"reward": 1.0, "components": [("turn_rewards", 1.0)], "correct": None, "used": True, "ended": ended}
    assert said in shown(Trajectory(1, "q", 0, (), (row,)))


def test_an_episode_without_a_turn_says_why() -> None:
    row = {"reward": None, "status": "error", "problem": "reset() raised", "ended": "error"}
    assert "reset() raised" in shown(Trajectory(1, "q", 0, (), (row,)))


def test_the_legend_says_who_wrote_a_completion(tmp_path: Path) -> None:
    config = {
        "task": "preferences",
        "method": "bradley_terry",
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
        "batch": {"prompts": 2, "group_size": 2},
        "steps": 1,
        "eval": {"every": 0, "final_prompts": 2},
        "run": {"threads": 1, "check_model": False, "rollouts_every": 1},
    }
    run = train(parse_config(config), folder=tmp_path / "run", console=Console(quiet=True)).folder
    told = [str(line) for line in lines(of_step(run, 1)[0], plain=True)]
    assert told[-1].startswith("> stored in the data")
    assert "score " in told[1]


def test_what_is_not_added_to_the_reward_is_not_listed_as_if_it_were() -> None:
    """A piece of an episode of return 15 was paid 3; its cost is measured."""
    row: dict[str, object] = {"reward": 3.0, "correct": None, "used": True}
    row["components"] = [("turn_rewards", 3.0), ("#cost", 7.0), ("return", 15.0)]
    said = "reward 3 = turn_rewards 3 · #cost 7, not paid · return of the episode 15"
    assert _outcome(row, Trajectory(1, "q", 0, (), (row,))) == said
    row["components"] = [("return", 3.0)]  # one of the user's
    assert _outcome(row, Trajectory(1, "q", 0, (), (row,))) == "reward 3 = return 3"
