"""Resuming where data, code or the place of files have changed since a run began."""

from __future__ import annotations

import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.tasks import load_task
from grouprl.training.loop import train
from grouprl.training.opening import resume
from grouprl.training.starting import choose
from short_runs import SMALL, quiet

SHORT = {**SMALL, "steps": 1}


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_changed_data_is_refused_with_its_name_and_the_first_row_that_differs(work):
    (work / "away").mkdir()
    for name, begin in (("train", 0), ("eval", 50)):
        lines = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(begin, begin + 9)]
        (work / f"{name}.jsonl").write_text("\n".join(lines))
    task = {"name": "jsonl", "path": "train.jsonl", "eval": "eval.jsonl"}
    run = train(parse_config({**SHORT, "task": task}), folder=work / "r", console=quiet()).folder
    whole = (work / "train.jsonl").read_text()
    for told, text in {
        "1 of 9 rows changed": whole.replace('"4"', '"5"'),
        "Rows added: 0, removed: 1 (9 then, 8 now)": "\n".join(whole.splitlines()[:3] + whole.splitlines()[4:]),
        "Rows added: 2, removed: 0": whole + '\n{"prompt": "a", "answer": "b"}\n{"prompt": "c"}',
        "The 9 rows are in another order": "\n".join(reversed(whole.splitlines())),
    }.items():
        (work / "train.jsonl").write_text(text)
        with pytest.raises(InputError, match=r"train\.jsonl has changed") as refused:
            resume(run)
        assert told in str(refused.value)
        assert "eval.jsonl" not in str(refused.value)
    (work / "train.jsonl").write_text(whole.replace('"4"', '"5"'))
    with pytest.raises(InputError) as refused:
        resume(run)
    assert "line 4 of" in str(refused.value)
    assert '\n- {"answer": "4", "prompt": "3+1="}\n+ {"answer": "5", "prompt": "3+1="}\n' in str(refused.value)
    resume(run, accept_changes=True).leave()
    resume(run).leave()
    (work / "train.jsonl").rename(work / "away" / "train.jsonl")
    with pytest.raises(InputError, match=r"train\.jsonl is gone.*--set task\.path=NEW"):
        resume(run)
    resume(run, ["task.path=away/train.jsonl"]).leave()
    resume(run).leave()  # where it lies is the run's from now on
    with pytest.raises(InputError, match="and the paths of files"):
        resume(run, ["task.path=eval.jsonl"])


def test_a_project_that_was_moved_goes_on_where_it_is_said_to_lie(work, monkeypatch):
    monkeypatch.syspath_prepend(work / "here")
    (work / "here").mkdir()
    (work / "here" / "moving.py").write_text(
        "from moving_too import worth\n\n\ndef moving(completion):\n    return worth\n"
    )
    (work / "here" / "moving_too.py").write_text("worth = 0.5\n")
    (work / "here" / "plugged.py").write_text("")
    own = {"reward": {"function": "here/moving.py:moving", "workers": 0}, "plugins": ["here/plugged.py"]}
    run = train(parse_config({**SHORT, **own}), folder=work / "r", console=quiet()).folder
    (work / "here").rename(work / "there")
    chosen = choose(str(run), ["plugins=[there/plugged.py]", "reward.function=there/moving.py:moving"], None, True)
    with pytest.raises(InputError, match=r"moving_too\.py is gone; if it was moved, give its new path: --set"):
        resume(run)
    resume(run, chosen.changes).leave()
    assert set(json.loads((run / "run.json").read_text())["code"]) >= {str(work / "there" / "moving.py")}
    (work / "there" / "moving.py").write_text("def moving(completion):\n    return 1.0\n")
    with pytest.raises(InputError, match=r"moving\.py has changed"):
        resume(run)


def test_prompts_of_a_program_and_stored_rewards_are_part_of_what_a_run_began_with(work):
    (work / "q.jsonl").write_text('{"prompt": "old", "answer": "row"}\n{"prompt": "next", "answer": "row"}\n')
    (work / "agent.py").write_text("def run(prompt, client):\n    return ''\n")
    spec = {"name": "program:agent.py:run", "examples": "jsonl:q.jsonl"}
    before = load_task(spec)
    (work / "q.jsonl").write_text((work / "q.jsonl").read_text() + '{"prompt": "new", "answer": "row"}\n')
    assert load_task(spec).fingerprint() != before.fingerprint()
    assert [table.name for table in before.tables()] == ["q.jsonl"]
    stored = train(
        parse_config(SHORT | {"run": {"threads": 1, "rollouts_every": 1}}), folder=work / "r", console=quiet()
    ).folder
    first = load_task(f"rollouts:{stored}")
    path = sorted((stored / "rollouts").glob("*.parquet"))[0]
    table = pq.read_table(path)
    column = table.schema.get_field_index("reward")
    pq.write_table(table.set_column(column, "reward", pa.array([0.125] * len(table))), path)
    assert load_task(f"rollouts:{stored}").fingerprint() != first.fingerprint()


def test_a_copied_project_uses_its_own_code_and_says_so(work, monkeypatch):
    project, copy = work / "project", work / "copy"
    project.mkdir()
    (project / "judging.py").write_text("def mine(completion):\n    return 0.5\n")
    own = {"reward": {"function": "project/judging.py:mine", "workers": 0}}
    run = train(parse_config({**SHORT, **own}), folder=project / "runs" / "r", console=quiet()).folder
    (shutil.copytree(project, copy) / "judging.py").write_text("def mine(completion):\n    return 1.0\n")
    inside = copy / run.relative_to(project)
    with pytest.raises(InputError, match=r"copy/judging\.py has changed"):
        resume(inside)
    session = resume(inside, accept_changes=True)
    session.leave()
    assert any(f'reads the files of this one: reward.function="{copy}/judging.py:mine"' in n for n in session.notes)
    assert str(copy / "judging.py") in (inside / "config.yaml").read_text()
    again = resume(inside)
    again.leave()
    assert not any("copied" in note for note in again.notes)
    original = resume(run)
    original.leave()
    assert not any("copied" in note for note in original.notes)


def test_files_that_only_the_original_project_has_are_read_there(work):
    (work / "outside.py").write_text("def mine(completion):\n    return 0.5\n")
    own = {"reward": {"function": "outside.py:mine", "workers": 0}}
    run = train(parse_config({**SHORT, **own}), folder=work / "project" / "r", console=quiet()).folder
    shutil.copytree(run, work / "elsewhere" / "r")
    session = resume(work / "elsewhere" / "r")
    session.leave()
    assert session.config.reward.function == f"{work}/outside.py:mine"
    assert not any("copied" in note for note in session.notes)


def test_a_finished_run_is_not_evaluated_again(work):
    run = train(parse_config(SHORT), folder=work / "r", console=quiet()).folder
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    said = io.StringIO()
    assert not train(parse_config(SHORT), folder=run, resume=True, console=Console(file=said, width=200)).interrupted
    assert "has made all its" in said.getvalue()
    assert {path: path.read_bytes() for path in before} == before
    (run / "summary.json").unlink()  # ended before its results were written
    train(parse_config(SHORT), folder=run, resume=True, console=quiet())
    assert json.loads((run / "summary.json").read_text())["finished"]
