"""What a sceptical first hour found: wrong inputs that were taken, or refused in the wrong words."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.methods.naming import entry_of
from grouprl.plan.plan import plan
from grouprl.policy.language.tiny import build_tiny
from grouprl.rewards.judging.judge import side_by_side
from grouprl.tasks import load_task
from grouprl.tasks.adapters import jsonl
from grouprl.training.loop import train
from grouprl.view.sections import without_folders
from interrupts import interrupted

MODEL = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}}
SMALL = {
    "task": "jsonl:q.jsonl",
    "model": MODEL,
    "steps": 1,
    "batch": {"prompts": 2, "group_size": 2},
    "sampling": {"max_new_tokens": 4},
    "eval": {"every": 0, "final_prompts": 2},
    "run": {"threads": 1},
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows(tmp_path / "q.jsonl", ({"prompt": str(i), "answer": str(i)} for i in range(40)))
    return tmp_path


def rows(path: Path, found) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    return done.stderr.replace("\n", " ")


# --- settings ---------------------------------------------------------------------------------------------------------


def test_a_setting_of_the_method_that_nobody_named_is_one_of_the_default(work: Path) -> None:
    (work / "run.yaml").write_text("task: addition\n")
    assert load_config("run.yaml", ["method.clip_high=0.3"]).method == {"name": "grpo", "clip_high": 0.3}
    assert "clip_high" in refused("plan", "run.yaml", "--set", "method.clip_hihg=0.3")


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("sampling", {"stop": [""]}),
        ("run", {"threads": 100_000}),
        ("reward", {"workers": 5000}),
        ("environment", {"workers": 5000}),
        ("reward", {"function": ""}),
        ("reward", {"function": []}),
    ],
)
def test_what_could_only_go_wrong_is_refused_before_anything_is_loaded(section: str, value: dict) -> None:
    (key,) = value
    with pytest.raises(InputError, match=f"{section}.*{key}" if key != "function" else "names no reward"):
        parse_config({section: value})


def test_a_run_folder_that_cannot_be_made_is_found_by_the_plan(work: Path) -> None:
    (work / "file").write_text("")
    (work / "run.yaml").write_text(json.dumps(SMALL))

    def refusals(place: str) -> list[str]:
        done = CliRunner().invoke(app, ["plan", "run.yaml", "--set", f"run.folder={place}", "--json"])
        return json.loads(done.stdout)["refusals"]

    for place in ("file/x", str(work / "file" / "run")):
        (said,) = refusals(place)
        assert said.startswith(f"run.folder is {Path(place).absolute()}: ")
    assert refusals(str(work / "new" / "run")) == []
    assert {each.name for each in work.iterdir()} == {"file", "q.jsonl", "run.yaml"}


def test_methods_of_files_are_refused_in_words(work: Path) -> None:
    (work / "mine.py").write_text("def paid(completion):\n    return 1.0\n")
    assert "mine.py:FUNCTION" in refused("methods", "show", "mine.py")
    with pytest.raises(InputError, match=r"'completion'.*default"):
        entry_of("mine.py:paid").build()
    assert "without a number" in refused("papers", "show")


# --- data -------------------------------------------------------------------------------------------------------------


def test_lines_that_cannot_be_read_say_why(work: Path) -> None:
    (work / "half.jsonl").write_text('{"prompt": "\\ud800x", "answer": "a"}\n')
    with pytest.raises(InputError, match=r"Line 1 .*half a character \('\\ud800'\)"):
        load_task("jsonl:half.jsonl")
    (work / "cut.jsonl").write_text('{"prompt": "a", "answer": "a"}\n{"prompt": "b", "ans')
    with pytest.raises(InputError, match=r"Line 2 .* unterminated string starting at character 17\."):
        load_task("jsonl:cut.jsonl")


def test_a_line_without_end_is_refused_in_bounded_memory(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (work / "endless.jsonl").open("wb") as file:
        file.truncate(2**31)  # a hole: two gigabytes that take no room
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="longer than 64 MiB"):
        load_task("jsonl:endless.jsonl")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 30)
    (work / "list.jsonl").write_text(json.dumps([{"prompt": str(i), "answer": "1"} for i in range(20)]))
    with pytest.raises(InputError, match="a line for each of its objects"):
        load_task("jsonl:list.jsonl")


def test_a_prompt_beyond_the_context_is_refused_without_other_words(work: Path, capfd) -> None:
    rows(work / "q.jsonl", ({"prompt": "x" * 300 + str(i), "answer": str(i)} for i in range(20)))
    (said,) = plan(parse_config(SMALL)).refusals
    assert "positions" in said
    assert capfd.readouterr().err == ""


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worth", ["1e308", "-1e16", "10 ** 400"])
def test_a_reward_that_no_statistic_can_hold_is_no_reward(work: Path, worth: str) -> None:
    (work / "huge.py").write_text(f"def huge(completion):\n    return {worth}\n")
    config = parse_config({**SMALL, "reward": {"function": "huge.py:huge", "workers": 0, "self_test": False}})
    with pytest.raises(RunError, match=r"not a finite number between -1e\+15 and 1e\+15"):
        train(config, folder=work / "run", console=Console(file=io.StringIO()))


def test_a_judge_that_hangs_does_not_hold_a_run_that_is_to_stop() -> None:
    def hang(item: int) -> int:
        time.sleep(20)
        return item

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interrupted(0.3):
        side_by_side(hang, range(4), 2)
    assert time.monotonic() - begun < 15


def test_judging_side_by_side_keeps_the_order_and_what_is_raised() -> None:
    assert side_by_side(lambda x: x * x, range(10), 3) == [x * x for x in range(10)]
    assert side_by_side(str, [], 3) == []
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda x: 1 // x, [1, 0], 1)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_names_on_the_page_are_without_folders() -> None:
    for name, shown in {
        "env:/home/me/nim.py:Nim": "env:nim.py:Nim",
        "/root/models/small": "small",
        "org/model": "org/model",
        "openenv:http://127.0.0.1:8000": "openenv:http://127.0.0.1:8000",
        "addition": "addition",
    }.items():
        assert without_folders(name) == shown


NIM = """
from grouprl.envs import Observation, Step


