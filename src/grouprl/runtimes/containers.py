"""Runtimes in containers of docker or podman."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from grouprl.core.errors import InputError
from grouprl.runtimes.clients import OWN_SECONDS, ClientRuntime, invoke
from grouprl.runtimes.runtime import OUTPUT_KB

FOLDER = "/work"
"""The working folder in a container."""
NOBODY, KEEPER = "65534:65534", "65533:65533"
"""Users that commands run as, and that the first process runs as, which no command can thus end."""
SCRATCH_MB = 64
"""Size of /tmp where the image's own files are read-only, in MiB."""


class ContainerSettings(BaseModel):
    """The option `container` of tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    user: str = Field(NOBODY, pattern=r"^([\w.-]+(:[\w.-]+)?)?$")
    """User, and after a colon the group, that commands run as; empty for the image's own user, which is often root."""
    read_only: bool = True
    """Whether commands may write to the working folder and /tmp only, which are kept in memory."""


class ContainerRuntime(ClientRuntime):
    """A container of docker or podman: no network, no rights, limits; removed when it is stopped.

    Commands run as a user without rights, and write to the working folder and /tmp only, unless the settings say
    otherwise.
    The image needs `sh`, `tar`, `timeout` and `sleep`, which Debian, Alpine and busybox have. Processes that a command
    leaves running end with the container, not with the command.
    """

    def __init__(
        self,
        image: str,
        engine: Literal["docker", "podman"] = "docker",
        *,
        memory_mb: int = 512,
        processes: int = 64,
        cpus: float = 1.0,
        disk_mb: int = 48,
        settings: ContainerSettings = ContainerSettings(),  # noqa: B008 (it is frozen)
        options: Sequence[str] = (),
    ) -> None:
        """Prepare a container.

        Args:
            image: the image, which the engine has or can find.
            engine: the program.
            memory_mb: limit of the memory, in MiB, which holds the working folder and /tmp, too, if `read_only`.
            processes: largest number of processes.
            cpus: largest number of processors.
            disk_mb: size of the working folder, in MiB, if `read_only`.
            settings: the user of the commands, and what they may write to.
            options: further arguments of the engine's `run`.

        Raises:
            InputError: if the engine's program is not installed.
        """
        super().__init__()
        if shutil.which(engine) is None:
            raise InputError(f"There is no program '{engine}'", "containers need it", f"Install {engine}.")
        self.image, self.engine, self.options = image, engine, tuple(options)
        self.memory_mb, self.processes, self.cpus = memory_mb, processes, cpus
        self.disk_mb, self.settings = disk_mb, settings
        self.most_kb = max(self.most_kb, disk_mb * 4096 // 3)  # a tar file is larger than what it holds

    @property
    def folder(self) -> str:
        """Path of the working folder inside the container."""
        return FOLDER

    def start_words(self, name: str) -> list[str]:
        """Return the argument list that starts the container."""
        limits = [f"--memory={self.memory_mb}m", f"--memory-swap={self.memory_mb}m", f"--pids-limit={self.processes}"]
        walls = ["--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--cpus={self.cpus:g}"]
        walls += [f"--user={KEEPER}"] if self.settings.user else []
        if self.settings.read_only:
            kinds = "rw,exec,nosuid,nodev,mode=1777"
            sizes = ((FOLDER, self.disk_mb), ("/tmp", SCRATCH_MB))
            walls += ["--read-only", *(f"--tmpfs={where}:{kinds},size={size}m" for where, size in sizes)]
        place = [f"--workdir={FOLDER}", "--env=HOME=/tmp", "--entrypoint=sleep", *self.options, self.image, "1000000"]
        return [self.engine, "run", "--detach", "--rm", "--init", f"--name={name}", *walls, *limits, *place]

    def client(self, words: Sequence[str]) -> list[str]:
        """Return the argument list of the engine's `exec`."""
        user = [f"--user={self.settings.user}"] if self.settings.user else []
        return [self.engine, "exec", "--interactive", *user, self._place, *words]

    def make_place(self) -> str:
        """Start a container."""
        name = f"grouprl-{secrets.token_hex(8)}"
        code, _, err, _ = invoke(self.start_words(name), b"", OWN_SECONDS, OUTPUT_KB << 10)
        if code != 0:
            last = (err.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            what = f"{self.engine} cannot start a container of '{self.image}': {last}"
            raise InputError(
                what, "the engine must be running and have the image", f"Try: {self.engine} run --rm {self.image} true"
            )
        return name

    def remove_place(self, place: str) -> None:
        """Remove the container and all its processes."""
        invoke([self.engine, "rm", "--force", place], b"", OWN_SECONDS, OUTPUT_KB << 10)

    def looks_lost(self, code: int | None, said: str) -> bool:
        """Return whether the status is 1 or 125 to 127, with an error message of the engine."""
        return code in (1, 125, 126, 127) and said.lstrip().startswith(("Error", "Cannot"))
