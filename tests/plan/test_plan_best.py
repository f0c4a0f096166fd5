"""`eval.best` by a measure that is the same for every policy is refused, and by one that wanders it is warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

import grouprl
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.plan.plan import Plan, plan
from short_runs import quiet

JUDGE = {"url": "http://127.0.0.1:9/v1"}
PAIRS = {**JUDGE, "compare": True}
OWN = "def useful(completion):\n    return float('a' in completion)\n"


def planned(best: str, reward: object = None, **more: object) -> Plan:
    settings = {"task": "addition", "model": "tiny", "method": "grpo", "batch": {"prompts": 2, "group_size": 4}, **more}
    measured = {"best": best, **({} if "eval" not in more else dict(more["eval"]))}  # type: ignore[call-overload]
    return plan(parse_config({**settings, "eval": measured, **({} if reward is None else {"reward": reward})}))


def of_best(found: Plan, severity: str) -> list[str]:
    return [str(each) for each in found.findings if each.code == "best_checkpoint" and each.severity == severity]


@pytest.mark.parametrize("best", ["reward", "eval/reward", "greedy_reward"])
def test_the_mean_of_a_judge_of_pairs_is_a_constant(best: str) -> None:
    for found in (planned(best, {"judge": PAIRS}), planned(best, task="duels", method="nash_md")):
        (said,) = of_best(found, "refusal")
        assert "one half for every policy" in said
        assert "eval.metrics" in said
        assert "reward.gold" in said


@pytest.mark.parametrize("best", ["pass@1", "greedy"])
def test_no_completion_is_right_by_comparison_alone(best: str) -> None:
    (said,) = of_best(planned(best, {"judge": PAIRS}), "refusal")
    assert "none is right by itself" in said
    assert not of_best(planned(best, {"judge": PAIRS, "gold": "task"}), "refusal")
    assert not of_best(planned(best, task="duels", method="nash_md"), "refusal")  # its judge knows the wanted letters


def test_the_remedies_that_are_named_are_taken(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN, encoding="utf-8")
    assert not of_best(planned("useful", {"judge": PAIRS}, eval={"metrics": [f"{own}:useful"]}), "refusal")
    assert not of_best(planned("reward/gold", {"judge": PAIRS, "gold": "task"}), "refusal")
    assert not of_best(planned("", {"judge": PAIRS}), "refusal")
    assert not of_best(planned("reward"), "refusal")


def test_a_judge_of_groups_is_warned_of_and_other_rewards_are_not() -> None:
    (said,) = of_best(planned("reward", {"judge": JUDGE}), "warning")
    assert "relative to the completions it ranks together" in said
    for found in (planned("reward/gold", {"judge": JUDGE, "gold": "task"}), planned("reward"), planned("", None)):
        assert not of_best(found, "warning")


def test_a_method_in_proportion_to_rewards_is_not_chosen_by_their_mean_unwarned() -> None:
    (said,) = of_best(planned("reward", method="vargrad"), "warning")
    assert "in proportion to rewards" in said
    assert not of_best(planned("pass@1", method="vargrad"), "warning")


def test_training_refuses_it_before_a_step(tmp_path: Path) -> None:
    settings = {"task": "duels", "model": "tiny", "method": "nash_md", "steps": 1, "eval": {"best": "reward"}}
    with pytest.raises(InputError, match="one half for every policy"):
        grouprl.train(settings, folder=tmp_path / "run", console=quiet())
    assert not (tmp_path / "run").exists()


def test_a_component_that_the_reward_does_not_have_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("def parts(completion, **columns):\n    return {'form': 1.0, 'sum': 0.0}\n", encoding="utf-8")
    reward = {"function": f"{own}:parts"}
    (said,) = of_best(planned("reward/from", reward), "refusal")
    assert "'addition' has no such component" in said
    assert "reward/form" in said
    assert not of_best(planned("eval/reward/form", reward), "refusal")
    (said,) = of_best(planned("reward/gold"), "refusal")
    assert "no such component" in said
