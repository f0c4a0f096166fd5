"""A comparison whose runs are made on a real Ray of several logical nodes: the result of one machine; `make ray`."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # a crowded machine's memory is not what is tested
ray = pytest.importorskip("ray", reason="Ray is not installed: make ray")

from ray.cluster_utils import Cluster  # noqa: E402

from grouprl import InputError, compare  # noqa: E402
from grouprl.experiments.on_ray import on_ray  # noqa: E402
from grouprl.experiments.trial_main import RUN  # noqa: E402
from ray_nodes import three_nodes  # noqa: E402

SMALL = ("batch.prompts=2", "batch.group_size=2", "eval.prompts=4", "eval.final_prompts=4", "warmup.steps=2")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with three_nodes(cpus=2) as cluster:
        yield cluster


def made(folder: Path, steps: int = 3, **where: str) -> dict[str, object]:
    """The result of a small comparison without what depends on the clock."""
    compare(
        "addition",
        ["grpo", "dr_grpo"],
        changes=(*SMALL, f"steps={steps}", "run.checkpoint_every=1"),
        seeds=2,
        budget="steps",
        tune=False,
        folder=folder,
        console=Console(file=io.StringIO()),
        **where,
    )
    return without_clocks(json.loads((folder / "comparison.json").read_text(encoding="utf-8")))


def without_clocks(data):
    if isinstance(data, dict):
        return {key: without_clocks(value) for key, value in data.items() if "seconds" not in key}
    return [without_clocks(each) for each in data] if isinstance(data, list) else data


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, object]:
    return made(tmp_path_factory.mktemp("here"))


def test_the_result_is_that_of_one_machine(nodes: Cluster, expected, tmp_path: Path) -> None:
    assert made(tmp_path, ray=nodes.address) == expected
    assert not ray.is_initialized()


def test_a_run_whose_worker_is_killed_continues_elsewhere(nodes: Cluster, tmp_path: Path) -> None:
    killed: list[int] = []
    thread = threading.Thread(target=kill_a_room, args=(tmp_path / "ray", killed))
    thread.start()
    found = made(tmp_path / "ray", steps=12, ray=nodes.address)
    thread.join()
    assert killed
    assert found == made(tmp_path / "here", steps=12)


def kill_a_room(folder: Path, killed: list[int]) -> None:
    """Kill the actor of a run that has begun and not ended: the parent of the process that holds its folder."""
    until = time.monotonic() + 240
    while not killed and time.monotonic() < until:
        time.sleep(0.05)
        for process, command in processes():
            run = Path(command[-1]) / RUN
            if command[-1].startswith(str(folder)) and checkpoints(run) and not (run / "summary.json").is_file():
                killed.append(parent(process))
                os.kill(killed[0], 9)
                return


def checkpoints(run: Path) -> int:
    return sum(1 for _ in run.glob("checkpoints/*"))


def processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        if len(words) > 2 and "trial_main" in " ".join(words):
            yield int(path.parent.name), words


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])


def test_a_machine_without_the_folder_says_what_is_missing(nodes: Cluster) -> None:
    with on_ray(nodes.address) as cluster:
        process = cluster.start(Path("/nowhere/at all"))
        assert process.wait(120.0) == 1
        assert "has no /nowhere/at all" in process.last_output(2000)
        assert "in a folder that all its machines share" in process.last_output(2000)
        process.end()


def test_as_many_runs_as_the_cluster_has_processors(nodes: Cluster) -> None:
    with on_ray(nodes.address) as cluster:
        assert cluster.room == 4


def test_an_address_without_a_cluster_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--ray = 127\.0\.0\.1:1.*Nothing answers there"):
        made(tmp_path, ray="127.0.0.1:1")


def test_a_comparison_that_cannot_be_is_refused_and_the_cluster_is_left(nodes: Cluster, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        compare("addition", ["no_such_method"], ray=nodes.address, folder=tmp_path)
    assert not ray.is_initialized()
