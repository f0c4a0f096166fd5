"""Modules that are imported when something of them is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grouprl.core.late_import import import_late, is_late


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that writes a line each time when its code is run."""
    home, ran = tmp_path / "slow_package", tmp_path / "ran"
    home.mkdir()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (home / "__init__.py").write_text(
        f"open({str(ran)!r}, 'a').write('ran\\n')\n"
        "from slow_package import inner as TOLD\nfrom slow_package.inner import TWO\nONE = 1\n"
    )
    (home / "inner.py").write_text("import slow_package\nTWO = 2\nOBJECT = object()\n")
    (home / "other.py").write_text("THREE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ran
    for name in [name for name in sys.modules if name.startswith("slow_package")]:
        del sys.modules[name]


def test_code_runs_once_at_the_first_use(package: Path) -> None:
    import_late("slow_package")
    import slow_package

    assert is_late("slow_package")
    assert slow_package.__file__
    assert slow_package.__spec__ is not None
    assert hasattr(slow_package, "__loader__")
    assert not package.exists()
    assert slow_package.ONE == 1
    assert slow_package.TWO == 2
    assert not is_late("slow_package")
    assert package.read_text() == "ran\n"
    assert slow_package is sys.modules["slow_package"]
    with pytest.raises(AttributeError, match="THREE"):
        _ = slow_package.THREE


@pytest.mark.parametrize(
    "line", ["from slow_package import ONE as found", "from slow_package.inner import TWO as found"]
)
def test_names_and_modules_of_it_are_found(package: Path, line: str) -> None:
    import_late("slow_package")
    names: dict[str, int] = {}
    exec(line, names)
    assert names["found"] in (1, 2)
    assert not is_late("slow_package")
    assert package.read_text() == "ran\n"


def test_modules_of_it_run_once(package: Path) -> None:
    import_late("slow_package")
    import slow_package.inner
    import slow_package.other

    first, spec = slow_package.inner.OBJECT, slow_package.inner.__spec__
    assert slow_package.other.THREE == 3
    assert first is sys.modules["slow_package.inner"].OBJECT
    assert first is slow_package.TOLD.OBJECT, "the package's own import and this one are one module"
    assert spec is not None
    assert spec.origin == slow_package.inner.__file__
    assert importlib.reload(slow_package.inner).OBJECT is not first


def test_what_is_imported_or_absent_stays_so(package: Path) -> None:
    import slow_package

    import_late("slow_package")
    assert not is_late("slow_package")
    assert sys.modules["slow_package"] is slow_package
    import_late("no_such_package_anywhere")
    assert "no_such_package_anywhere" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_package_anywhere")
