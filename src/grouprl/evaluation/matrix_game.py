"""Games of preferences over a few kinds of answers: win rates, exploitability, and the policies that nothing exploits.

`prefer_kk` [K,K] is P(row ≻ column), with ½ on the diagonal and P_ij + P_ji = 1; a policy is [K] probabilities. The
regularised game adds β·KL to a reference to what each player loses (arXiv:2312.00886, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.core.edges import Edges
from grouprl.core.errors import InputError
from grouprl.evaluation.pass_at_k import Z95


@dataclass(frozen=True)
class WinRates:
    """Shares of comparisons that answers of one kind won against those of another, with Wilson's 95 % intervals."""

    rate_kk: Tensor
    """[K,K] mean preference of the row's kind; ½ where none were compared."""
    low_kk: Tensor
    high_kk: Tensor
    count_kk: Tensor
    """[K,K] number of comparisons, in either direction."""


def win_rates(edges: Edges, kind_b: Tensor, kinds: int) -> WinRates:
    """Return the win rates between kinds ([B] int64, from 0) from compared pairs of rows.

    Two rows of one kind say nothing about others and count on the diagonal alone.
    """
    first_e, second_e = kind_b[edges.index_e2].T
    cell_n = torch.cat([first_e * kinds + second_e, second_e * kinds + first_e])
    value_n = torch.cat([edges.value_e, 1 - edges.value_e])
    zero_n = value_n.new_zeros(kinds * kinds)
    count_kk = zero_n.index_add(0, cell_n, torch.ones_like(value_n)).view(kinds, kinds)
    won_kk = zero_n.index_add(0, cell_n, value_n).view(kinds, kinds)
    rate_kk = torch.where(count_kk > 0, won_kk / count_kk.clamp(min=1), 0.5)
    low_kk, high_kk = wilson(rate_kk, count_kk)
    return WinRates(rate_kk, low_kk, high_kk, count_kk)


def wilson(rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return Wilson's 95 % interval of shares of `count` trials; 0 to 1 where there were none."""
    size = count.clamp(min=1)
    middle = (rate + Z95**2 / (2 * size)) / (1 + Z95**2 / size)
    half = Z95 * (rate * (1 - rate) / size + Z95**2 / (4 * size**2)).sqrt() / (1 + Z95**2 / size)
    return torch.where(count > 0, middle - half, 0), torch.where(count > 0, middle + half, 1)


def check_game(prefer_kk: Tensor) -> None:
    """Refuse a matrix that is not a game of preferences.

    Raises:
        InputError: it is not square, not within 0 and 1, or the chances of two answers do not add up to 1.
    """
    if prefer_kk.ndim != 2 or prefer_kk.shape[0] != prefer_kk.shape[1]:
        raise InputError(f"a preference matrix of shape {list(prefer_kk.shape)}", "it must be [K,K]")
    off = (prefer_kk + prefer_kk.T - 1).abs().max()
    if float(off) > 1e-6 or bool((prefer_kk < 0).any()):
        raise InputError(
            "chances in a preference matrix that do not add up to 1",
            "P(i ≻ j) + P(j ≻ i) = 1, each from 0 to 1, and ½ on the diagonal",
            "Average both directions",
        )


def duality_gap(prefer_kk: Tensor, policy_k: Tensor) -> float:
    """Return max_y P(y ≻ π) - min_y P(y ≻ π): what both players together could win against π; 0 at a Nash policy.

    By symmetry it is twice max_y P(y ≻ π) - ½, the exploitability of one.

    Raises: InputError: it is not a game of preferences.
    """
    check_game(prefer_kk)
    return 2 * float((prefer_kk @ policy_k).max() - 0.5)


def regularised_nash(prefer_kk: Tensor, ref_k: Tensor, beta: float, *, steps: int = 100_000) -> Tensor:
    """Return the Nash policy [K] of the regularised game: π ∝ ref·exp(P(· ≻ π)/β), found by exact mirror-prox steps.

    Raises:
        InputError: it is not a game of preferences, or `beta` is not positive.
        ArithmeticError: no convergence within `steps`.
    """
    check_game(prefer_kk)
    if not beta > 0:
        raise InputError(f"beta = {beta:g}", "the regularised game has a positive β", "Use duality_gap where β is 0")
    policy_k = ref_k
    # 2β, as preferences move by at most half of what a policy moves (in L1): mirror prox may circle with longer steps.
    eta = 2 * beta
    for _ in range(steps):
        ahead_k = proximal_step(prefer_kk, policy_k, policy_k, ref_k, beta, eta)
        after_k = proximal_step(prefer_kk, policy_k, ahead_k, ref_k, beta, eta)
        if float((after_k - policy_k).abs().max()) < 1e-13:
            return after_k
        policy_k = after_k
    raise ArithmeticError(f"no Nash policy within {steps} steps")


def proximal_step(
    prefer_kk: Tensor, base_k: Tensor, opponent_k: Tensor, ref_k: Tensor, beta: float, eta: float
) -> Tensor:
    """Return argmin_π -P(π ≻ opponent)/β + KL(π || ref) + KL(π || base)/η, in closed form (arXiv:2505.19731).

    π ∝ ref^(η/(1+η)) · base^(1/(1+η)) · exp(η/(1+η) · P(y ≻ opponent)/β). With the base as opponent it is a step of
    mirror descent; a second one from the same base against its result makes a step of mirror prox.
    """
    share = eta / (1 + eta)
    logits_k = share * (ref_k.log() + prefer_kk @ opponent_k / beta) + (1 - share) * base_k.log()
    return logits_k.softmax(0)
