"""The walls around model-written code: namespaces with a root of their own, or Landlock, or nothing but limits."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from grouprl.sandbox import filter, kernel, leftovers
from grouprl.sandbox.folder import EPOCH

INSIDE = 1000
"""The user's number inside namespaces."""
NOBODY = 65534
"""Whom root becomes before namespaces are made: limits on processes do not hold for root."""
FOLDER, TEMPORARY, PACKAGES = "/box", "/tmp", "/packages"
"""What a run's own folders, and further packages, are called in a root of its own."""
SHARED = "/tmp"
"""Where the folders of runs are made that have no file systems of their own."""
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/libx32", "/sbin")
LINKER = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld-musl-x86_64.path")
NAMES = ("/etc/alternatives",)
"""Links by which Debian's systems find programs of several makes, awk among them."""


@dataclass(frozen=True)
class Room:
    """Where one run takes place."""

    folder: str
    temporary: str


class Walls(ABC):
    """What is made once, before the first run, and once more around every run."""

    own_processes = False
    """Whether a run sees and reaches only its own processes, so that all end when its first one is killed."""
    filtered = False
    """Whether system calls are filtered."""
    packages: tuple[str, ...] = ()
    """Where a program finds the further packages."""

    @abstractmethod
    def room(self, disk: int) -> AbstractContextManager[Room]:
        """Make an empty folder of at most `disk` bytes for one run."""

    def spill(self, room: Room, disk: int) -> Callable[[int], str] | None:
        """Return what says in words that the files of a process take too much; None where the room itself is small."""
        return None

    @abstractmethod
    def enter(self, room: Room) -> None:
        """Shut the calling process in, for good."""


def build(level: str, packages: tuple[str, ...]) -> Walls:
    """Return the walls of a level, its lasting part made; `packages` are further folders that may be read.

    Raises:
        OSError: this machine does not allow them; the text says what was refused.
    """
    kinds: dict[str, Callable[[tuple[str, ...]], Walls]]
    kinds = {"namespaces": Namespaces, "landlock": Landlock, "rlimits": Bare}
    return kinds[level](packages)


class Namespaces(Walls):
    """A root that holds Python and nothing else, no network, no other processes; folders are new for every run."""

    own_processes = True

    def __init__(self, packages: tuple[str, ...]) -> None:
        places = inside_places(packages)
        self.packages = tuple(shown_at(path, places) for path in packages if os.path.exists(path))
        self._folder, self._temporary = (unused(name, places.values()) for name in (FOLDER, TEMPORARY))
        self._filter = filter.program(alone=False)
        self.filtered = self._filter is not None
        self._self = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        lasting = kernel.NEW_MOUNTS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_HOSTNAME
        if os.geteuid() == 0:
            kernel.unshare(lasting)
            _new_root(places, (self._folder, self._temporary))
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            kernel.set_dumpable(True)  # else the file with the user's number would belong to root
            self._become_user(kernel.NEW_USER)
        else:
            self._become_user(kernel.NEW_USER | lasting)
            _new_root(places, (self._folder, self._temporary))
        os.close(self._self)
        kernel.set_dumpable(False)

    @contextmanager
    def room(self, disk: int) -> Iterator[Room]:
        """Mount two empty file systems in memory that nobody else sees; they vanish with the run."""
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_PROCESSES | kernel.NEW_IPC)
        for target in (self._folder, self._temporary):
            options = f"size={disk},nr_inodes={leftovers.MOST_ENTRIES},mode=700,uid={INSIDE},gid={INSIDE}"
            kernel.mount("tmpfs", target, kernel.NO_SUID | kernel.NO_DEVICES, options)
        yield Room(self._folder, self._temporary)

    def enter(self, room: Room) -> None:
        """Give up the rights over the namespaces, and filter system calls."""
        kernel.drop_privileges()
        if self._filter is not None:
            kernel.apply_filter(self._filter)

    def _become_user(self, flags: int) -> None:
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(flags)
        self._write("setgroups", "deny")
        self._write("uid_map", f"{INSIDE} {user} 1")
        self._write("gid_map", f"{INSIDE} {group} 1")

    def _write(self, name: str, text: str) -> None:
        target = os.open(name, os.O_WRONLY, dir_fd=self._self)
        try:
            os.write(target, text.encode())
        finally:
            os.close(target)


