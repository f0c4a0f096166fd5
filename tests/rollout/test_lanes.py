"""Environments that go on from step to step: segments, their ends, and what is carried."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grouprl.config.run import parse_config
from grouprl.core.errors import RunError
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.monitor.metrics import rollout_table, sample_metrics
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.records.episode_records import ArrayRecord
from grouprl.records.offline import StoredEpisode
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, to_batch
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.rollout.vectors.lane_rows import LaneRows
from grouprl.rollout.vectors.segments import scored_segments
from grouprl.rollout.vectors.stored_episodes import segment_of
from grouprl.training.telling import shown_samples
from grouprl.view.runfiles import RunData
from grouprl.view.tokens import right_among

gymnasium = pytest.importorskip("gymnasium")

CONFIG: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "horizon": 24, "turns": 30},
    "model": {"name": "mlp", "settings": {"hidden": [8], "normalise": True}},
    "method": "ppo_control",
    "batch": {"prompts": 3, "group_size": 1},
    "environment": {"workers": 0},
}


def counting(horizon: int, seconds: float = 0.0, **settings: Any) -> LaneRows:
    path = Path(__file__).parents[1] / "support" / "counting.py"
    task = {"name": f"env:{path}:Counting", "turns": 30, "horizon": horizon, "config": settings}
    return source({**CONFIG, "task": task}, seconds)


def source(config: dict[str, Any] | None = None, seconds: float = 0.0) -> LaneRows:
    run = resolve(parse_config(config or CONFIG))
    policy: Any = build_policy(run)
    errors = ErrorPolicy("drop_row", max_fraction=1.0)
    found = open_rows(run.config, run.task, policy, run.reward, 1, errors, kind=run.row_kind)
    found.stage = WorkerStage(run.task, 1, timeout=seconds, memory_gb=4) if seconds else found.stage
    assert isinstance(found, LaneRows)
    return found


def requests(first: int, lanes: int) -> list[RolloutRequest]:
    task = resolve(parse_config(CONFIG)).task
    return [RolloutRequest(first + i, first + i, task.example("train", first + i), 1) for i in range(lanes)]


def observations(samples: ScoredSamples) -> list[list[list[float]]]:
    inputs: Any = samples.inputs
    return [row[:n].tolist() for row, n in zip(inputs.observation_bt, inputs.length_b.tolist(), strict=True)]


def test_every_lane_takes_as_many_actions_and_no_row_spans_a_reset() -> None:
    lanes = source()
    rows = lanes.rows(requests(0, 3))
    per_lane = {g: int(rows.length_b[rows.group_b == g].sum()) for g in range(3)}
    assert per_lane == {0: 24, 1: 24, 2: 24}
    assert len(rows) > 3  # a random policy falls within 24 actions now and then, or at 30
    for row, seen in enumerate(observations(rows)):
        # From one observation to the next a cart moves by its velocity times 0.02: a reset would jump.
        moves = np.diff(np.array(seen)[:, 0]) - 0.02 * np.array(seen)[:-1, 1]
        assert np.abs(moves).max(initial=0) < 1e-6, row


def test_episodes_go_on_where_the_step_before_left_them() -> None:
    lanes = source()
    first, second = lanes.rows(requests(0, 2)), lanes.rows(requests(2, 2))
    inputs: Any = first.inputs
    for lane in range(2):
        last = int(np.flatnonzero(first.group_b == lane)[-1])
        begun = int(np.flatnonzero(second.group_b == lane + 2)[0])
        going = observations(second)[begun][0] == inputs.final_b[last].tolist()
        assert going == bool(np.isnan(first.scores.components["return"][last]))
    finished = np.isfinite(np.concatenate([x.scores.components["return"] for x in (first, second)]))
    assert finished.any()


def test_returns_are_those_of_whole_episodes_and_rewards_those_of_segments() -> None:
    lanes = counting(7)
    one, two = lanes.rows(requests(0, 1)), lanes.rows(requests(1, 1))
    assert one.length_b.tolist() == [5, 2]
    assert two.length_b.tolist() == [3, 4]
    assert observations(two)[0] == [[2.0], [3.0], [4.0]]
    # 1+2+3+4+5 and the bonus of 10 where the episode ends; 1+2; then 3+4+5 and the bonus of an episode of 15.
    assert one.scores.reward_b.tolist() == [25.0, 3.0]
    assert two.scores.reward_b.tolist() == [22.0, 10.0]
    assert one.scores.components["return"][0] == 15.0
    assert two.scores.components["return"][0] == 15.0
    assert np.isnan(one.scores.components["return"][1])
    assert one.rollout.truncated_b.tolist() == [False, True]
    assert one.scores.correct_b.tolist() == [True, False]


def test_what_is_counted_and_not_paid_is_no_reward_of_a_segment() -> None:
    rows = counting(7, cost=100.0).rows(requests(0, 1))
    assert rows.scores.reward_b.tolist() == [25.0, 3.0]  # 1+2+3+4+5 and the bonus of 10; 1+2
    assert rows.scores.components["#cost"][0] == 100.0


def test_counts_of_a_stored_trajectory_are_not_paid_either() -> None:
    lanes, request = counting(7), requests(0, 1)[0]
    row = StoredEpisode(
        np.zeros((3, 1)), np.array([0, 1]), np.array([1.0, 2.0]), True, components={"#cost": 100.0, "bonus": 4.0}
    )
    assert lanes.task.spaces is not None
    found = scored_segments([(request, 0)], [segment_of(row, 0)], lanes.task.spaces, lanes.settings, torch.float32)
    assert found.scores.reward_b.tolist() == [7.0]


def test_a_step_in_which_no_episode_ends_does_not_call_rewards_graded() -> None:
    lanes = counting(3)
    first, second = lanes.rows(requests(0, 1)), lanes.rows(requests(1, 1))
    assert np.isnan(first.scores.components["return"]).all()
    assert np.isfinite(second.scores.components["return"]).any()
    assert not first.scores.graded
    assert not second.scores.graded


def test_a_lane_whose_environment_fails_rests_and_begins_anew() -> None:
    lanes = counting(7, fails=3)
    rows = lanes.rows(requests(0, 2))
    assert rows.length_b.tolist() == [3, 3]
    assert rows.scores.failed_b.tolist() == [True, True]
    assert "broken" in rows.scores.problems[0].what
    again = lanes.rows(requests(2, 2))
    assert observations(again) == [[[0.0], [1.0], [2.0]]] * 2


def test_a_piece_of_an_episode_under_way_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    lanes = counting(7)
    rows = lanes.rows(requests(0, 1))
    assert [record.ended for record in rows.records or () if record] == ["terminated", "under_way"]
    table = rollout_table(1, rows, [None] * 2, [None] * 2)
    assert table["correct"].to_pylist() == [True, None]
    assert sample_metrics(rows)["pass@1"] == 1.0
    assert shown_samples(rows)[0].correct is True
    run = RunData(tmp_path, rollouts=table.to_pylist())
    assert not run.graded
    assert right_among(run.rollouts) == "1 right; "
    begun = counting(3).rows(requests(0, 1))
    assert "pass@1" not in sample_metrics(begun)
    assert shown_samples(begun)[0].correct is None
    assert right_among(rollout_table(1, begun, [None], [None]).to_pylist()) == ""


@pytest.mark.parametrize("mode", ["drop_group", "drop_row"])
def test_what_a_lane_played_before_its_environment_failed_counts(mode: Any) -> None:
    lanes = counting(7, begins=2)  # prompts of a lane's later episodes have larger numbers
    lanes.errors = ErrorPolicy(mode, max_fraction=1.0)
    rows = lanes.rows(requests(0, 2))
    assert rows.length_b.tolist() == [5, 0, 5, 0]
    assert rows.scores.failed_b.tolist() == [False, True, False, True]
    assert rows.valid_b.tolist() == [True, False, True, False]


def test_a_lane_whose_environment_hangs_is_left_in_time_and_begins_anew() -> None:
    lanes = counting(7, seconds=0.2, hangs=3)
    began = time.monotonic()
    rows = lanes.rows(requests(0, 2))
    assert rows.length_b.tolist() == [3, 3]
    assert [problem.status for problem in rows.scores.problems] == ["timeout"] * 2
    said = rows.scores.problems[0].what
    assert "turn 2): step() did not return within 0.2 s (environment.timeout), at " in said
    assert "counting.py:" in said
    assert observations(lanes.rows(requests(2, 2))) == [[[0.0], [1.0], [2.0]]] * 2
    lanes.close()
    assert time.monotonic() - began < 30


def test_an_environment_that_hangs_while_a_run_is_resumed_is_told() -> None:
    lanes = counting(2)
    lanes.rows(requests(0, 1))
    other = counting(2, seconds=0.2, hangs=1)
    other.restore(lanes.state())
    with pytest.raises(RunError, match=r"step\(\) did not return within 0\.2 s"):
        other.rows(requests(1, 1))


def test_an_environment_that_cannot_be_closed_spoils_neither_its_episodes_nor_the_end_of_the_run() -> None:
    lanes = counting(7, stuck=True)
    with pytest.warns(RuntimeWarning, match="failed to close: OSError: cannot be closed"):
        rows = lanes.rows(requests(0, 2))
    assert not rows.scores.failed_b.any()
    assert rows.length_b.tolist() == [5, 2, 5, 2]
    with pytest.warns(RuntimeWarning, match="Its episodes count"):
        lanes.close()


def test_a_restored_source_goes_on_as_if_nothing_had_happened() -> None:
    lanes, other = source(), source()
    lanes.rows(requests(0, 3))
    other.restore(lanes.state())
    other.policy.load_trainable_state(lanes.policy.trainable_state())
    one, two = lanes.rows(requests(3, 3)), other.rows(requests(3, 3))
    assert observations(one) == observations(two)
    assert torch.equal(one.rollout.logp_bt, two.rollout.logp_bt)
    assert lanes.state() == other.state()


def test_an_environment_that_is_not_reproducible_is_told_on_resuming() -> None:
    lanes = counting(3, luck=True)
    lanes.rows(requests(0, 1))
    other = counting(3, luck=True)
    other.restore(lanes.state())
    with pytest.raises(RunError, match="not reproducible"):
        other.rows(requests(1, 1))


def test_lanes_are_carried_from_process_to_process_without_being_played() -> None:
    lanes, here = source(), source()
    lanes.rows(requests(0, 3))
    here.restore(json.loads(json.dumps(lanes.state())))
    assert here.lanes == []
    assert here.state() == lanes.state()


def test_lanes_hold_what_a_vector_environment_holds_without_its_fake_transitions() -> None:
    """Gymnasium's vector resets in the step after an end: that step is no transition, and no row of ours has it."""
    lanes = source({**CONFIG, "task": {"name": "control:CartPole-v1", "horizon": 60}})
    rows = lanes.rows(requests(0, 1))
    inputs: Any = rows.inputs
    actions = [x for row, n in zip(inputs.action_bt, inputs.length_b, strict=True) for x in row[:n].tolist()]
    ends = np.cumsum(inputs.length_b.tolist())[:-1].tolist()
    assert ends, "an episode ends within the step"
    vector = gymnasium.make_vec("CartPole-v1", num_envs=1, vectorization_mode="sync")
    assert vector.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.NEXT_STEP
    vector.reset(seed=0)
    reset_steps, over = 0, False
    for number in range(len(actions) + len(ends)):
        _, reward, ended, cut, _ = vector.step(np.array([number % 2]))
        reset_steps += over
        assert (reward[0] == 0) == over  # the fake transition pays nothing
        over = bool(ended[0] or cut[0])
    assert reset_steps > 0
    paid = np.concatenate([r[:n] for r, n in zip(rows.extras["turn_reward_bs"], rows.length_b, strict=True)])
    assert (paid == 1).all()
    assert len(paid) == 60


