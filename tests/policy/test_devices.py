"""Device and type of weights by name: what "auto" means, what is refused, and when torch is asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from grouprl.core.errors import InputError
from grouprl.policy import devices
from grouprl.policy.devices import BYTES, device_name, dtype_name, exact_in, name_of


def test_names_of_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    assert device_name("auto") == device_name("cpu") == "cpu"
    assert device_name("meta") == "meta"
    with pytest.raises(InputError, match="no usable CUDA GPU"):
        device_name("cuda:1")
    with pytest.raises(InputError, match="must be 'auto' or a torch device"):
        device_name("gpu")


def test_names_of_a_machine_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert device_name("auto") == "cuda"
    assert device_name("cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert dtype_name("auto", "cuda:0") == "bfloat16"
    assert dtype_name("auto", "cuda", "mixed") == "float32"
    assert dtype_name("auto", "cuda:0", pretrained=False) == "float32"
    assert dtype_name("bfloat16", "cuda:0", pretrained=False) == "bfloat16"
    assert dtype_name("float16", "cuda") == "float16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert dtype_name("auto", "cuda:0") == "float32"


def test_types_have_their_sizes() -> None:
    assert dtype_name("auto", "cpu") == "float32"
    assert {name: getattr(torch, name).itemsize for name in BYTES} == BYTES
    assert [name_of(getattr(torch, name)) for name in BYTES] == list(BYTES)
    with pytest.raises(InputError, match="int8"):
        dtype_name("int8", "cpu")
    assert [name for name in BYTES if exact_in(name)] == ["float32", "float64"]
    assert not exact_in("float32", "mixed")


def test_a_driver_decides_whether_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "DRIVERS", ("no such driver",))
    monkeypatch.setattr(sys, "platform", "linux")
    assert not devices.has_gpu()
    monkeypatch.setattr(devices, "DRIVERS", ("null",))
    assert devices.has_gpu()
    monkeypatch.setattr(devices, "DRIVERS", ())
    monkeypatch.setattr(sys, "platform", "win32")
    assert devices.has_gpu()


def test_names_need_no_torch() -> None:
    code = (
        "from grouprl.core.late_import import import_late, is_late\nimport_late('torch')\n"
        "from grouprl.policy import devices\ndevices.DRIVERS = ()\n"
        "assert devices.device_name('auto') == 'cpu'\nassert devices.dtype_name('auto', 'cpu') == 'float32'\n"
        "assert is_late('torch')"
    )
    if sys.platform != "linux":
        pytest.skip("torch is asked on other systems")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=dict(os.environ))
