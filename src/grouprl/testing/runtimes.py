"""Conformance test of runtimes (`grouprl.runtimes.Runtime`), built in or written by users."""

from __future__ import annotations

import time
from collections.abc import Callable

from grouprl.runtimes.runtime import CommandOutcome, Runtime, folder_of
from grouprl.sandbox.folder import Folder, FolderEntry
from grouprl.testing.rules import hold, refuses

OUTSIDE = ("/etc/hostname", "../x", "a/../../x", "", "a\0b")
PROMPT = 30.0
"""Seconds after which a command that is limited to one second must have ended."""


def check_runtime(make: Callable[[], Runtime]) -> None:
    """Check a runtime against the protocol; `make` returns a fresh one that has `sh`, `cat` and `sleep`.

    Raises:
        AssertionError: with the rule that does not hold.
    """
    runtime = make()
    hold(isinstance(runtime, Runtime), f"{type(runtime).__name__} lacks a member of Runtime")
    refuses(lambda: runtime.run("true"), "a runtime that is not started is refused")
    runtime.start(folder_of({"given/a.txt": "one\n", "b.sh": FolderEntry(mode=0o755, content=b"echo hi")}))
    try:
        _check_commands(runtime)
        _check_files(runtime)
        _check_limits(runtime)
        _check_snapshots(runtime)
    finally:
        runtime.stop()
    runtime.stop()
    runtime.start()
    hold(dict(runtime.snapshot()) == {}, "a runtime that is started again is empty")
    runtime.stop()


def _check_commands(runtime: Runtime) -> None:
    _said(runtime.run("cat given/a.txt"), "one\n", "a command sees the files it was started with")
    _said(runtime.run(["cat", "given/a.txt"]), "one\n", "a command may be given in words")
    _said(runtime.run(["printf", "%s|", "a b", "$HOME", "*"]), "a b|$HOME|*|", "no shell reads the words")
    _said(runtime.run("./b.sh"), "hi\n", "files keep their permissions")
    _said(runtime.run("cat", stdin="in\nput"), "in\nput", "a command reads its input")
    _said(runtime.run("cat"), "", "a command's input ends")
    _said(runtime.run("mkdir sub; cd sub; echo x > made; X=1"), "", "a command may change folders")
    _said(runtime.run('cat sub/made; echo "[$X]"'), "x\n[]\n", "each begins in the working folder, and sees files")
    failed = runtime.run("echo out; echo err >&2; exit 3")
    hold((failed.exit_code, failed.stdout, failed.stderr) == (3, "out\n", "err\n"), f"exit status, streams: {failed}")
    hold(runtime.run("no-such-command-here").exit_code == 127, "a missing command has the exit status 127")
    hold(
        runtime.run(["no-such-command-here"]).exit_code == 127,
        "a missing program has the exit status 127 without a shell, too",
    )
    killed = runtime.run("kill -9 $$")
    hold(not killed.ok, f"a command that ends by a signal is not ok: {killed}")
    refuses(lambda: runtime.run(""), "an empty command is refused")
    refuses(lambda: runtime.run([]), "a command without words is refused")
    refuses(lambda: runtime.run("echo \0"), "a command with a NUL is refused")


def _check_files(runtime: Runtime) -> None:
    odd = bytes(range(256))
    runtime.write("deep/er/odd name.bin", odd)
    hold(runtime.read("deep/er/odd name.bin") == odd, "bytes are read as they were written")
    hold(runtime.read("deep/er/odd name.bin", most=5) == odd[:5], "no more is read than asked for")
    runtime.write("run.sh", "echo ran", mode=0o755)
    _said(runtime.run("./run.sh"), "ran\n", "a file has the permissions it was written with")
    runtime.write("run.sh", "echo again", mode=0o755)
    _said(runtime.run("./run.sh"), "again\n", "writing replaces")
    for path in OUTSIDE:
        refuses(lambda path=path: runtime.write(path, "x"), f"writing to {path!r} is refused")  # type: ignore[misc]
        refuses(lambda path=path: runtime.read(path), f"reading {path!r} is refused")  # type: ignore[misc]
    refuses(lambda: runtime.read("not there"), "reading a missing file is refused")
    refuses(lambda: runtime.read("deep"), "reading a folder is refused")
    refuses(lambda: runtime.write("deep", "x"), "writing to a folder is refused")


def _check_limits(runtime: Runtime) -> None:
    began = time.monotonic()
    late = runtime.run("echo begun; echo kept > kept; sleep 300", seconds=1)
    hold(late.stopped == "timeout" and late.exit_code is None, f"a command that takes too long is stopped: {late}")
    hold(time.monotonic() - began < PROMPT, "it is stopped within seconds of its limit")
    _said(runtime.run("cat kept"), "kept\n", "the files that it wrote stay")
    loud = runtime.run("while :; do echo 0123456789012345678901234567890123456789; done", seconds=60, output_kb=16)
    hold(loud.stopped == "output", f"a command that prints too much is stopped: {loud.stopped!r}")
    hold(len(loud.stdout) <= 16 << 10, "no more output than the limit is returned")


def _check_snapshots(runtime: Runtime) -> None:
    runtime.run("ln -s given/a.txt link; mkdir -p hollow; chmod 640 run.sh")
    before: Folder = runtime.snapshot()
    hold(before["link"].kind == "link" and before["link"].content == b"given/a.txt", "a snapshot keeps links")
    hold(before["hollow"].kind == "folder", "a snapshot keeps empty folders")
    hold(before["run.sh"].mode == 0o640, "a snapshot keeps permissions")
    runtime.run("rm -r given link hollow; echo other > run.sh; echo new > new")
    hold(_without_times(runtime.snapshot()) != _without_times(before), "a snapshot shows what has changed")
    runtime.restore(before)
    hold(_without_times(runtime.snapshot()) == _without_times(before), "a restored folder is as it was")
    _said(runtime.run("cat link; ls new 2>/dev/null"), "one\n", "commands see the restored folder")


def _without_times(folder: Folder) -> dict[str, tuple[str, int, bytes]]:
    return {path: (e.kind, 0 if e.kind == "link" else e.mode, e.content) for path, e in folder.items()}


def _said(found: CommandOutcome, expected: str, words: str) -> None:
    hold(found.stdout == expected, f"{words}: printed {found.stdout!r}, not {expected!r} {found.stderr!r} {found.what}")
