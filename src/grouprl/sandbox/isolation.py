"""The walls around model-written code: namespaces with their own root, or Landlock, or nothing but limits."""

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
"""The user id inside namespaces."""
NOBODY = 65534
"""The user id that root takes before namespaces are made: limits on processes do not apply to root."""
FOLDER, TEMPORARY, PACKAGES = "/box", "/tmp", "/packages"
"""Paths of a run's own folders, and of further packages, in its own root."""
SHARED = "/tmp"
"""Parent of the folders of runs that have no file systems of their own."""
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/libx32", "/sbin")
LINKER = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld-musl-x86_64.path")
NAMES = ("/etc/alternatives",)
"""Folders of links by which Debian systems find programs with several implementations, such as awk."""


@dataclass(frozen=True)
class Room:
    """The folders of one run."""

    folder: str
    temporary: str


class Walls(ABC):
    """A kind of containment: a lasting part, built before the first run, and a part around every run."""

    own_processes = False
    """Whether a run sees and reaches only its own processes, so that all end when its first one is killed."""
    filtered = False
    """Whether system calls are filtered."""
    packages: tuple[str, ...] = ()
    """Paths at which a program finds the further packages."""

    @abstractmethod
    def room(self, disk: int) -> AbstractContextManager[Room]:
        """Make an empty folder of at most `disk` bytes for one run."""

    def spill(self, room: Room, disk: int) -> Callable[[int], str] | None:
        """Return a function that says why a process's files exceed `disk` bytes; None if the room limits them."""
        return None

    @abstractmethod
    def enter(self, room: Room) -> None:
        """Confine the calling process, irrevocably."""


def build(level: str, packages: tuple[str, ...]) -> Walls:
    """Build the lasting part of a level's walls and return them; `packages` are further folders that may be read.

    Raises:
        OSError: if this machine does not allow them; the message says what was refused.
    """
    kinds: dict[str, Callable[[tuple[str, ...]], Walls]]
    kinds = {"namespaces": Namespaces, "landlock": Landlock, "rlimits": Bare}
    return kinds[level](packages)


class Namespaces(Walls):
    """Walls of namespaces: a root with only Python and the system's programs, no network, no other processes."""

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
            kernel.set_dumpable(True)  # otherwise the file that maps the user id would belong to root
            self._become_user(kernel.NEW_USER)
        else:
            self._become_user(kernel.NEW_USER | lasting)
            _new_root(places, (self._folder, self._temporary))
        os.close(self._self)
        kernel.set_dumpable(False)

    @contextmanager
    def room(self, disk: int) -> Iterator[Room]:
        """Mount two private, empty file systems in memory, which vanish with the run."""
        kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_PROCESSES | kernel.NEW_IPC)
        for target in (self._folder, self._temporary):
            options = f"size={disk},nr_inodes={leftovers.MOST_ENTRIES},mode=700,uid={INSIDE},gid={INSIDE}"
            kernel.mount("tmpfs", target, kernel.NO_SUID | kernel.NO_DEVICES, options)
        yield Room(self._folder, self._temporary)

    def enter(self, room: Room) -> None:
        """Give up all rights over the namespaces, and install the filter of system calls."""
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
    """Walls of Landlock, for files, and a filter for the rest: no sockets, no signals, no further processes."""

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
        """Make a temporary folder, which is removed afterwards with all its contents."""
        folder = os.path.join(SHARED, f"grouprl-{os.urandom(8).hex()}")
        os.mkdir(folder, 0o700)
        try:
            yield Room(folder, folder)
        finally:
            leftovers.remove(folder)

    def spill(self, room: Room, disk: int) -> Callable[[int], str]:
        """Return a function that measures the folder, because nothing else limits all files together."""
        return partial(leftovers.too_much, room.folder, disk)

    def enter(self, room: Room) -> None:
        """Give up every privilege, then apply the rules and the filter."""
        rights = self._rights | {room.folder: kernel.all_rights(kernel.landlock_version())}
        rules = kernel.landlock_rules(rights)
        kernel.drop_privileges()
        kernel.landlock_enter(rules)
        os.close(rules)
        kernel.apply_filter(self._filter)


class Bare(Walls):
    """No walls: only the limits apply."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    room = Landlock.room

    def enter(self, room: Room) -> None:
        """Do nothing, because there are no walls to enter."""


def readable(packages: tuple[str, ...]) -> list[str]:
    """Return the paths that Python needs, and further folders: real folders and files, none inside another.

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
        raise OSError("/ cannot be shown: it contains everything")
    return found


def inside_places(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the path of each readable path in the new root, where further packages have names of their own.

    So they may be anywhere outside, even below the system's temporary folder, which is replaced inside.
    """
    own = readable(())
    further = [path for path in readable(packages) if path not in own]
    return {path: path for path in own} | {path: f"{PACKAGES}/{n}" for n, path in enumerate(further)}


def shown_at(path: str, places: Mapping[str, str]) -> str:
    """Return the path inside of a path within one of `places`."""
    whole = os.path.abspath(path)
    shown = next(real for real in places if _inside(whole, real))
    return places[shown] + whole[len(shown) :]


def unused(name: str, places: Collection[str]) -> str:
    """Return `name`, or a variant of it that neither is a place nor contains one."""
    while any(_inside(place, name) or _inside(name, place) for place in places):
        name += "-run"
    return name


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _new_root(shown: Mapping[str, str], own: Sequence[str]) -> None:
    """Replace all mounts by a root in memory with the paths in `shown` (read-only), devices and empty folders."""
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
    os.utime("/", (EPOCH, EPOCH))  # so that `ls` lists the same parent of a run's folder in every process
    kernel.mount("", "/", kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SUID)


def _make_place(path: str, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
