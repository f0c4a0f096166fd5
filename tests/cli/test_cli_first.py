"""The command line itself: fast to completion, quiet and plain on request, interrupted without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.cli.listing import listed
from grouprl.methods import CATALOGUE

SECONDS = 0.5
"""Of a processor: other processes of this machine do not count."""
START = [sys.executable, "-m", "grouprl"]


def run(*arguments, **settings):
    return subprocess.run([*START, *arguments], capture_output=True, text=True, timeout=120, **settings)


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("methods",),
        ("methods", "--names"),
        ("methods", "--family", "group_relative"),
        ("tasks",),
        ("recipes",),
        ("metrics",),
        ("train", "--help"),
        ("serve", "--help"),
        ("methods", "show", "--help"),
    ],
    ids=" ".join,
)
def test_answers_before_torch_is_loaded(arguments):
    watching = (
        "import sys, runpy, atexit\n"
        "atexit.register(lambda: print('LOADED', *sorted({'torch', 'transformers', 'numpy'} & set(sys.modules))))\n"
        f"sys.argv = ['grouprl', *{list(arguments)!r}]\n"
        "runpy.run_module('grouprl', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", watching], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1].split()[1:]
    assert "torch" not in loaded
    assert "transformers" not in loaded


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("methods",), ("tasks",)], ids=" ".join)
def test_answers_within_half_a_second_of_a_processor(arguments):
    def seconds():
        before = os.times()
        assert run(*arguments).returncode == 0
        after = os.times()
        return after.children_user - before.children_user

    assert min(seconds() for _ in range(3)) < SECONDS


def test_the_module_is_the_command():
    assert run("--version").stdout.startswith("grouprl ")
    assert run("nonsense").returncode == 2


def test_what_the_package_offers_is_there_though_it_is_loaded_late():
    code = (
        "import sys, grouprl, grouprl.core.errors\n"
        "assert 'torch' not in sys.modules\n"
        "import grouprl.algorithms.method, grouprl.methods.registry\n"
        "assert callable(grouprl.method) and callable(grouprl.methods)\n"
        "assert grouprl.method('grpo').name == 'grpo' and 'grpo' in grouprl.methods()\n"
        "from grouprl import *\n"
        "assert all(hasattr(grouprl, name) for name in grouprl.__all__)\n"
        "assert not hasattr(grouprl, 'nonsense')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_listing_is_made_from_the_cards():
    import importlib.util

    path = Path(__file__).parents[2] / "scripts" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    assert {each["name"] for each in json.loads(docs.listing())} == set(CATALOGUE)
    assert json.loads(docs.listing())[0].keys() == json.loads(docs.LISTING.read_text(encoding="utf-8"))[0].keys()
    assert {each.name for each in listed()} <= set(CATALOGUE)


def test_names_alone():
    assert invoke("methods", "--names").stdout.split() == [each.name for each in listed()]
    few = invoke("methods", "--names", "--search", "leave-one-out").stdout.split()
    assert few
    assert set(few) < set(CATALOGUE)
    assert json.loads(invoke("methods", "--names", "--json", "--family", "group_relative").stdout)[0] in CATALOGUE


@pytest.mark.parametrize(
    "arguments",
    [
        ("methods", "--family", "group_relative"),
        ("methods", "show", "grpo"),
        ("methods", "diff", "grpo", "dr_grpo"),
        ("tasks",),
        ("tasks", "addition"),
        ("tasks", "jsonl"),
        ("recipes",),
        ("metrics",),
        ("metrics", "clip_fraction"),
        ("metrics", "eval/*"),
        ("papers", "length"),
        ("sandbox", "--no-check"),
        ("plan", "addition"),
    ],
    ids=" ".join,
)
def test_every_listing_is_plain_data_on_request(arguments):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("methods", "show", "grqo"), "InputError", "Did you mean 'grpo'"),
        (("methods", "--family", "nothing"), "InputError", "unknown family"),
        (("tasks", "adition"), "InputError", "addition"),
        (("metrics", "clip_fractoin"), "InputError", "clip_fraction"),
        (("papers", "show", "x"), "InputError", "not a paper's number"),
        (("plan", "nowhere.yaml"), "InputError", "nowhere.yaml"),
        (("show", "nowhere", "--list"), "InputError", "nowhere"),
        (("methods", "--famly", "group"), "UsageError", "--famly"),
        (("nonsense",), "UsageError", "nonsense"),
        (("methods", "show"), "UsageError", "name"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_errors_are_plain_data_on_request(arguments, kind, said):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == kind
    assert said in error["message"]
    assert invoke(*arguments).exit_code == 2
    assert not invoke(*arguments).stdout.startswith("{")


def commands():
    import typer.main

    root = typer.main.get_command(app)
    found = {(): root, **{(name,): command for name, command in root.commands.items()}}
    for name, command in root.commands.items():
        found |= {(name, inner): each for inner, each in getattr(command, "commands", {}).items()}
    return found


@pytest.mark.parametrize("path", commands(), ids=lambda path: " ".join(path) or "grouprl")
def test_every_help_has_examples(path):
    done = invoke(*path, "--help")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "Example" in text
    assert f"grouprl {' '.join(path)}".strip() in text.split("Example", 1)[1]


def test_the_shell_completes_names():
    def completed(line):
        given = {**os.environ, "_GROUPRL_COMPLETE": "complete_bash", "COMP_WORDS": line}
        given["COMP_CWORD"] = str(len(line.split(" ")) - 1)
        code = "import sys; sys.argv = ['grouprl']; from grouprl.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given, timeout=60)
        return done.stdout.split()

    assert "dapo" in completed("grouprl methods show da")
    assert "methods" in completed("grouprl meth")
    assert "addition" in completed("grouprl tasks addi")
    assert invoke("--show-completion", "bash").exit_code in (0, 1)  # 1: the shell that requests is not known


def test_quiet_prints_the_run_alone(tmp_path):
    run_folder = tmp_path / "run"
    settings = ["steps=1", "warmup.steps=1", "eval.prompts=4", "eval.final_prompts=4", "batch.prompts=2"]
    changes = [part for setting in settings for part in ("--set", setting)]
    done = invoke("train", "addition", *changes, "--folder", str(run_folder), "-q")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(run_folder)
    refused = invoke("-q", "train", str(run_folder))
    assert refused.exit_code == 2
    assert "a run never overwrites another" in refused.stderr.lower()
    out = invoke("export", str(run_folder), str(tmp_path / "model"), "--quiet")
    assert (out.exit_code, out.stdout) == (0, "")


@pytest.mark.parametrize(
    "arguments", [("plan", "addition"), ("methods", "show", "grpo"), ("tasks",), ("--help",)], ids=" ".join
)
@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3, 0.6, 1.2, 2.4])
def test_an_interrupt_at_any_time_leaves_no_traceback(arguments, delay):
    process = subprocess.Popen(
        [*START, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    if "site.py" in said or "encodings" in said or "runpy" in said:
        pytest.skip("Python itself was not up yet")
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert process.returncode in (0, 130, -signal.SIGINT)


def test_a_note_where_prompts_repeat_within_a_step(tmp_path):
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(3)))
    few = invoke("plan", "addition", "--set", f"task=jsonl:{file}", "--set", "batch.prompts=8", "--json")
    assert any("prompts repeat within a step" in note for note in json.loads(few.stdout)["notes"]), few.stdout
    enough = invoke("plan", "addition", "--set", f"task=jsonl:{file}", "--set", "batch.prompts=2", "--json")
    assert not any("prompts repeat" in note for note in json.loads(enough.stdout)["notes"])
