"""Of a run that was interrupted nothing is recorded, whichever script made it."""

import ast
from pathlib import Path

import pytest

import finished
from grouprl.training.loop import Summary

SCRIPTS = Path(finished.__file__).parent
THEIR_OWN = {"calibrate", "finished", "gpu_catalogue", "real", "vllm_learn"}
"""Scripts that call `train` themselves: they look whether it was interrupted, or continue a run that was made whole."""


def test_an_interrupted_run_is_no_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(finished, "train", lambda config, folder, console: Summary(folder, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        finished.finished({"task": "addition"}, tmp_path)
    monkeypatch.setattr(finished, "train", lambda config, folder, console: Summary(folder))
    assert finished.finished({"task": "addition"}, tmp_path).folder == tmp_path


def test_scripts_train_by_it() -> None:
    using = {
        path.stem
        for path in SCRIPTS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and node.module == "grouprl.training.loop"
        and "train" in {each.name for each in node.names}
    }
    assert using == THEIR_OWN
