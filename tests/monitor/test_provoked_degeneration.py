"""Runs that are made to degenerate, and like ones that do not: what the report says, and what its remedies change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grouprl.config.run import parse_config
from grouprl.training.loop import train
from grouprl.view.diagnosis import Diagnosis, diagnose, stored_findings
from grouprl.view.runfiles import read_run

REWARDS = '''
def letter(completion, **_):
    return completion.count("a") / 20

def varied(completion, **_):
    """The remedy of loops: what repeats itself earns nothing."""
    return letter(completion) if "aaaa" not in completion else 0.0
'''


def ran(folder: Path, reward: str, **changes: Any) -> dict[str, Diagnosis]:
    """Train a tiny model for this reward, and return what is found, the likeliest cause first."""
    (folder / "my_rewards.py").write_text(REWARDS)
    config: dict[str, Any] = {
        "task": {"name": "reverse", "length": 4},
        "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}},
        "batch": {"prompts": 4, "group_size": 8, "minibatches": 2},
        "sampling": {"max_new_tokens": 20},
        "reward": {"function": f"{folder / 'my_rewards.py'}:{reward}", "workers": 0, "self_test": False},
        "eval": {"every": 0, "final_prompts": 4},
        "optim": {"lr": 1e-2},
        "steps": 25,
        "run": {"folder": str(folder / "run")},
    }
    train(parse_config({**config, **changes}))
    run = read_run(folder / "run", rollouts=False)
    found = stored_findings(run)
    assert found is not None
    return {each.finding.code: each for each in diagnose(run, found)}


def test_a_reward_that_pays_a_letter_ends_in_loops_and_they_come_first(tmp_path: Path) -> None:
    found = ran(tmp_path, "letter")
    first = next(iter(found.values()))
    assert first.finding.code == "repetition_loops"
    assert first.sign == "the longest that end in a loop"
    assert len(first.rows) == 3
    assert all("aaaaaaaaaaaaaaaa" in row.text for row in first.rows)


def test_a_reward_that_pays_no_loops_has_none(tmp_path: Path) -> None:
    assert "repetition_loops" not in ran(tmp_path, "varied")


FAR = {"method": {"base": "grpo", "kl_coef": 1e-6}, "steps": 15}


def test_a_rate_far_too_high_leaves_the_reference_and_is_named_first(tmp_path: Path) -> None:
    found = ran(tmp_path, "varied", optim={"lr": 0.3}, **FAR)
    assert next(iter(found)) == "moves_too_fast"
    assert "far_from_reference" in found
    rows = found["far_from_reference"].rows
    assert min(abs(row.drift) for row in rows) >= 1


def test_a_usual_rate_stays_near(tmp_path: Path) -> None:
    assert not {"moves_too_fast", "far_from_reference"} & ran(tmp_path, "varied", optim={"lr": 1e-3}, **FAR).keys()
