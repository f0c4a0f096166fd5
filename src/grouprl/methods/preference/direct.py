"""DPO and its links: losses of the difference of two log-ratios, and of those of a list (EXO-rw, InfoNCA)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import SequenceMean
from grouprl.algorithms.filter.paired import PairedGroups
from grouprl.algorithms.link.discovered import LogisticExponential
from grouprl.algorithms.link.exact import ReversePreference
from grouprl.algorithms.link.link import Hinge, Logistic, Squared
from grouprl.algorithms.link.noise import Smoothed, Unbiased
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.list_kl import ListKl
from grouprl.algorithms.objective.papers.noise_contrast import InfoNca
from grouprl.algorithms.score.score import LogRatio
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import (
    ALPHA,
    BETA,
    DPO_PAPER,
    LIST_DIFFERS,
    LIST_NEEDS,
    NCA_CODE,
    NCA_PAPER,
    NEEDS,
    PAIRS,
    RECOMMENDED,
    TIES,
    TRL,
    of_pairs,
    one_pair,
    three_pairs,
)
from grouprl.methods.registry import entry

EXO_PAPER = Paper("Towards Efficient and Exact Optimization of Language Model Alignment", "2402.00856", 2024)
EXO_CODE = "haozheji/exact-optimization: src/align_stage/loss.py"
DELTA = "Δ = [log π/π_ref](y_w) - [log π/π_ref](y_l), summed over tokens"


def dpo(beta: Positive = 0.1) -> Method:
    """Compose DPO: mean over pairs of -log σ(β·Δ)."""
    return of_pairs(link=Logistic(beta=beta))


entry(
    "dpo",
    dpo,
    Card(
        title="Direct Preference Optimization",
        papers=[DPO_PAPER],
        summary="The likelihood of each preference, the log-ratio to the reference being the reward.",
        formula=f"L = mean over pairs of -log σ(β·Δ),  {DELTA}",
        defaults={"beta": "the paper: 0.1"},
        differs=[PAIRS, TIES],
        reduces=[Reduction("cdpo", other={"flips": 0.0}, why="labels that are never wrong")],
        needs=NEEDS,
        source=TRL,
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "Δ = 0.6; slope 0.1·σ(-0.06)"),
            three_pairs(0.683751, "Δ = 2.5, -3, 1.5; 0.575939, 0.854355, 0.620957"),
        ],
        recommended=RECOMMENDED,
    ),
)


def cdpo(beta: Positive = 0.1, flips: Annotated[float, Field(ge=0, le=0.5)] = 0.1) -> Method:
    """Compose cDPO: DPO with labels of which a share counts as wrong."""
    return of_pairs(link=Smoothed(of=Logistic(beta=beta), flips=flips))


entry(
    "cdpo",
    cdpo,
    Card(
        title="Conservative DPO",
        papers=[Paper("A note on DPO with noisy preferences and relationship to IPO (E. Mitchell)", year=2023)],
        summary="DPO with smoothed labels, so that no difference is driven without end.",
        formula=f"L = mean over pairs of -(1-ε)·log σ(β·Δ) - ε·log σ(-β·Δ),  {DELTA}",
        defaults={"beta": BETA, "flips": "the note's example: 0.1"},
        differs=[PAIRS, TIES, "TRL 1.x ignores label_smoothing in its loss sigmoid: see dpo@trl."],
        reduces=[Reduction("dpo", settings={"flips": 0.0}, why="labels that are never wrong")],
        needs=NEEDS,
        source="the note; TRL 1.16.0, experimental/cpo, which has this form",
        golden=[
            one_pair(0.66959711, [-0.03850045, -0.03850045], 0.03850045, "0.9·0.663597 + 0.1·0.723597"),
        ],
        recommended=RECOMMENDED,
    ),
)


def rdpo(beta: Positive = 0.1, flips: Annotated[float, Field(ge=0, lt=0.5)] = 0.1) -> Method:
    """Compose rDPO: a loss that is DPO's on average over labels flipped with a known chance."""
    return of_pairs(link=Unbiased(of=Logistic(beta=beta), flips=flips))


