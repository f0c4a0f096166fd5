"""A package of a stranger's that announces its modules as entry points: found by name, listed, trained with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MODULE = '''
import grouprl
from torch import Tensor


@grouprl.part("token_weight", "half_of_all")
class Half(grouprl.Part):
    """Halve every token's loss."""

    says = "halve the loss"
    equation = "x 1/2"

    def __call__(self, batch: grouprl.Batch) -> Tensor:
        """1/2."""
        return batch.mask_bt.float() / 2


def stranger(base: grouprl.Method) -> grouprl.Method:
    """Compose it."""
    return base.with_parts(token_weight=(Half(),))


card = grouprl.Card(title="Stranger", summary="GRPO, halved.", formula="L/2")
grouprl.entry("stranger", stranger, card, base="grpo")
'''
ENTRY_POINTS = """
[grouprl.plugins]
good = stranger_package.methods
bad = stranger_package.gone
"""
METADATA = "Metadata-Version: 2.1\nName: stranger-package\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where such a package is installed, as far as Python can tell; one of its modules cannot be imported."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "stranger_package").mkdir()
    (folder / "stranger_package" / "__init__.py").write_text("")
    (folder / "stranger_package" / "methods.py").write_text(MODULE, encoding="utf-8")
    about = folder / "stranger_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


CODE = """
import grouprl
stranger = grouprl.method("stranger", clip_high=0.3)
print(stranger.token_weight[0].name, stranger.objective.clip_high)
composed = grouprl.compose({"base": "grpo", "add": {"token_weight": ["half_of_all"]}})
print(composed.method.with_parts(name="") == grouprl.method("stranger").with_parts(name=""))
print("stranger" in grouprl.methods(), "stranger" in list(grouprl.methods()), grouprl.methods()["stranger"].family)
try:
    grouprl.method("strangr")
except grouprl.InputError as error:
    print(error)
"""


def said(environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_library_call_finds_what_the_package_announces(environment: dict[str, str]) -> None:
    out, warned = said(environment, "-c", CODE)
    first, second, third, fourth = out.splitlines()
    assert first == "half_of_all 0.3"
    assert second == "True"
    assert third == "True True own"
    assert "Did you mean 'stranger'" in fourth
    assert "the plugin bad (stranger_package.gone) is left out" in warned


def test_a_run_uses_it(environment: dict[str, str]) -> None:
    out, _ = said(environment, "-m", "grouprl", "plan", "addition", "--set", "method=stranger")
    assert "halve the loss" in out
