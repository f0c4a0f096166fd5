"""A run of `ppo_control` with one pass over all its actions is A2C (Mnih et al. 2016), written out here in torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.policy import Mlp
from grouprl.training import optimise
from grouprl.training.loop import train

pytest.importorskip("gymnasium")

LR, GAMMA, CLIP = 7e-4, 0.99, 0.5
SETTINGS = {
    "task": {"name": "control:CartPole-v1", "horizon": 5},
    "model": {"name": "mlp"},
    "method": {
        "name": "ppo_control",
        "gamma": GAMMA,
        "lam": 1.0,
        "size": 40,
        "whiten": False,
        "value_coef": 1.0,
        "entropy_coef": 0.0,
    },
    "batch": {"prompts": 8, "group_size": 1, "epochs": 1},
    "optim": {
        "name": "rmsprop",
        "lr": LR,
        "schedule": "constant",
        "settings": {"alpha": 0.99, "eps": 1e-5},
        "grad_clip": CLIP,
    },
    "steps": 30,
    "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
    "run": {"threads": 1},
}


class ByHand:
    """A2C from the weights at the first step on: discounted returns, one step of RMSprop on all actions."""

    def __init__(self, policy: Mlp) -> None:
        assert policy.critic is not None
        self.actor, self.critic = copy.deepcopy(policy.module), copy.deepcopy(policy.critic)
        self.optimizer = torch.optim.RMSprop(self.parameters(), lr=LR, alpha=0.99, eps=1e-5)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.actor.parameters(), *self.critic.parameters()]

    def step(self, batch: Batch) -> None:
        seen: Any = batch.inputs
        observed_nf = seen.seen(torch.device("cpu"), torch.float32).observation
        action_n = seen.by_position(seen.action_bt).long()
        return_n = torch.cat([returns(batch, row) for row in range(len(batch.mask_bt))])
        value_n = self.critic(observed_nf)[:, 0]
        logp_n = torch.log_softmax(self.actor["mean"](observed_nf), -1).gather(1, action_n[:, None])[:, 0]  # type: ignore[index]
        advantage_n = return_n - value_n.detach()
        loss = -(advantage_n * logp_n).mean() + 0.5 * (return_n - value_n).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters(), CLIP)
        self.optimizer.step()


def returns(batch: Batch, row: int) -> Tensor:
    """Return the discounted rewards to the end of a row [L], and behind it the value of what it ended in."""
    assert batch.turn_reward_bs is not None
    total, found = float(batch.need("final_value_b", "the test")[row]), []
    for reward in reversed(batch.turn_reward_bs[row, : int(batch.mask_bt[row].sum())].tolist()):
        total = reward + GAMMA * total
        found.append(total)
    return torch.tensor(found[::-1])


def test_thirty_steps_are_those_of_a2c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand: list[ByHand] = []
    ended: list[bool] = []
    real = optimise.update

    def both(policy: Mlp, optimizer: torch.optim.Optimizer, method: object, batch: Batch, **told: Any) -> Any:
        hand[:] = hand or [ByHand(policy)]
        ended.append(bool((batch.need("final_value_b", "the test") == 0).any()))
        hand[0].step(batch)
        found = real(policy, optimizer, method, batch, **told)  # type: ignore[arg-type]
        for ours, theirs in zip(policy.parameters(), hand[0].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)
        return found

    monkeypatch.setattr(optimise, "update", both)
    train(parse_config(SETTINGS), folder=tmp_path / "run", console=Console(quiet=True))
    assert len(ended) == SETTINGS["steps"]
    assert any(ended)  # some episodes fell, whose ends have no value
