"""Wrong inputs of a first hour: what is said names the value, the rule and a remedy, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.rates import rate_warnings
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.core.importing import import_object
from grouprl.core.plugins import load_file
from grouprl.plan import length_estimates
from grouprl.plan.plan import Plan as RunPlan
from grouprl.plan.plan import plan
from grouprl.rewards.contract import missing_column
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
    monkeypatch.setattr(length_estimates, "free_bytes", lambda device: 1000)
    refused = plan(parse_config({"task": "reverse"}))
    assert any("free on" in said and "run.memory_check: false" in said for said in refused.refusals)
    tried = plan(parse_config({"task": "reverse", "run": {"memory_check": False}}))
    assert tried.refusals == ()
    assert any("free on" in note and "It is tried anyway: run.memory_check is false" in note for note in tried.notes)


def test_a_folder_is_no_configuration(work: Path) -> None:
    assert "It is a folder. It has folder/other.yaml." in CliRunner().invoke(app, ["plan", "folder"]).stderr
    assert "folder is not a run folder" in CliRunner().invoke(app, ["train", "folder"]).stderr


OWN_PARTS = """
from grouprl import Advantage, part


@part("advantage")
class WrongFlat(Advantage):
    says = "one value per row"

    def __call__(self, batch):
        return batch.reward_b


@part("advantage")
class WrongNothing(Advantage):
    says = "nothing"

    def __call__(self, batch):
        pass


@part("advantage")
class WrongLoud(Advantage):
    says = "a mistake"

    def __call__(self, batch):
        raise KeyError("board")
"""


@pytest.fixture(scope="module")
def wrong_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of parts; names are registered once."""
    file = tmp_path_factory.mktemp("parts") / "wrong_parts.py"
    file.write_text(OWN_PARTS)
    return file


def own_part(file: Path, name: str) -> RunPlan:
    data = {"task": "reverse", "model": "tiny", "plugins": [str(file)], "steps": 1}
    return plan(parse_config({**data, "method": {"base": "grpo", "advantage": name}}))


@pytest.mark.parametrize(
    ("name", "said"),
    [("wrong_flat", r"'wrong_flat' returned values of shape \[\d\]"), ("wrong_nothing", "returned NoneType")],
)
def test_an_own_part_of_the_wrong_shape_is_refused_before_the_run(wrong_parts: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        own_part(wrong_parts, name).raise_if_refused()


def test_what_an_own_part_raises_on_a_small_batch_is_noted(wrong_parts: Path) -> None:
    """The batch of a run may hold what it misses, so the run is not refused."""
    found = own_part(wrong_parts, "wrong_loud")
    found.raise_if_refused()
    assert any(
        "tried on a small batch, the advantage part 'wrong_loud' raised KeyError" in note for note in found.notes
    )


def test_a_run_that_ends_by_an_own_part_has_failed_and_is_kept(work: Path, wrong_parts: Path) -> None:
    changes = ["method={base: grpo, advantage: wrong_loud}", f"plugins=[{wrong_parts}]", "steps=1", "warmup.steps=1"]
    changes += ["batch.prompts=2", "batch.group_size=2", "eval.final_prompts=2"]
    given = [word for change in changes for word in ("--set", change)]
    result = CliRunner().invoke(app, ["train", "mine.yaml", *given, "--folder", "kept"])
    assert "'wrong_loud' raised KeyError" in result.stderr
    assert result.exit_code == 3  # 2 is for input by which nothing was touched
    assert (work / "kept" / "metrics.jsonl").exists()


def test_a_schedule_of_any_length_is_planned() -> None:
    """The rates of a run are summed: of a billion steps, those of some."""
    config = parse_config({"task": "reverse", "steps": 1_000_000_000, "optim": {"lr": 1e-9}})
    assert list(rate_warnings(config.model, config.optim, config.steps, 64, 2, 1)) == []
    config = parse_config({"task": "reverse", "steps": 9_000, "optim": {"lr": 1e-9}})
    assert "stand still" in " ".join(rate_warnings(config.model, config.optim, config.steps, 64, 2, 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", ""], "SOURCE is empty"),
        (["plan", "mine.yaml", "--set", "model=''"], "model.name = ''"),
        (["plan", "mine.yaml", "--set", "task=rows.py"], "rows.py:Class"),
        (["plan", "mine.yaml", "--set", "task=parquet:rows.parquet"], "hf:rows.parquet"),
        (["plan", "mine.yaml", "--set", "task=acts.py:Acts"], "env:"),
        (["methods", "check", "acts.py:Acts"], "acts.py:Acts is a class"),
        (["check-reward", "acts.py"], "acts.py:function"),
        (["eval", "mine.yaml", "--task", "reverse"], "mine.yaml is a file"),
    ],
)
def test_names_that_are_nearly_right(work: Path, words: list[str], said: str) -> None:
    (work / "acts.py").write_text("class Acts:\n    def reset(self): ...\n    def step(self, action): ...\n")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_file_in_a_folder_with_a_colon_is_no_import_path(work: Path) -> None:
    (work / "odd: name").mkdir()
    (work / "odd: name" / "weights").write_text("")
    with pytest.raises(InputError, match="does not exist"):
        plan(parse_config({"task": "reverse", "model": str(work / "odd: name" / "weights"), "steps": 1}))


def test_a_reward_whose_first_parameter_is_no_completion_is_told_the_rule() -> None:
    def paid(prompt: str, completion: str) -> float:
        return float(prompt == completion)

    error = missing_column("completion", {"answer": "1"}, paid, "line 1")
    assert "the first parameter is the completion" in str(error).lower()
