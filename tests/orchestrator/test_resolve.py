"""A configuration is resolved once, and everything of a run sees the same objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator import resolve as room
from grouprl.orchestrator.resolve import resolve
from grouprl.training.loop import train
from single_runs import run_config


def counted(monkeypatch: Any, name: str) -> list[int]:
    """Count the calls of a function of the resolving module."""
    calls, own = [], getattr(room, name)

    def noted(*given: Any) -> Any:
        calls.append(len(calls))
        return own(*given)

    monkeypatch.setattr(room, name, noted)
    return calls


def test_training_resolves_once(tmp_path: Any, monkeypatch: Any) -> None:
    composed, loaded = counted(monkeypatch, "compose"), counted(monkeypatch, "load_task")
    rewarded = counted(monkeypatch, "chosen_reward")
    train(parse_config(run_config(steps=1)), folder=tmp_path / "run")
    assert (len(composed), len(loaded), len(rewarded)) == (1, 1, 1)
    train(parse_config({}), folder=tmp_path / "run", resume=True)
    assert (len(composed), len(loaded), len(rewarded)) == (2, 2, 2)


def test_what_is_resolved_stays_as_it_is() -> None:
    run = resolve(parse_config({}))
    assert resolve(run) is run
    assert run.reward is run.reward


def test_what_a_run_needs() -> None:
    plain = resolve(parse_config({"method": "grpo"}))
    assert (plain.needs_reference, plain.needs_values, plain.max_new_tokens) == (
        False,
        False,
        plain.task.max_new_tokens,
    )
    assert set(plain.task.alphabet or "") <= set(plain.alphabet)
    changed = {"method": "ppo", "model": {"reference": "initial"}, "sampling": {"max_new_tokens": 7}}
    other = resolve(parse_config(changed))
    assert (other.needs_reference, other.needs_values, other.max_new_tokens) == (True, True, 7)


@pytest.mark.parametrize("wrong", [{"task": "adition"}, {"method": "grpoo"}, {"plugins": ["no_such_module_here"]}])
def test_names_that_do_not_exist_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        resolve(parse_config(wrong, plugins=False))


def test_resolving_leaves_the_dice_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    resolve(parse_config({"seed": 5}))
    assert torch.equal(torch.rand(2), expected)


DRAWN = """
import sys
from grouprl.core.late_import import import_late
if sys.argv[1] == "late":
    import_late("torch")
else:
    import torch
from grouprl.config.run import parse_config
from grouprl.orchestrator.resolve import task_of
print(task_of(parse_config({"task": f"{sys.argv[2]}:Drawn", "seed": 5})).drawn)
"""


@pytest.mark.parametrize("drawn", ["torch.rand(1).item()", "0.5"])
def test_a_task_draws_the_same_numbers_if_torch_is_imported_late(tmp_path: Path, drawn: str) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import torch\nfrom grouprl.tasks.builtin.single_turn.arithmetic import Addition\n"
        f"class Drawn(Addition):\n    def __init__(self, **options):\n"
        f"        super().__init__(**options)\n        self.__dict__['drawn'] = {drawn}\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", DRAWN, when, str(own)], capture_output=True, text=True, check=True, timeout=300
        ).stdout
        for when in ("late", "before")
    ]
    assert float(found[0])
    assert found[0] == found[1]
