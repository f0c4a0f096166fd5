"""What stored rollouts keep of the update: ratios, weights, derivatives of the loss, and shares of the gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from torch import nn

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.training.loop import train
from grouprl.training.measures.update_record import gradient_shares

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}
PAID = """def paid(completion: str) -> float:
    return sum(map(ord, completion)) % 7 / 7
"""


def ran(folder: Path, kept: str, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "paid.py").write_text(PAID)
    rows = [{"prompt": f"{a}{b}:", "answer": b} for a in "abcdefgh" for b in "abcdefgh"]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "task": f"jsonl:{folder / 'rows.jsonl'}",
        "model": SMALL,
        "method": "grpo",
        "reward": {"function": f"{folder / 'paid.py'}:paid", "workers": 0},
        "sampling": {"max_new_tokens": 6},
        "warmup": {"steps": 0},
        "steps": 2,
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
        "optim": {"lr": 3e-2, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1, "check_model": False, "record_updates": kept},
    }
    return train(parse_config(settings | changes), folder=folder / "run", console=Console(quiet=True)).folder


def stored(run: Path, step: int = 1) -> list[dict[str, Any]]:
    return pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("updates") / "a", "gradients")


def test_the_push_of_a_token_is_its_part_of_the_clipped_objective(run: Path) -> None:
    """GRPO: weight · A · ratio, and 0 where the clip [0.8, 1.2] acts; the first minibatch has the ratio 1."""
    tokens = [
        each
        for row in stored(run)
        if row["push"] is not None
        for each in zip(row["advantage"], row["ratio"], row["weight"], row["push"], strict=True)
    ]
    advantage, ratio, weight, push = np.array(tokens, float).T
    clipped = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))
    assert 0 < clipped.sum() < len(clipped)
    assert push == pytest.approx(np.where(clipped, 0.0, weight * advantage * ratio), rel=1e-4, abs=1e-9)
    assert 0.3 < np.mean(np.abs(ratio - 1) < 1e-4) < 0.7, "those of the first of two optimiser steps"
    assert weight.sum() == pytest.approx(2.0, rel=0.2), "weights of each of both steps add up to 1"


def test_shares_of_the_gradient_add_up_to_one(run: Path) -> None:
    rows = stored(run)
    assert sum(row["gradient"] for row in rows if row["gradient"] is not None) == pytest.approx(1.0, rel=1e-4)
    still = [row["gradient"] for row in rows if row["push"] is not None and not any(row["push"])]
    assert all(share == 0 for share in still)


def test_nothing_else_changes(run: Path, tmp_path: Path) -> None:
    plain = ran(tmp_path / "b", "none")
    assert weights(plain) == weights(run)
    assert all(row[name] is None for row in stored(plain) for name in ("ratio", "weight", "push", "gradient"))
    tokens = ran(tmp_path / "c", "tokens")
    assert weights(tokens) == weights(run)
    assert [row["push"] for row in stored(tokens)] == [row["push"] for row in stored(run)]
    assert all(row["gradient"] is None for row in stored(tokens))


def test_objectives_that_see_groups_whole_are_kept_too(tmp_path: Path) -> None:
    made = ran(tmp_path / "d", "gradients", method="gvpo")
    rows = stored(made)
    assert sum(bool(row["push"] and any(row["push"])) for row in rows) > 4
    assert sum(row["gradient"] or 0 for row in rows) == pytest.approx(1.0, rel=1e-3)


class TwoRows:
    """A policy whose row i has the log-prob of its own entry of the weight, and both share another one."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def parameters(self) -> list[nn.Parameter]:
        return [self.weight]


def test_shares_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients (1, 0, 1) and (0, -2, 1): G = (1, -2, 2) with |G|² = 9; the products with it are 3 and 6."""
    rows = {0: [1.0, 0.0, 1.0], 1: [0.0, -2.0, 1.0]}
    policy: Any = TwoRows()
    policy.weight.grad = torch.tensor([1.0, -2.0, 2.0], dtype=torch.float64)

    class Step:
        def __init__(self, own: list[int]) -> None:
            self.own, self.mask_bt = own, torch.ones(len(own), 1, dtype=torch.bool)

        def rows(self, index: torch.Tensor) -> Step:
            return Step(index.tolist())

    def backward(inputs: list[int], cotangents: dict[str, torch.Tensor]) -> None:
        (row,) = inputs
        assert cotangents["log_prob"].tolist() == [[-1.0 if row == 0 else -2.0]]
        policy.weight.grad = torch.tensor(rows[row], dtype=torch.float64)

    policy.backward = backward
    place = "grouprl.training.measures.update_record"
    monkeypatch.setattr(f"{place}.columns", lambda step: step)
    monkeypatch.setattr(f"{place}.inputs_of", lambda step: step.own)
    step: Any = Step([0, 1])
    share_b = gradient_shares(policy, step, torch.tensor([[1.0], [2.0]]))
    assert share_b.tolist() == pytest.approx([3 / 9, 6 / 9])
    assert policy.weight.grad.tolist() == [1.0, -2.0, 2.0], "the gradient is left as it was"


def test_a_record_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="rollouts_every = 0 stores none"):
        parse_config({"task": "addition", "run": {"record_updates": "tokens", "rollouts_every": 0}})