class Nim:
    def __init__(self):
        self.heap = 0

    def reset(self, example, seed):
        self.heap = 3 + seed % 3
        return Observation(f"{self.heap} left>")

    def step(self, action):
        return Step(Observation("over"), 1.0, terminated=True)

    def score(self):
        return {"correct": 1.0}

    def close(self):
        pass
"""


def test_an_episode_without_a_prompt_is_shown_with_what_it_began_with(work: Path) -> None:
    (work / "nim.py").write_text(NIM)
    data = {**SMALL, "task": {"name": "env:nim.py:Nim", "turns": 2, "tokens": 3}, "environment": {"workers": 0}}
    del data["sampling"]
    run = train(parse_config(data), folder=work / "run", console=Console(file=io.StringIO())).folder
    shown = json.loads((run / "samples.json").read_text())
    assert [row["prompt"].endswith(" left>") for row in shown] == [True, True]


# --- found by another first hour --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            gzip.compress(b'{"prompt": "p"}\n', mtime=0),
            "is compressed by gzip. Prompts are lines of text in UTF-8. Unpack it",
        ),
        ('{"prompt": "p"}\n'.encode("utf-16"), "is text in UTF-16. Prompts are lines of text in UTF-8. Save it"),
        (b"PAR1....", "is a Parquet file"),
    ],
)
def test_a_file_that_is_no_text_is_named_for_what_it_is(work: Path, made: bytes, said: str) -> None:
    (work / "odd.jsonl").write_bytes(made)
    (work / "odd.yaml").write_text("task: jsonl:odd.jsonl\n")
    assert said in refused("plan", "odd.yaml")


def test_a_pipe_is_refused_and_not_waited_for(work: Path) -> None:
    os.mkfifo(work / "pipe.jsonl")
    with pytest.raises(InputError, match=r"is a pipe.*read more than once"):
        load_task("jsonl:pipe.jsonl")


def test_a_list_of_no_k_is_refused_by_its_name(work: Path) -> None:
    assert "eval.k" in refused("plan", "addition", "--set", "eval.k=[]")


@pytest.mark.parametrize("size", [{"hidden": 100_000_000}, {"layers": 10**9}, {"intermediate": 10**9}])
def test_a_tiny_model_beyond_all_memory_is_refused_before_it_is_built(size: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"A tiny model of this size has .* GiB are free"):
        build_tiny("ab", **size)


def test_a_run_folder_whose_name_is_too_long_is_found_by_the_plan(work: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "addition", "--set", f"run.folder={'a' * 300}"], env={"COLUMNS": "999"})
    assert (done.exit_code, "name too long" in done.stdout) == (2, True)


@pytest.mark.parametrize("command", ["show", "report"])
def test_runs_that_were_meant_are_named(work: Path, command: str) -> None:
    (work / "runs" / "guess").mkdir(parents=True)
    (work / "runs" / "guess" / "config.yaml").write_text("")
    assert "Did you mean 'guess'?" in refused(command, "runs/gues")
