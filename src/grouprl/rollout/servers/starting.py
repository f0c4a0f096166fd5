"""Starting a run's own servers, and connecting to servers."""

from __future__ import annotations

import copy
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError
from grouprl.processes.current_ranks import launched, ranks_here
from grouprl.rollout.servers.http_client import Wire
from grouprl.rollout.servers.own_server import OwnServer
from grouprl.rollout.servers.server_pool import Server

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

MODEL = "policy"
"""Name under which the run's own servers serve the policy."""
GPUS = "CUDA_VISIBLE_DEVICES"
"""The environment variable that names a process's GPUs."""


def own_servers(
    settings: Servers, environment: Mapping[str, str], words_at: Callable[[int], list[str]], device: torch.device
) -> list[Server]:
    """Return the servers that a run has to start; `words_at` returns the command for a port, `device` is the trainer's.

    Raises:
        InputError: the program does not exist, or there are too few GPUs for servers beside the ranks.
    """
    path, gpus, servers = program(settings), gpus_of_servers(settings, device), []
    first, count = settings.port, settings.servers
    for number, port in enumerate(free_ports(count) if first is None else range(first, first + count)):
        own = OwnServer([path, *words_at(port)[1:]], {**environment, **({GPUS: gpus[number]} if gpus else {})})
        servers.append(Server(wire_to(f"http://127.0.0.1:{port}", settings), own))
    return servers


def gpus_of_servers(settings: Servers, device: torch.device) -> list[str]:
    """Return the GPUs of each own server, as `CUDA_VISIBLE_DEVICES` names them; [] where that is not decided here.

    Ranks take the first GPUs by their LOCAL_RANK, and servers share the others equally. A server that sleeps while the
    trainer computes, and one beside a single process with a single GPU, has the trainer's.

    Raises:
        InputError: there are fewer GPUs than ranks and servers.
    """
    if device.type != "cuda" or GPUS in settings.env:
        return []
    visible = [each for each in os.environ.get(GPUS, "").split(",") if each]
    visible = visible or [str(number) for number in range(torch.cuda.device_count())]
    taken = set(range(ranks_here())) if launched() else {device.index or 0}
    shares = settings.shares_gpu or len(visible) == 1
    free = [each for number, each in enumerate(visible) if shares or number not in taken]
    each = len(free) // settings.servers
    if not each and not shares:
        raise InputError(
            f"{settings.key}.servers = {settings.servers} beside {len(taken)} process{'es' * (len(taken) > 1)} with "
            f"{len(visible)} GPUs",
            "every rank and every server needs a GPU of its own",
            f'Start fewer, or name the servers\' GPUs: {settings.key}.env={{{GPUS}: "…"}}',
        )
    each = max(1, each)
    return [",".join(free[i * each % len(free) :][:each]) for i in range(settings.servers)]


def program(settings: Servers) -> str:
    """Return the path of the program that starts a server.

    Raises:
        InputError: the program does not exist.
    """
    found, name = shutil.which(settings.command[0]), settings.engine
    if found is None:
        raise InputError(
            f"{settings.key}.command = {settings.command[0]!r}",
            f"there is no such program: {settings.kind} is installed in an environment of its own, and its `{name}` is "
            "named here",
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
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return so many free ports of this machine, all different."""
    with ExitStack() as held:  # all at once: a port that is let go may be found again
        listening = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in listening:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in listening]


def port_taken(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
