"""Running model-written code: outcomes, limits, hostile programs, what is left, and the levels."""

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from grouprl import sandbox
from grouprl.core.errors import InputError
from grouprl.sandbox import LEVELS, Level, Limits, Sandbox, box
from grouprl.sandbox.isolation import inside_places, readable, shown_at, unused

QUICK = Limits(seconds=1)
PATIENT = Limits(seconds=60)


@pytest.fixture(scope="module", params=LEVELS)
def ground(request):
    try:
        made = Sandbox(level=request.param)
    except InputError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def walled():
    with Sandbox() as made:
        yield made


def test_nothing_runs_without_the_kernel_that_its_walls_are_made_of(monkeypatch):
    monkeypatch.setattr(box.sys, "platform", "darwin")
    for allow in LEVELS:
        with pytest.raises(InputError, match=r"cannot be contained on darwin.*Linux"):
            Sandbox(allow)


def test_a_program_reads_prints_and_leaves_files(ground):
    code = """
import sys, os
name = input()
print("hello", name, sys.stdin.read())
print("err", file=sys.stderr)
os.makedirs("sub")
open("sub/new", "wb").write(bytes(range(256)))
open("changed", "a").write("!")
assert sorted(os.listdir(".")) == ["changed", "sub", "unchanged"]
"""
    outcome = ground.run(code, stdin="Ann\nrest", files={"changed": "old", "unchanged": b"\xff"})
    assert (outcome.why, outcome.returncode, outcome.stdout, outcome.stderr) == ("ok", 0, "hello Ann rest\n", "err\n")
    assert outcome.files == {"sub/new": bytes(range(256)), "changed": b"old!"}
    assert (outcome.stdout_cut, outcome.stderr_cut, outcome.files_cut) == (False, False, False)
    assert 0 < outcome.seconds < 60


def test_every_run_begins_afresh(ground):
    ground.run("import builtins, sys, random\nbuiltins.x = sys.y = 1\nopen('z', 'w').close()\nrandom.seed(7)")
    code = "import builtins, sys, os, random\nprint(hasattr(builtins, 'x'), hasattr(sys, 'y'), os.listdir('.'))"
    assert ground.run(code).stdout == "False False []\n"
    printed = "import random\nprint(random.random(), {'a', 'b', 'c'})"
    assert ground.run(printed).stdout == ground.run(printed).stdout


def test_it_is_a_program_of_its_own(ground):
    code = "import sys, os\nprint(__name__, __file__, sys.argv, os.getcwd() == os.environ['HOME'])\n"
    code += "print([n for n in range(70) if os.path.exists(f'/dev/fd/{n}')] if 0 else len(os.environ))\n"
    code += "print([m for m in sys.modules if m.startswith('grouprl')])"
    assert ground.run(code).stdout.splitlines() == ["__main__ main.py ['main.py'] True", "5", "[]"]


def test_no_open_file_but_its_own(ground):
    code = """
import os
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
print([n for n in range(64) if is_open(n)])
"""
    assert ground.run(code).stdout == "[0, 1, 2]\n"


@pytest.mark.parametrize(
    ("code", "why", "returncode", "last"),
    [
        ("", "ok", 0, ""),
        ("import sys; sys.exit(3)", "error", 3, ""),
        ("import sys; sys.exit('bye')", "error", 1, "bye"),
        ("raise SystemExit", "ok", 0, ""),
        ("1 / 0", "error", 1, "ZeroDivisionError: division by zero"),
        ("x = = 1", "error", 1, "SyntaxError: invalid syntax"),
        ("x = '\0'", "error", 1, "SyntaxError: source code string cannot contain null bytes"),
        ("def f(): return f()\nf()", "error", 1, "RecursionError: maximum recursion depth exceeded"),
        ("raise KeyboardInterrupt", "error", 1, "KeyboardInterrupt"),
        ("import os; os._exit(9)", "error", 9, ""),
        ("import os; os.abort()", "killed", -6, ""),
        ("x = 'x' * (1 << 30)", "memory", 1, "MemoryError"),
        ("while True: pass", "timeout", None, ""),
        ("import atexit; atexit.register(print, 'at the end')", "ok", 0, ""),
        ("import sys; sys.stdout.close(); sys.stderr.close()", "ok", 0, ""),
        ("__import__('os').close(1); print(2)", "ok", 0, ""),
        ("import threading; threading.Thread(target=print, args=('late',)).start()", "ok", 0, ""),
    ],
)
def test_why_a_program_ended(ground, code, why, returncode, last):
    outcome = ground.run(code, limits=QUICK if why == "timeout" else PATIENT)
    found = outcome.stderr.strip().rpartition("\n")[2]
    assert (outcome.why, outcome.returncode) == (why, returncode), outcome
    assert found.startswith(last)
    assert bool(found) == bool(last)


