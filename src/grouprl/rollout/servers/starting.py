"""How servers of the run's own are started, and how any server is reached."""

from __future__ import annotations

import copy
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError
from grouprl.rollout.servers.http_client import Wire
from grouprl.rollout.servers.own_server import OwnServer
from grouprl.rollout.servers.server_pool import Server

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

MODEL = "policy"
"""The name under which own servers serve the policy."""
OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_",
)
"""How torchrun tells a rank where it stands: a server would take that for its own meeting."""


def own_servers(
    settings: Servers, environment: Mapping[str, str], words_at: Callable[[int], list[str]]
) -> list[Server]:
    """Return servers that a run is to start; `words_at` says what starts one at a port.

    Raises:
        InputError: there is no such program.
    """
    path, servers = program(settings), []
    for number in range(settings.servers):
        port = free_port() if settings.port is None else settings.port + number
        own = OwnServer([path, *words_at(port)[1:]], environment)
        servers.append(Server(wire_to(f"http://127.0.0.1:{port}", settings), own))
    return servers


def program(settings: Servers) -> str:
    """Return the file that starts a server.

    Raises:
        InputError: there is none.
    """
    found, name = shutil.which(settings.command[0]), settings.engine
    if found is None:
        raise InputError(
            f"{settings.key}.command = {settings.command[0]!r}",
            f"there is no such program: {settings.kind} lives in an environment of its own, whose `{name}` is named "
            "here",
            f"Install it there (docs/{name}.md), or give the addresses of running servers",
        )
    return found


def inherited() -> dict[str, str]:
    """Return what own servers inherit of this process's environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OF_RANKS)}


def write_description(policy: CausalPolicy, folder: Path) -> None:
    """Write what a server must know of the model beside its weights: configuration and tokenizer."""
    base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    config = copy.deepcopy(base.config)
    config.architectures = config.architectures or [type(base).__name__]  # a model that was never saved names none
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def wire_to(address: str, settings: Servers) -> Wire:
    """Return connections to a server, with the key that it wants where the environment has one."""
    name = settings.key_env
    return Wire(address, settings.env.get(name) or os.environ.get(name, ""), name)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def port_taken(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
