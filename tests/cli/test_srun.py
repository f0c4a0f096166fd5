"""Slurm, by a stand-in of srun: its tasks are ranks by themselves, or start torchrun on each node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rank_runs
import srun_stub
from grouprl.processes.slurm import first_host, variables_of_task
from ranks import free_port

PYTHON = sys.executable


def srun(nodes: int, per_node: int, *command: str, **more: str) -> tuple[int, str]:
    """Run a command as the tasks of a step; return the exit code and all that was said."""
    line = [PYTHON, srun_stub.__file__, f"--nodes={nodes}", f"--ntasks-per-node={per_node}", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **more}
    found = subprocess.run(line, env=environment, text=True, capture_output=True, timeout=500)
    return found.returncode, found.stdout + found.stderr


def test_tasks_of_srun_are_ranks_and_torchruns_on_each_node_find_each_other(tmp_path: Path) -> None:
    config = rank_runs.write_config(tmp_path, steps=2)
    rank_runs.train_on(2, config, tmp_path / "whole", "-q")
    run, port = tmp_path / "tasks", str(free_port())
    launched = ["-m", "grouprl", "launch", "train", str(config), "--folder", str(run), "-q"]
    code, said = srun(1, 2, PYTHON, *launched, MASTER_PORT=port)
    assert code == 0, said
    assert rank_runs.evidence(run) == rank_runs.evidence(tmp_path / "whole"), "byte for byte"
    run = tmp_path / "nodes"
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "4711"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}"]
    torchrun += ["--log-dir", str(tmp_path / "said"), "-m", "grouprl", "train", str(config), "--folder", str(run), "-q"]
    code, said = srun(2, 1, PYTHON, *torchrun)
    assert code == 0, said
    assert rank_runs.evidence(run) == rank_runs.evidence(tmp_path / "whole"), "byte for byte"


@pytest.mark.parametrize("variables", [{}, srun_stub.BATCH])
def test_without_srun_a_number_of_processes_is_asked_for(tmp_path: Path, variables: dict[str, str]) -> None:
    line = [PYTHON, "-m", "grouprl", "launch", "train", "addition"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    found = subprocess.run(line, env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert found.returncode == 2
    assert "srun grouprl launch train" in found.stderr


def test_a_task_is_told_its_place() -> None:
    third = srun_stub.step(2, 2)[2] | {"SLURM_STEP_NODELIST": "gpu[07-08]"}
    found = variables_of_task(third)
    assert found is not None
    port = found.pop("MASTER_PORT")
    assert found == {
        "MASTER_ADDR": "gpu07",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }
    again = variables_of_task(third | {"SLURM_STEP_ID": "1"})
    assert again is not None
    assert 20000 <= int(port) < 30000
    assert again["MASTER_PORT"] != port, "two steps of a job do not meet each other"
    named = variables_of_task(third | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert named is not None
    assert (named["MASTER_ADDR"], named["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert variables_of_task(srun_stub.BATCH) is None, "a batch script is no task"


def test_nodes_of_different_numbers_of_tasks_and_a_gpu_that_a_task_sees_alone() -> None:
    last = srun_stub.step(1, 3)[2] | {"SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}
    found, alone = variables_of_task(last), variables_of_task(last | {"CUDA_VISIBLE_DEVICES": "2"})
    every = variables_of_task(last | {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert found is not None
    assert (found["LOCAL_WORLD_SIZE"], found["LOCAL_RANK"]) == ("3", "2")
    assert alone is not None
    assert alone["LOCAL_RANK"] == "0"
    assert every is not None
    assert every["LOCAL_RANK"] == "2"


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("node7", "node7"),
        ("gpu[003-005,9],login", "gpu003"),
        ("a,b", "a"),
        ("r[1-2]n[04,6]", "r1n04"),
        ("x[5]-ib", "x5-ib"),
    ],
)
def test_the_first_host_of_a_list(listed: str, first: str) -> None:
    assert first_host(listed) == first