def test_recursion_without_a_limit_ends_the_program_alone(ground):
    code = "import sys\nsys.setrecursionlimit(10**9)\nf = lambda _=0: sorted([0], key=f)\nf()"
    assert ground.run(code, limits=Limits(seconds=20)).why in ("killed", "memory", "error")  # as the Python has it
    assert ground.run("print(1)").stdout == "1\n"


def test_tracebacks_show_the_program_and_nothing_else(walled):
    expected = 'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\n    boom\n'
    assert walled.run("\nboom").stderr.startswith(expected)
    assert walled.run("\nboom").stderr.count("File") == 1


def test_output_is_cut_at_the_limit_and_the_program_ended(ground):
    limits = Limits(output_kb=1, seconds=60)
    for stream in ("stdout", "stderr"):
        outcome = ground.run(f"import sys\nwhile True: sys.{stream}.write('é' * 100)", limits=limits)
        assert outcome.why == "output"
        assert len(getattr(outcome, stream).encode()) in (1024, 1026)  # a cut letter becomes three bytes
        assert (outcome.stdout_cut, outcome.stderr_cut) == (stream == "stdout", stream == "stderr")
    assert ground.run("print('x' * 1023)", limits=limits).why == "ok"
    assert ground.run("print('x' * 1024)", limits=limits).why == "output"


def test_bytes_that_are_no_text(ground):
    outcome = ground.run(r"import sys; sys.stdout.buffer.write(b'a\xff\x00b')")
    assert (outcome.why, outcome.stdout) == ("ok", "a�\0b")


def test_links_and_pipes_are_not_taken_out(walled, tmp_path):
    (tmp_path / "secret").write_text("secret")
    code = f"import os\nos.symlink({str(tmp_path / 'secret')!r}, 'link')\nos.symlink('/', 'root')\n"
    code += "os.mkfifo('fifo')\nopen('file', 'w').write('x')\n"
    outcome = walled.run(code, limits=PATIENT)
    assert outcome.why == "ok", outcome
    assert outcome.files == {"file": b"x"}


def test_too_many_files_are_cut(walled):
    outcome = walled.run("for n in range(300): open(f'{n:03}', 'w').close()")
    assert outcome.files_cut
    assert list(outcome.files) == [f"{n:03}" for n in range(256)]


def test_nothing_is_left_of_temporary_folders():
    with Sandbox(level="rlimits") as made:
        code = "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.mkdir('d', 0)\nprint(os.getcwd())"
        folder = Path(made.run(code).stdout.strip())
    assert folder.parent == Path("/tmp")
    assert not folder.exists()


def test_names_of_files_stay_inside(walled):
    for name in ("../x", "/x", "a/../../x", "", "a\0b"):
        with pytest.raises(InputError, match="not inside the folder"):
            walled.run("", files={name: ""})


def test_code_that_is_too_long_is_refused_not_run(walled):
    outcome = walled.run("#" * (1 << 21))
    assert outcome.why == "refused"
    assert "2097152 characters" in outcome.what


