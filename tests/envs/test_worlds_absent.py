"""Environments of libraries that are not installed: what is said then."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from grouprl.core.errors import InputError, MissingExtra
from grouprl.tasks import load_task

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'grouprl[serve]'")


@pytest.mark.parametrize(("name", "extra"), [("textworld:generated", "textworld"), ("alfworld", "alfworld")])
def test_the_extra_is_named(name, extra, monkeypatch):
    for module in ("textworld", "alfworld"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'grouprl\[{extra}\]'"):
        load_task(name)


def test_versions_of_verifiers_that_are_not_supported_are_refused(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(MissingExtra, match=r"pip install 'grouprl\[verifiers\]'"):
        load_task("verifiers:anything-at-all")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1.9.post3")
    with pytest.raises(InputError, match=r"verifiers 0.1.9.post3 is installed. 0.1.14 or newer is needed"):
        load_task("verifiers:anything-at-all")
