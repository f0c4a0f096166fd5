"""The engine `sglang`: samples with servers of SGLang."""

from __future__ import annotations

from grouprl.config.sections import Sglang
from grouprl.rollout.servers.engine import ServerEngine
from grouprl.rollout.servers.served_policy import Attachment, ServedPolicy
from grouprl.rollout.sglang.dialect import SglangDialect

DEFAULT = Sglang()


class SglangEngine(ServerEngine):
    """Samples with servers of SGLang; see `ServerEngine` and `grouprl.protocols.Engine`.

    Args:
        policy: a `CausalPolicy`; servers get its weights at the first `publish` or sample.
        sglang: the servers' addresses, or how they are started.
        attachment: servers of another process's engine, which provides their weights.

    Raises:
        InputError: a policy that SGLang does not serve, or no program that starts a server.
    """

    def __init__(self, policy: object, sglang: Sglang = DEFAULT, *, attachment: Attachment | None = None) -> None:
        served = ServedPolicy(policy, sglang, attachment)
        super().__init__(served, SglangDialect(served, sglang))

    @classmethod
    def attach(cls, policy: object, attachment: Attachment, sglang: Sglang = DEFAULT) -> SglangEngine:
        """Return an engine that samples with the servers of another one, which gives them their weights."""
        return cls(policy, sglang, attachment=attachment)
