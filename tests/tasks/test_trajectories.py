"""Stored trajectories of arrays: every format gives the same rows, what is damaged is refused, and runs learn."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import choices
from grouprl.config.paths import absolute_paths
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, MissingExtra
from grouprl.envs.construction import combination_lock
from grouprl.monitor.metrics import rollout_table
from grouprl.orchestrator.make_policy import build_kind
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.records.offline import StoredEpisode, StoredRow, stored_of
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import to_batch
from grouprl.records.serialize import pack, unpack
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows, row_kind
from grouprl.rollout.vectors.stored_episodes import StoredEpisodes
from grouprl.tasks import load_task
from grouprl.tasks.adapters.trajectories.checking import checked
from grouprl.tasks.adapters.trajectories.files import of_minari, read, write
from grouprl.testing import check_stored_rows
from grouprl.training.loop import train
from grouprl.training.telling import shown_samples
from grouprl.view.runfiles import RunData

WALKS = Path(__file__).parents[1] / "support" / "stored_rows" / "walks.jsonl"
GRID: dict[str, Any] = {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}}
ARMS = "env:grouprl.envs.construction.arms:Arms"
MODEL = {"name": "mlp", "settings": {"hidden": [8]}}
LINE = Spaces(Box((2,)), Discrete(3))
GOOD: dict[str, Any] = {
    "observations": [[0, 1], [2, 3], [4, 5]],
    "actions": [2, 0],
    "rewards": [1, 0.5],
    "terminated": False,
    "logps": [-1, -0.5],
}


def of_arms(folder: Path, arms: list[int], pay: tuple[float, ...] = (1.0, 0.6, 0.0)) -> str:
    shown = np.ones((2, 1), np.float32)
    rows = [StoredEpisode(shown, np.array([arm]), np.array([pay[arm]]), True) for arm in arms]
    write(folder / "arms.jsonl", rows)
    return f"trajectories:{folder / 'arms.jsonl'}"


def run(task: Any, **changes: Any) -> Any:
    settings = {
        "task": task,
        "model": MODEL,
        "method": "sft",
        "steps": 3,
        "batch": {"prompts": 6, "group_size": 1},
        "optim": {"lr": 0.02, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1},
    }
    return parse_config({**settings, **changes})


def walks(**options: Any) -> Any:
    return {"name": f"trajectories:{WALKS}", "of": GRID, **options}


def rows_of(config: Any, numbers: list[int]) -> Any:
    resolved = resolve(config)
    errors, policy = ErrorPolicy(), build_kind(resolved)
    source = open_rows(config, resolved.task, policy, resolved.reward, 1, errors)
    assert isinstance(source, StoredEpisodes)
    return source.rows([RolloutRequest(k, i, resolved.task.example("train", i), 1) for k, i in enumerate(numbers)])


def learnt(config: Any, folder: Path) -> tuple[float, float]:
    """Train; return the loss of the last step and the reward of the greedy policy."""
    train(config, folder=folder, console=Console(quiet=True))
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [each["loss"] for each in steps if "loss" in each][-1], json.loads((folder / "summary.json").read_text())[
        "after"
    ]["eval/greedy_reward"]


def test_the_task_keeps_the_rules_of_stored_rows() -> None:
    task = load_task(walks())
    check_stored_rows(task)
    assert row_kind(task) is StoredEpisodes
    assert "24 trajectories" in task.notes[0]  # type: ignore[attr-defined]


def test_rows_are_what_is_stored() -> None:
    rows = [json.loads(line) for line in WALKS.read_text().splitlines()]
    samples = rows_of(run(walks()), [3, 0])
    batch: Any = to_batch(samples, max_length=9)
    for place, raw in enumerate((rows[3], rows[0])):
        length = len(raw["actions"])
        assert batch.mask_bt[place].sum() == length
        assert batch.token_bt[place, :length].tolist() == raw["actions"]
        assert batch.inputs.observation_bt[place, :length].tolist() == raw["observations"][:-1]
        assert batch.inputs.final_b[place].tolist() == raw["observations"][-1]
        assert batch.inputs.legal_bta[place, :length].tolist() == raw["legal"]
        np.testing.assert_allclose(batch.turn_reward_bs[place, :length], raw["rewards"], rtol=1e-6)
        np.testing.assert_allclose(batch.behavior_bt[place, :length], raw["logps"], rtol=1e-6)
        assert float(batch.reward_b[place]) == pytest.approx(sum(raw["rewards"]), rel=1e-6)
    assert not batch.truncated_b.any()
    assert batch.from_source("replay").all()


def test_every_file_format_gives_the_same_trajectories(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    task = load_task(walks())
    mine: list[Any] = [stored_of(task, task.example("train", i))[0] for i in range(24)]
    pq.write_table(
        pa.Table.from_pylist([json.loads(x) for x in WALKS.read_text().splitlines()]), tmp_path / "w.parquet"
    )
    columns = {"observations": "observations", "actions": "actions", "rewards": "rewards"}
    columns |= {"behavior_logp": "logps", "legal": "legal"}
    flat: dict[str, Any] = {
        name: np.concatenate([getattr(each, field) for each in mine]) for field, name in columns.items()
    }
    counts: dict[str, Any] = {"lengths": np.array([len(each) for each in mine]), "terminated": np.ones(24, bool)}
    np.savez(tmp_path / "w.npz", **flat, **counts, correct=np.zeros(24, bool))
    for name in ("w.parquet", "w.npz"):
        other = load_task({"name": f"trajectories:{tmp_path / name}", "of": GRID})
        assert [stored_of(other, other.example("train", i))[0] for i in range(24)] == mine
    np.savez(tmp_path / "bad.npz", **{**flat, "rewards": flat["rewards"][1:]}, **counts)
    with pytest.raises(InputError, match=r"rewards of .* has"):
        load_task({"name": f"trajectories:{tmp_path / 'bad.npz'}", "of": GRID})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actions": [3, 0]}, "number 0 is 3"),
        ({"actions": [0.5, 0]}, "number 0 is 0.5"),
        ({"actions": []}, "has no actions"),
        ({"actions": ["up", "down"]}, "not arrays of numbers"),
        ({"observations": [[0], [1], [2]]}, "shape"),
        ({"observations": [[0, 1], [2, float("nan")], [4, 5]]}, "number 1 is"),
        ({"observations": [[0, 1], [2, 3]]}, "2 observations and 2 actions"),
        ({"rewards": [1.0]}, "the rewards of x"),
        ({"rewards": [1.0, float("inf")]}, "the rewards of x"),
        ({"logps": [-1.0]}, "the logps of x"),
        ({"legal": [[1, 1, 1]]}, "masks of x have the shape"),
        ({"legal": [[1, 1, 0], [1, 1, 1]]}, "action 0 of x is not legal"),
        ({"legal": [[1, 1, 1], [1]]}, "masks of x are not arrays"),
        ({"legal": [[1, 1, 5], [1, 1, 1]]}, "masks of x are not arrays"),
        ({"terminated": "false"}, "terminated of x is 'false'"),
        ({"terminated": [False, True]}, r"terminated of x is \[False, True\].*last step"),
        ({"terminated": np.array([False, True])}, "terminated of x is array.*last step"),
        ({"terminated": None}, "terminated of x is None"),
        ({"terminated": 2}, "terminated of x is 2"),
        ({"correct": "no"}, "correct of x is 'no'"),
        ({"correct": 0.5}, "correct of x is 0.5"),
        ({"components": [1]}, "components of x"),
        ({"components": {"cost": "x"}}, "components of x"),
        ({"components": {"cost": None}}, "components of x"),
        ({"components": {"cost": float("nan")}}, "components of x"),
        ({"components": {"cost": 10**400}}, "components of x"),
        ({"rewards": [10**400, 1]}, "the rewards of x"),
        ({"rewards": [1e300, 1]}, "the rewards of x"),
        ({"rewards": ["1", "2"]}, "the rewards of x"),
        ({"rewards": None}, "the rewards of x"),
        ({"logps": [0.5, -1.0]}, "logps of x.*above 0"),
        ({"observations": [[10**400, 1], [2, 3], [4, 5]]}, "not arrays of numbers"),
        ({"actions": [10**30, 0]}, "not arrays of numbers"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(changes: dict[str, Any], said: str) -> None:
    assert len(checked(GOOD, LINE, "x")) == 2
    with pytest.raises(InputError, match=said):
        checked({**GOOD, **changes}, LINE, "x")


def test_flags_may_be_numbers_of_an_array_library() -> None:
    for value in (True, 1, 1.0, np.True_, np.int64(1), np.array(True)):
        assert checked({**GOOD, "terminated": value, "correct": value}, LINE, "x").terminated is True


def test_densities_may_be_above_1() -> None:
    """The log-prob of an action in a Box is that of a density."""
    swings = Spaces(Box((2,)), Box((1,)))
    found = checked({**GOOD, "actions": [[0.1], [0.2]], "logps": [1.5, 0.2]}, swings, "x")
    np.testing.assert_allclose(found.behavior_logp, [1.5, 0.2])


def test_an_episode_that_ended_needs_no_last_observation() -> None:
    found = checked({**GOOD, "observations": [[0, 1], [2, 3]], "terminated": True}, LINE, "x")
    assert np.asarray(found.observations)[-1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "(?i)line 1 .* not JSON"),
        ("[1]", "(?i)line 1 .* is a JSON list"),
        ('{"actions": []}', "lacks observations"),
        ("", "no traj"),
        ("{" + chr(233) + "}", "(?i)line 1 .* not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"actions": [], "actions": [0]}', "'actions' twice"),
        ('{"actions": [NaN]}', "NaN is not"),
    ],
)
def test_files_that_are_damaged_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=said):
        load_task({"name": f"trajectories:{tmp_path / 't.jsonl'}", "of": ARMS})
    with pytest.raises(InputError, match="no file"):
        load_task({"name": "trajectories:nowhere.jsonl", "of": ARMS})
    with pytest.raises(InputError, match="made of text"):
        load_task({"name": f"trajectories:{WALKS}", "of": "addition"})


def test_blank_lines_and_a_byte_order_mark_are_no_trajectories(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\n\n" + json.dumps(GOOD).encode() + b"\n\n")
    found = list(read(str(path)))
    assert [raw for _, raw in found] == [GOOD, GOOD]
    assert [where.partition(" of ")[0] for where, _ in found] == ["trajectory 0", "trajectory 1"]


WHOLE: dict[str, Any] = {
    "observations": np.zeros((3, 2)),
    "actions": np.array([0, 1]),
    "rewards": np.array([1.0, 2.0]),
    "terminated": np.array([True]),
}


@pytest.mark.parametrize(
    ("lengths", "changes"),
    [
        (2, {}),
        ([[2]], {}),
        ([2.5], {}),
        (["two"], {}),
        ([-1, 3], {}),
        ([2], {"terminated": np.array(True)}),
    ],
)
def test_lengths_of_an_npz_are_whole_numbers(tmp_path: Path, lengths: Any, changes: dict[str, Any]) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, **WHOLE, lengths=np.array([2]))
    assert len(list(read(str(path)))) == 1
    np.savez(path, **{**WHOLE, **changes}, lengths=np.array(lengths))
    with pytest.raises(InputError, match=r"lengths|entries"):
        list(read(str(path)))


def test_other_files_of_numpy_are_no_npz(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    for content in (b"", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            list(read(str(path)))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="one array"):
        list(read(str(path)))


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({**GOOD, "reward": [1, 1]}))
    with pytest.raises(InputError, match=r"column 'reward'.*rewards"):
        load_task({"name": f"trajectories:{tmp_path / 't.jsonl'}", "of": ARMS})


def test_groups_and_the_best_share(tmp_path: Path) -> None:
    lines = [json.dumps({**json.loads(x), "group": n // 2}) for n, x in enumerate(WALKS.read_text().splitlines())]
    (tmp_path / "g.jsonl").write_text("\n".join(lines))
    grouped = load_task({"name": f"trajectories:{tmp_path / 'g.jsonl'}", "of": GRID})
    assert grouped.size("train") == 12
    assert len(stored_of(grouped, grouped.example("train", 0))) == 2
    best, whole = load_task(walks(best=0.25)), load_task(walks())
    assert best.size("train") == 6
    totals = sorted(row.total for i in range(24) for row in stored_of(whole, whole.example("train", i)))
    kept = sorted(row.total for i in range(6) for row in stored_of(best, best.example("train", i)))
    assert kept == totals[-6:]
    said = [str(each) for each in plan(run({"name": f"trajectories:{tmp_path / 'g.jsonl'}", "of": GRID})).refusals]
    assert any("up to 2 rows" in words for words in said)


def test_workers_get_the_environment_alone() -> None:
    task = load_task(walks())
    away = pickle.loads(pickle.dumps(task))
    away.environment().reset(away.example("eval", 0), 0)
    assert len(pickle.dumps(task)) < 2000
    assert task.size("train") == 24


def test_minari_is_named_when_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtra, match=r"minari\[hdf5\]"):
        load_task({"name": "trajectories:minari:cartpole/mixed-v0", "of": ARMS})


def test_episodes_of_minari_become_rows() -> None:
    """Nested observations, a mask, and actions that count from 1, as `minari.EpisodeData` holds them."""
    spaces = pytest.importorskip("gymnasium").spaces
    seen = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)})
    episode = SimpleNamespace(
        id=4,
        observations={"at": np.arange(6).reshape(3, 2) / 10, "action_mask": np.ones((3, 3), np.int8)},
        actions=np.array([3, 1]),
        rewards=np.array([1.0, 0.5]),
        terminations=np.array([False, False]),
    )
    ((number, raw),) = of_minari([episode], seen, spaces.Discrete(3, start=1))
    found = checked(raw, LINE, "x")
    assert number == 4
    assert found.actions.tolist() == [2, 0]
    assert found.legal is not None
    assert found.legal.shape == (2, 3)
    np.testing.assert_allclose(np.asarray(found.observations)[2], [0.4, 0.5])


QUICK: dict[str, Any] = {"optim": {"lr": 0.1, "schedule": "constant"}, "eval": {"every": 0, "final_prompts": 2}}


def test_cloning_takes_the_shares_of_the_data(tmp_path: Path) -> None:
    """Arms 0 and 1 in three and one of four trajectories: the loss falls to their entropy, 0.5623 nats."""
    task = {"name": of_arms(tmp_path, [0, 0, 0, 1]), "of": ARMS}
    loss, reward = learnt(run(task, steps=30, batch={"prompts": 4, "group_size": 1}, **QUICK), tmp_path / "run")
    assert loss == pytest.approx(0.5623, abs=0.01)
    assert reward == 1


def test_the_best_of_the_data_is_found_by_its_weight(tmp_path: Path) -> None:
    """One of twenty takes the arm that pays 1: drawn by returns it is cloned, drawn alike the others are."""
    task = {"name": of_arms(tmp_path, [0] + [2] * 19), "of": ARMS}
    weighted = {"name": "weighted_bc", "against": "nothing"}
    found = [
        learnt(run(task, method=method, batch={"prompts": 20, "group_size": 1}, **QUICK), tmp_path / str(n))[1]
        for n, method in enumerate(("sft", weighted))
    ]
    assert found == [0, 1]


def test_text_is_weighed_by_its_rewards_too() -> None:
    assert StoredRow("x", 0.5).total == 0.5
    assert StoredRow("x", 0.5).beginning == ()
    with pytest.raises(InputError, match="no stored rows"):
        stored_of(load_task("addition"), None)


@pytest.mark.parametrize(("name", "earned"), [("sft", 0), ("f_dvl", 4), ("odice", 4)])
def test_what_no_trajectory_did_as_a_whole_is_stitched(tmp_path: Path, name: str, earned: int) -> None:
    """Four places, of which each trajectory is right in one at most: cloned, the greedy policy is right in none."""
    choices.store(tmp_path / "choices.jsonl")
    task = {"name": f"trajectories:{tmp_path / 'choices.jsonl'}", "of": f"env:{choices.__file__}:Choices"}
    method = {"sft": "sft", "f_dvl": {"name": name, "gamma": 0.9, "size": 80}, "odice": {"name": name, "gamma": 0.9}}
    config = run(
        task,
        method=method[name],
        steps=10,
        batch={"prompts": 20, "group_size": 1, "epochs": 2},
        environment={"workers": 0},
        **QUICK,
    )
    assert learnt(config, tmp_path / "run")[1] == earned


def test_paths_of_the_data_and_of_their_task_are_those_of_the_file(tmp_path: Path) -> None:
    task = {"name": "trajectories:w.jsonl", "of": {"name": "env:mine.py:World", "config": {"side": 3}}}
    found = absolute_paths({"task": task}, tmp_path)["task"]
    of = {"name": f"env:{tmp_path / 'mine.py'}:World", "config": {"side": 3}}
    assert found == {"name": f"trajectories:{tmp_path / 'w.jsonl'}", "of": of}
    library = {"name": "trajectories:minari:cartpole/mixed-v0", "of": "control:CartPole-v1"}
    assert absolute_paths({"task": library}, tmp_path)["task"] == library


def test_a_task_knows_its_size_and_length_in_a_process_that_has_no_trajectories():
    task = load_task({"name": f"trajectories:{WALKS}", "of": {**GRID, "turns": 1}})
    other = pickle.loads(pickle.dumps(task))
    longest = max(len(json.loads(line)["actions"]) for line in WALKS.read_text().splitlines())
    assert other.max_turns == task.max_turns == longest > 1
    assert other.size("train") == task.size("train") == 24


def test_a_trajectory_without_a_verdict_is_shown_as_neither_right_nor_wrong(tmp_path: Path) -> None:
    """One says that it was right, one that it was wrong, and one nothing."""
    shown, said = np.ones((2, 1), np.float32), (True, False, None)
    rows = [StoredEpisode(shown, np.array([0]), np.array([1.0]), True, correct=verdict) for verdict in said]
    write(tmp_path / "arms.jsonl", rows)
    found = rows_of(run({"name": f"trajectories:{tmp_path / 'arms.jsonl'}", "of": ARMS}), [0, 1, 2])
    assert rollout_table(1, found, [None] * 3, [None] * 3)["correct"].to_pylist() == [True, False, None]
    assert [each.correct for each in shown_samples(found)] == [True, False, None]
    again: Any = unpack(pack(found), load_task({"name": f"trajectories:{tmp_path / 'arms.jsonl'}", "of": ARMS}))
    assert rollout_table(1, again, [None] * 3, [None] * 3)["correct"].to_pylist() == [True, False, None]


def test_what_stored_rows_do_not_say_is_no_reason_to_call_evaluations_graded(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"reward": 1.0, "correct": None, "ended": "terminated", "source": "demonstration"}]
    assert not RunData(tmp_path, rollouts=rows).graded
    assert RunData(tmp_path, rollouts=[rows[0] | {"source": "sampled"}]).graded


# --- of a function --------------------------------------------------------------------------------------------------

LOCK = "grouprl.envs.construction.combination_lock"


def of_the_lock(function: str) -> Any:
    return load_task({"name": f"trajectories:{function}", "of": f"env:{LOCK}:CombinationLock"})


def test_a_function_gives_trajectories_as_a_file_does() -> None:
    task = of_the_lock(f"{LOCK}:expert_episodes")
    assert task.size("train") == 300
    (row,) = task.stored_rows(task.example("train", 0))
    assert row == combination_lock.expert_episodes()[0]


def test_groups_of_a_function_s_rows_are_compared() -> None:
    task = of_the_lock(f"{LOCK}:compared_episodes")
    won, lost = task.stored_rows(task.example("train", 0))
    assert (won.total, lost.total) == (1.0, 0.0)


def test_a_function_of_a_file_of_ones_own_is_read_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"from {LOCK} import expert_episodes as found\n")
    told = absolute_paths(
        {"task": {"name": "trajectories:mine.py:found", "of": f"env:{LOCK}:CombinationLock"}}, tmp_path
    )
    assert load_task(told["task"]).size("train") == 300
    named = {"name": f"trajectories:{LOCK}:expert_episodes"}
    assert absolute_paths({"task": named}, tmp_path)["task"] == named


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (f"{LOCK}:STORED", "Trajectories are what a function returns"),
        (f"{LOCK}:nothing", "There is no 'nothing'"),
        ("builtins:dict", "holds no trajectories"),
        ("platform:uname", "It must be a grouprl.records.offline.StoredEpisode, or a mapping"),
    ],
)
def test_what_is_no_function_of_trajectories_is_refused(function: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        of_the_lock(function)


@pytest.mark.parametrize("error", ["ValueError('no')", "KeyError('seed')", "SystemExit(3)"])
def test_what_a_function_of_trajectories_raises_is_said(error: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def found():\n    raise {error}\n")
    with pytest.raises(InputError, match=rf"mine\.py:found' failed: {error.split('(')[0]}"):
        of_the_lock(f"{tmp_path / 'mine.py'}:found")
