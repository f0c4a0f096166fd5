"""The oldest versions that the package's metadata admits, as `make floors` installs them."""

from __future__ import annotations

from importlib import metadata

import pytest

from floors import floors

NEEDED = ["torch>=2.6", "numpy>=1.26", "typing-extensions>=4.10", "peft>=0.13; extra == 'lora'"]


def test_a_floor_is_the_oldest_version_and_torch_and_extras_are_left_out() -> None:
    assert floors(NEEDED) == ["numpy==1.26", "typing-extensions==4.10"]


def test_every_dependency_of_the_package_has_a_floor() -> None:
    assert len(floors(metadata.requires("grouprl") or ())) > 10


@pytest.mark.parametrize("line", ["numpy", "numpy<3", "numpy>=1,<3"])
def test_a_dependency_without_a_floor_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="names no oldest version"):
        floors([line])
