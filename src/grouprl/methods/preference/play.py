"""Learning from preferences that no reward may explain: policies that play against each other."""

from __future__ import annotations

from grouprl.algorithms.advantage.preferred import Preferred
from grouprl.algorithms.aggregate.aggregate import SequenceMean, SequenceSum
from grouprl.algorithms.augment.opponents import Comparisons, Opponents
from grouprl.algorithms.data_part import Augmentation
from grouprl.algorithms.filter.compared import Compared, OpponentsApart
from grouprl.algorithms.link.link import Squared
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.objective.regression import GroupRegression
from grouprl.algorithms.pairing.pairing import Extremes
from grouprl.algorithms.preferences import By
from grouprl.algorithms.regularize.iterates import KLIterates
from grouprl.algorithms.regularize.regularize import KLLoss
from grouprl.algorithms.score.papers.mixed_ratio import MixedRatio
from grouprl.algorithms.update.papers.outer_loops import Extragradient
from grouprl.core.numbers import Count, NonNegative, Positive, PositiveShare, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import REFERENCE, TIES, of_pairs, one_pair
from grouprl.methods.preference.online import ONLINE, OPPONENT_ROWS, ROUNDS, SEVERAL
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update

BY = "reward: P(y ≻ y') = σ(R - R'), as in TRL; judge: what the run's judge says of the two (reward.judge.compare)"
WON = "A = mean_j P(y ≻ y_j) - ½ over the completions of the prompt, itself included"
SELF = (
    "The opponents of a completion are the others of its group, so that a completion is at once player and opponent; "
    "itself included the expected gradient is that of independent opponents."
)
BOTH = {"ref_bt": [[-1.0, -1.0], [-1.0]], "refs.iterates": [[-1.0, -1.0], [-1.0]]}
WINS = [0.11552929, -0.11552929]
"""(σ(1) - ½)/2: of two completions with rewards 1 and 0, each compared with the other and with itself."""


def judged(by: By, against: str = "all") -> tuple[Augmentation, ...]:
    """Return the part that asks a judge for preferences, where they are not those of rewards."""
    return (Comparisons(against=against),) if by == "judge" else ()  # type: ignore[arg-type]


def nash_md(beta: NonNegative = 0.1, mixture: Share = 0.5, by: By = "reward") -> Method:
    """Compose Nash-MD: a policy gradient on the preference to an opponent between policy and reference."""
    return Method(
        augment=(Opponents(initial=mixture, together=by == "reward"), *judged(by, "opponents")),
        filter=(Compared(by=by), OpponentsApart()),
        advantage=Preferred(by=by, against="opponents"),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        regularize=(KLLoss(coef=beta, estimator="k2"),),
    )


entry(
    "nash_md",
    nash_md,
    Card(
        title="Nash-MD: Nash learning from human feedback",
        papers=[Paper("Nash Learning from Human Feedback", "2312.00886", 2023)],
        summary="Be preferred to an opponent that is a geometric mixture of the policy and the reference.",
        formula=(
            "L = mean over y ~ π of Σ_t [-(P(y ≻ y') - ½)·log π(y_t) + β·d_t²/2],  d = log π/π_ref,  "
            "y' ~ π^(1-c)·π_ref^c token by token"
        ),
        defaults={"beta": "TRL's NashMDConfig: 0.1", "mixture": "TRL's NashMDConfig: 0.5", "by": BY},
        differs=["The opponent's logits are mixed, which is the mixture of next tokens, not of whole completions."],
        needs=[REFERENCE, "a reward, a judge or a reward model"],
        source="TRL 1.13.0, experimental/nash_md; the paper, section 7",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=OPPONENT_ROWS,
                advantage=[0.23105858, 0.0],
                loss=0.37469373,
                grad=[[-0.20105858, -0.22105858], [0.0]],
                why="A = σ(1) - ½; 0.231059·1.6 + 0.1·(0.09 + 0.01)/2; slopes -A + 0.1·d",
            )
        ],
        notes=["mixture 1 plays against the reference, 0 against the policy itself."],
        recommended={**ONLINE, "group": 1},
    ),
)


def nash_mp(
    beta: NonNegative = 0.1, step: Positive = 1.0, every: Count = 1, share: PositiveShare = 0.05, by: By = "reward"
) -> Method:
    """Compose Nash-MP: self-play within a trust region around a target network that follows slowly."""
    return Method(
        augment=judged(by),
        filter=(Compared(by=by),),
        advantage=Preferred(by=by, itself=True),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        regularize=(
            KLLoss(coef=beta, estimator="k2"),
            KLIterates(coef=beta / step, every=every, share=share, estimator="k2"),
        ),
    )


entry(
    "nash_mp",
    nash_mp,
    Card(
        title="Nash-MP: Nash learning by mirror prox (Nash Prox)",
        papers=[Paper("Accelerating Nash Learning from Human Feedback via Mirror Prox", "2505.19731", 2025)],
        summary="Self-play in proximal steps: KL to the reference, and KL to a network that follows the policy.",
        formula=(
            f"L = mean over y ~ π of Σ_t [-A·log π(y_t) + β·d_t²/2 + (β/η)·d'_t²/2],  {WON},  d = log π/π_ref,  "
            "d' = log π/π_k"
        ),
        defaults={
            "beta": "the order of the paper's: 0.1",
            "step": "η, problem-dependent in the paper",
            "every": "the target follows in every step",
            "share": "customary for target networks; the paper's constants were not seen",
            "by": BY,
        },
        differs=[
            SELF,
            "The form for networks: the policy is one step ahead of its target and plays against itself; the two exact "
            "half-steps are in `grouprl.evaluation.matrix_game`.",
            "KLIterates has its own aggregation of tokens: that of the policy loss.",
        ],
        needs=[REFERENCE, SEVERAL],
        confidence="partly",
        uncertain="The update of the target network and its constants.",
        source="a review of the paper that gives both half-steps; EGPO's repository for the judge",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=BOTH,
                advantage=WINS,
                loss=0.03010586,
                grad=[[-0.02776464, -0.04776464], [0.03776464]],
                why="(A·(1.6 - 1.2) + 0.2·(0.09 + 0.01 + 0.04)/2)/2, A = ±0.115529; slopes (∓A + 0.2·d)/2",
            )
        ],
        recommended=ONLINE,
    ),
)


