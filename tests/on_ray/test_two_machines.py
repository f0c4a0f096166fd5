"""Runs over two machines: network namespaces of this one, with addresses and shared memory of their own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import yaml

from learner_runs import command, learners, ranks, same_results, slow_config, started, steps_done
from placed_runs import closed_account
from two_machines import Machine, available, plug, start_ray, two_machines

os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
pytest.importorskip("ray", reason="Ray is not installed: make ray")
pytestmark = pytest.mark.skipif(not available(), reason="network namespaces need the rights of root")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The run on two learners of one machine without Ray, with this many samplers."""
    folders: dict[int, Path] = {}

    def run(samplers: int) -> Path:
        if samplers not in folders:
            folder = tmp_path_factory.mktemp(f"here-{samplers}")
            config = slow_config(folder, {"learners": 2, "samplers": samplers})
            assert started(folder, config).wait() == 0, (folder / "said").read_text()
            folders[samplers] = folder / "run"
        return folders[samplers]

    return run


def wait(process, found, seconds=300.0):
    """Wait until something is so; the process must live as long."""
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.returncode
        assert time.monotonic() < end
        time.sleep(0.02)


def homes(folder: Path) -> set[str]:
    """The networks in which the run's learners live."""
    return {os.readlink(f"/proc/{pid}/ns/net") for pid in ranks(folder).values()}


def begin(machine: Machine, folder: Path, config: dict[str, object], *more: str):
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    arguments = ["train", str(folder / "run.yaml"), "--folder", str(folder / "run"), *more]
    return machine.start(command(*arguments), folder / "said")


def test_learners_and_samplers_on_two_machines_and_the_cable_between_them(here, tmp_path):
    with two_machines() as (one, two):
        for machine in (one, two):
            start_ray(machine, one, cpus=6)
        cluster = {"ray": f"{one.address}:6379", "learners": 2, "samplers": 2, "rewards": 2, "start_timeout": 600}
        driver = begin(one, tmp_path, slow_config(tmp_path, cluster))
        wait(driver, lambda: steps_done(tmp_path) >= 1 and len(ranks(tmp_path)) == 2)
        assert len(homes(tmp_path)) == 2
        before = ranks(tmp_path)
        plug(two, "down")  # for a moment: what is under way arrives later
        time.sleep(3)
        plug(two, "up")
        wait(driver, lambda: steps_done(tmp_path) >= 3)
        assert ranks(tmp_path) == before
        plug(two, "down")  # for good: the run goes on without that machine
        assert driver.wait(400) == 0, (tmp_path / "said").read_text()
        said = (tmp_path / "said").read_text()
        assert "was lost" in said
        assert "the learners start again from the newest checkpoint" in said
        assert not learners(tmp_path)
    same_results(here(2), tmp_path / "run")
    closed_account(tmp_path / "run")


@pytest.mark.parametrize("driver_at", [0, 1])
def test_all_work_on_another_machine_than_the_head(here, tmp_path, driver_at):
    with two_machines() as (one, two):
        start_ray(one, one, cpus=0)
        start_ray(two, one, cpus=6)
        cluster = {"ray": f"{one.address}:6379", "learners": 2, "samplers": 1, "rewards": 1, "start_timeout": 600}
        driver = begin((one, two)[driver_at], tmp_path, slow_config(tmp_path, cluster))
        assert driver.wait(300) == 0, (tmp_path / "said").read_text()
    same_results(here(1), tmp_path / "run")


def by_torchrun(machines: tuple[Machine, Machine], folder: Path, arguments: list[str]):
    """Begin one rank on each machine; both share the run folder."""
    found = []
    for rank, machine in enumerate(machines):
        where = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank)]
        master = ["--master-addr", machines[0].address, "--master-port", "29511"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *where, *master]
        found.append(machine.start([*torchrun, "-m", "grouprl", *arguments], folder / f"said-{rank}"))
    return found


def test_torchrun_over_two_machines(here, tmp_path):
    config = slow_config(tmp_path, {"samplers": 1})
    config["run"] |= {"rank_timeout": 15.0}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    arguments = ["train", str(tmp_path / "run.yaml"), "--folder", str(tmp_path / "run")]
    with two_machines() as machines:
        both = by_torchrun(machines, tmp_path, arguments)
        wait(both[0], lambda: steps_done(tmp_path) >= 3)
        plug(machines[1], "down")
        assert [process.wait(300) for process in both] == [1, 1]
        said = (tmp_path / "said-0").read_text()
        assert "rank 1 of 2 is" in said
        assert "continue with --resume" in said
        plug(machines[1], "up")
        again = by_torchrun(machines, tmp_path, ["train", str(tmp_path / "run"), "--resume"])
        assert [process.wait(300) for process in again] == [0, 0], (tmp_path / "said-0").read_text()
    same_results(here(1), tmp_path / "run")
    closed_account(tmp_path / "run")
