"""Whole runs whose work is placed, on a host in this process: the same bytes as without it, whatever is lost."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import toy_envs
from grouprl import InputError
from grouprl.config.run import parse_config
from grouprl.orchestrator.on_ray import placement
from grouprl.orchestrator.on_ray.cluster_info import ClusterFacts
from grouprl.plan import placing
from grouprl.plan.plan import plan
from grouprl.processes.parcel import CannotSend
from grouprl.training.loop import train
from placed_runs import HostHere, at_random, closed_account, launch, restarts, run_config, same_run

ASK = f"{toy_envs.__file__}:AskTask"
TWO = ClusterFacts(
    "10.0.0.5:6379", "2.60.0", ({"CPU": 4.0, "GPU": 0.0}, {"CPU": 4.0, "GPU": 2.0}), {"CPU": 8, "GPU": 2}
)
HERE, THERE = {"samplers": 2}, {"ray": "auto", "samplers": 2, "rewards": 2, "environments": 2, "restarts": 1000}
ACTED = {"task": ASK, "batch": {"prompts": 4, "group_size": 4}, "reward": {}}


@pytest.fixture
def cluster(monkeypatch):
    """Lets runs that name a cluster find hosts of this process, which lose workers as the second list says."""
    hosts: list[HostHere] = []
    losses: list[object] = [None]

    def make(settings, counts, hello):
        hosts.append(HostHere(hello, losses[0]))
        return hosts[-1]

    monkeypatch.setattr(placement, "RayHost", make)
    monkeypatch.setattr(placing, "look", lambda address: TWO)
    return hosts, losses


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Runs without a cluster, by name."""
    folders: dict[str, Path] = {}

    def run(name: str, **changes: object) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            launch(folder / "run", run_config(folder, HERE, **changes))
            folders[name] = folder / "run"
        return folders[name]

    return run


@pytest.mark.parametrize(("name", "changes"), [("rows", {}), ("acted", ACTED)])
@pytest.mark.parametrize("seed", [None, 0])
def test_a_run_is_the_same_bytes_placed_and_not(here, cluster, tmp_path, name, changes, seed):
    hosts, losses = cluster
    losses[0] = None if seed is None else at_random(seed, 0.15)
    whole = here(name, **changes)
    (tmp_path / "score.py").write_text((whole.parent / "score.py").read_text())
    said = launch(tmp_path / "run", run_config(tmp_path, THERE, **changes))
    same_run(whole, tmp_path / "run")
    closed_account(tmp_path / "run")
    kinds = {kind for kind, *_ in hosts[0].performed}
    assert kinds == ({"sampler", "reward"} if name == "rows" else {"sampler", "environment"})
    counted = restarts(tmp_path / "run")
    if seed is None:
        assert counted == {"workers_restarted": 0, "work_redone": 0}
        assert "were lost" not in said
    else:
        assert counted["workers_restarted"] > 0
        assert counted["work_redone"] > 0
        assert "a replacement starts and repeats its work" in said


def test_a_resumed_run_may_leave_its_cluster(here, cluster, tmp_path):
    whole = here("rows")
    config = run_config(tmp_path, THERE)
    launch(tmp_path / "run", config | {"steps": 3})
    newest = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: path.name)
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    console = Console(file=io.StringIO(), width=200)
    train(parse_config(config), folder=tmp_path / "run", resume=True, console=console, changes=["cluster.ray=off"])
    same_run(whole, tmp_path / "run")


def test_the_account_says_what_was_lost(cluster, tmp_path):
    from grouprl.orchestrator.account_words import in_words, totals

    found = totals([{"phase": "train", "workers_restarted": 2.0, "work_redone": 3.0, "prompts_sampled": 1.0}])
    whole = {"rows_sampled": 1, "rows_stored": 0, "rows_used": 1, "prompts_trained": 1, **found}
    assert in_words(whole).endswith("2 workers of the cluster were lost and replaced, and 3 pieces of their work were "
                                    "done again.")  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- plans


