"""A reward that is measured beside the one that is paid."""

import json

import pytest

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.rewards.judging.judge import PLACE
from grouprl.rewards.judging.measured import MeasuredReward
from grouprl.rewards.validation import Terms, Verdict, VerdictReward
from grouprl.training.loop import train


class Lengths(VerdictReward):
    """Pays the length of a completion, and remembers whether it was told its place."""

    def verdicts(self, completions, columns, ids, terms=None):
        self.placed = [PLACE in each for each in columns]
        return [Verdict("ok", float(len(text)), {"letters": float(len(text))}, True) for text in completions]


def of_a(completion, *, wanted):
    return None if completion == "?" else completion.count(wanted) / len(completion)


def test_the_paid_reward_counts_and_the_measured_one_decides_what_is_right():
    paid = Lengths()
    columns = [{"wanted": "a", PLACE: "here"}] * 4
    found = MeasuredReward(paid, of_a).verdicts(["aa", "abb", "?", ""], columns, list("0123"), Terms())
    assert [each.status for each in found] == ["ok", "ok", "ok", "error"]
    assert [each.reward for each in found[:3]] == [2, 3, 1]
    assert found[0].components == {"letters": 2, "gold": 1}
    assert found[1].components["gold"] == pytest.approx(1 / 3)
    assert found[2].components == {"letters": 1}, "a gold reward that does not apply is left out"
    assert [found[0].correct, found[1].correct] == [True, False]
    assert "in 'gold'" in found[3].what
    assert paid.placed == [True] * 4


def settings(folder, **reward):
    return {
        "task": {"name": "words", "longest": 3},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
        "method": "grpo",
        "reward": reward,
        "steps": 2,
        "batch": {"prompts": 2, "group_size": 4},
        "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
        "run": {"folder": str(folder / "run")},
    }


def test_a_run_pays_the_model_and_logs_the_truth(tmp_path):
    load_reward_model("tiny", alphabet="abcdefgh>", hidden=16, layers=1, heads=2, intermediate=16).save(tmp_path / "rm")
    train(parse_config(settings(tmp_path, model=str(tmp_path / "rm"), gold="task")))
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["phase"] == "train"]
    assert all(0 <= line["reward/gold"] <= 1 for line in trained)
    assert all(abs(line["reward_mean"] - line["reward/gold"]) > 1e-3 for line in trained)
    assert "eval/reward/gold" in lines[0]


def test_it_stands_beside_a_judge_or_a_model_only(tmp_path):
    with pytest.raises(InputError, match="gold is measured beside a judge or a model"):
        parse_config(settings(tmp_path, gold="task"))
