"""Places in which commands of an agent run: the sandbox, containers, other machines, behind one protocol."""

from grouprl.runtimes.boxed import SandboxRuntime
from grouprl.runtimes.clients import ContainerRuntime, SshRuntime
from grouprl.runtimes.named import runtime_named
from grouprl.runtimes.runtime import CommandOutcome, Runtime, RuntimeLost, folder_digest, folder_of

__all__ = [
    "CommandOutcome",
    "ContainerRuntime",
    "Runtime",
    "RuntimeLost",
    "SandboxRuntime",
    "SshRuntime",
    "folder_digest",
    "folder_of",
    "runtime_named",
]
