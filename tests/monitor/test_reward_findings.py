"""Findings on what is paid, from records and from runs that provoke them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.metrics import agent_metrics
from grouprl.training.loop import train

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}


def found(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {each.code: each for each in examine(records, HealthFacts())}


def steps(count: int = 24, **columns: tuple[float, float]) -> list[dict[str, Any]]:
    """Records whose metrics go evenly from one number to another; `__` stands for `/`, `AT` for `@`."""
    names = {name: name.replace("__", "/").replace("AT", "@") for name in columns}
    return [
        {"phase": "train", "step": n}
        | {names[name]: first + (last - first) * (n - 1) / (count - 1) for name, (first, last) in columns.items()}
        for n in range(1, count + 1)
    ]


def test_a_component_that_nobody_earns_is_named() -> None:
    columns = {"reward__right": (0.1, 0.5), "reward__form": (0.0, 0.0), "reward__#calls": (0.0, 0.0)}
    finding = found(steps(**columns))["unearned_component"]
    assert finding.text == "The reward's `form` has been 0 on every completion of 24 steps."
    assert finding.key == "reward/form"
    assert finding.severity == "note"


@pytest.mark.parametrize(
    "columns",
    [
        {"reward__right": (0.1, 0.5), "reward__form": (0.0, 0.01)},
        {"reward__only": (0.0, 0.0)},
        {"reward__right": (0.1, 0.5), "reward__gold": (0.0, 0.0)},
        {"reward__right": (0.1, 0.5), "reward__#form": (0.0, 0.0)},
    ],
    ids=["earned once", "one alone", "measured, not paid", "a count"],
)
def test_no_component_is_named_otherwise(columns: dict[str, tuple[float, float]]) -> None:
    assert "unearned_component" not in found(steps(**columns))


def test_nothing_is_never_earned_after_a_few_steps() -> None:
    columns = {"reward__right": (0.1, 0.5), "reward__form": (0.0, 0.0)}
    assert "unearned_component" not in found(steps(19, **columns))
    assert "unearned_component" in found(steps(20, **columns))


PAID = {"reward_mean": (0.2, 0.8), "reward_std": (0.4, 0.4)}


def test_success_that_is_traded_for_reward_names_the_component() -> None:
    columns = {**PAID, "passAT1": (0.5, 0.2), "reward__right": (0.5, 0.2), "reward__form": (0.1, 0.9)}
    text = found(steps(**columns))["success_traded"].text
    assert "pass@1 fell from 0.47 to 0.26" in text
    assert "`form` rose most" in text


@pytest.mark.parametrize(
    "columns",
    [
        {**PAID, "passAT1": (0.2, 0.5)},
        {**PAID, "passAT1": (0.2, 0.19)},
        {"reward_mean": (0.8, 0.2), "reward_std": (0.4, 0.4), "passAT1": (0.5, 0.2)},
        PAID,
        {"reward_mean": (0.5, 0.52), "reward_std": (0.4, 0.4), "passAT1": (0.5, 0.2)},
    ],
    ids=["both rise", "partial credit alone", "both fall", "no verdict", "a rise within the noise"],
)
def test_no_trade_is_named_otherwise(columns: dict[str, tuple[float, float]]) -> None:
    assert "success_traded" not in found(steps(**columns))


def evaluated(before: float, after: float, prompts: int = 32) -> list[dict[str, Any]]:
    sizes = {"phase": "eval", "eval/prompts": prompts, "eval/samples": 2}
    return [{**sizes, "step": 0, "eval/pass@1": before}, {**sizes, "step": 24, "eval/pass@1": after}]


def test_prompts_learnt_by_heart_are_told_from_learning() -> None:
    lead, both = evaluated(0.3, 0.35), evaluated(0.3, 0.9)
    trained = steps(passAT1=(0.3, 0.95))
    assert "35 %" in found([lead[0], *trained, lead[1]])["learnt_by_heart"].text
    assert "learnt_by_heart" not in found([both[0], *trained, both[1]])
    assert "learnt_by_heart" not in found([lead[0], *steps(passAT1=(0.9, 0.95)), lead[1]]), "the lead was there before"
    few = evaluated(0.3, 0.35, prompts=15)
    assert "learnt_by_heart" not in found([few[0], *trained, few[1]])


def test_a_judge_that_guesses_is_named() -> None:
    assert "50 %" in found(steps(judge_flips=(0.45, 0.55)))["unreliable_judge"].text
    silent = found(steps(judge_flips=(0.0, 0.0), judge_unsure=(0.4, 0.4)))["unreliable_judge"]
    assert silent.key == "judge_unsure"
    assert "unreliable_judge" not in found(steps(judge_flips=(0.1, 0.1), judge_unsure=(0.1, 0.1)))


def test_a_judge_that_drifts_is_told_from_one_that_is_noisy() -> None:
    assert (
        "0.15" in found([*steps(20), {**steps(1)[0], "judge_drift": 0.15, "judge_noise": 0.0}])["drifting_judge"].text
    )
    assert "drifting_judge" in found(steps(judge_drift=(0.5, 0.5), judge_noise=(0.2, 0.2)))
    assert "drifting_judge" not in found(steps(judge_drift=(0.35, 0.35), judge_noise=(0.2, 0.2))), "less than twice"
    assert "drifting_judge" not in found(steps(judge_drift=(0.14, 0.14), judge_noise=(0.05, 0.05)))
    assert "drifting_judge" not in found(steps(judge_noise=(0.5, 0.5)))


def test_an_agent_that_falls_silent_is_named() -> None:
    talking = {"agent_tokens__boss": (12.0, 11.0)}
    fading = found(steps(48, **talking, agent_tokens__helper=(8.0, -1.0)))["silent_agent"]
    assert "`helper`" in fading.text
    assert "silent_agent" not in found(steps(48, **talking, agent_tokens__helper=(8.0, 3.0)))
    gone = steps(**talking, agent_tokens__helper=(8.0, 8.0))
    for record in gone[8:]:
        del record["agent_tokens/helper"]
    assert "to 0.0 tokens" in found(gone)["silent_agent"].text
    gone[-1]["agent_tokens/helper"] = 8.0
    assert "to 0.8 tokens" in found(gone)["silent_agent"].text, "steps without a row of it count"
    for record in gone[3:]:
        record.pop("agent_tokens/helper", None)
    assert "from 4.8 to 0.0 tokens" in found(gone)["silent_agent"].text, "also of one that is gone at once"


def test_tokens_of_an_agent_are_those_of_an_episode_and_rewards_those_of_its_scored_rows() -> None:
    """Two episodes: the boss writes 2 and 4 tokens in rows of its own, the helper 3, 5 and 1 in three rows of one."""
    agents = ["boss", "helper", "helper", "helper", "boss"]
    scores = SimpleNamespace(
        reward_b=np.array([1.0, 0.0, 1.0, 5.0, 0.5]), ok_b=np.array([True, True, True, False, True])
    )
    sampled: Any = SimpleNamespace(
        records=[SimpleNamespace(agent=agent) for agent in agents],
        scores=scores,
        first_b=np.array([True, False, False, False, True]),
        length_b=np.array([2, 3, 5, 1, 4]),
    )
    assert agent_metrics(sampled) == {
        "agent_reward/boss": 0.75,
        "agent_reward/helper": 0.5,
        "agent_tokens/boss": 3.0,
        "agent_tokens/helper": 4.5,
    }


def ran(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "model": SMALL,
        "steps": 24,
        "batch": {"prompts": 8, "group_size": 8},
        "optim": {"lr": 1e-2, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 32},
        "run": {"threads": 1},
    }
    train(parse_config(settings | changes), folder=folder / "run", console=Console(quiet=True))
    return found([json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()])


REWARD = """def paid(completion: str, answer: str) -> dict[str, float]:
    right = float(completion == answer)
    return {"right": right, "long": 0.5 * len(completion), "form": float("<answer>" in completion), "correct": right}
