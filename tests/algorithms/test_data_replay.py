"""Stored rows and what is replayed of them."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from fake_context import FakeContext, Numbers, judged_of
from grouprl.algorithms.buffer.group_replay import RolloutReplay
from grouprl.algorithms.buffer.papers.replay import PolicyReplay, SampleBuffer
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, sort_by_group, subset
from grouprl.records.scores import Problem
from grouprl.records.serialize import pack, unpack


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return a == b


def rich_rows() -> tuple[ScoredSamples, FakeContext]:
    """Rows with everything that a row can have."""
    context = FakeContext(completions=3, lengths=lambda i, n: 1 + n)
    sampled = context.sample(context.take(2))
    other = context.with_prompts(sampled, [({"role": "user", "content": "again"},)] * len(sampled))
    rows = join([sampled, other.with_source("guided")]).with_extras(
        keys__budget=np.arange(12), past__advantage=np.linspace(-1, 1, 12)
    )
    scores = dataclasses.replace(
        rows.scores,
        components={"form": np.where(np.arange(12) % 2, np.nan, 0.5)},
        problems=[Problem("n/0#1", "error", "no", "wrong", "trace")],
        status_b=np.array(["ok"] * 11 + ["error"]),
    )
    return dataclasses.replace(rows, scores=scores, greedy_reward_b=np.linspace(0, 1, 12)), context


def test_packed_rows_come_back_as_they_were() -> None:
    rows, context = rich_rows()
    assert equal(unpack(pack(rows), context.task), rows)


def test_packed_rows_survive_a_checkpoint(tmp_path: Path) -> None:
    rows, context = rich_rows()
    torch.save({"x": pack(rows)}, tmp_path / "data.pt")
    read = torch.load(tmp_path / "data.pt", weights_only=True)["x"]
    assert equal(unpack(read, context.task), rows)


def test_packed_rows_are_a_copy() -> None:
    rows, context = rich_rows()
    packed = pack(rows)
    rows.rollout.logp_bt.zero_()
    rows.group_b[:] = 77
    again = unpack(packed, context.task)
    assert again.rollout.logp_bt.any()
    assert 77 not in again.group_b


def test_variants_of_a_prompt_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Numbers(8)
    example = task.example("train", 3)
    variant = dataclasses.replace(example, id="other", prompt="what is it?")
    context = FakeContext(task=task)
    request = dataclasses.replace(context.request(3), example=variant)
    packed = pack(context.sample([request]))
    with pytest.raises(InputError, match="has no prompt 'other'"):
        unpack(packed, task)
    monkeypatch.setattr(Numbers, "variants", lambda self, q: (q, variant))
    assert unpack(packed, task).examples[0] == variant


# --- whole groups -----------------------------------------------------------------------------------------------------


def step(context: FakeContext, replay: Any) -> ScoredSamples:
    """One step of a context as the trainer takes it; returns the rows trained on."""
    fresh = replay.fresh(context)
    sampled = context.sample(context.take(fresh)) if fresh else None
    rows = sort_by_group(replay.mix(sampled, context))
    context.finish(rows, replay, prepared=judged_of(context, rows))
    return rows


def groups_of(rows: ScoredSamples, source: str) -> set[int]:
    return set(rows.group_b[rows.source_b == SOURCES[source]].tolist())


def test_rollout_replay_samples_half_anew_once_it_has_enough() -> None:
    context, replay = FakeContext([0.5] * 40, prompts=4, completions=8), RolloutReplay(first_epoch=False)
    first = step(context, replay)
    assert groups_of(first, "replay") == set()
    second = step(context, replay)
    assert len(groups_of(second, "sampled")) == 2
    assert groups_of(second, "replay") < groups_of(first, "sampled")
    assert context.notes["replayed_fraction"] == 0.5
    assert context.notes["replay_age"] == 1.0


def test_a_replayed_row_keeps_the_log_probs_it_was_sampled_with() -> None:
    context, replay = FakeContext([0.5] * 40, completions=8), RolloutReplay(first_epoch=False)
    step(context, replay)
    rows = step(context, replay)
    old = subset(rows, rows.source_b == SOURCES["replay"])
    assert not old.foreign_b.any()
    batch = context.batch(old)
    torch.testing.assert_close((batch.old_bt - batch.behavior_bt).exp(), torch.ones_like(batch.old_bt))
    assert torch.equal(batch.old_bt[batch.mask_bt], torch.full((int(batch.mask_bt.sum()),), -1.0).double())


def test_groups_all_right_or_all_wrong_are_not_stored() -> None:
    context = FakeContext([0.0, 1.0] * 20, completions=4)
    replay = RolloutReplay(first_epoch=False)
    step(context, replay)
    assert context.state_of(replay)["entries"] == []
    every = RolloutReplay(first_epoch=False, mixed_only=False)
    step(context, every)
    assert len(context.state_of(every)["entries"]) == 4


def test_the_first_epoch_is_all_new() -> None:
    context, replay = FakeContext([0.5] * 12, prompts=4, completions=8), RolloutReplay()
    assert [len(groups_of(step(context, replay), "replay")) for _ in range(4)] == [0, 0, 0, 2]


def test_the_buffer_keeps_the_latest_group_of_each_prompt_and_forgets_the_oldest() -> None:
    context, replay = FakeContext([0.5] * 6, prompts=3, completions=16), RolloutReplay(capacity=4, fresh_share=1.0)
    for _ in range(4):
        step(context, replay)
    entries = context.state_of(replay)["entries"]
    examples = [int(e["rows"]["index_b"][0]) for e in entries]
    assert len(set(examples)) == len(examples) == 4
    assert [e["step"] for e in entries] == sorted(e["step"] for e in entries)
    assert {e["step"] for e in entries} == {2, 3}


def test_replayed_groups_are_chosen_uniformly() -> None:
    context, replay = (
        FakeContext([0.5] * 40, prompts=4, completions=16),
        RolloutReplay(first_epoch=False, fresh_share=0.75),
    )
    step(context, replay)
    counts: dict[int, int] = {}
    for number in range(400):
        context.step = number
        for entry in replay.sample(1, context):
            counts[int(entry["rows"]["index_b"][0])] = counts.get(int(entry["rows"]["index_b"][0]), 0) + 1
    assert len(counts) == 4
    assert all(70 < count < 130 for count in counts.values())


def test_rows_sampled_at_another_temperature_are_stored_under_the_policys_own_log_probs() -> None:
    context, replay = FakeContext([0.5] * 8, completions=8), RolloutReplay(first_epoch=False, fresh_share=0.0)
    requests = [dataclasses.replace(request, temperature=1.5) for request in context.take(4)]
    rows = context.sample(requests)
    own_bt = torch.full_like(rows.rollout.logp_bt, -0.25)
    context.finish(rows, replay, prepared=judged_of(context, rows).replace(old_bt=own_bt))
    old = replay.mix(None, context)
    assert old is not None
    assert not old.foreign_b.any()
    assert set(old.rollout.logp_bt[context.batch(old).mask_bt].tolist()) == {-0.25}


def test_a_buffer_that_can_never_act_is_named() -> None:
    assert RolloutReplay().idle(RunFacts(prompts=1))
    assert RolloutReplay().idle(RunFacts(prompts=4, steps=2, examples=8))
    assert not RolloutReplay().idle(RunFacts(prompts=4, steps=3, examples=8))


# --- earlier policies -------------------------------------------------------------------------------------------------


def test_policy_replay_replays_with_probability_p_from_the_last_policies() -> None:
    context, replay = (
        FakeContext([0.5] * 400, prompts=50, completions=2),
        PolicyReplay(probability=0.4, reincarnation=None),
    )
    ages, shares = [], []
    for _ in range(12):
        now = context.step
        rows = step(context, replay)
        old = groups_of(rows, "replay")
        shares.append(len(old) / 50)
        stored = {g for e in context.state_of(replay)["policies"] for g in [x["step"] for x in e]}
        ages.append(max((now - s for s in stored), default=0))
    assert shares[0] == 0
    assert np.mean(shares[1:]) == pytest.approx(0.4, abs=0.06)
    assert max(ages) <= 2
    assert len(context.state_of(replay)["policies"]) == 2


def test_rows_of_an_earlier_policy_get_their_old_log_probs_anew() -> None:
    context, replay = FakeContext([0.5] * 40, completions=2), PolicyReplay(probability=1.0, reincarnation=None)
    step(context, replay)
    rows = step(context, replay)
    assert set(rows.source_b.tolist()) == {SOURCES["replay"]}
    assert rows.foreign_b.all()


def test_without_probability_nothing_is_replayed() -> None:
    context, replay = FakeContext([0.5] * 40), PolicyReplay(probability=0.0)
    rows = [step(context, replay) for _ in range(3)]
    assert all(set(r.source_b.tolist()) == {SOURCES["sampled"]} for r in rows)
    assert replay.idle(RunFacts())


def test_a_reincarnation_beyond_the_end_is_named() -> None:
    assert "never comes" in PolicyReplay().idle(RunFacts(steps=50))[0]
    assert PolicyReplay().idle(RunFacts(steps=51)) == []
    assert PolicyReplay(reincarnation=None).idle(RunFacts(steps=5)) == []


def test_reincarnation_renews_the_reference_once_and_ends_replay() -> None:
    context, replay = FakeContext([0.5] * 80, prompts=8), PolicyReplay(probability=0.9, reincarnation=3)
    old = [len(groups_of(step(context, replay), "replay")) for _ in range(6)]
    assert context.renewed == [3]
    assert old[0] == 0
    assert min(old[1:3]) > 0
    assert old[3:] == [0, 0, 0]
    assert context.state_of(replay)["policies"] == []


# --- single completions
# ---------------------------------------------------------------------------------------------------


def test_the_sample_buffer_never_holds_a_completion_without_advantage() -> None:
    context, buffer = FakeContext([0.5] * 40, completions=4), SampleBuffer()
    rows = buffer.mix(context.sample(context.take(4)), context)
    assert rows is not None
    adv_b = torch.tensor([0.0, 0.5, -2.0, 0.0] * 4).double()
    batch = context.batch(rows)
    context.finish(rows, buffer, prepared=batch.replace(advantage_bt=batch.broadcast(adv_b)))
    store = context.state_of(buffer)
    assert sorted(store["size"].tolist()) == [0.5] * 4 + [2.0] * 4
    assert set(store["rows"]["extras"]["past.advantage"].tolist()) == {0.5, -2.0}


def test_stored_completions_are_sampled_in_proportion_to_their_advantage() -> None:
    context, buffer = FakeContext([0.5] * 40, completions=4), SampleBuffer(share=0.25)
    rows = buffer.mix(context.sample(context.take(1)), context)
    assert rows is not None
    batch = context.batch(rows)
    adv_b = torch.tensor([0.0, 1.0, -2.0, 5.0]).double()
    context.finish(rows, buffer, prepared=batch.replace(advantage_bt=batch.broadcast(adv_b)))
    seen: list[float] = []
    new = context.sample(context.take(1))
    for number in range(800):
        context.step = number + 1
        mixed = buffer.mix(new, context)
        assert mixed is not None
        old = subset(mixed, mixed.source_b == SOURCES["replay"])
        assert len(old) == 1
        seen.append(float(old.extras["past.advantage"][0]))
    shares = {a: seen.count(a) / 800 for a in (1.0, -2.0, 5.0)}
    assert shares == pytest.approx({1.0: 1 / 8, -2.0: 2 / 8, 5.0: 5 / 8}, abs=0.05)


def test_an_empty_buffer_changes_nothing_but_says_that_no_row_has_a_stored_advantage() -> None:
    context, buffer = FakeContext(), SampleBuffer()
    new = context.sample(context.take(2))
    mixed = buffer.mix(new, context)
    assert mixed is not None
    assert not mixed.extras["past.advantage"].any()
    assert equal(dataclasses.replace(mixed, extras={}), new)


def test_the_sample_buffer_forgets_the_oldest() -> None:
    context, buffer = FakeContext([0.5] * 40, completions=4), SampleBuffer(capacity=10, share=0.0)
    for _ in range(3):
        step(context, buffer)
    store = context.state_of(buffer)
    assert len(store["rows"]["texts"]) == len(store["steps"]) == len(store["size"]) == 10
    assert store["steps"].tolist() == [2] * 10


# --- in a run ---------------------------------------------------------------------------------------------------------


def config(**changes: Any) -> dict[str, Any]:
    return {
        "task": {"name": "addition", "digits": 1},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "steps": 6,
        "seed": 3,
        "warmup": {"steps": 80, "batch": 32, "lr": 1e-2},
        "batch": {"prompts": 8, "group_size": 6},
        "optim": {"lr": 1e-3},
        "eval": {"prompts": 8, "final_prompts": 8},
        "run": {"threads": 1, "checkpoint_every": 1},
    } | changes


def train(folder: Path, **changes: Any) -> Path:
    from grouprl.config.run import parse_config
    from grouprl.training.loop import train as run

    return run(parse_config(config(**changes)), folder=folder, console=Console(file=io.StringIO(), width=100)).folder


def records(folder: Path, phase: str = "train") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == phase]


def resumed_is_the_same(whole: Path, cut: Path, at: str) -> None:
    """Go on from checkpoint `at` of a copy of a finished run; it must end as the run did."""
    import shutil

    from grouprl.config.run import parse_config
    from grouprl.training.loop import train as run

    shutil.copytree(whole, cut)
    order = {"warmup": 0, "prelude": 1, "step": 2}
    for path in (cut / "checkpoints").iterdir():
        if (order[path.name.split("-")[0]], path.name) > (order[at.split("-")[0]], at):
            shutil.rmtree(path)
    for name in ("model", "summary.json", "report.html"):
        path = cut / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    run(parse_config(config(method="grpo")), folder=cut, resume=True, console=Console(file=io.StringIO(), width=100))
    assert evidence(cut) == evidence(whole)


def evidence(folder: Path) -> list[Any]:
    timing = ("seconds", "tokens_per_second", "memory_mb")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: v for k, v in line.items() if not k.startswith(timing)} for line in lines]
    last = max((folder / "checkpoints").glob("step-*"))
    return [metrics, *((last / name).read_bytes() for name in ("policy.safetensors", "optimizer.pt"))]


REPLAYS: dict[str, Any] = {
    "rollout_replay": {"base": "grpo", "buffer": {"part": "rollout_replay", "first_epoch": False}},
    "policy_replay": {
        "base": "grpo",
        "buffer": {"part": "policy_replay", "probability": 0.6, "reincarnation": 4},
        "add": {"regularize": [{"part": "kl_loss", "coef": 0.05}]},
    },
    "sample_buffer": {"name": "skywork_r1v2"},
}


def test_replayed_completions_of_an_unmoved_policy_have_ratio_one(tmp_path: Path) -> None:
    method = REPLAYS["rollout_replay"]
    after = records(train(tmp_path / "run", method=method, optim={"lr": 1e-30}, batch={"prompts": 8, "group_size": 6}))
    assert after[-1]["replayed_fraction"] == 0.5
    assert [r["ratio_mean"] for r in after] == pytest.approx([1] * 6, abs=1e-5)
    assert {r["clip_fraction"] for r in after} == {0.0}


@pytest.mark.parametrize(("method", "clipped"), [("remix", False), ("grpo", True)])
def test_completions_of_earlier_policies_lie_inside_the_shifted_clip_alone(
    method: str, clipped: bool, tmp_path: Path
) -> None:
    """Before the first optimiser step of a rollout: PPO's own interval around 1 leaves many of them out."""
    replay = {"part": "policy_replay", "probability": 0.7, "reincarnation": None}
    objective = {} if method == "remix" else {"objective": {"against": "behavior"}}
    spec = {"base": method, "buffer": replay, **objective}
    after = records(train(tmp_path / "run", method=spec, optim={"lr": 3e-2}))
    assert max(r["replayed_fraction"] for r in after) > 0.3
    assert any(r["clip_fraction"] > 0 for r in after) == clipped


