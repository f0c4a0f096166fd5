"""Balance losses beside those of torchgfn 2.4.1, on grids with networks of log-probs, backward log-probs and flows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from grouprl import Batch, method

PEER = json.loads((Path(__file__).parent / "torchgfn.json").read_text())
"""Trajectories of small hypergrids, and what torchgfn's gflownets lose on them, in float64."""


def padded(rows: list[list[float]]) -> torch.Tensor:
    return pad_sequence([torch.tensor(row, dtype=torch.float64) for row in rows], batch_first=True)


def lost(name: str, case: dict, flow: list[list[float]], **settings: object) -> float:
    """The loss of a method on a case: log P_B is paid with each step, log R with the last."""
    paid = [[*back[:-1], back[-1] + end] for back, end in zip(case["log_pb"], case["log_r"], strict=True)]
    logp_bt, lengths = padded(case["log_pf"]), torch.tensor([len(row) for row in paid])
    mask_bt = torch.arange(logp_bt.shape[1]) < lengths[:, None]
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.zeros(len(paid), dtype=torch.long),
        reward_b=torch.tensor([sum(row) for row in paid], dtype=torch.float64),
        turn_bt=torch.where(mask_bt, torch.arange(logp_bt.shape[1]), -1),
        turn_reward_bs=padded(paid),
        old_bt=logp_bt,
        value_bt=padded(flow),
    )
    chosen = method(name, **settings)
    return float(chosen.loss(logp_bt, chosen.prepare(batch)).value)


@pytest.mark.parametrize("case", PEER)
def test_losses_are_those_of_torchgfn(case: dict) -> None:
    """Of detailed balance, trajectories one by one, because they weigh the same here and their steps do there."""
    flow, keys = case["flow"], ("log_pf", "log_pb", "log_r")
    alone = [lost("db", {key: case[key][i : i + 1] for key in keys}, [row]) * len(row) for i, row in enumerate(flow)]
    assert lost("tb", case, [[case["logZ"], *row[1:]] for row in flow]) == pytest.approx(case["tb"], abs=1e-12)
    assert lost("vargrad", case, flow) == pytest.approx(case["vargrad"], abs=1e-12)
    assert sum(alone) / sum(map(len, flow)) == pytest.approx(case["db"], abs=1e-12)
    assert lost("subtb", case, flow, lam=case["lam"]) == pytest.approx(case["subtb"], abs=1e-12)
