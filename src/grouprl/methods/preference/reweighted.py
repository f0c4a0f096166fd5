"""DPO with weights of pairs, tokens or the policy's term, with a reference that follows, or beside other losses."""

from __future__ import annotations

from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.link.pointwise import BcoPair
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.pair import Pair, PairSum
from grouprl.algorithms.pair_weight.pair_weight import Alignment, LikelyPairs
from grouprl.algorithms.score.following import FollowingRatio
from grouprl.algorithms.score.papers.tempered import TemperedRatio
from grouprl.algorithms.score.shared_length import SharedLength
from grouprl.core.numbers import Count, Limit, NonNegative, Positive, PositiveShare, Share
from grouprl.methods.card import Card, Paper, Reduction
from grouprl.methods.preference.composing import (
    BETA,
    NEEDS,
    PAIRS,
    RECOMMENDED,
    TIES,
    TRL,
    TWO,
    of_pairs,
    one_pair,
    three_pairs,
    with_objective,
)
from grouprl.methods.preference.reference_free import chosen_nll
from grouprl.methods.registry import entry


def wpo(beta: Positive = 0.01, alignment: Alignment = "sampled", limit: Limit = 1.0) -> Method:
    """Compose WPO: DPO whose pairs weigh by how likely the policy is to sample them."""
    return of_pairs(link=Logistic(beta=beta), weight=LikelyPairs(alignment=alignment, limit=limit))


entry(
    "wpo",
    wpo,
    Card(
        title="Weighted Preference Optimization",
        papers=[Paper("WPO: Enhancing RLHF with Weighted Preference Optimization", "2406.11827", 2024)],
        summary="DPO in which pairs of another policy count less, as if the pairs were the policy's own.",
        formula=(
            "L = mean over pairs of -min(1, w(y_w)·w(y_l))·log σ(β·Δ), the weight detached,  "
            "w(y) = exp(1/|y| Σ_t [log π(y_t) - log Σ_a π(a)²]),  Δ = [log π/π_ref](y_w) - [log π/π_ref](y_l)"
        ),
        defaults={
            "beta": "wzhouad/WPO training_configs: 0.01",
            "alignment": "wzhouad/WPO: the sampled alignment",
            "limit": "wzhouad/WPO: a pair's weight is at most 1 (TRL has no limit)",
        },
        differs=[
            PAIRS,
            TIES,
            "Σ_a π(a)² is that of the policy at the start of the update (stats.collision): with one update per "
            "rollout the policy's own.",
        ],
        needs=[*NEEDS, "Σ_a π(a)² of every token (stats.collision), or alignment: none"],
        source="wzhouad/WPO: scripts/run_wpo.py, training_configs/llama3_instruct.yaml; TRL 1.16.0, use_weighting",
        golden=[
            one_pair(
                0.35923241,
                [-0.02625529, -0.02625529],
                0.02625529,
                "the weight is e^(-2)/(0.5·0.5) = 0.541341 and DPO's loss 0.663597",
                settings={"beta": 0.1},
                fields={"ref_bt": [[-1.0, -1.0], [-1.0]], "stats.collision": [[0.5, 0.5], [0.5]]},
            ),
            one_pair(
                0.0898081,
                [-0.00656382, -0.00656382],
                0.00656382,
                "the weight is e^(-0.8 - 1.2)",
                settings={"beta": 0.1, "alignment": "none"},
            ),
        ],
        recommended=RECOMMENDED,
    ),
)


def h_dpo(beta: Positive = 0.1, alpha: Positive = 0.9) -> Method:
    """Compose H-DPO: DPO whose penalty has the policy's entropy times α."""
    return of_pairs(score=TemperedRatio(alpha=alpha), link=Logistic(beta=beta))


entry(
    "h_dpo",
    h_dpo,
    Card(
        title="H-DPO: entropy controllable DPO",
        papers=[Paper("Entropy Controllable Direct Preference Optimization", "2411.07595", 2024)],
        summary="DPO towards a sharper policy (α < 1) or a more diverse one (α > 1).",
        formula="L = mean over pairs of -log σ(αβ·Δ log π - β·Δ log π_ref),  Δ over the pair of sums over tokens",
        defaults={"beta": BETA, "alpha": "from the range 0.8 to 0.95 that the paper is said to recommend"},
        differs=[PAIRS, TIES],
        reduces=[Reduction("dpo", settings={"alpha": 1.0}, why="α = 1 is the KL of DPO")],
        needs=NEEDS,
        confidence="partly",
        uncertain="The recommended α.",
        source="a community implementation of the paper, and the derivation",
        golden=[
            one_pair(0.66165909, [-0.04356049, -0.04356049], 0.04356049, "0.9·(-1.6) + 2 - (0.9·(-1.2) + 1) = 0.64"),
            three_pairs(0.679146, "0.589185, 0.820330, 0.627924"),
        ],
        recommended=RECOMMENDED,
    ),
)


def ld_dpo(beta: Positive = 0.1, alpha: Share = 0.5) -> Method:
    """Compose LD-DPO: DPO in which tokens beyond the shorter completion's length weigh α."""
    return of_pairs(score=SharedLength(alpha=alpha), link=Logistic(beta=beta))


