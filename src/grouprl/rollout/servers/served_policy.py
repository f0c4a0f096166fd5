"""The policy that servers sample from: the labels of its weights, and their places for servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from grouprl.config.sections import Servers
from grouprl.core.errors import InputError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.protocols import NO_VERSION
from grouprl.rollout.servers.folder import ServerFolder
from grouprl.rollout.servers.http_client import Stale
from grouprl.rollout.servers.requests import PromptRequest
from grouprl.rollout.servers.server_canary import ServerCanary
from grouprl.rollout.servers.weight_version import version_of
from grouprl.rollout.servers.weights import InParts, WeightMemory
from grouprl.storage.run_folder import in_words


@dataclass(frozen=True)
class Attachment:
    """Data with which another process can sample with the servers of a run."""

    addresses: tuple[str, ...]
    run: str


class ServedPolicy:
    """A policy whose weights are written for servers.

    Args:
        policy: a `CausalPolicy`, whole or in parts on several ranks.
        settings: settings of the servers.
        attachment: servers of another process's engine, which provides their weights; None: the run's own.

    Raises:
        InputError: a policy of another kind.
    """

    def __init__(self, policy: object, settings: Servers, attachment: Attachment | None) -> None:
        if not isinstance(policy, CausalPolicy | InParts):
            raise InputError(
                f"the engine {settings.engine} with a policy that is {type(policy).__name__}",
                "it samples only from a single language model",
                "Use the engine local",
            )
        self.policy = cast("CausalPolicy", policy)  # in parts it has the same methods
        self.settings, self.attachment = settings, attachment
        self.run = attachment.run if attachment else uuid.uuid4().hex
        self.vocabulary = int(self.policy.model.config.get_text_config().vocab_size)
        self.version = NO_VERSION
        self.label: str | None = None
        """Label of the weights that servers were last given; None before the first."""
        self.say: Callable[[str], None] = lambda sentence: None
        self.memory, self.canary = WeightMemory(), ServerCanary(self.policy, settings.canary)
        self.folder = ServerFolder()
        self.closing = ExitStack()
        """Callbacks that close everything the engine uses, in reverse order."""
        self.closing.callback(self.folder.remove)
        self.closing.callback(self.memory.close)

    @property
    def attached(self) -> bool:
        """True if another process provides the servers' weights."""
        return self.attachment is not None

    @property
    def disk(self) -> Path:
        """The folder from which servers read weights."""
        return Path(self.settings.folder or self.folder.path).absolute()

    def write(self, *, to_disk: bool) -> None:
        """Write the current weights to memory, and if `to_disk` to disk.

        Raises:
            RunError: the disk is full, or the folder cannot be written to.
        """
        self.memory.write(self.policy)
        if to_disk:
            with in_words(self.disk):
                self.policy.save(str(self.disk))

    def ends(self, request: PromptRequest) -> frozenset[int]:
        """Return the tokens that end a completion of this request."""
        return frozenset(self.policy.eos_ids) | {stop[0] for stop in request.stop if len(stop) == 1}

    def version_of(self, label: str) -> int:
        """Return the version that a label names. Raises Stale if it belongs to another run."""
        version = version_of(label, self.run)
        if version is None:
            raise Stale(f"tokens were sampled with the weights {label!r}, which do not belong to this run")
        return version
