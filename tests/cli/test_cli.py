"""The commands: help that teaches, listings, plans, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grouprl
from grouprl.cli.app import app
from grouprl.config.run import load_config
from grouprl.core.errors import InputError

runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
COMMANDS = ["train", "plan", "eval", "report", "export", "recipes", "tasks", "methods", "metrics"]
SMALL = [
    *("model.tiny.hidden=16", "model.tiny.layers=1", "model.tiny.heads=2", "model.tiny.intermediate=32"),
    *("steps=2", "warmup.steps=0", "batch.prompts=2", "batch.group_size=2", "batch.minibatches=1"),
    *("eval.every=0", "eval.final_prompts=4", "method=grpo", "run.threads=1", "run.checkpoint_every=1"),
]


def call(*arguments, code=0):
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
    return result


def error(*arguments, code=2):
    """The one line that a failing command prints."""
    result = call(*arguments, code=code)
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")
    return result.stderr


def sets(*changes):
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run of two steps."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    call("train", "addition", "--folder", str(folder), *sets(*SMALL))
    return folder


# --- help, version, start-up ----------------------------------------------------------------------------------------


def test_help_lists_every_command_and_the_exit_codes():
    text = call("--help").stdout
    for name in COMMANDS:
        assert f"\n│ {name} " in text
    assert "130" in text
    assert "grouprl train addition" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_fits_80_columns(name):
    text = call(name, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "grouprl" in text


@pytest.mark.parametrize("name", ["train", "plan", "eval", "export", "tasks", "metrics", "recipes", "report"])
def test_help_teaches_by_example(name):
    assert f"grouprl {name}" in call(name, "--help").stdout


def test_version():
    assert call("--version").stdout == f"grouprl {grouprl.__version__}\n"


def test_start_up_leaves_transformers_alone():
    code = (
        "import sys\nfrom grouprl.cli import main\n"
        "lines = '--help', 'methods', 'methods show grpo', 'recipes', 'tasks', 'metrics', 'train nothing'\n"
        "for line in (*lines, 'plan addition'):\n"
        "    sys.argv = ['grouprl', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    heavy = {'transformers', 'peft', 'datasets', 'reasoning_gym', 'pyarrow'} & set(sys.modules)\n"
        "    print('HEAVY', line, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert len(found) == 8
    assert [line for line in found if not line.endswith("[]")] == []


# --- the catalogue's commands ---------------------------------------------------------------------------------------


def test_tasks():
    assert "addition" in call("tasks").stdout
    text = call("tasks", "countdown").stdout
    assert "how many numbers are given" in text
    assert "level" in text
    assert "eval_fraction" in call("tasks", "jsonl").stdout


def test_recipes():
    assert "addition" in call("recipes").stdout


def test_metrics():
    assert "clip_fraction" in call("metrics", "clip_fraction").stdout
    assert "error: " in error("metrics", "clip_fractoin")


def test_methods():
    assert "grpo" in call("methods").stdout
    assert "'grpo'" in error("methods", "show", "gprpo")


# --- plan -----------------------------------------------------------------------------------------------------------


def test_plan():
    text = call("plan", "addition").stdout
    for heading in ("Batch arithmetic", "Memory", "Objective", "Method settings", "Nothing rules out"):
        assert heading in text
    assert "model.tiny.kv_heads" not in text
    assert "model.tiny.kv_heads" in call("plan", "addition", "--all").stdout


@pytest.mark.parametrize("columns", ["80", "120"])
def test_plan_fits_the_terminal(columns):
    result = runner.invoke(app, ["plan", "addition", "--all"], env={"COLUMNS": columns})
    assert max(map(len, result.stdout.splitlines())) <= int(columns)


def test_plan_as_json():
    data = json.loads(call("plan", "addition", "--json").stdout)
    assert data["task"] == "addition"
    assert data["refusals"] == []


def test_plan_refuses_with_exit_code_2():
    text = call("plan", "addition", *sets("batch.group_size=1", "method=grpo"), code=2).stdout
    assert "Refused" in text
    assert "batch.group_size is 1" in " ".join(text.split())


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "addtion"], ["'addtion'", "Did you mean 'addition'"]),
        (["plan", "no.yaml"], ["'no.yaml'", "neither a file nor an embedded recipe"]),
        (["plan", "addition", "--set", "method=gropo"], ["unknown method 'gropo'", "'grpo'"]),
        (["plan", "addition", "--set", "task=adition"], ["'adition'", "'addition'"]),
        (["plan", "addition", "--set", "task.digit=2"], ["'digit'", "'digits'"]),
        (["train", "addition", "--set", "optim.lrr=3"], ["unknown key 'optim.lrr'", "'lr'"]),
        (["train", "addition", "--set", "optim.lr"], ["--set optim.lr", "key=value"]),
        (["train", "addition", "--set", "batch.group_size=many"], ["batch.group_size = 'many'", "whole number"]),
        (["train", "addition", "--set", "eval.k=[4]"], ["eval.k has pass@4", "eval.samples"]),
        (["train", "addition", "--resume"], ["no run of 'addition'", "without --resume"]),
        (["eval", "nothing"], ["taken for a model", "--task"]),
        (["eval", "tiny", "--task", "addition"], ["untrained"]),
        (["eval", "m", "--checkpoint", "3", "--task", "addition"], ["run folder has checkpoints"]),
        (["export", "nothing", "out"], ["no run nothing"]),
        (["report", "nothing"], ["no run folder nothing"]),
        (["tasks", "contdown"], ["'contdown'", "'countdown'"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(here, arguments, words):
    message = error(*arguments)
    for word in words:
        assert word in message
    assert list(here.iterdir()) == []


def test_a_group_of_one_is_refused_before_anything_is_written(here):
    message = error("train", "addition", *sets(*SMALL, "batch.group_size=1"))
    assert "batch.group_size is 1" in message
    assert not (here / "runs").exists()


def test_unknown_options_and_missing_arguments():
    assert call("train", code=2).stderr
    assert "--sett" in call("train", "addition", "--sett", "a=1", code=2).stderr


def test_debug_shows_the_traceback_wherever_it_stands():
    for arguments in (["--debug", "train", "addtion"], ["train", "addtion", "--debug"]):
        result = call(*arguments, code=2)
        assert "InputError" in result.stderr
        assert "error: cannot find the configuration" in result.stderr


def test_a_failed_run_is_exit_code_3(here):
    (here / "bad.py").write_text("def reward(completion):\n    raise ValueError('no answer key')\n")
    changes = sets(*SMALL, "reward.function=bad.py:reward", "eval.final_prompts=80")
    message = call("train", "addition", *changes, code=2).stderr
    assert "failed on all of" in message, "it is tried before the run, which is refused"
    message = call("train", "addition", *changes, *sets("reward.self_test=false"), code=3).stderr
    assert message.startswith("error: The reward failed on")
    assert "sample addition/eval/0#0" in message
    assert "bad.py" in message  # the reward's own traceback: where to look


def test_interrupted_runs_are_exit_code_130(monkeypatch, here):
    from grouprl.training import loop

    monkeypatch.setattr(loop, "train", lambda *_, **__: loop.Summary(Path("runs/x"), interrupted=True))
    call("train", "addition", code=130)

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "train", stop)
    assert "interrupted" in call("train", "addition", code=130).stderr


# --- runs -----------------------------------------------------------------------------------------------------------


def test_training_leaves_a_folder(finished):
    assert {"config.yaml", "metrics.jsonl", "summary.json", "model", "report.html"} <= {
        p.name for p in finished.iterdir()
    }


def test_an_existing_run_folder_is_not_touched(finished):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    message = error("train", "addition", "--folder", str(finished), *sets(*SMALL))
    assert "exists already" in message
    assert "--resume" in message
    assert "--folder" in message
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_run_folder_is_resumed_not_started(finished):
    assert "Continue it with --resume" in error("train", str(finished))
    assert "only these may be changed" in error("train", str(finished), "--resume", "--seed", "3")
    assert "not a run folder" in error("train", str(finished.parent))


def test_resume_finds_the_newest_run_with_the_same_settings(here):
    from grouprl.training.starting import choose, newest_run

    config = load_config("addition")
    for name, seed, written in (("a", 0, 1), ("b", 0, 3), ("c", 1, 9), ("d", 0, 2)):
        folder = here / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(load_config("addition", [f"seed={seed}"]).dump())
        (folder / "metrics.jsonl").touch()
        os.utime(folder / "metrics.jsonl", (written, written))
    (here / "runs" / "broken").mkdir()
    (here / "runs" / "broken" / "config.yaml").write_text("a: [")
    assert newest_run(config, "addition") == Path("runs/b")
    assert choose("addition", ["seed=1"], None, True).folder == Path("runs/c")
    assert choose("addition", [], Path("runs/a"), True).folder == Path("runs/a")
    assert choose("runs/d", [], None, True).config.seed == 0
    with pytest.raises(InputError, match="no run of 'addition'"):
        choose("addition", ["steps=7"], None, True)


def test_eval_gives_the_numbers_of_the_run(finished):
    data = json.loads(call("eval", str(finished), "--json").stdout)
    summary = json.loads((finished / "summary.json").read_text())
    after = {name: value for name, value in summary["after"].items() if "_gain" not in name}
    assert {name: data[name] for name in after} == after
    assert data["subject"].endswith("the final model")


def test_eval_options(finished):
    text = call("eval", str(finished), "--k", "1,2", "--prompts", "3", "--checkpoint", "1", "--show", "2").stdout
    assert "3 held-out prompts, greedy, 2 sampled at temperature 1" in text
    assert "pass@2 sampled" in text
    assert "checkpoint 1" in text
    greedy = json.loads(call("eval", str(finished), "--greedy", "--json").stdout)
    assert "eval/greedy" in greedy
    assert "eval/pass@1" not in greedy
    sampled = json.loads(call("eval", str(finished), "--sampled", "--json").stdout)
    assert "eval/greedy" not in sampled
    assert "pass@4 with 2 samples" in error("eval", str(finished), "--k", "4", "--samples", "2")
    assert "list of positive whole numbers" in error("eval", str(finished), "--k", "1,x")
    assert "no checkpoint 7" in error("eval", str(finished), "--checkpoint", "7")
    assert "no checkpoint warmup-7" in error("eval", str(finished), "--checkpoint", "warmup-7")


def test_eval_of_an_exported_model_on_another_task(finished, here):
    assert "the final model" in call("export", str(finished), "model").stdout
    data = json.loads(call("eval", "model", "--task", "{name: addition, digits: 1}", "--prompts", "3", "--json").stdout)
    assert len(data["samples"][0]["prompt"]) == len("1+2=")
    assert "exists already" in error("export", str(finished), "model")


def test_report(finished):
    (finished / "report.html").unlink()
    assert "report.html" in call("report", str(finished)).stdout
    assert (finished / "report.html").is_file()
