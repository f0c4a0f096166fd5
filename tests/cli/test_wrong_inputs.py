"""Wrong inputs of a first hour: what is said names the value, the rule and a remedy, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.core.importing import import_object
from grouprl.core.plugins import load_file
from grouprl.plan import sizes
from grouprl.plan.plan import plan
from grouprl.storage.run_folder import RunFolder

CONFIG = """
task: {name: reverse, length: 2}
model: {name: tiny, tiny: {hidden: 16, layers: 1, heads: 2, intermediate: 16, max_positions: 64}}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "runs" / "addition-grpo-s0").mkdir(parents=True)
    (tmp_path / "runs" / "addition-grpo-s0" / "config.yaml").write_text(CONFIG)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other.yaml").write_text(CONFIG)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mien.yaml", "Did you mean 'mine.yaml'?"),
        ("nowhere/x.yaml", "There is no YAML file in"),
        ("runs/addition-grpo-s1", "Did you mean 'runs/addition-grpo-s0'?"),
        ("adition", "Did you mean 'addition'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_what_is_no_configuration(work: Path, command: str, source: str, said: str) -> None:
    done = CliRunner().invoke(app, [command, source])
    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"task": 5}, r"^task = 5\."),
        ({"reward": {"function": 3}}, r"^reward\.function = 3\."),
        ({"method": ["grpo"]}, r"^method = \['grpo'\]\."),
        ({"run": {"threads": "many"}}, r"^run\.threads = 'many'\. .*, or: "),
    ],
)
def test_a_key_of_several_types_is_named_as_it_is_written(data: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_config(data)


def test_a_file_may_import_what_lies_beside_it(work: Path) -> None:
    place = work / "elsewhere"
    place.mkdir()
    (place / "beside_a_reward.py").write_text("def worth():\n    return 1.0\n")
    (place / "beside_later.py").write_text("WORTH = 2.0\n")
    (place / "own_reward.py").write_text(
        "import beside_a_reward\n\n\ndef f(completion):\n    import beside_later\n\n"
        "    return beside_a_reward.worth() + beside_later.WORTH\n"
    )
    (place / "own_plugin.py").write_text("from beside_a_reward import worth\n")
    assert import_object("elsewhere/own_reward.py:f", "reward")("x") == 3.0
    assert load_file("elsewhere/own_plugin.py", "a rule").worth() == 1.0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\nraise RuntimeError('boom')\n", r"RuntimeError: boom at broken_\w+\.py:2\."),
        ("def f(:\n", r"SyntaxError: invalid syntax \(broken_\w+\.py, line 1\)\."),
        ("import no_such_module_xyz\n", r"No module named 'no_such_module_xyz' at broken_\w+\.py:1\."),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(work: Path, source: str, said: str) -> None:
    name = f"broken_{abs(hash(source))}.py"
    (work / name).write_text(source)
    with pytest.raises(InputError, match=said):
        import_object(f"{name}:f", "reward")
    with pytest.raises(InputError, match=said.removesuffix(r"\.")):
        load_file(name, "a rule")


def test_a_folder_that_cannot_be_made_is_bad_input(work: Path) -> None:
    (work / "file").write_text("")
    for place in (work / "file" / "run", Path("/proc/no-such-place/run")):
        with pytest.raises(InputError, match=r"cannot be made: .*--folder"):
            RunFolder.create(place)


def test_a_disk_that_is_full_is_not(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(RunError, match="the disk is full"):
        RunFolder.create(work / "run")


def test_a_refusal_for_memory_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "free_bytes", lambda device: 1000)
    refused = plan(parse_config({"task": "reverse"}))
    assert any("free on" in said and "run.memory_check: false" in said for said in refused.refusals)
    tried = plan(parse_config({"task": "reverse", "run": {"memory_check": False}}))
    assert tried.refusals == ()
    assert any("free on" in note and "It is tried: run.memory_check is false" in note for note in tried.notes)


def test_a_folder_is_no_configuration(work: Path) -> None:
    assert "It is a folder. It has folder/other.yaml." in CliRunner().invoke(app, ["plan", "folder"]).stderr
    assert "folder is not a run folder" in CliRunner().invoke(app, ["train", "folder"]).stderr