def egpo(beta: Positive = 0.1, by: By = "reward") -> Method:
    """Compose EGPO: online IPO in steps that look ahead first."""
    return Method(
        augment=judged(by),
        filter=(Compared(by=by),),
        advantage=Preferred(by=by, itself=True),
        objective=GroupRegression(beta=beta, coef=2 / beta**2, anchor="ref"),
        aggregate=SequenceMean(),
        update=Extragradient(),
    )


entry(
    "egpo",
    egpo,
    Card(
        title="EGPO: extragradient preference optimisation",
        papers=[
            Paper(
                "Extragradient Preference Optimization (EGPO): Beyond Last-Iterate Convergence for Nash Learning from "
                "Human Feedback",
                "2503.08942",
                2025,
            )
        ],
        summary="Online IPO against opponents of the policy that has looked one step ahead.",
        formula=f"L = mean over pairs of (d_i - d_j - (A_i - A_j)/β)²,  d = Σ_t log π/π_ref,  {WON}",
        defaults={"beta": "zhourunlong/EGPO lms: 0.1", "by": BY},
        differs=[
            SELF,
            "Completions of a second step come from the policy that looked ahead, as their opponents do; the authors "
            "sample them from the policy at a higher temperature.",
            "Log-probs are summed, as in the paper; the authors' trainer averages them by default.",
        ],
        needs=[REFERENCE, SEVERAL, "an even number of steps"],
        notes=[in_the_update("those of online IPO, without looking ahead")],
        source="zhourunlong/EGPO: simulations/loss_funcs.py, lms/trainers/extragradient_trainer.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields={"ref_bt": [[-1.0, -1.0], [-1.0]]},
                advantage=WINS,
                loss=2.92610352,
                grad=[[-3.42117157, -3.42117157], [3.42117157]],
                why="Δd = 0.6, ΔA/β = 2.310586: (0.6 - 2.310586)², slope 2·(0.6 - 2.310586)",
                tolerance=1e-5,
            )
        ],
        recommended={**ONLINE, "updates per rollout": 1},
    ),
)


def three_iterates(loss: float, why: str) -> Golden:
    """Return the three pairs of the dialect's golden example, with log-probs of an iterate besides."""
    lengths = (6, 5, 15, 12, 5, 6)
    policy, anchor = (-12.0, -15.0, -30.0, -24.0, -7.5, -9.0), (-13.0, -13.5, -29.0, -26.0, -8.0, -8.0)
    iterate = (-12.5, -14.2, -29.5, -25.0, -7.8, -8.4)
    return Golden(
        rewards=[1, 0] * 3,
        lengths=lengths,
        groups=[0, 0, 1, 1, 2, 2],
        log_ratio=[[x / n + 1] * n for n, x in zip(lengths, policy, strict=True)],
        fields={
            "ref_bt": [[x / n] * n for n, x in zip(lengths, anchor, strict=True)],
            "refs.iterates": [[x / n] * n for n, x in zip(lengths, iterate, strict=True)],
        },
        loss=loss,
        why=why,
    )


def inpo(eta: Positive = 0.005, share: Share = 1 / 3, every: Count = 100) -> Method:
    """Compose INPO: the squared loss of pairs against a mixture, in log-probs, of reference and last round's policy."""
    score = MixedRatio(share=share, every=every)
    return of_pairs(score=score, link=Squared(beta=eta), pairing=Extremes())


entry(
    "inpo",
    inpo,
    Card(
        title="INPO: iterative Nash policy optimisation",
        papers=[
            Paper(
                "Iterative Nash Policy Optimization: Aligning LLMs with General Preferences via No-Regret Learning",
                "2407.00617",
                2024,
            )
        ],
        summary="IPO's squared loss whose reference is a mixture, so that each round is a step of mirror descent.",
        formula=(
            "L = mean over prompts of (h - 1/(2η))²,  h = Δ[log π - ρ·log π_ref - (1-ρ)·log π_t],  ρ = τ/η, Δ over the "
            "best and the worst of the group"
        ),
        defaults={
            "eta": "the paper's App. B: 0.005",
            "share": "the paper: τ = η/3",
            "every": "customary; the paper has 3 rounds",
        },
        differs=[
            ROUNDS,
            TIES,
            "Best and worst are the rewards'; the paper's tournaments of eight are `reward.judge.compare: tournament`.",
        ],
        reduces=[
            Reduction(
                "ipo",
                ["two_completions"],
                settings={"share": 1.0, "eta": 0.1},
                why="the reference alone: online IPO",
            )
        ],
        needs=[REFERENCE, SEVERAL],
        source="the paper, Algorithm 1 and App. A.5; smiles724/MNPO: mnpo_scripts/mnpo_trainer.py",
        golden=[
            one_pair(
                9880.36,
                [-198.8, -198.8],
                198.8,
                "h = 0.6: (0.6 - 100)², slope 2·(0.6 - 100)",
                fields=BOTH,
            ),
            three_iterates(9949.3666667, "h = 1.7, -2, 1.1: 9662.89, 10404, 9781.21"),
        ],
        recommended=ONLINE,
    ),
)
