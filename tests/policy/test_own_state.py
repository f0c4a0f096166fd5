"""Training and evaluating from Python neither follow nor change the state of the process."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import torch
from rich.console import Console

import grouprl
from grouprl.core.errors import InputError
from grouprl.policy.own_state import own_state

SETTINGS = {
    "task": {"name": "reverse", "length": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
    "method": "ppo",  # with a critic
    "steps": 2,
    "batch": {"prompts": 2, "group_size": 4},
    "eval": {"every": 0, "final_prompts": 4},
    "run": {"threads": 1},
}
TOLD = ("reward_mean", "entropy", "loss", "grad_norm")


def numbers(folder: Path) -> list[list[float]]:
    """Train, and return what each step came to, and the greedy reward of an evaluation afterwards."""
    run = grouprl.train(SETTINGS, folder=folder, console=Console(quiet=True))
    steps = run._run.read_metrics()
    found = [[step[name] for name in TOLD] for step in steps if step["phase"] == "train"]
    return [*found, [grouprl.evaluate(folder, prompts=8).reward]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    return numbers(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("kind", ["dtype", "no_grad", "inference", "autocast", "device"])
def test_settings_of_torch_do_not_reach_a_run(kind: str, plain: list[list[float]], tmp_path: Path) -> None:
    blocks = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    try:
        if kind == "dtype":
            torch.set_default_dtype(torch.float64)
        if kind == "device":
            torch.set_default_device("meta")
        with blocks.get(kind, torch.enable_grad)():
            assert numbers(tmp_path / "run") == plain
        assert torch.get_default_dtype() == (torch.float64 if kind == "dtype" else torch.float32)
        assert torch.get_default_device() == torch.device("meta" if kind == "device" else "cpu")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_random_numbers_and_bars_of_the_caller_stay(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        torch.manual_seed(5)
        before = torch.get_rng_state(), random.getstate()
        numbers(tmp_path / "run")
        with own_state("code of the user's that draws"):
            random.random(), torch.rand(1)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert logging.is_progress_bar_enabled()
    finally:
        if not shown:
            logging.disable_progress_bar()
    told = capfd.readouterr()
    assert told.out == ""
    assert "shards" not in told.err


def test_a_second_thread_is_refused_and_the_same_thread_is_not(tmp_path: Path) -> None:
    refused: list[InputError] = []

    def other() -> None:
        try:
            grouprl.evaluate(tmp_path)
        except InputError as error:
            refused.append(error)

    with own_state("first"), own_state("second"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "grouprl.evaluate in a second thread" in str(refused[0])
    with own_state("third"):
        pass
