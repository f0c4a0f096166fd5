"""A pointer in two stages: whoever chooses first preselects the nodes that are most like it, then points at one."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import ILLEGAL, PlainCategorical
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.pointer import AttentionPolicy, PointerNet, check_sizes, need_map
from grouprl.protocols import DictSpace, Discrete, Spaces


class PreselectNet(PointerNet):
    """A pointer's network, with a similarity of what chooses (`whole`) and each node, by which nodes are preselected.

    Args:
        spaces: the task's spaces.
        keep: how many nodes are preselected.
        width: numbers of a node.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, spaces: Spaces, keep: int, width: int, layers: int, heads: int) -> None:
        super().__init__(spaces, width, layers, heads)
        self.keep, whole = keep, self.whole.in_features
        self.entity, self.task = nn.Linear(whole, width), nn.Linear(width, width, bias=False)

    def similarity(self, seen: Seen, node_pnd: Tensor) -> Tensor:
        """Return the similarity [P,N] of what chooses and each of the nodes [P,N,d]: the first stage."""
        entity_pd = self.entity(seen.observation["whole"])
        found_pn: Tensor = (self.task(node_pnd) @ entity_pd[:, :, None])[..., 0] / entity_pd.shape[-1] ** 0.5
        return found_pn

    def forward(self, seen: Seen) -> Tensor:
        """Return logits [P,N]: the pointer's and the similarity, very low for nodes that are not preselected."""
        query_pd, node_pnd = self.asked(seen)
        alike_pn = self.similarity(seen, node_pnd)
        kept_pn = preselected(alike_pn, seen.legal_na, self.keep)
        return torch.where(kept_pn, self.pointed(query_pd, node_pnd) + alike_pn, ILLEGAL)


def preselected(alike_pn: Tensor, legal_pn: Tensor | None, keep: int) -> Tensor:
    """Return [P,N] bool: the `keep` legal nodes of the largest similarity, or all legal ones if they are fewer."""
    legal_pn = torch.ones_like(alike_pn, dtype=torch.bool) if legal_pn is None else legal_pn
    among_pn = torch.where(legal_pn, alike_pn, -torch.inf)
    best_pk = among_pn.topk(min(keep, alike_pn.shape[-1]), -1).indices
    return torch.zeros_like(legal_pn).scatter(-1, best_pk, True) & legal_pn


class Preselect(AttentionPolicy):
    """Attention policy in two stages, for allocating entities to tasks (two-stage allocation, arXiv:2407.00496).

    An entity first keeps the `keep` open tasks whose embeddings are most like its own, then points at one of them; the
    similarity is added to the pointer's logits, so that the first stage learns from what the second gains. Log-probs
    are those of both stages together: a task that is not kept has probability 0. With all tasks kept it is a pointer
    whose logits have one term more. *Differs from the paper*, of which only the abstract was read: weights are not made
    by a hyper-network, so the number of an entity's attributes is fixed; numbers of entities and tasks may vary.

    Args:
        build: the run's arguments.
        keep: tasks that an entity preselects.
        width: numbers of a node.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, build: Build, *, keep: int = 3, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        spaces = build.need_spaces("preselect", observations=(DictSpace,), actions=(Discrete,))
        need_map("preselect", spaces)
        check_sizes("preselect", width, layers, heads)
        if keep < 1:
            raise InputError(
                f"model.settings.keep = {keep}", "an entity keeps at least one task", "Set it to 1 or more"
            )
        super().__init__(build, partial(PreselectNet, spaces, keep, width, layers, heads))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution over nodes at each position."""
        return PlainCategorical(self.module(seen) / temperature)
