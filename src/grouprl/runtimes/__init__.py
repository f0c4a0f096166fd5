"""Runtimes for an agent's commands behind one protocol: the sandbox, containers and other machines."""

from grouprl.runtimes.boxed import SandboxRuntime
from grouprl.runtimes.clients import SshRuntime
from grouprl.runtimes.containers import ContainerRuntime, ContainerSettings
from grouprl.runtimes.named import runtime_named
from grouprl.runtimes.runtime import CommandOutcome, FolderUnreadable, Runtime, RuntimeLost, folder_digest, folder_of

__all__ = [
    "CommandOutcome",
    "ContainerRuntime",
    "ContainerSettings",
    "FolderUnreadable",
    "Runtime",
    "RuntimeLost",
    "SandboxRuntime",
    "SshRuntime",
    "folder_digest",
    "folder_of",
    "runtime_named",
]