@settings(max_examples=25, deadline=None)
@given(code=st.text(max_size=60), stdin=st.one_of(st.text(max_size=20), st.binary(max_size=20)))
def test_no_text_breaks_it(code, stdin):
    outcome = sandbox.run(code, stdin=stdin, limits=QUICK)
    assert outcome.why in ("ok", "error", "timeout")


def test_lone_surrogates_are_an_error_of_the_program(walled):
    assert walled.run("print('\ud800')").why == "error"
    assert walled.run("import sys; print(sys.stdin.buffer.read())", stdin="\ud800").stdout == "b'\\xed\\xa0\\x80'\n"


def test_limits_of_time_hold_for_a_deaf_program(ground):
    began = time.monotonic()
    code = "import signal, time\nfor n in (1, 2, 15, 24): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)"
    assert ground.run(code, limits=Limits(seconds=0.3)).why == "timeout"
    assert time.monotonic() - began < 30


def test_a_lost_fork_server_is_an_outcome_and_is_replaced(monkeypatch):
    monkeypatch.setattr(box, "GRACE_SECONDS", 0.2)
    with Sandbox() as made:
        made._server.child.kill()
        made._server.child.wait()
        outcome = made.run("print(1)")
        assert (outcome.why, outcome.stdout) == ("killed", "")
        assert "fork server was lost" in outcome.what
        assert made.run("print(2)").stdout == "2\n"


def test_runs_end_with_the_process_that_asked_for_them(tmp_path):
    script = "from grouprl.sandbox import Sandbox, Limits\nimport os\n"
    script += "made = Sandbox()\nprint(made._server.child.pid, flush=True)\n"
    script += "made.run('import time; time.sleep(60)', limits=Limits(seconds=60))"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    server = int(child.stdout.readline())
    time.sleep(0.5)
    child.kill()
    child.wait()
    for _ in range(100):
        if not Path(f"/proc/{server}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the fork server outlived its owner")


def test_threads_take_turns(walled):
    found = {}

    def ask(n):
        found[n] = walled.run(f"print({n} * {n})").stdout

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n * n}\n" for n in range(8)}


def test_a_fork_of_the_process_gets_a_sandbox_of_its_own():
    assert sandbox.run("print(1)").stdout == "1\n"
    child = os.fork()
    if not child:
        fine = sandbox.run("print(2)").stdout == "2\n"
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.run("print(3)").stdout == "3\n"


def test_nothing_stays_open_when_a_sandbox_is_forgotten():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Sandbox(level="rlimits").run("")
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_packages_are_importable_only_when_asked_for():
    code = "import yaml; print(yaml.safe_load('[1]'))"
    assert sandbox.run(code).why == "error"
    with Sandbox(packages=True) as made:
        assert made.run(code).stdout == "[1]\n"


def test_it_refuses_below_the_level_asked_for(monkeypatch):
    started = []

    def refuse(self, level):
        started.append(level)
        raise box._Gone(f"no {level} here")

    monkeypatch.setattr(Sandbox, "_start", refuse)
    with pytest.raises(InputError, match="namespaces: no namespaces here; landlock: no landlock here") as caught:
        Sandbox()
    assert started == ["namespaces", "landlock"]
    assert "rlimits" in caught.value.remedy


def test_it_falls_back_and_says_why(monkeypatch):
    start = Sandbox._start

    def only_last(self, level):
        if level != "rlimits":
            raise box._Gone("not here")
        return start(self, level)

    monkeypatch.setattr(Sandbox, "_start", only_last)
    with Sandbox(allow="rlimits") as made:
        assert made.level.name == "rlimits"
        assert made.level.refused == {"namespaces": "not here", "landlock": "not here"}
        assert any("network" in line for line in made.level.lacks)


def test_levels_in_words():
    assert Level("namespaces").reaches("landlock")
    assert not Level("rlimits").reaches("landlock")
    assert any("vsock" in line for line in Level("namespaces", filtered=False).lacks)
    assert not any("vsock" in line for line in Level("namespaces").lacks)
    with pytest.raises(InputError, match="Did you mean 'landlock'"):
        Sandbox("landlok")


