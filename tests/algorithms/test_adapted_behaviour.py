"""PROPS: a policy that samples what the rows at hand have too little of, and one that learns from all of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from fake_context import FakeContext
from grouprl import InputError, method
from grouprl.algorithms.buffer.recent import RecentRows
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.last_step import go_on
from grouprl.algorithms.update.papers.adapted_behaviour import AdaptedBehaviour, pushed_away
from grouprl.core.batch import SOURCES, Batch
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.training.update import update
from part_context import ClockedContext

SPACES = Spaces(observation=Box((1,)), action=Discrete(2))


@dataclass
class Learner:
    """What the second policy reads of a learner."""

    policy: Mlp
    context: ClockedContext

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.policy.parameters(), 0.1)


def bandit(values: bool = False) -> Mlp:
    """A policy with no state: the arms have equal probability at first."""
    policy = Mlp(Build(SPACES, seed=1, values=values, dtype=torch.float64), hidden=(8,))
    with torch.no_grad():
        policy.module["mean"][-1].weight.zero_()
        policy.module["mean"][-1].bias.zero_()
    return policy


def chances(policy: Mlp) -> torch.Tensor:
    seen = ArrayInputs.of([np.ones((1, 1), np.float32)], [[0]]).seen(policy.device, policy.score_dtype)
    return policy.distribution(seen, 1.0).probs[0].detach()  # type: ignore[attr-defined]


def taken(arms: list[int], policy: Mlp | None = None) -> Batch:
    """Rows of one action each; the second arm pays 1."""
    count = len(arms)
    inputs = ArrayInputs.of([np.ones((1, 1), np.float32)] * count, [[arm] for arm in arms])
    paid_b = torch.tensor(arms, dtype=torch.float64)
    zero_bt = torch.zeros(count, 1, dtype=torch.float64)
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(count),
        reward_b=paid_b,
        old_bt=zero_bt if policy is None else policy.logp(inputs),
        value_bt=zero_bt,
        turn_bt=torch.zeros(count, 1, dtype=torch.int64),
        turn_reward_bs=paid_b[:, None],
        inputs=inputs,
    )


def adapted(arms: list[int], **settings: Any) -> tuple[Mlp, dict[str, float]]:
    policy = bandit()
    part = AdaptedBehaviour(**settings)
    found = part.adapt(Learner(policy, ClockedContext()), policy.parameters(), taken(arms))  # type: ignore[arg-type]
    return policy, found


def test_the_loss_of_the_second_policy_by_hand() -> None:
    """max(r, clip(r, 0.7, 1.3)): an action that is rare already is pushed no further, a frequent one always."""
    ratio_n = torch.tensor([0.5, 0.7, 1.0, 1.3, 2.0], dtype=torch.float64, requires_grad=True)
    loss_n = pushed_away(ratio_n, 0.3)
    assert loss_n.tolist() == pytest.approx([0.7, 0.7, 1.0, 1.3, 2.0])
    loss_n.sum().backward()
    assert ratio_n.grad is not None
    assert ratio_n.grad[[0, 2, 4]].tolist() == [0, 1, 1]


def test_the_second_policy_takes_the_arm_that_the_rows_lack() -> None:
    """Nine rows of the first arm, one of the second, equal chances: the second arm becomes likelier, to (½·1.3)."""
    policy, found = adapted([0] * 9 + [1], kl_limit=10.0)
    assert 0.55 < float(chances(policy)[1]) <= 0.66
    assert found["behaviour_steps"] == 64
    even, _ = adapted([0, 1] * 5, kl_limit=10.0, parts=1)
    assert float(chances(even)[1]) == pytest.approx(0.5, abs=1e-9)


def test_the_second_policy_stays_within_the_limit() -> None:
    """The first step is from r = 1, at distance 0; with a limit of nothing it is the only one."""
    _, found = adapted([0] * 9 + [1], kl_limit=1e-12, parts=1)
    assert found["behaviour_steps"] == 1
    _, wide = adapted([0] * 9 + [1], kl_limit=0.01, parts=1, passes=500)
    assert 1 < wide["behaviour_steps"] < 500
    assert 0.01 < wide["behaviour_kl"] < 0.012
    far, _ = adapted([0] * 9 + [1], kl_limit=10.0, passes=60, parts=1)
    held, _ = adapted([0] * 9 + [1], kl_limit=10.0, passes=60, parts=1, kl_coef=10.0)
    assert 0.5 < float(chances(held)[1]) < float(chances(far)[1])


def test_without_actions_nothing_moves() -> None:
    policy, batch = bandit(), taken([0])
    part, nothing = AdaptedBehaviour(), batch.replace(loss_mask_bt=torch.zeros_like(batch.mask_bt))
    found = part.adapt(Learner(policy, ClockedContext()), policy.parameters(), nothing)  # type: ignore[arg-type]
    assert found == {"behaviour_kl": 0.0, "behaviour_steps": 0.0}
    assert float(chances(policy)[1]) == 0.5


def surplus(seed: int, adapting: bool) -> float:
    """Sample rollouts of eight, and keep two; return the mean distance of their shares from equal ones."""
    policy, luck, part = bandit(), np.random.default_rng(seed), AdaptedBehaviour(kl_limit=0.2, lr=1e-2, parts=1)
    start = policy.trainable_state()
    kept: list[int] = []
    found = []
    for step in range(12):
        kept = [*kept[-8:], *(int(x) for x in luck.random(8) < float(chances(policy)[1]))]
        if step:
            found.append(abs(np.mean(kept) - 0.5))
        if adapting:
            policy.load_trainable_state(start)
            part.adapt(Learner(policy, ClockedContext(step=step)), policy.parameters(), taken(kept[-8:]))  # type: ignore[arg-type]
    return float(np.mean(found))


def test_rows_of_two_rollouts_are_nearer_to_on_policy_than_by_sampling_alone() -> None:
    ours, alone = (np.mean([surplus(seed, each) for seed in range(12)]) for each in (True, False))
    assert ours < 0.85 * alone


def stepped(entry: Any, steps: int, context: ClockedContext, policy: Mlp, wrong: float = 0.0) -> list[dict[str, float]]:
    """Update a number of times on the same rows; `wrong` is added to their old log-probs."""
    optimizer, found = torch.optim.SGD(policy.parameters(), 0.5), []
    for step in range(steps):
        context.step = step
        batch = taken([0, 0, 0, 1, 1, 0], policy)
        prepared = entry.compute_advantages(batch.replace(old_bt=batch.old_bt + wrong))
        found.append(update(policy, optimizer, entry, prepared, epochs=2, grad_clip=0.0, seed=step, context=context))  # type: ignore[arg-type]
    return found


def weights(policy: Mlp) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


def test_the_policy_that_learns_is_ppos_whoever_samples() -> None:
    """Three updates on the same rows: its weights are those of ppo_control to the bit, with wrong old log-probs too;
    the policy between them is the other one, and the last update leaves the learner.
    """
    plain, ours, context = bandit(values=True), bandit(values=True), ClockedContext(steps=3)
    stepped(method("ppo_control", size=4), 2, ClockedContext(), plain)
    found = stepped(method("props", size=4), 2, context, ours, wrong=0.5)
    assert torch.equal(context.store["weights"], weights(plain))
    assert not torch.equal(weights(ours), weights(plain))
    assert found[0]["behaviour_steps"] > 0
    stepped(method("ppo_control", size=4), 3, ClockedContext(), plain := bandit(values=True))
    context = ClockedContext(steps=3)
    stepped(method("props", size=4), 3, context, ours := bandit(values=True))
    assert torch.equal(weights(ours), weights(plain))
    go_on(ours, context.store)
    assert not torch.equal(weights(ours), weights(plain)), "a run with more steps samples by the other one again"


def test_the_critic_is_left_as_it_is_by_the_second_policy() -> None:
    policy, context = bandit(values=True), ClockedContext()
    stepped(method("props", size=4), 1, context, policy)
    names = [name for name, _ in policy.named_parameters()]
    sizes = [p.numel() for p in policy.parameters()]
    learned = context.store["weights"].split(sizes)
    same = {n: torch.equal(p.reshape(-1), w) for (n, p), w in zip(policy.named_parameters(), learned, strict=True)}
    assert {name for name in names if same[name]} == {name for name in names if name.startswith("value_head.")}


def test_a_policy_that_compares_nothing_is_told_so() -> None:
    class Plain:
        policy = object()

    with pytest.raises(InputError, match="kl_coef at 0"):
        AdaptedBehaviour(kl_coef=1.0)._earlier(Plain())  # type: ignore[arg-type]


def test_all_rows_of_the_last_rollouts_are_kept_and_marked() -> None:
    context, part, counts = FakeContext(prompts=2, completions=4), RecentRows(batches=3), []
    for _ in range(4):
        rows = part.mix(context.sample(context.take(2)), context)
        assert rows is not None
        counts.append(len(rows))
        new_b = rows.source_b == SOURCES["sampled"]
        assert int(new_b.sum()) == 8
        assert rows.foreign_b[~new_b].all()
        assert not rows.foreign_b[new_b].any()
        assert (rows.source_b[~new_b] == SOURCES["replay"]).all()
        context.finish(rows, part, prepared=context.batch(rows))
    assert counts == [8, 16, 24, 24]
    assert context.notes["replay_age"] > 0


def test_one_rollout_is_the_new_one_alone_and_nothing_else_is_kept() -> None:
    context, part = FakeContext(prompts=2, completions=4), RecentRows(batches=1)
    for _ in range(2):
        rows = part.mix(context.sample(context.take(2)), context)
        assert rows is not None
        assert len(rows) == 8
        context.finish(rows, part, prepared=context.batch(rows))
    assert part.idle(RunFacts())
    assert RecentRows().idle(RunFacts()) == []
    assert RecentRows().mix(None, FakeContext()) is None


def test_sampling_ahead_is_refused() -> None:
    assert "async_steps" in AdaptedBehaviour().refuse(RunFacts(async_steps=1))[0]
    assert AdaptedBehaviour().refuse(RunFacts()) == []


def test_a_run_learns_from_two_rollouts_and_samples_by_the_second_policy(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.construction.arms:Arms", "turns": 1},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "method": {"name": "props", "size": 16, "behaviour_lr": 1e-2},
            "steps": 12,
            "batch": {"prompts": 16, "group_size": 1, "epochs": 4},
            "optim": {"lr": 0.03, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    assert [row["replayed_fraction"] for row in rows] == [0.0] + [0.5] * 11
    assert all(row["behaviour_steps"] > 0 for row in rows)
    assert all(math.isfinite(row["behaviour_kl"]) for row in rows)
    assert np.mean([row["reward_mean"] for row in rows[-3:]]) > rows[0]["reward_mean"] + 0.2
