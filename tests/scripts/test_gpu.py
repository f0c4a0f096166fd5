"""What `make gpu` does, with the CPU in the place of the GPU: the checks are functions of a device."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import typer

import gpu
import gpu_checks
from gpu_checks import PATHS, Finding
from grouprl.config.sections import Vllm
from grouprl.rollout.vllm.engine import VllmEngine
from vllm_brain import Brain
from vllm_stand_in import StandIn, standing_in

CPU = "cpu"


def test_every_path_of_the_cpu_is_its_own_and_near_in_bfloat16() -> None:
    found = list(gpu_checks.parity(CPU))
    assert all(finding.passed for finding in found)
    assert {f"{name}, {dtype}: gradient" for name in PATHS for dtype in ("float32", "bfloat16")} <= {
        finding.what for finding in found
    }
    rounded = [finding.apart for finding in found if "bfloat16" in finding.what or "mixed" in finding.what]
    assert min(x for x in rounded if x is not None) > 0  # nothing is compared with itself


def free_memory(server: StandIn, asleep: int) -> int:
    return asleep if server.lacks else 20


def test_a_server_that_sleeps_is_put_through_its_checks() -> None:
    """With a stand-in, and numbers in the place of a GPU's memory: 100 without the server, 20 awake, then as given."""
    policy = gpu_checks.policy_on(CPU, "float32")
    server = StandIn(Brain(policy))
    with standing_in(server) as address:
        for asleep, passed in ((95, True), (40, False)):
            engine = VllmEngine(policy, Vllm(addresses=(address,), sleep=True))
            found = list(gpu_checks.slept(engine, policy, 100, partial(free_memory, server, asleep)))
            engine.close()
            memory = [finding for finding in found if "memory" in finding.what]
            assert [finding.apart for finding in memory] == pytest.approx([(100 - asleep) / 80] * 2)
            assert all(finding.passed == passed for finding in memory)
            assert all(finding.passed for finding in found if finding not in memory)
            assert len(found) == 6


def test_what_a_cpu_does_not_have_is_said() -> None:
    (found,) = gpu_checks.sleeping(CPU, sys.executable)
    assert found.apart is None
    assert "refuses --enable-sleep-mode" in found.why


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    build = gpu_checks.policy_on

    def off(device: str, dtype: str, **how: object) -> object:
        policy = build("cpu", dtype, **how)
        if device != "cpu":
            with torch.no_grad():
                next(p for name, p in policy.named_parameters() if "down_proj" in name).mul_(1.5)
        return policy

    monkeypatch.setattr(gpu_checks, "policy_on", off)
    monkeypatch.setattr(gpu_checks, "PATHS", {"lean": PATHS["lean"]})
    found = {finding.what: finding.passed for finding in gpu_checks.parity("elsewhere")}
    assert not found["lean, float32: log-probs"]
    assert not found["lean, float32: gradient"]


def test_attention_kernels_agree_or_are_named() -> None:
    found = list(gpu_checks.attention(CPU))
    assert all(finding.passed or finding.why for finding in found)
    assert all(finding.passed for finding in found if "math" in finding.what)
    assert any("flash-attn" in finding.what for finding in found)


def test_a_compiled_model_gives_the_same_numbers() -> None:
    torch._dynamo.reset()
    found = list(gpu_checks.compiled(CPU, backend="eager"))
    assert len(found) == 3
    assert all(finding.passed for finding in found)


def test_sampling_and_a_short_run() -> None:
    assert all(finding.passed for finding in gpu_checks.sampling(CPU))
    (found,) = gpu_checks.learning(CPU)
    assert found.passed or found.why


def test_a_run_that_cannot_be_is_named() -> None:
    (found,) = gpu_checks.servers(CPU, "/nowhere/vllm")
    assert found.apart is None
    assert "/nowhere/vllm" in found.why


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.Exit) as ended:
        gpu.main("cuda", "", "", tmp_path)
    assert ended.value.exit_code == gpu.NO_GPU
    assert "No GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("apart", "code"), [(0.05, 0), (0.2, 1), (None, 0)])
def test_what_was_found_is_written_and_is_the_exit_code(
    tmp_path: Path, apart: float | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding("parity", "lean", apart, 0.1, "" if apart is not None else "no such kernel")
    monkeypatch.setattr(gpu, "CHECKS", (lambda device: [found],))
    with pytest.raises(typer.Exit) as ended:
        gpu.main("cpu", "", "", tmp_path)
    assert ended.value.exit_code == code
    assert json.loads((tmp_path / "gpu.json").read_text())["findings"][0]["apart"] == apart
    assert {0: "agrees" if apart else "no such kernel", 1: "**differs**"}[code] in (tmp_path / "gpu.md").read_text()
