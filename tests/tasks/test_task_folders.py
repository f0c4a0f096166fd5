"""Jobs for a shell in folders of one's own."""

import pytest
import yaml

from grouprl.core.errors import InputError
from grouprl.envs.playing import total_reward
from grouprl.tasks import load_task

JOB = {"prompt": "Make hello.sh print hi.", "tests": [{"run": ["bash", "hello.sh"], "stdout": "hi"}]}


def job(folder, name="one", files=(), **told):
    place = folder / name
    (place / "files").mkdir(parents=True)
    for path, content in dict(files).items():
        target = place / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o750)
    (place / "task.yaml").write_text(yaml.safe_dump({**JOB, **told}))
    return f"task_folders:{folder}"


def test_a_job_is_done_in_its_files(tmp_path):
    spec = job(tmp_path, files={"sub/a.txt": "grün\n".encode()}, solution=["echo echo hi > hello.sh"])
    task = load_task(spec)
    example = task.example("train", 0)
    assert (task.size("train"), task.size("eval")) == (1, 0)
    assert total_reward(task.environment(), example, task.solution(example).splitlines()) == 1
    assert total_reward(task.environment(), example, ["done"]) == 0
    env = task.environment()
    env.reset(example, 0)
    assert env.step("cat sub/a.txt; stat -c %a sub/a.txt; find . -name task.yaml").observation.text == "grün\n750\n$ "
    env.close()


def test_splits_and_fingerprints(tmp_path):
    for number in range(11):
        job(tmp_path, f"j{number:02}", **({"split": "eval"} if number == 0 else {}))
    spec = f"task_folders:{tmp_path}"
    one = load_task(spec)
    assert (one.size("train"), one.size("eval")) == (9, 2)
    (tmp_path / "j03" / "files" / "new").write_text("x")
    assert load_task(spec).fingerprint() != one.fingerprint()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"prompt": ""}, "has no prompt"),
        ({"tests": []}, "There are no tests in the job 'one'"),
        ({"tests": [{"fiel": "a"}]}, "must have one of the keys"),
        ({"promt": "x"}, "has the key 'promt'"),
        ({"solution": "ls"}, "It must be a list of commands"),
        ({"split": "test"}, "It must be train or eval"),
        ({"files": {"a": b"\xff\xfe"}}, "is not text"),
    ],
)
def test_what_is_wrong_with_a_job_is_said(tmp_path, told, words):
    with pytest.raises(InputError, match=words):
        load_task(job(tmp_path, **told))


def test_a_folder_without_jobs_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a folder in it that holds task\.yaml"):
        load_task(f"task_folders:{tmp_path}")


@pytest.mark.parametrize("text", ["prompt: &x [*x]", "{prompt: a, tests: &x [*x]}", "prompt: " + "[" * 5000, "{"])
def test_a_job_that_is_no_finite_yaml_is_refused(tmp_path, text):
    where = job(tmp_path)
    (tmp_path / "one" / "task.yaml").write_text(text)
    with pytest.raises(InputError, match="job"):
        load_task(where)
