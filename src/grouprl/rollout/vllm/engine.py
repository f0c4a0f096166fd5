"""The engine `vllm`: samples with servers of vLLM."""

from __future__ import annotations

from grouprl.config.sections import Vllm
from grouprl.rollout.servers.engine import ServerEngine
from grouprl.rollout.servers.served_policy import Attachment, ServedPolicy
from grouprl.rollout.vllm.dialect import VllmDialect

DEFAULT = Vllm()


class VllmEngine(ServerEngine):
    """Samples with servers of vLLM; see `ServerEngine` and `grouprl.protocols.Engine`.

    Args:
        policy: a `CausalPolicy`; servers get its weights at the first `publish` or sample.
        vllm: the servers' addresses, or how they are started.
        attachment: servers of another process's engine, which provides their weights.

    Raises:
        InputError: a policy that vLLM does not serve, or no program that starts a server.
    """

    def __init__(self, policy: object, vllm: Vllm = DEFAULT, *, attachment: Attachment | None = None) -> None:
        served = ServedPolicy(policy, vllm, attachment)
        super().__init__(served, VllmDialect(served, vllm))

    @classmethod
    def attach(cls, policy: object, attachment: Attachment, vllm: Vllm = DEFAULT) -> VllmEngine:
        """Return an engine that samples with the servers of another one, which gives them their weights."""
        return cls(policy, vllm, attachment=attachment)
