"""Measures of the pairs or labels of a loss: TRL's metrics by their names, and what explains falling likelihoods."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.score.score import Score, over_tokens
from grouprl.core.batch import Batch


def sizes(score: Score, score_e2: Tensor, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
    """Return what the rounding of a pair's margin grows with, [E]: the sizes of its log-probs, or of its scores."""
    made_of_e2 = over_tokens(logp_bt, batch, "sum")[index_e2] if score.log_probs else score_e2
    return made_of_e2.abs().sum(1)


def pair_metrics(
    beta: float, score_e2: Tensor, logp_bt: Tensor, batch: Batch, index_e2: Tensor, right_e: Tensor
) -> dict[str, Tensor]:
    """Return the metrics of pairs [E], better first: TRL's with β times the scores as rewards, and `shapes`; `right_e`
    says which are ranked right.
    """
    log_e2 = over_tokens(logp_bt, batch, "sum")[index_e2]
    mean_e = over_tokens(logp_bt, batch, "mean")[index_e2[:, 0]]
    return {
        **trl_metrics(beta, score_e2, log_e2, right_e),
        "chosen_logp": mean_e,
        **drifts(logp_bt, batch, index_e2),
        **shapes(batch, index_e2),
    }


def trl_metrics(beta: float, score_e2: Tensor, log_e2: Tensor, right_e: Tensor) -> dict[str, Tensor]:
    """Return the metrics of pairs [E] by TRL's names: β·s and log π of both completions, and which are right."""
    better_e, worse_e = (beta * score_e2).unbind(1)
    return {
        "rewards/chosen": better_e,
        "rewards/rejected": worse_e,
        "rewards/margins": better_e - worse_e,
        "rewards/accuracies": right_e,
        "logps/chosen": log_e2[:, 0],
        "logps/rejected": log_e2[:, 1],
    }


def drifts(logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> dict[str, Tensor]:
    """Return log π/π_ref per token of both completions of each pair [E], in nats; nothing without a reference."""
    if batch.ref_bt is None:
        return {}
    drift_e2 = over_tokens(logp_bt - batch.ref_bt, batch, "mean")[index_e2]
    return {"chosen_drift": drift_e2[:, 0], "rejected_drift": drift_e2[:, 1]}


def shapes(batch: Batch, index_e2: Tensor) -> dict[str, Tensor]:
    """Return the lengths of both completions of each pair [E] and, if tokens are known, how much they share."""
    length_e2 = batch.length_b[index_e2].to(batch.dtype)
    found = {"chosen_length": length_e2[:, 0], "rejected_length": length_e2[:, 1]}
    return found if batch.token_bt is None else {**found, "pair_overlap": overlap(batch.token_bt, batch, index_e2)}


def overlap(token_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
    """Return the share of the longer completion's positions that lie in a beginning or an end common to both, [E]."""
    place_t = torch.arange(token_bt.shape[1], device=token_bt.device)
    size_b, token_bt = batch.mask_bt.sum(1), _gathered(token_bt, batch.mask_bt)
    backwards_bt = token_bt.gather(1, (size_b[:, None] - 1 - place_t).clamp(min=0))
    shorter_e, longer_e = size_b[index_e2].amin(1), size_b[index_e2].amax(1)
    begun_e, ended_e = (_alike(each_bt, index_e2, shorter_e, place_t) for each_bt in (token_bt, backwards_bt))
    return torch.minimum(begun_e + ended_e, shorter_e).to(batch.dtype) / longer_e.clamp(min=1)


def _gathered(token_bt: Tensor, mask_bt: Tensor) -> Tensor:
    """Return [B,T] the tokens of the mask from the first column on, without the gaps between them."""
    place_bt = torch.where(mask_bt, mask_bt.cumsum(1) - 1, mask_bt.shape[1])
    return torch.zeros_like(token_bt[:, :1]).expand(-1, mask_bt.shape[1] + 1).scatter(1, place_bt, token_bt)[:, :-1]


def _alike(token_bt: Tensor, index_e2: Tensor, shorter_e: Tensor, place_t: Tensor) -> Tensor:
    """Return how many tokens at the beginning of both rows of each pair are the same, [E] int64."""
    first_et, second_et = token_bt[index_e2].unbind(1)
    same_et = (first_et == second_et) & (place_t < shorter_e[:, None])
    return same_et.long().cumprod(1).sum(1)


def with_labels(batch: Batch, liked_b: Tensor) -> Batch:
    """Return an optimiser step with the numbers of its liked ([B] bool) and disliked rows that carry a gradient."""
    live_b = batch.need("share_b", "metrics of labels") > 0
    liked, disliked = (int((live_b & side_b).sum()) for side_b in (liked_b, ~liked_b))
    whole_b = torch.ones_like(batch.group_b)
    return batch.replace(step_liked_b=liked * whole_b, step_disliked_b=disliked * whole_b)


def label_metrics(reward_b: Tensor, logp_bt: Tensor, liked_b: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return TRL's metrics of labelled rows [B], whose means over the step's rows are means over one side's rows.

    A side is absent if the step has no such row, and so is the margin then.
    """
    log_b = over_tokens(logp_bt, batch, "sum")
    found: dict[str, Tensor] = {}
    for name, side_b, count_b in (
        ("chosen", liked_b, batch.need("step_liked_b", "labelled")),
        ("rejected", ~liked_b, batch.need("step_disliked_b", "labelled")),
    ):
        if bool(count_b.any()):
            scale_b = _share_among(side_b, count_b, batch)
            found |= {f"rewards/{name}": scale_b * reward_b, f"logps/{name}": scale_b * log_b}
    if {"rewards/chosen", "rewards/rejected"} <= found.keys():
        found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
    return found


def _share_among(side_b: Tensor, count_b: Tensor, batch: Batch) -> Tensor:
    """Return [B] one over the number of the side's rows, over the share of the row in the step; 0 on the other side."""
    share_b = batch.need("share_b", "metrics of labels")
    here_b = side_b & (share_b > 0)
    return torch.where(here_b, 1 / (torch.where(here_b, share_b, 1) * count_b), 0)
