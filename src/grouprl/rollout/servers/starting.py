"""Starting a run's own servers, and connecting to servers."""

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
"""Name under which the run's own servers serve the policy."""


def own_servers(
    settings: Servers, environment: Mapping[str, str], words_at: Callable[[int], list[str]]
) -> list[Server]:
    """Return the servers that a run has to start; `words_at` returns the command for a port.

    Raises:
        InputError: the program does not exist.
    """
    path, servers = program(settings), []
    for number in range(settings.servers):
        port = free_port() if settings.port is None else settings.port + number
        own = OwnServer([path, *words_at(port)[1:]], environment)
        servers.append(Server(wire_to(f"http://127.0.0.1:{port}", settings), own))
    return servers


def program(settings: Servers) -> str:
    """Return the path of the program that starts a server.

    Raises:
        InputError: the program does not exist.
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


def write_description(policy: CausalPolicy, folder: Path) -> None:
    """Write everything but the weights that a server needs of the model: configuration and tokenizer."""
    base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    config = copy.deepcopy(base.config)
    config.architectures = config.architectures or [type(base).__name__]  # a model that was never saved names none
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def wire_to(address: str, settings: Servers) -> Wire:
    """Return a connection to a server, with the API key from the environment if there is one."""
    name = settings.key_env
    return Wire(address, settings.env.get(name) or os.environ.get(name, ""), name)


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def port_taken(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
