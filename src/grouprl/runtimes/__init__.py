"""Places in which commands of an agent run: the sandbox, containers, other machines, behind one protocol."""

from grouprl.runtimes.boxed import SandboxRuntime
from grouprl.runtimes.runtime import CommandOutcome, Runtime, RuntimeLost, folder_digest, folder_of

__all__ = ["CommandOutcome", "Runtime", "RuntimeLost", "SandboxRuntime", "folder_digest", "folder_of"]