def test_a_batch_of_segments_bootstraps_those_that_go_on() -> None:
    rows = source().rows(requests(0, 3))
    batch = to_batch(rows, max_length=30)
    assert batch.truncated_b is not None
    for row, record in enumerate(rows.records or ()):
        assert record is not None
        assert bool(batch.truncated_b[row]) == (record.ended != "terminated")


@pytest.mark.parametrize(
    ("samplers", "said"), [(0, "cannot be left in the middle"), (2, "task.horizon with run.samplers = 2")]
)
def test_lanes_are_played_ahead_by_one_process_alone(samplers: int, said: str) -> None:
    told = plan(parse_config({**CONFIG, "run": {"async_steps": 1, "samplers": samplers}}))
    assert any(said in str(each) for each in told.refusals)


def test_the_plan_says_how_lanes_are_played_ahead() -> None:
    told = plan(parse_config({**CONFIG, "run": {"async_steps": 1}}))
    assert not told.refusals
    assert any("a step's actions are of one version of the weights" in str(each) for each in told.findings)


def test_turns_are_spelt_when_a_reader_asks_and_are_what_was_stored() -> None:
    rows = counting(7).rows(requests(0, 1))
    assert rows.records is not None
    record = rows.records[0]
    assert isinstance(record, ArrayRecord)
    assert "turns" not in vars(record)
    assert record.calls() == []
    assert [turn.reward for turn in record.turns] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [turn.seen for turn in record.turns] == ["1", "2", "3", "4", "5"]
    turns = tuple(map(asdict, record.turns))
    assert asdict(record) == {"agent": "", "ended": "terminated", "turns": turns, "judged": True}
    assert rows.transcript(0) == rows.transcripts()[0] == record.transcript()
