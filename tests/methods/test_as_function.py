"""Methods as one plain function of tensors: what is shown computes the loss and the gradient of the method."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import grouprl
from grouprl.cli.app import app
from grouprl.core.errors import InputError
from grouprl.methods.as_function import as_function


def rollout() -> grouprl.Batch:
    """Four groups: mixed ones, one of equal rewards, one of a single row; rows of several lengths."""
    torch.manual_seed(7)
    length_b = torch.tensor([6, 3, 5, 2, 4, 6, 1, 6, 5, 4, 3])
    mask_bt = torch.arange(6) < length_b[:, None]
    reward_b = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25, 1.0, 1.0, 1.0, 0.0, 0.75], dtype=torch.float64)
    noise = [torch.randn(11, 6, dtype=torch.float64) for _ in range(5)]
    old_bt = -noise[0].abs() - 0.1
    return grouprl.Batch(
        mask_bt=mask_bt,
        group_b=torch.tensor([3, 3, 3, 0, 0, 0, 1, 1, 1, 7, 3]),
        reward_b=reward_b,
        old_bt=old_bt,
        behavior_bt=old_bt + 0.1 * noise[1],
        ref_bt=old_bt + 0.3 * noise[2],
        value_bt=noise[3],
        entropy_bt=noise[4].abs(),
        correct_b=reward_b == 1,
        greedy_reward_b=reward_b.flip(0),
        max_length=6,
    )


def shown() -> dict[str, str]:
    """The source of every entry of the catalogue that can be shown so with its own settings."""
    found = {}
    for name in grouprl.methods():
        entry = grouprl.methods.CATALOGUE[name]
        if inspect.Parameter.empty in entry.settings.values():
            continue
        with contextlib.suppress(InputError):
            found[name] = as_function(grouprl.method(name))
    return found


SHOWN = shown()


def called(source: str, batch: grouprl.Batch, logp_bt: torch.Tensor, entropy_bt: torch.Tensor) -> torch.Tensor:
    """What the shown function returns for the fields of a batch."""
    found: dict[str, Any] = {}
    exec(source, found)
    function = [value for value in found.values() if inspect.isfunction(value)][-1]
    given = {"logp_bt": logp_bt, "entropy_bt": entropy_bt}
    names = inspect.signature(function).parameters
    return function(**{name: given[name] if name in given else getattr(batch, name) for name in names})


def test_famous_methods_are_shown() -> None:
    assert {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce", "ppo"} <= set(SHOWN)
    assert len(SHOWN) >= 60


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.filterwarnings("ignore:the method")
def test_what_is_shown_computes_the_loss_and_its_gradient(name: str) -> None:
    method, batch = grouprl.method(name), rollout()
    prepared = method.prepare(batch)
    losses, gradients = [], []
    for plain in (False, True):
        torch.manual_seed(11)
        logp_bt = (batch.need("old_bt", "a test") + 0.4 * torch.randn(11, 6, dtype=torch.float64)).requires_grad_()
        entropy_bt = batch.need("entropy_bt", "a test").clone().requires_grad_()
        if plain:
            loss = called(SHOWN[name], batch, logp_bt, entropy_bt)
        else:
            loss = method.loss(logp_bt, prepared, entropy_bt if "entropy" in method.outputs else None).value
        loss.backward()
        losses.append(loss.detach())
        gradients.append([torch.zeros_like(x) if x.grad is None else x.grad for x in (logp_bt, entropy_bt)])
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_it_reads_on_a_screen_or_two() -> None:
    assert {name: source.count("\n") for name, source in SHOWN.items() if source.count("\n") > 80} == {}
    assert {name for name, source in SHOWN.items() if "grouprl" in source} == set()


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(app, ["methods", "show", "grpo", "--code"])
    assert (done.exit_code, done.output.strip()) == (0, SHOWN["grpo"].strip())


def test_a_method_with_another_part_says_so() -> None:
    done = CliRunner().invoke(app, ["methods", "show", "gigpo", "--code"])
    with pytest.raises(InputError, match=r"gigpo has the advantage part '\w+', which has no lines of plain torch"):
        as_function(grouprl.method("gigpo"))
    assert done.exit_code == 2