def planned(tmp_path, cluster, **changes):
    return plan(parse_config(run_config(tmp_path, cluster, **changes)))


def test_a_plan_says_what_is_placed_where(cluster, tmp_path):
    found = planned(tmp_path, THERE)
    assert not found.refusals
    (note,) = [note for note in found.notes if "Ray 2.60.0" in note]
    assert "at 10.0.0.5:6379: 2 nodes, 8 CPUs, 2 GPUs. Placed there, spread over the nodes: 2 samplers" in note
    assert "2 reward workers: 1 CPU each" in note
    assert "environment" not in note
    assert "The learner stays in the process that is started" in note
    assert not [idle for idle in found.idle if "cluster" in idle]


REFUSED = [
    ({"ray": "auto", "samplers": 9, "rewards": 0}, {}, "9 × 1 CPU (sampler) are wanted, and the nodes have room for 8"),
    ({"ray": "auto", "samplers": 3, "gpus": 1.0}, {}, "3 × 1 CPU, 1 GPU (sampler) are wanted, and the nodes have room"),
    ({"ray": "auto", "samplers": 5, "rewards": 5}, {}, "workers want 10 CPUs in all, and there are 8"),
    ({"ray": "auto", "cpus": 5.0}, {}, "1 × 5 CPU (sampler) are wanted, and the nodes have room for 0"),
    ({"ray": "auto", "samplers": 0, "rewards": 0}, {}, "nothing of this run is placed on it"),
    ({"ray": "auto"}, {"run": {"async_steps": 1, "samplers": 2}}, "run.samplers is 2, and each would place workers"),
    ({"ray": "auto"}, {"model": {"name": "tiny", "device": "cuda"}}, "samplers reserve no GPU: set cluster.gpus"),
    ({"ray": "auto", "learners": 1}, {"model": {"name": "tiny", "device": "cuda"}}, "learners reserve no GPU: set"),
    ({"ray": "auto", "learners": 9}, {}, "9 × 1 CPU (learner) are wanted, and the nodes have room for 8"),
    ({"ray": "auto", "learners": 6, "samplers": 2}, {}, "workers want 9 CPUs in all, and there are 8"),
]


@pytest.mark.parametrize(("settings", "changes", "why"), REFUSED)
def test_what_a_cluster_cannot_do_is_refused_in_words(cluster, tmp_path, settings, changes, why):
    if changes.get("model", {}).get("device") == "cuda":
        from grouprl.orchestrator.resolve import resolve

        config = parse_config(run_config(tmp_path, settings, **changes))
        assert any(why in said for said in placing.placing_plan(resolve(config)).refusals)
        return
    assert any(why in said for said in planned(tmp_path, settings, **changes).refusals)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (THERE | {"learners": 2}, "grouprl train places the learners itself"),
        ({"learners": 3}, "cluster.learners is 3 under grouprl launch or torchrun, which started 2. Set it to 2 or 0"),
        ({"learners": 2}, ""),
        (THERE, ""),
    ],
)
def test_a_launcher_and_learners_of_a_cluster_exclude_each_other(cluster, tmp_path, monkeypatch, settings, why):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = [each for each in planned(tmp_path, settings).refusals if "cluster" in each]
    assert [why in each for each in said] == [True] * bool(why)


def test_a_placed_learner_plans_without_counting_itself_twice(cluster, tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "GROUPRL_LEARNER": "10.0.0.5:6379"}.items():
        monkeypatch.setenv(name, value)
    found = planned(tmp_path, THERE | {"learners": 4})
    assert not found.refusals
    assert not [note for note in found.notes if "are free now" in note]


