"""Build the source archive and the wheel, hold them against what a user needs, and run the main job from the wheel.

The wheel is installed in an empty environment, and the run begins in an empty folder: nothing of the repository helps.
Exit code 1 where a check fails. `python scripts/release_check.py [--steps N]`, with `build` and `twine` installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

TOP = Path(__file__).parents[1]
DIST = TOP / "dist"
IN_WHEEL = ("grouprl/__init__.py", "grouprl/py.typed", "grouprl/listings/", "grouprl/recipes/", "grouprl/view/app/")
"""Files and folders that an installed package needs beside its modules."""
NOT_IN_WHEEL = ("tests/", "docs/", "scripts/", "bench/")
IN_SDIST = (
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "mkdocs.yml",
    "Makefile",
    "docs/README.md",
    "tests/",
    "src/",
)


def wheel_complaints(names: Collection[str], version: str) -> list[str]:
    """Return what a wheel with files of these names lacks, or should not have."""
    lacking = [f"the wheel lacks {each}" for each in IN_WHEEL if not any(name.startswith(each) for name in names)]
    foreign = [f"the wheel holds {name}" for name in names if name.startswith(NOT_IN_WHEEL)]
    metadata = f"grouprl-{version}.dist-info/METADATA"
    return lacking + foreign + [f"the wheel lacks {metadata}"] * (metadata not in names)


def sdist_complaints(names: Collection[str], version: str) -> list[str]:
    """Return what a source archive with files of these names lacks, or should not have."""
    inside = {name.removeprefix(f"grouprl-{version}/") for name in names}
    lacking = [f"the source archive lacks {each}" for each in IN_SDIST if not any(n.startswith(each) for n in inside)]
    foreign = [f"the source archive holds {n}" for n in sorted(inside) if re.match(r"\.venv|runs/|build/|.*\.pyc$", n)]
    return lacking + foreign


def version() -> str:
    """Return the version that the sources state."""
    text = (TOP / "src" / "grouprl" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)[1]  # type: ignore[index]


def build() -> tuple[Path, Path]:
    """Build both archives, the wheel from the source archive, and return their paths."""
    said([sys.executable, "-m", "build", "--outdir", str(DIST), str(TOP)])
    stem = f"grouprl-{version()}"
    return DIST / f"{stem}.tar.gz", DIST / f"{stem}-py3-none-any.whl"


def archive_complaints(sdist: Path, wheel: Path) -> list[str]:
    """Return what is wrong with both archives, their metadata included."""
    with tarfile.open(sdist) as packed:
        found = sdist_complaints(packed.getnames(), version())
    with zipfile.ZipFile(wheel) as packed_wheel:
        found += wheel_complaints(packed_wheel.namelist(), version())
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel], cwd=TOP, check=False)
    return found + ["twine finds fault with the metadata"] * bool(checked.returncode)


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel in a new environment, and return its folder of programs."""
    said([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", str(TOP / "constraints.txt")]
    said([*pip, *constraints, "torch"])
    said([*pip, *constraints, str(wheel)])
    return folder / "bin"


def run_complaints(programs: Path, folder: Path, steps: int | None) -> list[str]:
    """Run the main job of the README in an empty folder, and return what of its promises is not kept."""
    grouprl = str(programs / "grouprl")
    shown = said([grouprl, "--version"], folder).strip()
    found = [f"--version says {shown!r}"] * (shown != f"grouprl {version()}")
    said([grouprl, "methods", "show", "grpo"], folder)
    said([grouprl, "plan", "addition"], folder)
    changed = [] if steps is None else ["--set", f"steps={steps}"]
    printed = said([grouprl, "train", "addition", "--set", "run.folder=first", *changed], folder)
    print(*printed.splitlines()[-3:], sep="\n")
    found += ["the run did not learn"] * (steps is None and "\nLearned: " not in printed)
    said([grouprl, "export", "first", "model"], folder)
    return found + ["nothing was exported"] * (not (folder / "model" / "config.json").exists())


def said(command: Sequence[str], folder: Path = TOP) -> str:
    """Run a command, show it, and return its output.

    Raises:
        subprocess.CalledProcessError: it failed; what it printed is shown.
    """
    print("$", *command, flush=True)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
    done.check_returncode()
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Build and check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="a shorter run, which need not learn")
    chosen = parser.parse_args(arguments)
    sdist, wheel = build()
    complaints = archive_complaints(sdist, wheel)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty").mkdir()
        complaints += run_complaints(installed(wheel, folder / "env"), folder / "empty", chosen.steps)
    print(*(complaints or ["both archives are whole, and the main job runs from the wheel alone"]), sep="\n")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