entry(
    "rdpo",
    rdpo,
    Card(
        title="Provably Robust DPO",
        papers=[Paper("Provably Robust DPO: Aligning Language Models with Noisy Feedback", "2403.00409", 2024)],
        summary="DPO without the bias that flipped labels bring, for a known share of them.",
        formula=f"L = mean over pairs of [-(1-ε)·log σ(β·Δ) + ε·log σ(-β·Δ)]/(1-2ε),  {DELTA}",
        defaults={"beta": BETA, "flips": "the paper's experiments: 0.1"},
        differs=[PAIRS, TIES, "A share of 0.5 or more is refused; TRL divides by 0 at 0.5 and turns the sign above."],
        reduces=[Reduction("dpo", settings={"flips": 0.0}, why="labels that are never wrong")],
        needs=NEEDS,
        source=f"{TRL}, loss robust",
        golden=[
            one_pair(0.65609711, [-0.06100045, -0.06100045], 0.06100045, "(0.9·0.663597 - 0.1·0.723597)/0.8"),
            three_pairs(0.679584, "0.544689, 0.891855, 0.602207"),
        ],
        notes=["The loss has no lower bound: its slope in Δ tends to -βε/(1-2ε), not to 0."],
        recommended=RECOMMENDED,
    ),
)


def ipo(beta: Positive = 0.1, length: Literal["sum", "mean"] = "sum") -> Method:
    """Compose IPO: mean over pairs of (Δ - 1/(2β))²."""
    return of_pairs(score=LogRatio(length=length), link=Squared(beta=beta))


entry(
    "ipo",
    ipo,
    Card(
        title="Identity Preference Optimization",
        papers=[
            Paper("A General Theoretical Paradigm to Understand Learning from Human Preferences", "2310.12036", 2023)
        ],
        summary="Least squares: the difference of log-ratios is to be 1/(2β), and no more.",
        formula=f"L = mean over pairs of (Δ - 1/(2β))²,  {DELTA} (length = mean: each log-ratio over its tokens)",
        defaults={
            "beta": "customary 0.1 (the paper's τ)",
            "length": "the paper: sums. TRL's DPOTrainer takes means, see dpo@trl; its OnlineDPOTrainer takes sums",
        },
        differs=[PAIRS, TIES],
        needs=NEEDS,
        source=f"{TRL}, loss ipo, and experimental/online_dpo; the paper, eq. 17",
        golden=[
            one_pair(19.36, [-8.8, -8.8], 8.8, "(0.6 - 5)²"),
            three_pairs(23.447778, "20.551111, 27.387778, 22.404444", settings={"length": "mean"}),
        ],
        recommended=RECOMMENDED,
    ),
)


def slic(beta: Positive = 0.1) -> Method:
    """Compose SLiC's hinge on log-ratios: mean over pairs of max(0, 1 - β·Δ)."""
    return of_pairs(link=Hinge(beta=beta))


entry(
    "slic",
    slic,
    Card(
        title="SLiC: sequence likelihood calibration, with log-ratios",
        papers=[
            Paper("SLiC-HF: Sequence Likelihood Calibration with Human Feedback", "2305.10425", 2023),
            Paper("Statistical Rejection Sampling Improves Preference Optimization", "2309.06657", 2023),
        ],
        summary="A hinge on the difference of log-ratios: pairs that are far enough apart teach nothing.",
        formula=f"L = mean over pairs of max(0, 1 - β·Δ),  {DELTA}",
        defaults={"beta": BETA},
        differs=[
            PAIRS,
            TIES,
            "Log-ratios take the place of log-probs (the second paper's hinge-norm); SLiC itself has no reference in "
            "its hinge and a term of likelihood beside it.",
        ],
        needs=NEEDS,
        source=f"{TRL}, loss hinge",
        golden=[
            one_pair(0.94, [-0.1, -0.1], 0.1, "1 - 0.06"),
            three_pairs(0.966667, "0.75, 1.3, 0.85"),
        ],
        recommended=RECOMMENDED,
    ),
)


def exo(beta: Positive = 0.1, flips: Annotated[float, Field(gt=0, lt=0.5)] = 1e-3) -> Method:
    """Compose EXO for pairs: the reverse KL of the policy's preference from the smoothed label."""
    return of_pairs(link=ReversePreference(beta=beta, flips=flips))


