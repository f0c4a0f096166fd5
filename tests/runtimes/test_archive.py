"""Tar files that a policy may have written: honest ones are read, all others cost neither memory nor the run."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import tarfile

import pytest

from grouprl.envs.terminal import Shell
from grouprl.runtimes import FolderUnreadable, RuntimeLost, SandboxRuntime, folder_of
from grouprl.runtimes.archive import BLOCK, LATEST, BrokenArchive, packed, unpacked
from grouprl.sandbox import FolderEntry, SandboxSettings
from grouprl.tasks import load_task

MOST = 1 << 20


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as whole:
        for head, content in members:
            head.size = len(content)
            whole.addfile(head, io.BytesIO(content))
    return made.getvalue()


def named(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    head = tarfile.TarInfo(name)
    head.type, head.linkname = kind, target
    return head


def claiming(head: tarfile.TarInfo, size: int) -> bytes:
    head.size = size
    return head.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "words", [["tar", "-cf", "-"], ["tar", "--format=posix", "-cf", "-"], ["busybox", "tar", "-cf", "-"]]
)
def test_what_programs_pack_is_read(tmp_path, words):
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    deep = tmp_path / ("n" * 90) / ("m" * 90) / ("ö" * 50)
    deep.mkdir(parents=True)
    (deep / "a b").write_bytes(bytes(range(256)) * 5)
    (tmp_path / "twin").hardlink_to(deep / "a b")
    (tmp_path / "empty").write_text("")
    (tmp_path / "link").symlink_to("t" * 200)
    (tmp_path / "empty").chmod(0o640)
    found = unpacked(subprocess.run([*words, "."], cwd=tmp_path, capture_output=True, check=True).stdout, MOST)
    assert found["twin"].content == found[str((deep / "a b").relative_to(tmp_path))].content == bytes(range(256)) * 5
    assert (found["empty"].kind, found["empty"].mode, found["empty"].content) == ("file", 0o640, b"")
    assert (found["link"].kind, found["link"].content) == ("link", b"t" * 200)
    assert abs(found["empty"].time - (tmp_path / "empty").stat().st_mtime) <= 1
    assert len(found) == 7


def test_a_folder_comes_back_as_it_was():
    folder = folder_of({"a/b": "1", "x" * 150: b"\0" * 1000, "run": FolderEntry(mode=0o755, content=b"r", time=3.0)})
    assert unpacked(packed(folder), MOST) == folder


def sparse() -> bytes:
    head = bytearray(claiming(named("big", tarfile.GNUTYPE_SPARSE), 0))
    head[483:495] = b"%011o\0" % (1 << 32)
    return sealed(head)


def sealed(head: bytearray) -> bytes:
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def with_size(field: bytes) -> bytes:
    head = bytearray(claiming(named("a"), 0))
    head[124:136] = field
    return sealed(head)


def pax(**records: str) -> bytes:
    head = named("a")
    head.pax_headers = records
    return archive((head, b""), form=tarfile.PAX_FORMAT)


def with_pax(body: bytes) -> bytes:
    return claiming(named("p", tarfile.XHDTYPE), len(body)) + body.ljust(BLOCK, b"\0")


HOSTILE = {
    "a pax record without a length": (with_pax(b"0 path=x\n"), "pax header is broken"),
    "a pax record that is too long": (with_pax(b"99 path=x\n"), "pax header is broken"),
    "a sparse file": (sparse(), "kind b'S'"),
    "a sparse file of pax": (pax(**{"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 12}), "sparse"),
    "a file longer than the archive": (claiming(named("a"), 1 << 40), "ends within a file"),
    "a link to nothing": (archive((named("a", tarfile.LNKTYPE, "b"), b"")), "names no file"),
    "a link to itself": (archive((named("a", tarfile.LNKTYPE, "a"), b"")), "names no file"),
    "a link outside": (archive((named("a", tarfile.LNKTYPE, "/etc/passwd"), b"")), "names no file"),
    "a size that is no number": (with_size(b"12x45678901\0"), "is not a number"),
    "a size in Arabic digits": (with_size("٣٣".encode() + b"\0" * 8), "is not a number"),
    "a negative size": (with_size(b"\xff" * 12), "is not a number"),
    "a broken check sum": (b"x" * BLOCK, "is not a number|check sum"),
    "a pax header without an end": (pax(size="1" * 30), "is not a number"),
    "many links to one large file": (
        archive((named("a"), b"x" * (MOST // 2)), *((named(f"b{i}", tarfile.LNKTYPE, "a"), b"") for i in range(9))),
        "too large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_in_words(name):
    content, words = HOSTILE[name]
    with pytest.raises(BrokenArchive, match=words):
        unpacked(content, MOST)


def test_an_archive_of_too_many_names_is_refused():
    head = bytearray(claiming(named("00000"), 0))
    content = b"".join(sealed(bytearray(b"%05d" % i) + head[5:]) for i in range((1 << 16) + 1))
    with pytest.raises(BrokenArchive, match="more than 65,536 names"):
        unpacked(content, MOST)


def test_names_outside_and_devices_are_left_out_and_times_have_bounds():
    members = [named(name) for name in ("../a", "/b", "c/../../d", ".", "..e")] + [named("pipe", tarfile.FIFOTYPE)]
    assert set(unpacked(archive(*((each, b"") for each in members)), MOST)) == {"..e"}
    for given, kept in (("-5.5", 0.0), ("7.25", 7.0), ("1" + "0" * 15, float(LATEST))):
        assert unpacked(pax(mtime=given), MOST)["a"].time == kept
    with pytest.raises(BrokenArchive):
        unpacked(pax(mtime="nan"), MOST)


def test_whatever_is_changed_in_an_archive_it_is_read_or_refused():
    whole, rng = pax(path="p" * 200, mtime="5.5") + archive((named("l" * 150), b"x" * 700)), random.Random(0)
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        for at in range(0, len(changed), BLOCK):
            if rng.random() < 0.5 and any(changed[at : at + BLOCK]):
                changed[at : at + BLOCK] = sealed(changed[at : at + BLOCK])
        try:
            unpacked(bytes(changed), MOST)
        except BrokenArchive:
            continue


class Spoilt(SandboxRuntime):
    """A runtime whose folder cannot be read."""

    def snapshot(self):
        raise FolderUnreadable("too large")


def test_tests_fail_on_a_folder_that_cannot_be_read_and_the_run_does_not():
    task = load_task({"name": "terminal", "kinds": ["count"]})
    episode = Shell(lambda: Spoilt(SandboxSettings()), 3)
    episode.reset(task.example("train", 0), 0)
    assert episode.state == episode.state != ""
    step = episode.step("done")
    assert (step.reward, step.terminated, episode.score()["correct"]) == (0.0, True, 0.0)
    episode.close()
    assert not issubclass(FolderUnreadable, RuntimeLost)