def test_with_adapters_too_the_reference_is_renewed_and_goes_on(tmp_path: Path) -> None:
    model = {"name": "tiny", "lora": {"r": 2}, "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}}
    run = {"threads": 1, "checkpoint_every": 1, "keep": 20}
    whole = train(tmp_path / "whole", method=REPLAYS["policy_replay"], run=run, optim={"lr": 1e-2}, model=model)
    kl = [abs(r["kl_ref"]) for r in records(whole)]
    assert kl[3] > 10 * kl[4]
    resumed_is_the_same(whole, tmp_path / "cut", "step-000005")


@pytest.mark.parametrize("name", REPLAYS)
def test_runs_with_replay_go_on_exactly_where_they_stopped(tmp_path: Path, name: str) -> None:
    whole = train(tmp_path / "whole", method=REPLAYS[name], run={"threads": 1, "checkpoint_every": 1, "keep": 20})
    shares = [r["replayed_fraction"] for r in records(whole)]
    assert shares[0] == 0
    assert max(shares) > 0
    for at in ("step-000003", "step-000005")[: 1 + (name == "policy_replay")]:
        resumed_is_the_same(whole, tmp_path / at, at)


def test_the_reference_is_the_policy_from_its_renewal_on(tmp_path: Path) -> None:
    run = {"threads": 1, "checkpoint_every": 1, "keep": 20}
    whole = train(tmp_path / "whole", method=REPLAYS["policy_replay"], run=run, optim={"lr": 1e-2})
    kl = [r["kl_ref"] for r in records(whole)]
    assert kl[3] > 10 * abs(kl[4])
    assert (whole / "reference-000004.safetensors").is_file()
    assert [r["replayed_fraction"] for r in records(whole)][4:] == [0, 0]
