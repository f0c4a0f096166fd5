"""Learning to use tools: likelihood of good tokens, bonus of thoughts, failed steps sampled again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import grouprl
import toy_envs
from episode_runs import launch, records
from grouprl.algorithms.advantage_transform.papers.thought_entropy import ThoughtEntropy
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.papers.good_tokens import GoodTokensNLL
from grouprl.orchestrator.text_features import thoughts
from small import f64, near, prepared, small


def test_the_likelihood_of_good_tokens_is_a_mean_of_their_own() -> None:
    """Three tokens, two of them good: α·mean(1, 3) = 2α, whatever the third."""
    batch = prepared([[0.5, -1.0], [2.0]]).replace(old_bt=None)
    batch = batch.replace(weight_bt=f64([[1 / 3, 1 / 3], [1 / 3, 0]]))
    logp_bt = f64([[-1.0, -7.0], [-3.0, 0.0]]).requires_grad_()
    value = (batch.weight_bt * GoodTokensNLL(coef=0.1)(logp_bt, batch).loss_bt).sum()
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    near(value.detach(), 0.2)
    near(grad_bt, [[-0.05, 0.0], [-0.05, 0.0]])


def test_a_group_without_spread_gives_no_likelihood() -> None:
    ready = grouprl.method("thor").prepare(small([1, 1], correct_b=torch.tensor([True, True])))
    assert grouprl.method("thor").zero_rows(ready).all()


@pytest.mark.parametrize("entropy", [0.1, 1.0, 50.0])
def test_the_bonus_of_thoughts_keeps_the_sign(entropy: float) -> None:
    batch = small(
        [0, 0], [2, 2], entropy_bt=[[entropy] * 2] * 2, marks={"thought": torch.tensor([[True, False], [True, True]])}
    )
    adv_bt = f64([[1.0, 1.0], [-1.0, -0.5]])
    out_bt = ThoughtEntropy()(adv_bt, batch)
    assert torch.equal(out_bt.sign(), adv_bt.sign())
    assert (out_bt >= adv_bt).all()
    near(out_bt[0, 1], 1.0)
    assert ThoughtEntropy(alpha=0.0).idle(RunFacts())


def test_a_thought_ends_with_its_sign() -> None:
    batch = small([0, 0, 0], [4, 4, 4])
    found = thoughts(batch, [[5, 1, 2, 5], [1, 2, 1, 2], [5, 5, 1, 5]], [(1, 2)])
    assert found.tolist() == [[True, True, True, False], [True, True, False, False], [False] * 4]


def test_thoughts_are_marked_in_runs(tmp_path: Path) -> None:
    from single_runs import launch as launched
    from single_runs import records as lines

    task = {"name": "ponder", "length": 3, "dots": 4}
    folder = launched(tmp_path / "run", method="funrl", task=task, warmup={"steps": 30}, steps=2).folder
    assert lines(folder, "train")[-1]["loss"] is not None


def test_failed_steps_are_groups_of_their_own(tmp_path: Path) -> None:
    """A fresh policy nearly always fails to ask in the first turn of the toy."""
    settings: dict[str, Any] = {"batch": {"prompts": 4, "group_size": 4}, "steps": 1, "eval": {"final_prompts": 4}}
    method = {"name": "thor", "step_completions": 6}
    folder = launch(tmp_path / "run", task=f"{toy_envs.__file__}:AskTask", method=method, **settings)
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    steps = [row for row in rows if row["source"] == "extra"]
    episodes = [row for row in rows if row["source"] != "extra"]
    assert len(episodes) == 16
    assert steps
    assert not {row["group"] for row in steps} & {row["group"] for row in episodes}
    for group in {row["group"] for row in steps}:
        own = [row for row in steps if row["group"] == group]
        assert len(own) == 6
        assert len({row["prompt"] for row in own}) == 1
        for row in own:
            assert row["reward"] in (0.0, 1.0)
            trained = [i for i, acted in enumerate(row["mask"]) if acted]
            assert trained == list(range(trained[0], trained[-1] + 1))
            action = [line for line in row["completion"].splitlines() if line.startswith(">")][-1][2:]
            first_turn = trained[0] == 0
            assert row["reward"] == float(action[:1] == "k" if first_turn else action[:1] in toy_envs.LETTERS)
    assert records(folder, "train")[-1]["grad_norm"] >= 0
