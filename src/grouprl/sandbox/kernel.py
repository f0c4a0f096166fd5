"""The few system calls of Linux that Python's standard library lacks: mounts, namespaces, Landlock, capabilities.

Numbers and layouts are those of the kernel's `include/uapi`; the newer calls have one number on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import struct

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USER = 0x00020000, 0x04000000, 0x08000000, 0x10000000
NEW_PROCESSES, NEW_NETWORK, NEW_CGROUP = 0x20000000, 0x40000000, 0x02000000

NO_SUID, NO_DEVICES, READ_ONLY, REMOUNT, RECURSIVE, PRIVATE = 0x2, 0x4, 0x1, 0x20, 0x4000, 1 << 18
DETACH = 2

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_CLONE_TREE, _CLOSE_ON_EXEC, _EMPTY_PATH, _ALL_BELOW, _HERE = 0x1, 0x80000, 0x1000, 0x8000, -100
_FROM_EMPTY_PATH = 0x4
_ATTRIBUTE_READ_ONLY, _ATTRIBUTE_NO_SUID, _ATTRIBUTE_NO_DEVICES = 0x1, 0x2, 0x4

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_SECCOMP, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 22, 24, 36, 38
_SECCOMP_FILTER = 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEVICE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
"""Landlock's access rights to files."""
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NET_BIND_CONNECT, _SCOPE_SOCKETS_SIGNALS = 0x3, 0x3

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _call(what: str, number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_syscall(ctypes.c_long(number), *given), what)


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(kind: str, target: str, flags: int, options: str = "") -> None:
    """Mount a file system of a kind ('tmpfs'; '' to change the flags of what is mounted)."""
    arguments = (kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_libc.mount(*arguments), f"mount {target}")


def unmount(target: str) -> None:
    """Remove a mount as soon as it is no longer in use."""
    _checked(_libc.umount2(target.encode(), ctypes.c_int(DETACH)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the old one appears at `old`."""
    number = {"x86_64": 155, "aarch64": 41, "riscv64": 41}[os.uname().machine]
    _call("pivot_root", number, new.encode(), old.encode())


def copy_tree(path: str, *, devices: bool = False) -> int:
    """Return a descriptor of a detached, read-only copy of the mounts at and below `path`."""
    flags = _CLONE_TREE | _CLOSE_ON_EXEC | _ALL_BELOW
    tree = _call(f"open_tree {path}", _OPEN_TREE, _HERE, path.encode(), flags)
    bits = _ATTRIBUTE_NO_SUID if devices else _ATTRIBUTE_READ_ONLY | _ATTRIBUTE_NO_SUID | _ATTRIBUTE_NO_DEVICES
    attributes = struct.pack("=QQQQ", bits, 0, 0, 0)
    _call("mount_setattr", _MOUNT_SETATTR, tree, b"", _EMPTY_PATH | _ALL_BELOW, attributes, len(attributes))
    return tree


def attach_tree(tree: int, target: str) -> None:
    """Attach a copy that `copy_tree` returned."""
    _call(f"move_mount {target}", _MOVE_MOUNT, tree, b"", _HERE, target.encode(), _FROM_EMPTY_PATH)
    os.close(tree)


def die_with_parent(signal: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _checked(_libc.prctl(_SET_PDEATHSIG, ctypes.c_ulong(signal), 0, 0, 0), "prctl")


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid other processes of the user to inspect this one."""
    _checked(_libc.prctl(_SET_DUMPABLE, ctypes.c_ulong(dumpable), 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ended."""
    _checked(_libc.prctl(_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def drop_privileges() -> None:
    """Give up every capability, irrevocably: not even a set-user-id program can restore them."""
    last = 63
    for number in range(last + 1):
        if _libc.prctl(_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) < 0:
            break  # the kernel does not know this number, or the process never had the right
    _checked(_libc.prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "prctl")
    header, nothing = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0] * 6)
    _checked(_libc.capset(header, nothing), "capset")


def apply_filter(program: bytes) -> None:
    """Install a filter of system calls, irrevocably; call `drop_privileges` first."""

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    given = Program(len(program) // 8, program)
    _checked(_libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_FILTER), ctypes.byref(given), 0, 0), "seccomp")


def landlock_version() -> int:
    """Return the version of Landlock's interface; 0 if the kernel has none."""
    found = _syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_long(0), ctypes.c_long(1))
    return max(0, int(found))


def landlock_rules(allowed: dict[str, int]) -> int:
    """Return a descriptor of rules that allow the given rights below the given paths, and nothing else.

    TCP is forbidden from version 4 on; signals to other processes, and their abstract sockets, from version 6 on.
    """
    version = landlock_version()
    everything = all_rights(version)
    ruleset = struct.pack(
        "=QQQ", everything, _NET_BIND_CONNECT if version >= 4 else 0, _SCOPE_SOCKETS_SIGNALS if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _call("landlock_create_ruleset", _LANDLOCK_CREATE, ruleset[:size], size, 0)
    for path, rights in allowed.items():
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            granted = rights & everything
            if not os.path.isdir(path):
                granted &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
            _call("landlock_add_rule", _LANDLOCK_ADD, rules, 1, struct.pack("=Qi", granted, place), 0)
        finally:
            os.close(place)
    return rules


def all_rights(version: int) -> int:
    """Return all access rights of a version of Landlock."""
    return (1 << _RIGHTS_BY_ABI[min(version, 5)]) - 1


def landlock_enter(rules: int) -> None:
    """Apply the rules to this process, irrevocably; call `drop_privileges` first."""
    _call("landlock_restrict_self", _LANDLOCK_RESTRICT, rules, 0)
