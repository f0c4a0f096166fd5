"""Starting a run's own server of SGLang."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.config.sections import Sglang
from grouprl.processes.current_ranks import environment_without_ranks
from grouprl.rollout.servers.starting import MODEL

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

PLUGIN = Path(__file__).parent / "server_plugin"
"""The folder with the module that a server imports to take weights from memory."""
LOADER = "grouprl_sglang.load"
"""Name of the loader in `PLUGIN` with which a server takes weights from memory."""


def serve_words(settings: Sglang, policy: CausalPolicy, folder: Path, port: int, vocabulary: int) -> list[str]:
    """Return the command that serves the model in `folder`, whose weights are sent later."""
    words = [*settings.command, "serve", "--model-path", str(folder), "--served-model-name", MODEL]
    words += ["--host", "127.0.0.1", "--port", str(port), "--random-seed", "0"]
    words += ["--dtype", str(policy.dtype).removeprefix("torch."), "--load-format", "dummy"]
    words += ["--custom-weight-loader", LOADER]
    words += ["--enable-deterministic-inference", "--sampling-mask-max-tokens", str(vocabulary)]
    if policy.max_positions:
        words += ["--context-length", str(policy.max_positions)]
    return [*words, *settings.args]


def server_environment(settings: Sglang) -> dict[str, str]:
    """Return the environment of an own server."""
    return {"HF_HUB_OFFLINE": "1", **environment_without_ranks(), "PYTHONPATH": str(PLUGIN), **settings.env}