def test_what_is_shown_inside_is_disjoint_and_hides_nothing(tmp_path):
    shown = readable(())
    assert sys.base_prefix in shown or sys.base_prefix.startswith("/usr")
    assert not any(a != b and a.startswith(b + "/") for a in shown for b in shown)
    with pytest.raises(OSError, match="cannot be shown"):
        readable(("/",))


def test_places_inside_never_hide_each_other(tmp_path):
    (tmp_path / "below").mkdir()
    packages = (str(tmp_path), str(tmp_path / "below"))
    places = inside_places(packages)
    assert places[str(tmp_path)] == "/packages/0"
    assert [shown_at(path, places) for path in packages] == ["/packages/0", "/packages/0/below"]
    assert shown_at(sys.base_prefix, places) == sys.base_prefix
    assert unused("/tmp", ["/usr", "/tmp/python"]) == "/tmp-run"
    assert unused("/box", ["/usr", "/boxes"]) == "/box"


@pytest.mark.parametrize("level", LEVELS)
def test_packages_below_the_temporary_folder_can_be_imported(level, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)  # where root asks, programs run as nobody
        Path(folder, "below_tmp.py").write_text("value = 7")
        monkeypatch.setattr(box.sysconfig, "get_path", lambda name: folder)
        try:
            made = Sandbox(level=level, packages=True)
        except InputError as error:
            pytest.skip(str(error))
        with made:
            code = "import below_tmp, tempfile\nopen(tempfile.gettempdir() + '/x', 'w').close()\nprint(below_tmp.value)"
            assert (outcome := made.run(code)).stdout == "7\n", outcome.stderr
            assert made.run(f"open({folder!r} + '/new', 'w')").why == "error" or level == "rlimits"


@pytest.fixture(scope="module")
def landlocked():
    try:
        made = Sandbox(level="landlock")
    except InputError as error:
        pytest.skip(str(error))
    with made:
        yield made


def test_deep_odd_and_forbidden_folders_are_removed(landlocked):
    """Each program says first where it is: folders of tests beside this one come and go in the same place."""
    where = "import os\nprint(os.getcwd(), flush=True)\n"
    deep = where + "for n in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nos.mkdir('last', 0)\nprint('deep')"
    many = landlocked.run(deep, limits=PATIENT.model_copy(update={"disk_mb": 64}))
    assert (many.why, many.what) == ("killed", "it made more than 1024 files")
    assert many.files_cut
    few = landlocked.run(deep.replace("3000", "1000"), limits=PATIENT)
    assert few.stdout.splitlines()[1:] == ["deep"]
    names = "for name in ('a\\n', '\\udcff', '.grouprl', '-rf', 'x' * 250): os.makedirs(name + '/b', 0o500)"
    odd = landlocked.run(where + names)
    assert odd.why in ("ok", "error")
    folders = [Path(outcome.stdout.splitlines()[0]) for outcome in (many, few, odd)]
    assert {folder.parent for folder in folders} == {Path("/tmp")}
    assert not any(folder.exists() for folder in folders)


FILL = """
import mmap, os, time
held = []
def file(n, size):
    opened = open(f"f{n}", "wb+")
    opened.write(b"x" * size)
    opened.flush()
    return opened
"""


