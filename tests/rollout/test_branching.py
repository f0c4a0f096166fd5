"""Episodes that branch at unsure turns, and episodes that may take more and more turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from episode_runs import launch, records, run_config
from grouprl.algorithms.augment.papers.branching import EntropyBranching, turn_entropy
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.sampling.papers.horizon import Horizon
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
from grouprl.training.opening import start
from killed_runs import assert_goes_on_equally


@pytest.mark.parametrize(("rise", "chance"), [(-0.5, 0.4), (0.0, 0.5), (0.5, 0.6), (1.0, 0.7), (9.0, 1.0), (-9.0, 0.0)])
def test_the_chance_of_a_branch_follows_the_entropy(rise: float, chance: float) -> None:
    assert EntropyBranching().probability(rise) == pytest.approx(chance)


def collect(tmp_path: Path, part: EntropyBranching, **changes: Any) -> Any:
    """One step's rows of a tiny policy in the toy environment, with and without branching; and the context."""
    session = start(parse_config(run_config(warmup={"steps": 0}, **changes)), tmp_path / "run")
    context = session.context
    plain = context.sample(context.take(4))
    return plain, part(plain, context), context


def test_every_turn_branches_when_told_to(tmp_path: Path) -> None:
    plain, grown, context = collect(
        tmp_path, EntropyBranching(chance=1.0, slope=0.0), batch={"prompts": 4, "group_size": 4}
    )
    assert len(plain) == 16
    assert len(grown) == 32
    assert context.read_notes()["branches"] == 16
    for group in set(grown.group_b.tolist()):
        rows = np.flatnonzero(grown.group_b == group)
        beginnings = [
            tuple(
                np.array(grown.rollout.response_ids[i])[
                    grown.extras["turn_bt"][i, : len(grown.rollout.response_ids[i])] == 0
                ]
            )
            for i in rows
        ]
        assert len(rows) == 8
        assert sorted(beginnings[:4]) == sorted(beginnings[4:])
        assert len({int(grown.sample_b[i]) for i in rows}) == 8


def test_branches_are_trained_whole_with_the_log_probs_of_the_policy(tmp_path: Path) -> None:
    _, grown, context = collect(
        tmp_path, EntropyBranching(chance=1.0, slope=0.0), batch={"prompts": 4, "group_size": 4}
    )
    batch = context.batch(grown)
    assert bool((batch.mask_bt == torch.from_numpy(grown.extras["turn_bt"][:, : batch.size[1]] >= 0)).all())
    logp_bt = context.text.policy.logp(grown.tokens)
    torch.testing.assert_close(batch.old_bt[batch.mask_bt], logp_bt[batch.mask_bt], rtol=1e-5, atol=1e-5)


def test_what_branches_do_not_use_begins_at_the_beginning(tmp_path: Path) -> None:
    _, grown, context = collect(
        tmp_path, EntropyBranching(chance=0.0, slope=0.0), batch={"prompts": 4, "group_size": 4}
    )
    assert len(grown) == 32
    assert context.read_notes()["branches"] == 0


def test_a_group_grows_by_the_factor_asked_for(tmp_path: Path) -> None:
    part = EntropyBranching(chance=1.0, slope=0.0, grow=1.5)
    _, grown, _ = collect(tmp_path, part, batch={"prompts": 4, "group_size": 4})
    assert [int((grown.group_b == g).sum()) for g in sorted(set(grown.group_b.tolist()))] == [6] * 4


def test_the_entropy_of_a_turn_is_that_of_its_first_tokens(tmp_path: Path) -> None:
    plain, _, _ = collect(tmp_path, EntropyBranching(), batch={"prompts": 4, "group_size": 4})
    where = np.flatnonzero(plain.extras["turn_bt"][3] == 1)
    entropy = plain.rollout.entropy_bt[3].numpy()
    assert turn_entropy(plain, 3, 1, 20) == pytest.approx(entropy[where].mean())
    assert turn_entropy(plain, 3, 1, 1) == pytest.approx(entropy[where[0]])


def test_shared_tokens_get_the_mean_advantage_of_those_that_share_them() -> None:
    """Σ_i A_i ∇ log p(prefix) = (mean_i A_i) · n · ∇ log p(prefix): the soft attribution needs no code of its own."""
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    adv_n = torch.tensor([1.5, -0.5, 0.25], dtype=torch.float64)
    each = torch.autograd.grad(sum(a * logits.log_softmax(0)[2] for a in adv_n), logits)[0]
    once = torch.autograd.grad(adv_n.mean() * 3 * logits.log_softmax(0)[2], logits)[0]
    torch.testing.assert_close(each, once)


def test_branching_is_refused_without_turns_and_with_several_agents() -> None:
    assert "has none" in EntropyBranching().refuse(RunFacts(environment=False))[0]
    assert "2 agents" in EntropyBranching().refuse(RunFacts(environment=True, agents=2))[0]
    assert not EntropyBranching().refuse(RunFacts(environment=True))
    (reason,) = plan(parse_config(run_config(task="addition", method="arpo_branch"))).refusals
    assert "continues episodes between turns" in reason


@pytest.mark.parametrize(("step", "turns"), [(0, 10), (98, 10), (99, 20), (198, 20), (199, 30), (10**6, 30)])
def test_the_horizon_grows_by_the_schedule(step: int, turns: int) -> None:
    """In steps from 1: 10 at 1, 20 at 100, 30 at 200 and for ever."""
    assert Horizon().at(step) == turns


def test_a_horizon_does_not_shrink() -> None:
    with pytest.raises(ValueError, match="The limits must grow"):
        Horizon(turns=(3, 2))
    assert "at most 2 turns anyway" in Horizon(turns=(2, 5)).idle(RunFacts(environment=True, turns=2))[0]
    assert not Horizon(turns=(1, 2)).idle(RunFacts(environment=True, turns=2))


def test_episodes_are_cut_off_by_the_horizon(tmp_path: Path) -> None:
    horizon = {"name": "scaling_inter", "turns": [1, 2], "every": 3}
    steps = records(launch(tmp_path / "run", method=horizon, steps=4), "train")
    assert [record["horizon"] for record in steps] == [1, 1, 2, 2]
    assert [record["turns_mean"] for record in steps] == [1, 1, 2, 2]
    assert [record["truncated_fraction"] for record in steps[:2]] == [1, 1]


def test_before_its_first_growth_a_horizon_is_a_fixed_one(tmp_path: Path) -> None:
    def ends(turns: list[int]) -> Any:
        horizon = {"name": "scaling_inter", "turns": turns, "every": 2}
        session = start(parse_config(run_config(method=horizon)), tmp_path / f"run{len(turns)}")
        requests = session.method.sampling.adjust(session.context.take(4), session.context)
        return session.context.sample(requests).rollout

    a, b = ends([1]), ends([1, 2])
    assert a.response_ids == b.response_ids
    assert a.prompt_ids == b.prompt_ids


@pytest.mark.parametrize("name", ["arpo_branch", {"name": "scaling_inter", "turns": [1, 2], "every": 3}])
def test_killed_and_resumed_ends_equally(tmp_path: Path, name: Any) -> None:
    settings = {"method": name, "steps": 6, "run": {"checkpoint_every": 3, "keep": 9, "threads": 1}}
    settings |= {"warmup": {"steps": 20, "batch": 32, "lr": 1e-2}, "batch": {"prompts": 4, "group_size": 4}}
    whole = launch(tmp_path / "whole", **settings)
    assert_goes_on_equally(whole, tmp_path / "copy", run_config(**settings))
