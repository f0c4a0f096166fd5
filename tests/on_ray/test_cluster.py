"""Runs on a real Ray of several logical nodes: the same bytes as without it, whatever is killed; `make ray`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import toy_envs
from placed_runs import closed_account, launch, restarts, run_config, same_run

os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # a crowded machine's memory is not what is tested
ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")

from ray.cluster_utils import Cluster  # noqa: E402

from grouprl import InputError, RunError  # noqa: E402
from grouprl.config.run import parse_config  # noqa: E402
from grouprl.orchestrator.on_ray.placement import RunPlacement  # noqa: E402
from grouprl.orchestrator.on_ray.ray_host import ObjectInStore  # noqa: E402
from grouprl.orchestrator.on_ray.weights import PublishedWeights, pack_tensors, unpack_tensors  # noqa: E402
from grouprl.orchestrator.resolve import resolve  # noqa: E402
from grouprl.plan.plan import plan  # noqa: E402
from grouprl.training.export import load_trained  # noqa: E402
from ray_nodes import STORE, three_nodes  # noqa: E402

ASK = f"{toy_envs.__file__}:AskTask"
ACTED = {"task": ASK, "reward": {}, "environment": {"workers": 1}}
STEPS = 5


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with three_nodes(cpus=4) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Runs without Ray, by name."""
    folders: dict[str, Path] = {}

    def run(name: str, **changes: object) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            launch(folder / "run", run_config(folder, {"samplers": 2}, **{"steps": STEPS, **changes}))
            folders[name] = folder / "run"
        return folders[name]

    return run


def there(folder: Path, nodes: Cluster, **changes: object) -> dict[str, object]:
    """The configuration of the same run, placed."""
    cluster = {"ray": nodes.address, "samplers": 2, "rewards": 2, "environments": 2, "start_timeout": 1200}
    return run_config(folder, cluster, **{"steps": STEPS, **changes})


@contextlib.contextmanager
def killing(kinds: tuple[str, ...], times: int, seen: list[tuple[str, int]]) -> Iterator[None]:
    """Meanwhile, SIGKILL workers of these kinds in turn as soon as the run has finished a further step."""
    stop, found = threading.Event(), []
    made = RunPlacement.__init__
    steps = []
    metrics = RunPlacement.metrics

    def noted(self, *args, **more):
        made(self, *args, **more)
        found.append(self)

    def counted(self):
        steps.append(1)
        return metrics(self)

    def kill() -> None:
        done = 0
        while not stop.is_set() and done < times:
            time.sleep(0.002)
            if not found or len(steps) <= done:
                continue
            kind = kinds[done % len(kinds)]
            pids = dict(found[-1].pools[kind].pids)
            if pids:
                number = sorted(pids)[done % len(pids)]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[number], signal.SIGKILL)
                    seen.append((kind, pids[number]))
                    done += 1

    RunPlacement.__init__, RunPlacement.metrics = noted, counted
    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        RunPlacement.__init__, RunPlacement.metrics = made, metrics


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.parametrize(("name", "changes"), [("rows", {}), ("acted", ACTED)])
def test_a_run_is_the_same_bytes_with_and_without_ray(here, nodes, tmp_path, name, changes):
    said = launch(tmp_path / "run", there(tmp_path, nodes, **changes))
    same_run(here(name, **changes), tmp_path / "run")
    closed_account(tmp_path / "run")
    assert restarts(tmp_path / "run") == {"workers_restarted": 0, "work_redone": 0}
    assert "3 nodes, 8 CPUs" in said


@pytest.mark.parametrize(
    ("name", "changes", "kinds"),
    [
        ("rows", {}, ("reward", "sampler")),
        ("acted", ACTED, ("environment", "sampler")),
    ],
)
def test_workers_are_killed_and_nothing_is_lost_or_used_twice(here, nodes, tmp_path, name, changes, kinds):
    killed: list[tuple[str, int]] = []
    with killing(kinds, STEPS - 2, killed):
        said = launch(tmp_path / "run", there(tmp_path, nodes, **changes))
    same_run(here(name, **changes), tmp_path / "run")
    closed_account(tmp_path / "run")
    counted = restarts(tmp_path / "run")
    assert counted["workers_restarted"] >= 1
    assert {kind for kind, _ in killed} == set(kinds)
    assert f"{kinds[0]} " in said
    assert "repeats its work" in said


