"""The command line itself: fast to completion, quiet and plain on request, interrupted without a traceback."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.cli.listing import listed
from grouprl.methods import CATALOGUE

START = [sys.executable, "-m", "grouprl"]


def run(*arguments, **settings):
    return subprocess.run([*START, *arguments], capture_output=True, text=True, timeout=120, **settings)


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def listed_before():
    """Whoever lists for the first time after the sources have changed waits for the listing to be computed."""
    for arguments in (("methods",), ("parts",), ("tasks",), ("papers",), ("papers", "show", "118")):
        assert run(*arguments).returncode == 0


def test_where_it_cannot_run_the_import_says_what_can():
    code = "import sys; sys.platform = 'win32'; import grouprl"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert told.returncode == 1
    assert "ImportError: grouprl needs Linux" in told.stderr


def commands():
    import typer.main

    root = typer.main.get_command(app)
    found = {(): root, **{(name,): command for name, command in root.commands.items()}}
    for name, command in root.commands.items():
        found |= {(name, inner): each for inner, each in getattr(command, "commands", {}).items()}
    return found


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
        ("parts",),
        ("parts", "--kind", "advantage"),
        ("papers",),
        ("papers", "show", "118", "--json"),
        ("papers", "show", "118"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("listed_before")
def test_answers_before_torch_is_loaded(arguments):
    watching = (
        "import sys, runpy, atexit\n"
        "heavy = {'torch', 'transformers', 'grouprl.methods.group_relative', 'grouprl.algorithms.method'}\n"
        "atexit.register(lambda: print('LOADED', *sorted(heavy & set(sys.modules))))\n"
        f"sys.argv = ['grouprl', *{list(arguments)!r}]\n"
        "runpy.run_module('grouprl', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", watching], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_no_help_needs_torch():
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from grouprl.cli.app import app\n"
        f"for path in {[list(path) for path in commands()]!r}:\n"
        "    assert CliRunner().invoke(app, [*path, '--help']).exit_code == 0, path\n"
        "assert not {'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


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
    assert {each.name for each in listed()} == set(CATALOGUE)


def test_names_alone():
    assert invoke("methods", "--names").stdout.split() == [each.name for each in listed()]
    few = invoke("methods", "--names", "--search", "leave-one-out").stdout.split()
    assert few
    assert set(few) < set(CATALOGUE)
    assert json.loads(invoke("methods", "--names", "--json", "--family", "group_relative").stdout)[0] in CATALOGUE


def tiny_run(folder):
    """Train the smallest run there is, for commands that read one."""
    few = [
        "steps=1",
        "warmup.steps=1",
        "eval.prompts=2",
        "eval.final_prompts=2",
        "batch.prompts=2",
        "batch.group_size=2",
    ]
    changes = [part for setting in few for part in ("--set", setting)]
    return invoke("train", "addition", *changes, "--folder", str(folder), "--json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, tiny_run(folder)


DATA = [
    ("methods", "--names"),
    ("methods", "--family", "group_relative"),
    ("methods", "show", "grpo"),
    ("methods", "diff", "grpo", "dr_grpo"),
    ("methods", "check", "grpo"),
    ("tasks",),
    ("tasks", "addition"),
    ("tasks", "jsonl"),
    ("recipes",),
    ("metrics",),
    ("metrics", "clip_fraction"),
    ("metrics", "eval/*"),
    ("papers", "length"),
    ("papers", "show", "118"),
    ("parts", "--kind", "critic"),
    ("parts", "relative"),
    ("sandbox", "--no-check"),
    ("plan", "addition"),
    ("check-env", "guess", "--episodes", "2"),
    ("check-reward", "addition", "--examples", "1"),
    ("show", "RUN"),
    ("show", "RUN", "--list"),
    ("report", "RUN"),
    ("doctor", "RUN"),
    ("eval", "RUN", "--prompts", "2"),
    ("laws", "RUN"),
    ("runs", "RUNS"),
    ("init", "NEW"),
    ("new", "reward", "mine", "--folder", "NEW"),
    ("export", "RUN", "MODEL"),
    ("track", "RUN", "tensorboard"),
    ("view", "RUN", "--export", "PAGE"),
]
ELSEWHERE = {("train",), ("launch",), ("compare",), ("serve",), ("lessons",), ("rewardbench",), ("schema",), ()}
"""Tested on their own: what trains the run of these tests, alone or on several processes (with the same lines), or many
runs, what serves until it is stopped, what asks an endpoint, what scores a reward model, what prints JSON anyway, and
the group of all."""
NOTHING_FOUND = 1
"""Exit code of `laws` where a run is too short for any, and of the checks where they find something."""


def test_every_command_gives_plain_data():
    assert {path for path in commands() if any(tuple(case[: len(path)]) == path for case in DATA)} | ELSEWHERE == {
        *commands()
    }


@pytest.mark.parametrize("arguments", DATA, ids=" ".join)
def test_every_listing_is_plain_data_on_request(arguments, trained, tmp_path):
    places = {
        "RUN": str(trained[0]),
        "MODEL": str(tmp_path / "model"),
        "PAGE": str(tmp_path / "runs.html"),
        "RUNS": str(trained[0].parent),
    }
    places["NEW"] = str(tmp_path / "new")
    done = invoke(*(places.get(each, each) for each in arguments), "--json")
    assert done.exit_code in (0, NOTHING_FOUND), done.output
    assert json.loads(done.stdout)


def test_a_trained_run_is_plain_data_on_request(trained):
    folder, done = trained
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"folder": str(folder), "interrupted": False}


def test_turns_of_plain_data_count_from_one(trained):
    found = json.loads(invoke("show", str(trained[0]), "--json").stdout)
    assert [turn["number"] for turn in found["turns"]] == [1]
    assert "".join(piece["text"] for piece in found["turns"][0]["said"])


@pytest.mark.parametrize("path", [path for path in commands() if path], ids=" ".join)
def test_errors_of_every_command_are_plain_data_on_request(path):
    """An option that no command has, and a wrong first argument where there is one."""
    for wrong in (["--nonsense"], ["no/such:thing"] * (2 if path in (("methods", "diff"), ("export",)) else 1)):
        if path in (("sandbox",), ("recipes",)) and wrong != ["--nonsense"]:
            wrong = ["--level", "nonsense"] if path == ("sandbox",) else ["more"]
        if path == ("new",) and wrong != ["--nonsense"]:
            wrong = ["nothing", "mine"]
        if path == ("init",) and wrong != ["--nonsense"]:
            wrong = [__file__]
        done = invoke(*path, *wrong, "--json")
        assert done.exit_code == 2, done.output
        assert json.loads(done.stdout)["error"]["message"]


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


@pytest.mark.parametrize("path", commands(), ids=lambda path: " ".join(path) or "grouprl")
def test_every_help_has_examples(path):
    done = invoke(*path, "--help")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "Example" in text
    assert f"grouprl {' '.join(path)}".strip() in text.split("Example", 1)[1]


def examples(path):
    """Return the words of every command line in a help, without what is said beside it."""
    found = re.findall(r"^\s*((?:torchrun .* -m )?grouprl .*)$", commands()[path].help, re.M)
    lines = [re.split(r"\s{2,}", line.strip())[0] for line in found]
    return [shlex.split(line.partition("grouprl ")[2].replace(" …", "")) for line in lines]


@pytest.mark.parametrize("path", commands(), ids=lambda path: " ".join(path) or "grouprl")
def test_every_example_parses(path):
    assert examples(path)
    root = commands()[()]
    for words in examples(path):
        found, rest = root, list(words)
        while rest and rest[0] in getattr(found, "commands", {}):
            found, rest = found.commands[rest[0]], rest[1:]
        if rest and found is not root:  # whose options are those of every command, and of completion
            found.make_context(" ".join(words), [word for word in rest if word != "-q"])


LISTS = ("tasks", "recipes", "parts", "papers", "metrics", "methods")


def test_examples_of_listings_run():
    lines = {tuple(words) for path in commands() for words in examples(path) if words[0] in LISTS}
    done = {words: invoke(*words) for words in lines if not re.search(r"my_|mine|jsonl:|nope", " ".join(words))}
    assert len(done) > 15
    assert {words: run.output for words, run in done.items() if run.exit_code} == {}


COMPLETED = {
    "grouprl methods show da": "dapo",
    "grouprl meth": "methods",
    "grouprl tasks addi": "addition",
    "grouprl train add": "addition",
    "grouprl plan mi": "mine.yaml",
    "grouprl train runs/": "runs/one",
    "grouprl eval ru": "runs/one",
    "grouprl parts rela": "relative",
    "grouprl metrics clip_f": "clip_fraction",
    "grouprl check-env gue": "guess",
    "grouprl train addition --se": "--seed",
}


def test_bash_completes_what_was_installed_by_the_module(tmp_path):
    """In a real bash: what `python -m grouprl --install-completion` wrote is sourced, and TAB is what calls it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command, home = tmp_path / "bin" / "grouprl", tmp_path / "home"
    (home / "runs" / "one").mkdir(parents=True)
    (home / "runs" / "one" / "config.yaml").write_text("task: addition\n")
    (home / "mine.yaml").write_text("task: addition\n")
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m grouprl "$@"\n')
    command.chmod(0o755)
    lines = "\n".join(f"complete_line {shlex.quote(line)}" for line in COMPLETED)
    (tmp_path / "tab.sh").write_text(
        "grouprl --install-completion >/dev/null || exit 1\n"
        ". ~/.bashrc\n"
        "name=$(complete -p grouprl | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        "complete_line() {\n"
        "  COMP_LINE=$1; COMP_POINT=${#1}; read -ra COMP_WORDS <<<$1; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n"
        '  $name grouprl "${COMP_WORDS[$COMP_CWORD]}"; echo "$1|${COMPREPLY[*]}"\n'
        "}\n" + lines
    )
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    given = {**os.environ, "PATH": path, "HOME": str(home), "SHELL": bash}
    done = subprocess.run([bash, tmp_path / "tab.sh"], capture_output=True, text=True, env=given, cwd=home, timeout=200)
    found = dict(line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    assert {line: COMPLETED[line] in found.get(line, "").split() for line in COMPLETED} == dict.fromkeys(
        COMPLETED, True
    ), done


NOISY = """
print("noise of an import")
import grouprl
from grouprl import part


@part("advantage")
class NoisyAdvantage(grouprl.Advantage):
    says = "print, and compare with nothing"

    def __call__(self, batch):
        print("noise of a part")
        return batch.broadcast(batch.reward_b)


def noisy():
    print("noise of a method")
    return grouprl.method("grpo").with_parts(advantage=NoisyAdvantage())
"""


def test_what_own_code_prints_is_no_result(tmp_path):
    """Neither plain data nor, with -q, the run's folder has anything else around it."""
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "run.yaml").write_text(
        "task: {name: addition, digits: 1}\nmethod: noisy.py:noisy\n"
        "model: {name: tiny, tiny: {hidden: 16, layers: 1, heads: 2, intermediate: 32}}\nsteps: 1\n"
        "warmup: {steps: 2}\nbatch: {prompts: 2, group_size: 2}\neval: {every: 0, prompts: 2, final_prompts: 2}\n"
    )
    checked = run("methods", "check", "noisy.py:noisy", "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["method"] == "noisy.py:noisy"
    assert "noise of a part" in checked.stderr
    trained = run("train", "run.yaml", "--folder", "out", "-q", cwd=tmp_path)
    assert trained.stdout == "out\n", trained.stderr
    assert "noise of a part" in trained.stderr


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
    assert invoke("--show-completion", "bash").exit_code in (0, 1)  # 1: the shell is not known


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


def test_listings_show_what_an_installed_plugin_brings(tmp_path):
    (tmp_path / "brought.py").write_text(
        "from grouprl.algorithms.part import Part, part\n\n\n"
        '@part("advantage")\n'
        "class BroughtAlong(Part):\n"
        '    says = "nothing yet"\n\n'
        "    def __call__(self, batch):\n"
        "        return batch.reward_b[:, None] * batch.mask_bt\n"
    )
    (tmp_path / "brought-1.0.dist-info").mkdir()
    (tmp_path / "brought-1.0.dist-info" / "METADATA").write_text("Name: brought\nVersion: 1.0\n")
    (tmp_path / "brought-1.0.dist-info" / "entry_points.txt").write_text("[grouprl.plugins]\nbrought = brought\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("parts", "--kind", "advantage", env={**os.environ, "PYTHONPATH": path})
    assert "brought_along" in done.stdout, done.stderr