entry(
    "ld_dpo",
    ld_dpo,
    Card(
        title="LD-DPO: length desensitised DPO",
        papers=[Paper("Length Desensitization in Direct Preference Optimization", "2409.06411", 2024)],
        summary="DPO in which a longer completion does not count more for its length.",
        formula=(
            "L = mean over pairs of -log σ(β·Δs),  s = Σ_{t≤m} d_t + α·Σ_{t>m} d_t,  m = min(|y_w|, |y_l|),  "
            "d = log π/π_ref"
        ),
        defaults={"beta": BETA, "alpha": "between none and all; the paper's numbers differ by model and were not seen"},
        differs=[PAIRS, TIES],
        reduces=[
            Reduction("dpo", settings={"alpha": 1.0}, why="every token counts in full"),
            Reduction("dpo", ["equal_lengths"], why="no token is beyond the other completion"),
        ],
        needs=NEEDS,
        confidence="partly",
        uncertain="The paper's α.",
        source=f"{TRL}, ld_alpha",
        golden=[one_pair(0.66602526, [-0.04862535, -0.02431267], 0.04862535, "s(w) = 0.3 + 0.5·0.1")],
        recommended=RECOMMENDED,
    ),
)


def tr_dpo(beta: Positive = 0.1, every: Count = 512, share: PositiveShare = 0.6) -> Method:
    """Compose TR-DPO: DPO against a reference that follows the policy."""
    return of_pairs(score=FollowingRatio(every=every, share=share), link=Logistic(beta=beta))


entry(
    "tr_dpo",
    tr_dpo,
    Card(
        title="TR-DPO: a trust region by a reference that moves",
        papers=[Paper("Learn Your Reference Model for Real Good Alignment", "2404.09656", 2024)],
        summary="DPO whose reference moves towards the policy every few steps.",
        formula="L = mean over pairs of -log σ(β·Δ),  Δ = [log π/π_t](y_w) - [log π/π_t](y_l),  θ_t ← a·θ + (1-a)·θ_t",
        defaults={
            "beta": BETA,
            "every": "TRL's DPOConfig.ref_model_sync_steps: 512",
            "share": "TRL's DPOConfig.ref_model_mixup_alpha: 0.6; 1 is the paper's hard update",
        },
        differs=[
            PAIRS,
            TIES,
            "TRL's numbers: the paper moves a soft reference every step. A step's rows are scored before the reference "
            "moves to where the policy is before the update, so that a move counts one step later than in TRL, which "
            "moves it after the update: there Δ = 0 in the step after a hard update, here the policy is one update "
            "ahead by then.",
        ],
        needs=[TWO],
        confidence="partly",
        uncertain="The paper's own a and its number of steps.",
        source="TRL 1.16.0, trainer/dpo_config.py, trainer/callbacks.py: SyncRefModelCallback",
        golden=[
            one_pair(
                0.66359711,
                [-0.04850045, -0.04850045],
                0.04850045,
                "DPO's numbers, the reference's being those of the policy that follows",
                fields={"refs.iterates": [[-1.0, -1.0], [-1.0]]},
            )
        ],
        recommended=RECOMMENDED,
    ),
)


def mpo(
    beta: Positive = 0.1,
    preference: NonNegative = 0.8,
    quality: NonNegative = 0.2,
    generation: NonNegative = 1.0,
) -> Method:
    """Compose MPO: DPO, a classifier of single completions, and the likelihood of chosen ones, added with weights."""
    objective = PairSum(
        first=Pair(link=Logistic(beta=beta)),
        second=Pair(link=BcoPair(beta=beta)),
        first_weight=preference,
        second_weight=quality,
    )
    return with_objective(objective, chosen_nll(generation))


entry(
    "mpo",
    mpo,
    Card(
        title="Mixed Preference Optimization",
        papers=[
            Paper(
                "Enhancing the Reasoning Ability of Multimodal Large Language Models via Mixed Preference Optimization",
                "2411.10442",
                2024,
            )
        ],
        summary="Relative preference, absolute quality and imitation in one weighted sum.",
        formula=(
            "L = 0.8·mean[-log σ(β(s_w - s_l))] + 0.2·mean[-log σ(β·s_w) - log σ(-β·s_l)] - mean over tokens of all "
            "y_w of log π,  s = Σ_t log π/π_ref"
        ),
        defaults={
            "beta": BETA,
            "preference": "the paper, TRL's recipe for it: 0.8",
            "quality": "the paper, TRL's recipe for it: 0.2",
            "generation": "the paper, TRL's recipe for it: 1",
        },
        differs=[PAIRS, TIES, "No running shift of the classifier's rewards: TRL 1.x has none in this loss either."],
        reduces=[
            Reduction("dpo", settings={"preference": 1.0, "quality": 0.0, "generation": 0.0}, why="one loss is left")
        ],
        needs=NEEDS,
        source=f"{TRL}, loss_type [sigmoid, bco_pair, sft] with loss_weights [0.8, 0.2, 1.0]",
        golden=[
            one_pair(1.60218656, [-0.54860039, -0.54860039], 0.04870036, "0.8·0.663597 + 0.2·1.356544 + 0.8"),
        ],
        recommended=RECOMMENDED,
    ),
)
