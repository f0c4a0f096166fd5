"""Episodes sampled again: resumed, in other batches, with other neighbours, replayed from a store."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

import toy_envs
from episode_runs import launch, records, run_config
from grouprl.algorithms.method import Method
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.methods.compose import compose
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset, to_batch
from grouprl.records.serialize import pack, unpack
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.training.loop import train
from grouprl.training.update import Learner


@pytest.mark.parametrize("method", ["gigpo", "turn_ppo"])
@pytest.mark.parametrize("task", ["AskTask", "TeamTask"])
def test_a_resumed_run_plays_the_same_episodes(tmp_path: Path, task: str, method: str) -> None:
    changes: dict[str, Any] = {"task": f"{toy_envs.__file__}:{task}", "method": method, "steps": 4}
    whole = launch(tmp_path / "whole", run={"threads": 1, "checkpoint_every": 2}, **changes)
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(max((again / "checkpoints").iterdir(), key=lambda path: path.name))
    (again / "rollouts" / "step-000004.parquet").unlink()
    console = Console(file=io.StringIO(), width=100)
    train(parse_config(run_config(**changes)), folder=again, resume=True, console=console)
    for step in (3, 4):
        name = f"rollouts/step-{step:06d}.parquet"
        assert pq.read_table(again / name).equals(pq.read_table(whole / name))
    for name in ("grad_norm", "loss", "reward_mean", "turns_mean"):
        assert records(again, "train")[-1][name] == records(whole, "train")[-1][name]
    weights = [max((f / "checkpoints").iterdir(), key=lambda p: p.name) / "policy.safetensors" for f in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def policy() -> CausalPolicy:
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}
    model, tokenizer = build_tiny(toy_envs.AskTask.alphabet, **sizes, seed=1)
    return CausalPolicy(model.double(), tokenizer)


def sampled(own: CausalPolicy, requests: list[RolloutRequest], **config: Any) -> ScoredSamples:
    task = toy_envs.TeamTask()
    return open_rows(parse_config(run_config(**config)), task, own, task.reward, 2, ErrorPolicy()).rows(requests)


def requested(*ordinals: int, completions: int = 6) -> list[RolloutRequest]:
    return [RolloutRequest(i, i, toy_envs.TeamTask().example("train", i), completions) for i in ordinals]


def test_episodes_do_not_depend_on_their_neighbours() -> None:
    own = policy()
    whole = sampled(own, requested(1, 2, 3))
    alone = join(
        [sampled(own, [replace(request, first=n, completions=1)]) for request in requested(1, 2, 3) for n in range(6)]
    )
    assert alone.row_keys == whole.row_keys
    assert alone.rollout.response_ids == whole.rollout.response_ids
    assert alone.texts == whole.texts
    assert alone.records == whole.records
    torch.testing.assert_close(alone.rollout.logp_bt, whole.rollout.logp_bt, atol=1e-12, rtol=0)
    one, two = to_batch(alone, max_length=9), to_batch(whole, max_length=9)
    assert torch.equal(one.parent_b, two.parent_b)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    own = policy()
    rows, again, other = (sampled(own, requested(1, 2), seed=seed) for seed in (0, 0, 1))
    assert rows.rollout.response_ids == again.rollout.response_ids
    assert torch.equal(rows.rollout.logp_bt, again.rollout.logp_bt)
    assert rows.rollout.response_ids != other.rollout.response_ids


def gradient(own: CausalPolicy, method: Method, prepared: Batch, cuts: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradient of one optimiser step whose rows go through the model piece by piece."""
    for parameter in own.parameters():
        parameter.grad = None
    optimizer = torch.optim.SGD(own.parameters(), lr=0.0)
    weighted = next(Learner(own, optimizer, method).steps(prepared))
    for rows in cuts:
        part = weighted.rows(rows)
        logp_bt = own.logp(part.inputs).requires_grad_()
        method.loss(logp_bt, part.trim(logp_bt.shape[1])).value.backward()
        own.backward(part.inputs, {"log_prob": logp_bt.grad})
    return {name: p.grad.clone() for name, p in own.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("method", ["grpo", "gigpo", "dr_grpo"])
def test_the_gradient_of_episodes_does_not_depend_on_the_cut(method: str) -> None:
    own, made = policy(), compose(method).method
    batch = to_batch(sampled(own, requested(1, 2, 3)), max_length=99)
    with torch.no_grad():
        prepared = made.compute_advantages(batch)
    size = prepared.size[0]
    whole = gradient(own, made, prepared, [torch.arange(size)])
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-4
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    for cuts in ([order], list(order.split(5)), [torch.tensor([i]) for i in range(size)]):
        for name, grad in gradient(own, made, prepared, cuts).items():
            torch.testing.assert_close(grad, whole[name], atol=1e-12, rtol=1e-9)


def test_rows_of_other_widths_join_without_inventing_turns() -> None:
    own = policy()
    short = subset(sampled(own, requested(1)), sampled(own, requested(1)).length_b <= 2)
    rows = sampled(own, requested(2, 3, 4))
    alone, both = to_batch(short, max_length=9), to_batch(join([short, rows]), max_length=9)
    n, (width, turns) = len(short), (alone.size[1], alone.state_bs.shape[1])
    assert both.size[1] > width
    for name in ("mask_bt", "turn_bt", "behavior_bt", "token_bt"):
        assert torch.equal(getattr(both, name)[:n, :width], getattr(alone, name)), name
    assert not both.mask_bt[:n, width:].any()
    assert (both.turn_bt[:n, width:] == -1).all()
    assert torch.equal(both.state_bs[:n, :turns], alone.state_bs)
    assert (both.state_bs[:n, turns:] == -1).all()
    assert not both.turn_reward_bs[:n, turns:].any()
    made = compose("gigpo").method
    with torch.no_grad():
        prepared = made.compute_advantages(both)
        assert torch.equal(prepared.advantage_bt[:n, :width], made.compute_advantages(alone).advantage_bt)


def test_a_store_gives_episodes_back_whole() -> None:
    rows = sampled(policy(), requested(1, 2))
    back = unpack(pack(rows), toy_envs.TeamTask())
    one, two = to_batch(rows, max_length=9), to_batch(back, max_length=9)
    for name in ("mask_bt", "turn_bt", "turn_reward_bs", "state_bs", "valid_bs", "agent_b", "parent_b", "behavior_bt"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert {n: x.tolist() for n, x in one.keys.items()} == {n: x.tolist() for n, x in two.keys.items()}


@pytest.mark.parametrize("task", ["AskTask", "TeamTask"])
def test_replayed_episodes_are_trained_on_and_survive_a_resume(tmp_path: Path, task: str) -> None:
    replay = {"part": "rollout_replay", "mixed_only": False, "first_epoch": False}
    changes: dict[str, Any] = {"task": f"{toy_envs.__file__}:{task}", "steps": 4}
    changes["method"] = {"base": "gigpo", "buffer": replay}
    whole = launch(tmp_path / "whole", run={"threads": 1, "checkpoint_every": 3}, **changes)
    last = records(whole, "train")[-1]
    assert last["replayed_fraction"] > 0.2
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(max((again / "checkpoints").iterdir(), key=lambda path: path.name))
    train(parse_config(run_config(**changes)), folder=again, resume=True, console=Console(file=io.StringIO()))
    for name in ("grad_norm", "loss", "replayed_fraction"):
        assert records(again, "train")[-1][name] == last[name]