entry(
    "exo",
    exo,
    Card(
        title="EXO: efficient exact optimisation, for pairs",
        papers=[EXO_PAPER],
        summary="The reverse KL in place of DPO's forward KL between the policy's preference and the label.",
        formula=f"L = mean over pairs of q·log(q/(1-ε)) + (1-q)·log((1-q)/ε),  q = σ(β·Δ),  {DELTA}",
        defaults={"beta": BETA, "flips": "TRL's recipe for the paper: label_smoothing 1e-3"},
        differs=[
            PAIRS,
            TIES,
            "Pairs alone (EXO-pref); exo_rw is the form with K completions and their rewards (EXO-rw).",
            "The label's two chances add up to 1; the authors' code has log-targets 0 and -10.",
        ],
        needs=NEEDS,
        source=f"{TRL}, loss exo_pair; {EXO_CODE}",
        golden=[
            one_pair(2.65811025, [-0.17101491, -0.17101491], 0.17101491, "q = σ(0.06)"),
            three_pairs(2.710524, "2.339545, 3.286512, 2.505517"),
        ],
        recommended=RECOMMENDED,
    ),
)


def exo_rw(beta_pi: Positive = 1.0, beta_r: Positive = 1.0) -> Method:
    """Compose EXO for rewards: the reverse KL of the policy's choice among K completions from that of their rewards."""
    return Method(
        filter=(PairedGroups(ties=True),),
        advantage=RawReward(),
        objective=ListKl(beta_pi=beta_pi, beta_r=beta_r),
        aggregate=SequenceMean(),
    )


entry(
    "exo_rw",
    exo_rw,
    Card(
        title="EXO for rewards: efficient exact optimisation, of lists",
        papers=[EXO_PAPER],
        summary="A prompt's K completions as one choice: the reverse KL of the policy's softmax from the rewards'.",
        formula=(
            "L = mean over groups of Σ_i f_i·log(f_i/g_i),  f = softmax(β_π·s),  g = softmax(R/β_r),  "
            "s = log π/π_ref, summed over tokens"
        ),
        defaults={"beta_pi": "the authors' arguments: 1.0", "beta_r": "the authors' arguments: 1.0"},
        differs=[
            "All completions of a prompt are one list; the authors' code cuts them into lists of num_contrastive (2).",
            "Groups weigh by their size, which may vary; the authors' lists have one.",
            "Completions are stored or the policy's own; the authors sample them from the SFT policy.",
            "Without others of its prompt a completion is left out, also from the denominator. Equal rewards are no "
            "reason to leave a group out: they ask for equal log-ratios (stored lists of equal scores: ties: keep).",
        ],
        reduces=[
            Reduction(
                "exo",
                ["two_completions", "binary_rewards", "mixed_groups"],
                settings={"beta_pi": 0.1, "beta_r": 0.45511961331341866},
                other={"flips": 0.1},
                why="1/β_r = log((1-ε)/ε): of rewards 1 and 0 the softmax is (1-ε, ε)",
            ),
        ],
        needs=LIST_NEEDS,
        source=EXO_CODE,
        golden=[
            one_pair(
                0.01751121,
                [-0.09151370, -0.09151370],
                0.09151370,
                "f = (σ(0.6), σ(-0.6)), g = (σ(1), σ(-1)); slope f_w·f_l·(0.6 - 1)",
            ),
            Golden(
                rewards=[0, 2, 1],
                log_ratio=[[0.5], [0.0], [-0.5]],
                fields={"ref_bt": [[-1.0]] * 3},
                settings={"beta_pi": 2.0, "beta_r": 0.5},
                advantage=[0.0, 2.0, 1.0],
                loss=2.15156102,
                grad=[[2.10717022], [-1.67210011], [-0.43507011]],
                why="f = softmax(1, 0, -1) = (0.6652, 0.2447, 0.0900), g = softmax(0, 4, 2) = (0.0159, 0.8668, 0.1173)"
                "; slopes 2·f·(log f/g - L)",
            ),
            Golden(
                rewards=[1, 0.5, 0.5, 3],
                groups=[0, 0, 0, 1],
                log_ratio=[[0.7], [0.2], [0.2], [0.9]],
                fields={"ref_bt": [[-1.0]] * 4},
                loss=0.0,
                grad=[[0.0], [0.0], [0.0], [0.0]],
                why="scores differ as rewards do: f = g; the last completion has nothing to be compared with",
            ),
        ],
        notes=[
            "The optimum is π ∝ π_ref·exp(R/(β_π·β_r)) among the completions, so only the product of both "
            "counts there.",
        ],
        recommended={"learning_rate": 1e-6},
    ),
)