"""


def test_a_run_on_few_prompts_learns_them_by_heart(tmp_path: Path) -> None:
    luck = random.Random(0)
    rows = [{"prompt": f"{a}{b}:", "answer": luck.choice("xy")} for a in "abcdefgh" for b in "abcdefgh"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {"name": f"jsonl:{tmp_path / 'rows.jsonl'}", "eval_fraction": 0.8, "demonstration": "answer"}
    warmup = {"steps": 60, "batch": 8, "lr": 5e-3}
    findings = ran(tmp_path, task=task, warmup=warmup, sampling={"max_new_tokens": 1}, optim={"lr": 3e-3}, steps=80)
    assert "learnt_by_heart" in findings


def test_a_run_that_is_paid_for_length_trades_success(tmp_path: Path) -> None:
    (tmp_path / "paid.py").write_text(REWARD)
    rows = [{"prompt": f"{a}{b}:", "answer": b} for a in "abcdefgh" for b in "abcdefgh"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {"name": f"jsonl:{tmp_path / 'rows.jsonl'}", "demonstration": "answer"}
    reward = {"function": f"{tmp_path / 'paid.py'}:paid"}
    warmup = {"steps": 60, "batch": 16, "lr": 1e-2}
    findings = ran(tmp_path, task=task, reward=reward, warmup=warmup, sampling={"max_new_tokens": 6})
    assert "`long` rose most" in findings["success_traded"].text
    assert findings["unearned_component"].key == "reward/form"