def test_a_plan_says_where_learners_are(cluster, tmp_path):
    found = planned(tmp_path, THERE | {"learners": 2, "learner_gpus": 1.0})
    assert not found.refusals
    (note,) = [note for note in found.notes if "Ray 2.60.0" in note]
    assert "spread over the nodes: 2 learners, which share the model and train: 1 CPU, 1 GPU each; 2 sampler" in note
    assert "The process that is started watches them" in note
    assert not planned(tmp_path, {"ray": "auto", "learners": 1, "samplers": 0, "rewards": 0}).refusals


def test_a_plan_says_what_learners_cannot_do_and_that_they_are_processes_here_without_ray(cluster, tmp_path):
    found = planned(tmp_path, {"learners": 2})
    assert "cluster.learners: 2 processes of this machine share the model, as grouprl launch -n 2 starts them" in (
        found.notes
    )
    for settings in ({"learners": 2}, THERE | {"learners": 2}):
        assert any("optim.name = muon" in said for said in planned(tmp_path, settings, optim={"name": "muon"}).refusals)
    assert not planned(tmp_path, {"learners": 1}, optim={"name": "muon"}).refusals


def test_a_process_that_trains_by_itself_is_none_of_the_learners(cluster, tmp_path):
    for settings in (THERE | {"learners": 1}, {"learners": 2}):
        with pytest.raises(InputError, match="Learners are started by the command line"):
            launch(tmp_path / "run", run_config(tmp_path, settings))
        assert not (tmp_path / "run").exists()
    launch(tmp_path / "run", run_config(tmp_path, {"learners": 1}))


def test_policies_over_vectors_are_not_copied_to_samplers(cluster, tmp_path):
    changes = {"task": "control:CartPole-v1", "model": {"name": "mlp"}, "reward": {}}
    pytest.importorskip("gymnasium")
    found = planned(tmp_path, {"ray": "auto"}, **changes)
    assert any("Set cluster.samplers to 0; environments and rewards can be placed" in said for said in found.refusals)
    assert not planned(tmp_path, {"ray": "auto", "samplers": 0}, **changes).refusals


def test_a_reward_that_cannot_be_sent_is_refused(cluster, tmp_path, monkeypatch):
    def cannot(reward, settings):
        raise CannotSend("The reward 'r' uses 'r' of the main script", "a worker cannot import it")

    monkeypatch.setattr(placing, "reward_hello", cannot)
    assert any("of the main script" in said for said in planned(tmp_path, {"ray": "auto"}).refusals)


def test_settings_of_a_cluster_that_is_not_named_are_idle(tmp_path):
    found = planned(tmp_path, {"gpus": 1.0, "samplers": 2, "learners": 2, "learner_cpus": 2.0})
    assert "cluster.gpus has no effect: cluster.ray is off" in found.idle
    assert "cluster.learner_cpus has no effect: cluster.ray is off" in found.idle
    assert not [said for said in found.idle if "samplers" in said]


@pytest.mark.parametrize("address", ["ray://10.0.0.5:10001", "10.0.0.5", "on", "http://10.0.0.5:6379", "a b:1"])
def test_addresses_that_are_none_are_refused(tmp_path, address):
    with pytest.raises(InputError, match=r"cluster\.ray"):
        parse_config(run_config(tmp_path, {"ray": address}))


@pytest.mark.parametrize("value", ["off", False, "auto", "10.0.0.5:6379", "head.cluster.local:6379", "[::1]:6379"])
def test_addresses_that_are_some_are_taken(tmp_path, value):
    assert parse_config(run_config(tmp_path, {"ray": value})).cluster.ray == (value or "off")


def test_without_ray_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = planned(tmp_path, {"ray": "auto"})
    assert any("pip install 'grouprl[ray]'" in said for said in found.refusals)


def test_an_address_where_nobody_answers_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("grouprl.orchestrator.on_ray.cluster_info.util.find_spec", lambda name: object())
    found = planned(tmp_path, {"ray": "127.0.0.1:1"})
    assert any("Nothing answers there" in said and "ray start --head" in said for said in found.refusals)
