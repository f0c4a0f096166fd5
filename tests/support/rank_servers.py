"""A script for several ranks: servers that get the weights of all ranks, while none holds a whole copy."""

from __future__ import annotations

import json
import sys

import torch

from grouprl.config.sections import Vllm
from grouprl.policy import Tokens
from grouprl.policy.sharded.rank_work import WHOLE
from grouprl.policy.sharded.ranks import Ranks, Station, follow, leading
from grouprl.policy.sharded.sharded_policy import ShardedPolicy
from grouprl.processes.current_ranks import own_rank
from grouprl.protocols import Request
from grouprl.rollout.engines import chosen_engine
from ranks import TinyBuilders
from vllm_brain import Brain
from vllm_stand_in import StandIn, standing_in


def has_whole(station: Station, share: object) -> bool:
    """Whether the rank has a whole copy."""
    return WHOLE in station.kept


def served(ranks: Ranks, builders: TinyBuilders) -> dict[str, object]:
    """Sample from a server with the weights of the ranks; how far its log-probs and its canary are from theirs."""
    policy, plain = ShardedPolicy(ranks, builders), TinyBuilders(dtype=builders.dtype).one()
    requests = [Request((3 + seed % 4, 4, 5), 6, seed) for seed in range(6)]
    found: dict[str, object] = {"logp": 0.0, "canary": 0.0}
    with standing_in(StandIn(Brain(plain))) as address:
        engine = chosen_engine("vllm", {"vllm": Vllm(addresses=(address,))})(policy)
        for version in range(2):
            state = policy.trainable_state()
            policy.load_trainable_state({n: x + 0.1 * torch.sin(torch.arange(x.numel()) + version).view_as(x)
                                         for n, x in state.items()})  # fmt: skip
            engine.publish(version, policy)
            samples = engine.sample(requests)
            told_bt = policy.logp(Tokens.of([request.prompt for request in requests], samples.actions))
            gap = (torch.as_tensor(samples.logp_bt) - told_bt).abs().max()
            found = {"logp": max(found["logp"], float(gap)), "canary": max(found["canary"], engine.gap)}
        engine.close()
    return found | {"wholes": sum(ranks.each(rank_servers.has_whole))}


def main() -> None:
    """Print what was found, for weights and for adapters merged into them."""
    if own_rank():
        return follow(lambda: None)
    with leading() as ranks:
        ranks.begin(600.0)
        ways = {"plain": TinyBuilders(), "adapters": TinyBuilders(lora=(("r", 4),))}
        print(json.dumps({name: served(ranks, builders) for name, builders in ways.items()}))
    return None


if __name__ == "__main__":
    import rank_servers

    sys.exit(main())
