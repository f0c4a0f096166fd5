"""What cannot be spread over several processes is refused in words, before anything is loaded."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_sharded_policy import check_alone
from grouprl.orchestrator.rank_refusals import fsdp_sums, rank_refusals
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan


def refusals(**changes: Any) -> list[str]:
    return list(rank_refusals(resolve(parse_config({"task": "addition", **changes})), 3))


def test_ordinary_runs_are_not_refused() -> None:
    assert refusals() == []
    assert refusals(model={"name": "tiny", "precision": "mixed", "lora": {"r": 4}}, method="ppo") == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"context_parallel": 2}, "model.context_parallel = 2 in one process: context parallelism splits each row"),
        ({"tensor_parallel": 3}, "model.tensor_parallel = 3 in one process: tensor parallelism splits each matrix"),
        ({"offload": True}, "model.offload = true in one process"),
    ],
)
def test_a_plan_says_what_one_process_refuses(setting: dict[str, Any], said: str) -> None:
    config = parse_config({"task": "addition", "model": {"name": "tiny", **setting}})
    with pytest.raises(InputError, match="grouprl launch -n") as refused:
        check_alone(config.model)
    assert str(refused.value).startswith(said)
    assert any(finding.text.startswith(said) for finding in plan(config).findings)
    spread = config.model_copy(update={"cluster": config.cluster.model_copy(update={"learners": 6})})
    assert not any("in one process" in finding.text for finding in plan(spread).findings)


def test_an_older_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fsdp_sums()
    monkeypatch.delattr(FSDPModule, "set_force_sum_reduction_for_comms")
    (said,) = refusals()
    assert f"torch {version('torch')} has an FSDP that averages gradients" in said
    assert "Install a newer torch" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"dtype": "bfloat16"}}, "precision: mixed"),
        ({"model": {"precision": "onednn"}}, "model.precision = onednn"),
        ({"model": {"engine": "lean"}}, "through transformers"),
        ({"model": {"shared_prefix": "on"}}, "prompts are not shared"),
        ({"optim": {"name": "muon"}}, "whole matrices"),
        ({"model": {"tensor_parallel": 2}}, "on 3 processes"),
        ({"model": {"context_parallel": 2}}, "on 3 processes"),
        ({"model": {"context_parallel": 3, "tensor_parallel": 3}}, "Set one of them to 1"),
        ({"model": {"context_parallel": 3, "compile": True}}, "Leave one out"),
        ({"model": {"tensor_parallel": 3, "lora": {"r": 4}}}, "without adapters"),
        ({"method": "trpo"}, "looks inside the model"),
        ({"method": "st_ppo"}, "looks inside the model or its gradients"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    assert any(said in each for each in refusals(**changes))


@pytest.mark.parametrize("arguments", [["launch", "-n", "2"], ["launch", "-n", "2", "eval", "runs/x"]])
def test_only_training_is_launched(arguments: list[str]) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "a training run" in found.output or isinstance(found.exception, InputError | SystemExit)
