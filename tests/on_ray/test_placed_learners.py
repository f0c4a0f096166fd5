"""Learners as actors of a real Ray: killed, cut off, taken along by their driver, and always the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import toy_envs
from learner_runs import (
    command,
    kill,
    kill_head,
    learners,
    own_ray,
    parent,
    ranks,
    same_results,
    slow_config,
    started,
    steps_done,
    until,
)
from placed_runs import closed_account

os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # a crowded machine's memory is not what is tested
pytest.importorskip("ray", reason="Ray is not installed: make ray")

from ray.cluster_utils import Cluster

from ray_nodes import STORE, three_nodes

ACTED = {
    "task": f"{toy_envs.__file__}:AskTask",
    "reward": {},
    "environment": {"workers": 1},
    "batch": {"prompts": 4, "group_size": 4},
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with three_nodes(cpus=6) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The run without Ray on this many learners."""
    folders: dict[tuple[int, bool], Path] = {}

    def run(learners: int, acted: bool = False) -> Path:
        if (learners, acted) not in folders:
            folder = tmp_path_factory.mktemp(f"here-{learners}-{acted}")
            config = slow_config(folder, {"learners": learners, "samplers": 2}, **(ACTED if acted else {}))
            assert started(folder, config).wait() == 0, (folder / "said").read_text()
            folders[learners, acted] = folder / "run"
        return folders[learners, acted]

    return run


def there(folder: Path, address: str, learners: int, samplers: int = 0, **changes: object) -> dict[str, object]:
    """The configuration of the same run, placed: two learners have two shares, whoever completes them."""
    workers = {"learners": learners, "samplers": samplers, "rewards": 1, "environments": 1}
    return slow_config(folder, {"ray": address, **workers, "start_timeout": 600}, **changes)


def finished(driver: subprocess.Popen[str], folder: Path) -> str:
    """Wait for the end of a run that ends well; return what it said."""
    assert driver.wait(600) == 0, (folder / "said").read_text()
    return (folder / "said").read_text()


def test_learners_are_killed_one_after_the_other(here, nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 2, samplers=2))
    until(driver, lambda: steps_done(tmp_path) >= 1 and len(ranks(tmp_path)) == 2)
    kill(ranks(tmp_path)[1])
    until(driver, lambda: steps_done(tmp_path) >= 3 and len(ranks(tmp_path)) == 2)
    kill(parent(ranks(tmp_path)[0]))
    said = finished(driver, tmp_path)
    assert "learner 1 was lost (it was ended by signal 9)" in said
    assert "learner 0 was lost" in said
    assert said.count("the learners start again from the newest checkpoint") == 2
    same_results(here(2), tmp_path / "run")
    closed_account(tmp_path / "run")
    assert not learners(tmp_path)


def test_a_single_learner_in_an_actor_has_workers_of_all_kinds(here, nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 1, samplers=2, **ACTED))
    until(driver, lambda: steps_done(tmp_path) >= 2)
    kill(ranks(tmp_path)[0])
    said = finished(driver, tmp_path)
    assert "learner 0 was lost (it was ended by signal 9)" in said
    assert "1 learner, which trains" in said
    same_results(here(1, acted=True), tmp_path / "run")
    closed_account(tmp_path / "run")


def test_a_node_is_lost_with_its_learner(here, nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 2))
    until(driver, lambda: steps_done(tmp_path) >= 2 and len(ranks(tmp_path)) == 2)
    raylet = parent(parent(ranks(tmp_path)[1]))
    (lost,) = [node for node in nodes.list_all_nodes() if raylet_of(node) == raylet]
    nodes.remove_node(lost, allow_graceful=False)
    nodes.add_node(num_cpus=6, object_store_memory=STORE)
    said = finished(driver, tmp_path)
    assert "learner 1 was lost" in said
    assert "from the newest checkpoint" in said
    same_results(here(2), tmp_path / "run")
    closed_account(tmp_path / "run")


def raylet_of(node: object) -> int:
    """The process of a logical node."""
    (each,) = node.all_processes["raylet"]
    return each.process.pid


def test_a_killed_driver_takes_its_learners_along_and_is_resumed(here, nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 2, samplers=1))
    until(driver, lambda: steps_done(tmp_path) >= 2)
    driver.kill()
    driver.wait()
    end = time.monotonic() + 120
    while learners(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert not learners(tmp_path)
    again = subprocess.run(command("train", tmp_path / "run", "--resume"), capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    same_results(here(2), tmp_path / "run")


def test_ctrl_c_ends_the_run_after_its_step_and_it_goes_on_without_ray(here, nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 2))
    until(driver, lambda: steps_done(tmp_path) >= 2)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 130
    assert "Stopping after this step" in (tmp_path / "said").read_text()
    assert steps_done(tmp_path) < 8
    assert not learners(tmp_path)
    off = ["--set", "cluster.ray=off"]
    again = subprocess.run(command("train", tmp_path / "run", "--resume", *off), capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    same_results(here(2), tmp_path / "run")


def test_without_its_head_the_run_ends_in_words_and_is_resumed_on_another_ray(here, tmp_path):
    port = 7311
    with own_ray(port) as address:
        driver = started(tmp_path, there(tmp_path, address, 2, samplers=1))
        until(driver, lambda: steps_done(tmp_path) >= 2)
        kill_head(address)
        assert driver.wait(120) == 3, (tmp_path / "said").read_text()
        assert f":{port} is gone: it has not answered for 20 s" in (tmp_path / "said").read_text()
        end = time.monotonic() + 60
        while learners(tmp_path) and time.monotonic() < end:
            time.sleep(0.1)
        assert not learners(tmp_path)
    with own_ray(port + 1) as address:
        more = ["--resume", "--set", f"cluster.ray={address}"]
        again = subprocess.run(command("train", tmp_path / "run", *more), capture_output=True, text=True)
    assert again.returncode == 0, again.stdout + again.stderr
    same_results(here(2), tmp_path / "run")
    closed_account(tmp_path / "run")


def test_there_is_no_room_for_so_many_learners(nodes, tmp_path):
    driver = started(tmp_path, there(tmp_path, nodes.address, 13))
    assert driver.wait(120) == 2
    assert "13 × 1 CPU (learner) are wanted, and the nodes have room for 12" in (tmp_path / "said").read_text()
    assert not (tmp_path / "run").exists()
