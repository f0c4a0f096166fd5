"""Containers and other machines: the words that are given to their clients, and what is said where there is none.

A stand-in for the client runs everything on this machine, in a folder of its own: so the whole protocol is held
against the words. No engine was there when this was written.
"""

import os
import shlex
import stat
import sys

import pytest

from grouprl.core.errors import InputError
from grouprl.envs.playing import total_reward
from grouprl.runtimes import (
    ContainerRuntime,
    FolderUnreadable,
    RuntimeLost,
    SshRuntime,
    clients,
    folder_of,
    runtime_named,
)
from grouprl.runtimes.archive import packed, unpacked
from grouprl.runtimes.clients import invoke
from grouprl.sandbox import SandboxSettings
from grouprl.tasks import load_task
from grouprl.testing import check_runtime

ENGINE = """#!{python}
import os, shutil, subprocess, sys
words, home = sys.argv[1:], {home!r}
with open(home + "/log", "a") as log:
    log.write(repr(words) + "\\n")
if words[0] == "run":
    name = next(word for word in words if word.startswith("--name="))[7:]
    os.makedirs(home + "/" + name)
elif words[0] == "rm":
    shutil.rmtree(home + "/" + words[-1], ignore_errors=True)
elif words[0] == "exec":
    words = [word for word in words[1:] if not word.startswith("--")]
    place = home + "/" + words[0]
    if not os.path.isdir(place):
        sys.exit("Error response from daemon: No such container: " + words[0])
    words = [word.replace("cd /work ", "cd " + place + " ") for word in words[1:]]
    os.execvp(words[0], words)
"""
SSH = """#!{python}
import os, sys
with open({home!r} + "/log", "a") as log:
    log.write(repr(sys.argv[1:]) + "\\n")
if sys.argv[-2] == "nowhere":
    sys.exit(255)
os.execvp("sh", ["sh", "-c", sys.argv[-1]])
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put programs before all others on the path; returns where they keep things."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    home.mkdir()
    programs.mkdir()
    for name, text in (("docker", ENGINE), ("podman", ENGINE), ("ssh", SSH)):
        path = programs / name
        path.write_text(text.format(python=sys.executable, home=str(home)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return home


def test_a_container_by_its_words(stand_in):
    check_runtime(lambda: ContainerRuntime("image"))
    assert [path.name for path in stand_in.iterdir()] == ["log"]


def test_another_machine_by_its_words(stand_in):
    check_runtime(lambda: SshRuntime("somewhere", under=str(stand_in)))
    assert [path.name for path in stand_in.iterdir()] == ["log"]


def test_a_container_has_no_network_no_rights_and_limits(stand_in):
    runtime = ContainerRuntime("image:1", "podman", memory_mb=256, processes=32, cpus=0.5, disk_mb=7, options=["--tty"])
    runtime.start()
    runtime.run("true")
    runtime.stop()
    words = (stand_in / "log").read_text().splitlines()[0]
    name = next(word for word in eval(words) if word.startswith("--name="))
    assert eval(words) == [
        *("run", "--detach", "--rm", "--init", name, "--network=none", "--cap-drop=ALL"),
        *("--security-opt=no-new-privileges", "--cpus=0.5", "--user=65533:65533", "--read-only"),
        "--tmpfs=/work:rw,exec,nosuid,nodev,mode=1777,size=7m",
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777,size=64m",
        *("--memory=256m", "--memory-swap=256m", "--pids-limit=32"),
        *("--workdir=/work", "--env=HOME=/tmp", "--entrypoint=sleep", "--tty", "image:1", "1000000"),
    ]
    run = eval((stand_in / "log").read_text().splitlines()[1])
    assert run[:4] == ["exec", "--interactive", "--user=65534:65534", name[7:]]


def test_a_containers_image_may_have_its_own_user_and_be_written_to_if_that_is_said(stand_in):
    spec = {"name": "terminal", "runtime": "docker:image", "container": {"user": "", "read_only": False}}
    runtime = load_task(spec).environment().make()
    runtime.start()
    runtime.run("true")
    runtime.stop()
    words = "".join((stand_in / "log").read_text().splitlines()[:2])
    assert not any(each in words for each in ("--user", "--read-only", "--tmpfs"))
    with pytest.raises(InputError, match="container"):
        load_task({**spec, "container": {"user": "a b"}})


def test_a_folder_beyond_its_limit_is_the_policys_fault(stand_in, monkeypatch):
    runtime = ContainerRuntime("image")
    runtime.most_kb = 64
    runtime.start()
    runtime.run("head -c 100000 /dev/zero > large")
    with pytest.raises(FolderUnreadable, match="cannot be packed"):
        runtime.snapshot()
    runtime.run("rm large; echo 1 > small; tar() { :; }")
    assert runtime.snapshot()["small"].content == b"1\n"
    runtime.stop()


def test_what_ssh_is_given_is_one_text(stand_in):
    runtime = SshRuntime("me@there", options=["-p", "22"], under=str(stand_in))
    runtime.start()
    found = runtime.run(["printf", "%s|", "a b", "$(id)", "'"])
    assert found.stdout == "a b|$(id)|'|"
    words = eval((stand_in / "log").read_text().splitlines()[-1])
    assert words[:7] == ["-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-p", "22"]
    assert words[7:9] == ["--", "me@there"]
    assert shlex.split(words[9])[:2] == ["sh", "-c"]
    runtime.stop()


def test_jobs_of_the_terminal_are_done_there(stand_in):
    task = load_task({"name": "terminal", "runtime": "docker:image", "kinds": ["count", "replace"]})
    example = task.example("train", 0)
    assert total_reward(task.environment(), example, task.solve(example).splitlines()) == 1
    assert total_reward(task.environment(), example, ["done"]) == 0
    assert task.needs_clock


def test_a_container_that_is_gone_is_the_machines_fault(stand_in):
    runtime = ContainerRuntime("image")
    runtime.start()
    clients.invoke(["docker", "rm", "--force", runtime._place], b"", 10, 1000)
    with pytest.raises(RuntimeLost, match="was lost: Error response from daemon: No such container"):
        runtime.run("true")
    runtime.stop()


@pytest.mark.parametrize("make", [lambda: ContainerRuntime("image"), lambda: SshRuntime("somewhere")])
def test_a_command_cannot_pretend_that_its_place_is_lost(stand_in, make):
    runtime = make()
    runtime.start()
    for status in (1, 125, 255):
        assert not runtime.run(f"echo Error: no such container >&2; exit {status}").ok
    assert runtime.run("echo on").stdout == "on\n"
    runtime.stop()


def test_a_host_that_is_not_there_is_said(stand_in):
    with pytest.raises(InputError, match="No folder can be made on 'nowhere'"):
        SshRuntime("nowhere").start()


def test_without_an_engine_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for engine in ("docker", "podman"):
        with pytest.raises(InputError, match=f"There is no program '{engine}'.*Install {engine}"):
            ContainerRuntime("image", engine)
    with pytest.raises(InputError, match="There is no program 'ssh'"):
        SshRuntime("host")


def test_an_engine_that_does_not_run_is_said(monkeypatch, tmp_path):
    path = tmp_path / "docker"
    path.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(InputError, match="docker cannot start a container of 'image': Cannot connect to the Docker"):
        ContainerRuntime("image").start()


def test_names_of_runtimes():
    settings = SandboxSettings()
    assert runtime_named("sandbox", settings)().settings is settings
    for name, words in (("dokcer:x", "Did you mean 'docker'"), ("docker", "docker:<image>"), ("ssh:", "ssh:<host>")):
        with pytest.raises(InputError, match=words):
            runtime_named(name, settings)
    with pytest.raises(InputError, match="There is no runtime 'vm'"):
        load_task({"name": "terminal", "runtime": "vm"})
    with pytest.raises(InputError, match="The host is '-oProxyCommand=x'"):
        SshRuntime("-oProxyCommand=x")


def test_a_client_that_hangs_or_prints_without_end_is_stopped():
    assert invoke(["sleep", "60"], b"", 0.3, 100) == (None, b"", b"", "timeout")
    assert invoke(["yes"], b"", 60, 100)[3] == "output"
    assert invoke(["cat"], b"x" * 300_000, 60, 1 << 20)[:2] == (0, b"x" * 300_000)
    assert invoke(["true"], b"x" * 300_000, 60, 1 << 20)[0] == 0
    with pytest.raises(RuntimeLost, match="cannot be started"):
        invoke(["/no/such/program"], b"", 1, 1)


def test_a_folder_that_comes_back_can_name_nothing_outside():
    evil = folder_of({"ok": "1"}) | {"../out": folder_of({"x": "1"})["x"], "/abs": folder_of({"x": "1"})["x"]}
    assert set(unpacked(packed(evil), 1000)) <= {"ok", "abs"}