def infonca(beta: Positive = 0.1, alpha: Positive = 1e-4) -> Method:
    """Compose InfoNCA: which of a prompt's K completions is the policy's, with targets that follow their rewards."""
    return Method(
        filter=(PairedGroups(ties=True),),
        advantage=RawReward(),
        objective=InfoNca(beta=beta, alpha=alpha),
        aggregate=SequenceMean(),
    )


entry(
    "infonca",
    infonca,
    Card(
        title="InfoNCA: noise contrastive alignment, of lists",
        papers=[NCA_PAPER],
        summary="DPO for K completions with their rewards: the cross-entropy of the policy's softmax to the rewards'.",
        formula=(
            "L = mean over groups of -Σ_i w_i·log softmax(β·s)_i,  w = softmax(R/α) over the K completions,  "
            "s = log π/π_ref, summed over tokens"
        ),
        defaults={"beta": BETA, "alpha": ALPHA},
        differs=LIST_DIFFERS,
        reduces=[
            Reduction(
                "dpo",
                ["two_completions", "binary_rewards", "mixed_groups"],
                why="the softmax of 1/α and 0 is 1 and 0: the chosen completion has all the weight",
            ),
        ],
        needs=LIST_NEEDS,
        source=NCA_CODE,
        golden=[
            one_pair(
                0.67973360,
                [-0.02160631, -0.02160631],
                0.02160631,
                "w = (σ(1), σ(-1)), f = (σ(0.06), σ(-0.06)); slopes β·(f - w)",
                settings={"alpha": 1.0},
            ),
            Golden(
                rewards=[0, 2, 1],
                log_ratio=[[0.5], [0.0], [-0.5]],
                fields={"ref_bt": [[-1.0]] * 3},
                settings={"beta": 2.0, "alpha": 0.5},
                advantage=[0.0, 2.0, 1.0],
                loss=1.50904015,
                grad=[[1.29872943], [-1.24416972], [-0.05455971]],
                why="w = softmax(0, 4, 2) = (0.0159, 0.8668, 0.1173), f = softmax(1, 0, -1); slopes 2·(f - w)",
            ),
        ],
        recommended={"group": 4},
    ),
)


def discopop(beta: Positive = 0.05, tau: Positive = 0.05) -> Method:
    """Compose DiscoPOP: the logistic loss of pairs in the wrong order, the exponential loss of the others."""
    return of_pairs(link=LogisticExponential(beta=beta, tau=tau))


entry(
    "discopop",
    discopop,
    Card(
        title="DiscoPOP: the log-ratio modulated loss",
        papers=[
            Paper(
                "Discovering Preference Optimization Algorithms with and for Large Language Models", "2406.08414", 2024
            )
        ],
        summary="A blend of logistic and exponential loss, found by a language model.",
        formula=f"L = mean over pairs of (1-μ)·(-log σ(z)) + μ·e^(-z),  μ = σ(z/τ),  z = β·Δ,  {DELTA}",
        defaults={
            "beta": "the paper's experiments: 0.05",
            "tau": "the paper, TRL's DPOConfig.discopop_tau: 0.05",
        },
        differs=[PAIRS, TIES],
        needs=NEEDS,
        confidence="partly",
        uncertain="β of the paper's experiments.",
        source=f"{TRL}, loss discopop",
        golden=[
            one_pair(0.87737567, [0.01536528, 0.01536528], -0.01536528, "z = 0.06, μ = σ(1.2)", settings={"beta": 0.1}),
            three_pairs(0.827454, "0.777443, 0.855580, 0.849338", settings={"beta": 0.1}),
        ],
        notes=["With τ = 0.05 the loss rises with z between about -0.12 and 0.07: there it moves a pair closer."],
        recommended=RECOMMENDED,
    ),
)