class Landlock(Walls):
    """Files by Landlock, everything else by a filter: no sockets, no signals, no processes beside the one."""

    filtered = True

    def __init__(self, packages: tuple[str, ...]) -> None:
        program = filter.program(alone=True)
        if program is None:
            raise OSError("libseccomp.so.2 is not installed")
        if not kernel.landlock_version():
            raise OSError("the kernel has no Landlock")
        self._filter, self.packages = program, packages
        read = kernel.EXECUTE | kernel.READ_FILE | kernel.READ_DIR
        self._rights = dict.fromkeys(readable(packages), read)
        self._rights |= {f"/dev/{name}": kernel.READ_FILE | kernel.WRITE_FILE for name in DEVICES}

    @contextmanager
    def room(self, disk: int) -> Iterator[Room]:
        """Make a temporary folder, removed afterwards with all that is in it."""
        folder = os.path.join(SHARED, f"grouprl-{os.urandom(8).hex()}")
        os.mkdir(folder, 0o700)
        try:
            yield Room(folder, folder)
        finally:
            leftovers.remove(folder)

    def spill(self, room: Room, disk: int) -> Callable[[int], str]:
        """Measure the folder, as nothing else limits all files together."""
        return partial(leftovers.too_much, room.folder, disk)

    def enter(self, room: Room) -> None:
        """Give up every right, then submit to rules and filter."""
        rights = self._rights | {room.folder: kernel.all_rights(kernel.landlock_version())}
        rules = kernel.landlock_rules(rights)
        kernel.drop_privileges()
        kernel.landlock_enter(rules)
        os.close(rules)
        kernel.apply_filter(self._filter)


class Bare(Walls):
    """No walls: limits alone hold."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    room = Landlock.room

    def enter(self, room: Room) -> None:
        """Do nothing."""


def readable(packages: tuple[str, ...]) -> list[str]:
    """Return what Python needs to run, and further folders: real folders and files, none of which lies in another.

    Raises:
        OSError: if one of them is the whole disk.
    """
    wanted = [*SYSTEM, *LINKER, *NAMES, sys.base_prefix, sys.base_exec_prefix, *packages]
    places = {os.path.abspath(path) for path in wanted if os.path.exists(path)} - {
        p for p in SYSTEM if os.path.islink(p)
    }
    found: list[str] = []
    for path in sorted(places):
        if not any(_inside(path, other) for other in found):
            found.append(path)
    if "/" in found:
        raise OSError("/ cannot be shown: everything lies in it")
    return found


def inside_places(packages: tuple[str, ...]) -> dict[str, str]:
    """Return where each readable path is shown in a root of its own: further packages under a name of their own.

    So they may lie anywhere, below the system's temporary folder too, which is another one inside.
    """
    own = readable(())
    further = [path for path in readable(packages) if path not in own]
    return {path: path for path in own} | {path: f"{PACKAGES}/{n}" for n, path in enumerate(further)}


def shown_at(path: str, places: Mapping[str, str]) -> str:
    """Return where a path is shown that lies in one of `places`."""
    whole = os.path.abspath(path)
    shown = next(real for real in places if _inside(whole, real))
    return places[shown] + whole[len(shown) :]


def unused(name: str, places: Collection[str]) -> str:
    """Return `name`, or a name like it, below which nothing is shown and which is not shown itself."""
    while any(_inside(place, name) or _inside(name, place) for place in places):
        name += "-run"
    return name


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _new_root(shown: Mapping[str, str], own: Sequence[str]) -> None:
    """Replace all mounts by a root in memory: these paths, read-only, where they are shown; devices; empty folders."""
    kernel.mount("", "/", kernel.RECURSIVE | kernel.PRIVATE)
    links = {path: os.readlink(path) for path in SYSTEM if os.path.islink(path)}
    trees = {place: kernel.copy_tree(path) for path, place in shown.items()}
    trees |= {f"/dev/{name}": kernel.copy_tree(f"/dev/{name}", devices=True) for name in DEVICES}
    folders = {place for path, place in shown.items() if os.path.isdir(path)}
    new = "/tmp"
    kernel.mount("tmpfs", new, kernel.NO_SUID, "size=1m,mode=755")
    for path, tree in trees.items():
        _make_place(new + path, path in folders)
        kernel.attach_tree(tree, new + path)
    for path, target in links.items():
        os.symlink(target, new + path)
    for path in own:
        os.makedirs(new + path)
    os.chdir(new)
    kernel.pivot_root(".", ".")
    kernel.unmount(".")
    os.chdir("/")
    os.utime("/", (EPOCH, EPOCH))  # what `ls` says of the parent of a run's folder is the same in every process
    kernel.mount("", "/", kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SUID)


def _make_place(path: str, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