def test_a_killed_driver_takes_its_workers_along_and_is_resumed(here, nodes, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(there(tmp_path, nodes)))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "grouprl", "train", str(tmp_path / "run.yaml"), "--folder", str(folder)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(folder.glob("checkpoints/*2")) and driver.poll() is None:
        time.sleep(0.01)
    workers = rooms()
    driver.kill()
    driver.wait()
    assert workers
    deadline = time.monotonic() + 120
    while not all(map(gone, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(gone, workers))
    again = subprocess.run(
        [sys.executable, "-m", "grouprl", "train", str(folder), "--resume"], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stdout + again.stderr
    same_run(here("rows"), folder)


def rooms() -> list[int]:
    """Processes of workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ray::WorkerRoom" in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_a_lost_node_is_replaced_by_another(here, nodes, tmp_path):
    extra = nodes.add_node(num_cpus=8, object_store_memory=STORE)
    nodes.wait_for_nodes()
    done = threading.Event()

    def remove() -> None:
        while not list((tmp_path / "run").glob("checkpoints/*2")):
            time.sleep(0.01)
        nodes.remove_node(extra, allow_graceful=False)
        done.set()

    thread = threading.Thread(target=remove, daemon=True)
    thread.start()
    launch(tmp_path / "run", there(tmp_path, nodes))
    thread.join()
    assert done.is_set()
    same_run(here("rows"), tmp_path / "run")
    closed_account(tmp_path / "run")


def test_an_asynchronous_run_places_its_sampling(nodes, tmp_path):
    settings = {"threads": 1, "checkpoint_every": 1, "async_steps": 1}
    said = launch(tmp_path / "run", there(tmp_path, nodes, run=settings, method="decoupled_ppo"))
    closed_account(tmp_path / "run")
    assert restarts(tmp_path / "run") == {"workers_restarted": 0, "work_redone": 0}
    assert "Placed there" in said


def test_workers_of_a_kind_are_spread_over_the_nodes_and_read_weights_without_copies(nodes, tmp_path):
    run = resolve(parse_config(there(tmp_path, nodes, **ACTED)))
    placement = RunPlacement(run, "cpu")
    try:
        placement.start()
        for pool in placement.pools.values():
            while len(pool.pids) < pool.count:
                pool.wait(0.1)
        homes = {kind: {node_of(nodes, pid) for pid in pool.pids.values()} for kind, pool in placement.pools.items()}
        assert {kind: len(ids) for kind, ids in homes.items()} == {"sampler": 2, "environment": 2}
        state = {"w": torch.arange(400_000, dtype=torch.float32)}
        shared = placement.host.share(pack_tensors(state))
        assert isinstance(shared, ObjectInStore)
        views = [shared.get()["w"][2] for _ in range(2)]
        assert views[0].ctypes.data == views[1].ctypes.data  # both are the store's own memory
        assert not views[0].flags.owndata
        assert not views[0].flags.writeable
        tensor = unpack_tensors(shared.get())["w"]
        assert tensor.equal(state["w"])
        assert tensor.data_ptr() == views[0].ctypes.data
        assert PublishedWeights(1, 0, 0, shared).packed is shared
    finally:
        placement.close()


def node_of(nodes: Cluster, pid: int) -> int:
    """The raylet that a worker belongs to: its process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_no_room_is_said_before_the_run_and_while_others_use_it(nodes, tmp_path):
    config = there(tmp_path, nodes)
    config["cluster"] |= {"samplers": 9}
    (why, more) = plan(parse_config(config)).refusals
    assert "9 × 1 CPU (sampler) are wanted, and the nodes have room for 8" in why
    assert "workers want 11 CPUs in all, and there are 8" in more
    config["cluster"] |= {"samplers": 2, "gpus": 1}
    assert any("1 CPU, 1 GPU (sampler) are wanted" in said for said in plan(parse_config(config)).refusals)
    config["cluster"] |= {"samplers": 6, "rewards": 2, "gpus": 0, "start_timeout": 2}
    first = RunPlacement(resolve(parse_config(config)), "cpu")
    try:
        taken = any("are free now, and the workers want 8" in note for note in plan(parse_config(config)).notes)
        assert taken
        program = (
            "import sys; from grouprl.config.run import load_config; from grouprl.orchestrator.resolve import resolve\n"
            "from grouprl.orchestrator.on_ray.placement import RunPlacement\n"
            "RunPlacement(resolve(load_config(sys.argv[1])), 'cpu')"
        )
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        second = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "run.yaml")], capture_output=True, text=True
        )
        assert "found no room for" in second.stderr
        assert "within cluster.start_timeout = 2 s" in second.stderr
    finally:
        first.close()


def test_no_ray_and_wrong_addresses_are_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (why,) = plan(parse_config(run_config(tmp_path, {"ray": "127.0.0.1:1"}))).refusals
    assert "nothing answers there" in why
    assert "ray start --head" in why
    with pytest.raises(InputError, match=r"cluster\.ray"):
        launch(tmp_path / "run", run_config(tmp_path, {"ray": "127.0.0.1:1"}))
    assert not (tmp_path / "run").exists()


def test_what_kills_every_worker_ends_the_run_in_words(nodes, tmp_path):
    path = tmp_path / "deadly.py"
    path.write_text(
        "import os, signal\ndef deadly(completion, **_):\n    os.kill(os.getpid(), signal.SIGKILL)\n    return 1.0\n"
    )
    config = there(tmp_path, nodes, reward={"function": f"{path}:deadly", "workers": 0, "self_test": False})
    with pytest.raises(RunError, match=r"reward \d of the cluster was lost 4 times in a row"):
        launch(tmp_path / "run", config)


def test_hanging_calls_of_a_reward_end_in_the_workers_own_processes(nodes, tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(
        "import time\ndef slow(completion, **_):\n"
        "    if '7' in completion:\n        time.sleep(600)\n    return float(len(completion) % 2)\n"
    )
    reward = {"function": f"{path}:slow", "workers": 1, "timeout": 1.0, "self_test": False, "on_error": "zero"}
    launch(tmp_path / "run", there(tmp_path, nodes, reward=reward | {"max_failed_fraction": 1.0}, steps=1))
    assert restarts(tmp_path / "run")["workers_restarted"] == 0
    assert load_trained(tmp_path / "run")
