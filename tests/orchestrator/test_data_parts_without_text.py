"""Data parts in runs whose policy is no language model: refill, buffers, allocation and sampling work on vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.part import PARTS
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.plan.plan import plan
from grouprl.training.loop import train

pytest.importorskip("gymnasium")

CARTPOLE: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "turns": 24, "success": 12},
    "model": {"name": "mlp", "settings": {"hidden": [8]}},
    "data": {"prompts": 8},
    "steps": 4,
    "batch": {"prompts": 2, "group_size": 3},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 2, "samples": 1},
    "environment": {"workers": 0},
    "run": {"checkpoint_every": 2, "threads": 1},
}


def steps_of(folder: Path, method: Any, **changes: Any) -> list[dict[str, Any]]:
    train(parse_config({**CARTPOLE, **changes, "method": method}), folder=folder, console=Console(quiet=True))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "train"]


def test_refill_a_buffer_and_an_allocation_work_on_vectors_at_once(tmp_path: Path) -> None:
    method = {
        "base": "grpo",
        "refill": {"part": "dynamic_sampling", "max_rounds": 3},
        "buffer": {"part": "policy_replay"},
        "allocation": {"part": "knapsack"},
        "sampling": {"part": "horizon", "turns": [12, 24], "every": 2},
    }
    rows = steps_of(tmp_path / "run", method)
    assert max(row.get("refill_rounds", 0) for row in rows) > 1  # groups without variance were sampled anew
    assert any(row.get("replayed_fraction", 0) > 0 for row in rows)  # rows of earlier steps joined
    assert [row["horizon"] for row in rows] == [12, 24, 24, 24]
    assert rows[0]["length_max"] <= 12


def test_a_run_with_a_buffer_of_vectors_ends_the_same_when_it_is_resumed(tmp_path: Path) -> None:
    method = {"base": "grpo", "buffer": {"part": "policy_replay"}}
    whole = steps_of(tmp_path / "whole", method)
    config = parse_config({**CARTPOLE, "method": method})
    import grouprl.training.session as session_module

    saved = session_module.Session.save

    def stopping(session: Any) -> None:
        saved(session)
        if session.phase == "train" and session.step == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(session_module.Session, "save", stopping)
        train(config, folder=tmp_path / "cut", console=Console(quiet=True))
    train(config, folder=tmp_path / "cut", resume=True, console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    timing = ("seconds", "tokens_per_second", "memory_mb")
    plain = [
        [{k: v for k, v in row.items() if not k.startswith(timing)} for row in found]
        for found in (whole, [row for row in rows if row["phase"] == "train"])
    ]
    assert plain[0] == plain[1]


OF_OTHER_TASKS = ("easy_to_hard", "lagrangian", "blended_rewards", "level_replay")
"""The prompts of CartPole have no levels and no antagonist, its steps no cost, and its reward has no components."""


def without_text() -> list[str]:
    """Data parts that say that they need no text, as kind.name."""
    return [
        f"{kind}.{name}"
        for kind, parts in PARTS.items()
        for name in parts
        if issubclass(parts[name], DataPart)
        and not (parts[name].needs_text or parts[name].one_policy)
        and name not in OF_OTHER_TASKS
    ]


BESIDE: dict[str, dict[str, Any]] = {
    "curriculum.initial_rate": {"pretrain": [{"part": "initial_completions", "completions": 2}]},
    "buffer.reference_rows": {"pretrain": [{"part": "initial_completions", "completions": 2}]},
    "buffer.sample_buffer": {"filter": ["replay_apart"], "advantage_transform": ["stored_advantage"]},
}
"""Parts without which a part has nothing to work with."""


@pytest.mark.parametrize("named", without_text())
def test_parts_that_need_no_text_keep_their_word(tmp_path: Path, named: str) -> None:
    kind, _, name = named.partition(".")
    alone = kind in ("curriculum", "allocation", "sampling", "refill", "buffer", "update")
    method = {"base": "grpo", kind: {"part": name} if alone else [{"part": name}], **BESIDE.get(named, {})}
    prospect = plan(parse_config({**CARTPOLE, "method": method}))
    if prospect.refusals:
        assert not any("text" in sentence for sentence in prospect.refusals)
        pytest.skip(prospect.refusals[0])
    assert len(steps_of(tmp_path / "run", method, steps=2)) == 2


@pytest.mark.parametrize(
    ("kind", "part"),
    [("augment", "majority_vote"), ("sampling", "length_budget"), ("allocation", "variants"), ("augment", "row_hint")],
)
def test_parts_that_need_text_are_refused_by_name(kind: str, part: str) -> None:
    method = {"base": "grpo", kind: {"part": part} if kind != "augment" else [{"part": part}]}
    with pytest.raises(InputError, match=f"{part} \\({kind}\\) works on prompts and completions of text"):
        plan(parse_config({**CARTPOLE, "method": method})).raise_if_refused()
