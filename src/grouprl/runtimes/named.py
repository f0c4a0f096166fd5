"""Runtimes by name: sandbox, docker:<image>, podman:<image>, ssh:<host>."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from grouprl.core.errors import InputError, suggest
from grouprl.runtimes.boxed import SandboxRuntime
from grouprl.runtimes.clients import SshRuntime
from grouprl.runtimes.containers import ContainerRuntime, ContainerSettings
from grouprl.runtimes.runtime import Runtime
from grouprl.sandbox import SandboxSettings

KINDS = ("sandbox", "docker", "podman", "ssh")


def runtime_named(
    name: str, settings: SandboxSettings, container: ContainerSettings | None = None
) -> Callable[[], Runtime]:
    """Return a function that makes the named runtime.

    The limits of memory, disk and processes in `settings` apply to the sandbox and to containers, the others to the
    sandbox alone.

    Raises:
        InputError: if the kind is unknown, or its image or host is missing.
    """
    kind, colon, rest = name.partition(":")
    if kind not in KINDS:
        raise InputError(f"There is no runtime '{name}'", remedy=suggest(kind, KINDS))
    if bool(colon) == (kind == "sandbox") or (colon and not rest):
        rule = "it must be sandbox, docker:<image>, podman:<image> or ssh:<host>"
        raise InputError(f"The runtime is '{name}'", rule)
    if kind == "sandbox":
        return partial(SandboxRuntime, settings)
    if kind == "ssh":
        return partial(SshRuntime, rest)
    limits = {"memory_mb": settings.memory_mb, "disk_mb": settings.disk_mb, "processes": settings.processes}
    chosen = container or ContainerSettings()
    return partial(ContainerRuntime, rest, kind, settings=chosen, **limits)  # type: ignore[arg-type]
