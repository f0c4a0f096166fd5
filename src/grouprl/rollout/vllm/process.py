"""A server of the run's own: how it is started, what its log says, and that it ends with the run."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.config.sections import Sglang, Vllm
from grouprl.core.errors import InputError
from grouprl.rollout.vllm import guard
from grouprl.rollout.vllm.adapters import SWITCH, lora_words
from grouprl.rollout.vllm.http_client import Wire

if TYPE_CHECKING:
    from grouprl.policy.causal_lm import CausalPolicy
    from grouprl.records.token_policy import TokenPolicy

INSIDE = Path(__file__).parent / "inside"
"""The folder with what a server imports to take weights from memory."""
TRANSFER = ("--worker-extension-cls", "grouprl_weights.Extension", "--weight-transfer-config", '{"backend": "grouprl"}')
"""What makes a server that finds `INSIDE` take weights from memory."""
READ_LOG, SHOWN_LOG, SHOWN_ERRORS = 400_000, 2000, 5
"""Bytes of a server's log that are looked through for errors, characters that are shown where none is found, errors."""
ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): .*|\bValue error, [^\[]*")
"""A line that names an error, or what pydantic says below such a line."""
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Environment of servers without an accelerator, unless it is set: keys and values in one GiB, any core."""
BATCHED_TOKENS = 4096
"""Tokens of a step of a server without an accelerator, at least."""
NO_SLEEP = (
    "vLLM has a sleep mode on accelerators alone (its CPU build refuses --enable-sleep-mode: 'Sleep mode is not "
    "supported on current platform'). Leave it out"
)
MODEL = "policy"
"""The name under which own servers serve the policy."""


def serve_words(settings: Vllm, policy: TokenPolicy, folder: Path, port: int, rank: int = 0) -> list[str]:
    """Return the command that serves the model in `folder`.

    Its weights come later; where it loads adapters, of up to `rank`, those below them lie in the folder.
    """
    words = [*settings.command, "serve", str(folder), "--served-model-name", MODEL]
    words += ["--host", "127.0.0.1", "--port", str(port), "--generation-config", "vllm"]
    words += ["--dtype", str(policy.dtype).removeprefix("torch."), "--seed", "0"]
    words += ["--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--disable-uvicorn-access-log"]
    words += lora_words(rank) if rank else ["--load-format", "dummy", *TRANSFER]
    if settings.sleep:
        words += ["--enable-sleep-mode"]
    if policy.max_positions:
        words += ["--max-model-len", str(policy.max_positions)]
    if policy.device.type == "cpu":
        # A seeded request whose prompt is read in pieces ends the CPU build of vLLM 0.32: prompts are read whole.
        words += ["--enforce-eager", "--no-enable-chunked-prefill"]
        words += ["--max-num-batched-tokens", str(max(policy.max_positions or 0, BATCHED_TOKENS))]
    return [*words, *settings.args]


OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_ADDR", "MASTER_PORT"),
    "TORCHELASTIC_",
)
"""How torchrun tells a rank where it stands: a server would take that for its own meeting."""


def server_environment(settings: Vllm, device: torch.device) -> dict[str, str]:
    """Return the environment of an own server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(OF_RANKS)}
    beside = {**CPU, "HF_HUB_OFFLINE": "1"} if device.type == "cpu" else {}
    if settings.adapters == "loaded":
        beside |= SWITCH
    fixed = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(INSIDE)}
    return {**beside, **ours, **fixed, **settings.env}


def write_description(policy: CausalPolicy, folder: Path) -> None:
    """Write what a server must know of the model beside its weights: configuration and tokenizer."""
    base = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model
    config = copy.deepcopy(base.config)
    config.architectures = config.architectures or [type(base).__name__]  # a model that was never saved names none
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def wire_to(address: str, settings: Vllm | Sglang) -> Wire:
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


def program(command: Sequence[str], name: str = "vllm", kind: str = "vLLM") -> str:
    """Return the file that `command` runs, which is to be the program `name`.

    Raises:
        InputError: there is none.
    """
    found = shutil.which(command[0])
    if found is None:
        raise InputError(
            f"sampling.{name}.command = {command[0]!r}",
            f"there is no such program: {kind} lives in an environment of its own, whose `{name}` is named here",
            f"Install it there (docs/{name}.md), or give the addresses of running servers",
        )
    return found


class OwnServer:
    """A process of its own session; what it writes goes to a file that is shown when it fails."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words, self.environment = [program(words), *words[1:]], dict(environment)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the server
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def start(self) -> None:
        """Start the process."""
        theirs, self._lifeline = os.pipe()
        self._child = subprocess.Popen(
            [sys.executable, str(Path(guard.__file__)), str(theirs), *self.words],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)

    @property
    def pid(self) -> int:
        """The number of the process; -1 before it is started."""
        return -1 if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    def how_it_ended(self) -> str:
        """Say how the process ended, with its last output."""
        code = None if self._child is None else self._child.poll()
        how = "runs" if code is None else f"ended by itself with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"was ended by the signal {name}" + (", often for lack of memory" if name == "SIGKILL" else "")
        last = self.last_words()
        return f"the server {self.words[0]} {how}" + (f". Its last output:\n{last}" if last else "")

    def last_words(self) -> str:
        """Return the errors that the process wrote of, without where they came from, or else the end of what it did."""
        size = os.fstat(self._log.fileno()).st_size
        text = os.pread(self._log.fileno(), READ_LOG, max(0, size - READ_LOG)).decode(errors="replace").strip()
        lines = [line for line in text.splitlines() if "WARNING" not in line]
        errors = dict.fromkeys(found.group() for found in map(ERROR.search, lines) if found)
        return "\n".join(list(errors)[:SHOWN_ERRORS]) or text[-SHOWN_LOG:]

    def end(self) -> None:
        """End the process and everything it started."""
        if self._child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._child = None
        os.close(self._lifeline)
