"""Starting a run's own server of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from grouprl.config.sections import Vllm
from grouprl.processes.current_ranks import environment_without_ranks
from grouprl.rollout.servers.starting import MODEL
from grouprl.rollout.vllm.adapters import SWITCH, lora_words

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy

PLUGIN = Path(__file__).parent / "server_plugin"
"""The folder with the modules that a server imports to take weights from memory."""
TRANSFER = ("--worker-extension-cls", "grouprl_weights.Extension", "--weight-transfer-config", '{"backend": "grouprl"}')
"""Arguments with which a server that finds `PLUGIN` takes weights from memory."""
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Default environment of servers without an accelerator: one GiB for keys and values, any core."""
BATCHED_TOKENS = 4096
"""Fewest tokens per step of a server without an accelerator."""
NO_SLEEP = (
    "vLLM has a sleep mode on accelerators alone (its CPU build refuses --enable-sleep-mode: 'Sleep mode is not "
    "supported on current platform'). Leave it out"
)


def serve_words(settings: Vllm, policy: TokenPolicy, folder: Path, port: int, rank: int = 0) -> list[str]:
    """Return the command that serves the model in `folder`.

    Its weights are sent later. If it loads adapters, of up to `rank`, the folder holds the weights without them.
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


def server_environment(settings: Vllm, device: torch.device) -> dict[str, str]:
    """Return the environment of an own server."""
    beside = {**CPU, "HF_HUB_OFFLINE": "1"} if device.type == "cpu" else {}
    if settings.adapters == "loaded":
        beside |= SWITCH
    fixed = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(PLUGIN)}
    return {**beside, **environment_without_ranks(), **fixed, **settings.env}
