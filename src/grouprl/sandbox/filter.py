"""The filter of system calls, made by libseccomp: it blocks calls that Python never needs or that pass the walls."""

from __future__ import annotations

import ctypes
import errno
import os
import socket

from grouprl.sandbox import kernel

ALLOW = 0x7FFF0000
NOT_EQUAL, MASKED_EQUAL = 1, 7
NAMESPACES = (
    kernel.NEW_MOUNTS
    | kernel.NEW_HOSTNAME
    | kernel.NEW_IPC
    | kernel.NEW_USER
    | kernel.NEW_PROCESSES
    | kernel.NEW_NETWORK
    | kernel.NEW_CGROUP
)
THREAD = 0x00010000

KERNEL = """
    mount umount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
    mount_setattr swapon swapoff unshare setns bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
    io_uring_register keyctl add_key request_key kexec_load kexec_file_load init_module finit_module delete_module
    reboot syslog acct quotactl quotactl_fd settimeofday clock_settime clock_settime64 adjtimex clock_adjtime
    clock_adjtime64 stime iopl ioperm vhangup lookup_dcookie fanotify_init fanotify_mark name_to_handle_at
    open_by_handle_at sethostname setdomainname nfsservctl uselib vm86 vm86old modify_ldt personality move_pages
    mbind migrate_pages set_mempolicy set_mempolicy_home_node map_shadow_stack
"""
"""Calls into parts of the kernel with many past security holes."""
OTHERS = """
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
"""
"""Calls that inspect other processes."""
UNCOUNTED = "memfd_create memfd_secret shmget msgget semget mq_open"
"""Calls that allocate memory outside the limits of a process."""
OWNERSHIP = """
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat setxattr lsetxattr
    fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat truncate64 truncate
"""
"""Calls that change files without a check by Landlock."""
SIGNALS = "kill tkill tgkill pidfd_send_signal rt_sigqueueinfo rt_tgsigqueueinfo"
SESSIONS = "setsid setpgid"
PRIORITIES = "setpriority ioprio_set"
HIDING = "sendmsg sendmmsg"
"""Calls that send descriptors through a socket, where a file can take up space without being open in any process."""
SET_DUMPABLE = 4
"""Argument of prctl that would hide the open files of a process from the watcher."""
OF_PROCESS = "sched_setscheduler sched_setattr sched_setparam sched_setaffinity prlimit64"
"""Calls that change how a process of the user is treated; their first argument is 0 for the caller itself."""


class _Argument(ctypes.Structure):
    _fields_ = (
        ("place", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def program(*, alone: bool) -> bytes | None:
    """Return a filter for the kernel; None if libseccomp is not installed.

    Args:
        alone: for a run without namespaces: also block other processes, sockets except pairs, and changes of ownership.
    """
    library = _library()
    if library is None:
        return None
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ALLOW)))
    try:
        _fill(library, context, alone)
        return _exported(library, context)
    finally:
        library.seccomp_release(context)


def _fill(library: ctypes.CDLL, context: ctypes.c_void_p, alone: bool) -> None:
    def refuse(name: str, *arguments: _Argument, code: int = errno.EPERM) -> None:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # the call is absent on this architecture, or newer than the library
            return
        given = (_Argument * len(arguments))(*arguments)
        action = ctypes.c_uint32(0x00050000 | code)
        result = library.seccomp_rule_add_array(context, action, number, ctypes.c_uint(len(arguments)), given)
        if result < 0:
            raise OSError(-result, os.strerror(-result), f"seccomp rule {name}")

    for name in f"{KERNEL} {OTHERS} {UNCOUNTED}".split():
        refuse(name)
    refuse("clone3", code=errno.ENOSYS)  # a filter cannot read flags in memory; callers fall back to clone
    if not alone:
        for bit in (1 << n for n in range(32)):
            if bit & NAMESPACES:
                refuse("clone", _Argument(0, MASKED_EQUAL, bit, bit))
        refuse("socket", _Argument(0, NOT_EQUAL, socket.AF_UNIX, 0), code=errno.EACCES)
        return
    refuse("socket", code=errno.EACCES)
    refuse("clone", _Argument(0, MASKED_EQUAL, THREAD, 0))
    signals = "" if kernel.landlock_version() >= 6 else SIGNALS
    for name in f"fork vfork pidfd_open {OWNERSHIP} {SESSIONS} {PRIORITIES} {HIDING} {signals}".split():
        refuse(name)
    refuse("prctl", _Argument(0, MASKED_EQUAL, 0xFFFFFFFF, SET_DUMPABLE))
    for name in OF_PROCESS.split():
        refuse(name, _Argument(0, NOT_EQUAL, 0, 0))


def _exported(library: ctypes.CDLL, context: ctypes.c_void_p) -> bytes:
    target = os.memfd_create("filter")
    try:
        result = library.seccomp_export_bpf(context, target)
        if result < 0:
            raise OSError(-result, os.strerror(-result), "seccomp_export_bpf")
        return os.pread(target, 1 << 20, 0)
    finally:
        os.close(target)


def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    return library