@pytest.mark.parametrize(
    "code",
    [
        "for n in range(20): file(n, 1 << 20).close()",
        "for n in range(20): held.append(file(n, 1 << 20)); os.remove(f'f{n}')",
        "for n in range(4):\n    one = file(n, 1 << 20)\n    held.append(mmap.mmap(one.fileno(), 4096))\n"
        "    one.close()\n    os.remove(f'f{n}')\n    os.closerange(3, 64)",
        "for n in range(20):\n    os.mkdir('d')\n    os.chdir('d')\n    file(n, 1 << 20).close()",
        "for n in range(20):\n    one = os.open('.', os.O_TMPFILE | os.O_RDWR)\n    os.write(one, b'x' * (1 << 20))",
        "for n in range(5000): file(n, 0).close()",
        "for n in range(5000): os.mkdir(f'd{n}')",
        "for n in range(5000): os.symlink('x', f'd{n}')",
        "file('', 1).close()\nfor n in range(5000): os.link('f', f'd{n}')",
        "def work():\n    for n in range(20): held.append(file(n, 1 << 20)); os.remove(f'f{n}')\n    time.sleep(30)\n"
        "import threading; threading.Thread(target=work).start()",
    ],
    ids=["files", "removed", "mapped", "nested", "unnamed", "empty", "folders", "links", "hard links", "a thread"],
)
def test_all_files_together_are_limited_without_namespaces(landlocked, code):
    outcome = landlocked.run(f"{FILL}{code}\ntime.sleep(30)\nprint('through')", limits=Limits(seconds=30, disk_mb=8))
    assert (outcome.why, outcome.stdout) == ("killed", ""), outcome
    assert "together" in outcome.what or "more than 1024 files" in outcome.what
    assert outcome.seconds < 25


def test_files_within_the_limit_are_let_be(landlocked):
    code = f"{FILL}for n in range(6): held.append(file(n, 1 << 20))\nos.remove('f3')\ntime.sleep(0.2)\nprint('through')"
    outcome = landlocked.run(code, limits=Limits(seconds=60, disk_mb=8))
    assert (outcome.why, outcome.stdout, outcome.what) == ("ok", "through\n", "")


@pytest.mark.parametrize("status", [1, 126, 253, 255])
def test_no_exit_status_passes_for_a_refusal(ground, status):
    outcome = ground.run(f"import os; os._exit({status})")
    assert (outcome.why, outcome.returncode) == ("error", status)


def test_walls_that_cannot_be_entered_are_a_refusal():
    with Sandbox() as made:
        outcome = made.run("print(1)", limits=Limits.model_construct(**Limits().model_dump() | {"memory_mb": 1 << 60}))
        assert (outcome.why, outcome.stdout) == ("refused", "")


def test_the_command_says_the_level_and_checks(monkeypatch):
    from grouprl.cli.app import app
    from grouprl.sandbox.escapes import ESCAPES

    monkeypatch.setattr(
        "grouprl.sandbox.attack_targets.ESCAPES", [e for e in ESCAPES if e.name in ("foreign file", "tcp")]
    )
    shown = CliRunner().invoke(app, ["sandbox"])
    assert shown.exit_code == 0
    assert f"Level: {sandbox.active().name}" in shown.stdout
    assert "Not contained" in shown.stdout
    assert shown.stdout.count("contained\n") >= 2 or "Everything is contained" in shown.stdout
    bare = CliRunner().invoke(app, ["sandbox", "--level", "rlimits"])
    assert bare.exit_code == 0
    assert "2 escaped, as this level says" in " ".join(bare.stdout.split())


def test_the_command_fails_when_something_escapes(monkeypatch):
    from dataclasses import replace

    from grouprl.cli.app import app
    from grouprl.sandbox.escapes import ESCAPES

    claimed = [replace(e, needs="rlimits") for e in ESCAPES if e.name == "foreign file"]
    monkeypatch.setattr("grouprl.sandbox.attack_targets.ESCAPES", claimed)
    shown = CliRunner().invoke(app, ["sandbox", "--level", "rlimits"])
    assert shown.exit_code == 1
    assert "1 escaped that must be contained: foreign file" in shown.stdout


def test_the_page_names_every_escape_at_its_level():
    from grouprl.sandbox.escapes import ESCAPES

    page = " ".join((Path(__file__).parents[2] / "docs" / "sandbox.md").read_text().split())
    lists = page.partition("## The escape matrix")[2].partition("## Speed")[0].split("Contained ")[1:]
    named = {text.split("`")[1]: text.partition(": ")[2].strip(" .").split(", ") for text in lists}
    assert named == {level: [e.name for e in ESCAPES if e.needs == level] for level in LEVELS}
