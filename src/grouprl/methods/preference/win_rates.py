"""Learning from how often a completion is preferred: regressions in rounds, and policy gradients of win rates."""

from __future__ import annotations

from grouprl.algorithms.advantage.papers.against_one import AgainstOne
from grouprl.algorithms.advantage.preferred import Preferred
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.augment.opponents import Measure
from grouprl.algorithms.filter.compared import Compared
from grouprl.algorithms.filter.papers.lopsided import LopsidedGroups
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.link.papers.soft import Soft
from grouprl.algorithms.margin.margin import RewardGap
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.fitted_score import FittedScore
from grouprl.algorithms.objective.objective import Clipped
from grouprl.algorithms.pairing.pairing import Gap
from grouprl.algorithms.preferences import By
from grouprl.algorithms.regularize.papers.kl_mix import KLMix
from grouprl.algorithms.score.following import FollowingRatio
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import REFERENCE, TIES, of_pairs, one_pair
from grouprl.methods.preference.online import DPO_PAIR, ITERATES, ONLINE, ROUNDS, SEVERAL
from grouprl.methods.preference.play import BOTH, BY, WINS, WON, judged
from grouprl.methods.registry import entry
from grouprl.methods.settings import GPM_PAPER

DNO_PAPER = Paper(
    "Direct Nash Optimization: Teaching Language Models to Self-Improve with General Preferences",
    "2404.03715",
    2024,
)


def dno(beta: Positive = 0.1, scale: Positive = 1.0, every: Count = 100) -> Method:
    """Compose DNO: cross-entropy of all pairs to how surely one is preferred, against the last round's policy."""
    score = FollowingRatio(every=every, share=1.0)
    return of_pairs(score=score, link=Soft(beta=beta), margin=RewardGap(scale=scale))


entry(
    "dno",
    dno,
    Card(
        title="DNO: direct Nash optimisation",
        papers=[DNO_PAPER],
        summary="Preferences between own completions as probabilities; the reference is the last round's policy.",
        formula=(
            "L = mean over pairs of -σ(m)·log σ(β·Δ) - σ(-m)·log σ(-β·Δ),  m = R_w - R_l, "
            "Δ = [log π/π_t](y_w) - [log π/π_t](y_l)"
        ),
        defaults={
            "beta": "the paper's η, between 0.05 and 0.1",
            "scale": "1: the reward is r_t, the chance to be preferred to the policy's own completions",
            "every": "customary; one round of the paper is a data set",
        },
        differs=[
            ROUNDS,
            TIES,
            "The reward stands for r_t(y) = P(y ≻ π_t), which a judge that compares pays.",
        ],
        reduces=[
            Reduction(
                "iterative_dpo",
                settings={"scale": 1e9},
                other={"choose": "all"},
                why="sure preferences are labels",
            )
        ],
        needs=[SEVERAL],
        source="the paper, Algorithm 1",
        golden=[
            one_pair(
                0.67973359,
                [-0.02160631, -0.02160631],
                0.02160631,
                "σ(1)·0.663597 + σ(-1)·0.723597; slope 0.1·(σ(0.06) - σ(1))",
                fields=ITERATES,
            )
        ],
        recommended=ONLINE,
    ),
)


def dno_prct(
    beta: Positive = 0.1, least: NonNegative = 1 / 3, chosen_from: float | None = 5 / 6, every: Count = 100
) -> Method:
    """Compose DNO-Prct: DPO on all pairs of a group that are far apart and whose better one is good."""
    score = FollowingRatio(every=every, share=1.0)
    return of_pairs(score=score, link=Logistic(beta=beta), pairing=Gap(least=least, chosen_from=chosen_from))


entry(
    "dno_prct",
    dno_prct,
    Card(
        title="DNO-Prct: DNO as practised",
        papers=[DNO_PAPER],
        summary="Iterative DPO on all pairs with a good winner and a large gap.",
        formula=(
            "L = mean over pairs with R_w ≥ g, R_w - R_l ≥ m of -log σ(β·Δ),  Δ = [log π/π_t](y_w) - [log π/π_t](y_l)"
        ),
        defaults={
            "beta": "the paper: 0.05 to 0.1",
            "least": "the paper: 2 of 6 points of its rubric, as rewards up to 1",
            "chosen_from": "the paper: 5 of 6 points",
            "every": "customary; one round of the paper is a data set",
        },
        differs=[
            ROUNDS,
            TIES,
            "A teacher's completion joins each group by add: {augment: [{part: demonstration_row, replace: false}]}; "
            "pairs of earlier rounds do not return, and repetitive completions are not negatives by themselves.",
        ],
        reduces=[
            Reduction(
                "iterative_dpo",
                settings={"least": 0.0, "chosen_from": None},
                other={"choose": "all"},
                why="every pair counts",
            )
        ],
        needs=[SEVERAL],
        source="the paper, Algorithm 2 and section 5.1",
        golden=[one_pair(*DPO_PAIR, "DPO's numbers: 1 is good enough, and far enough from 0", fields=ITERATES)],
        recommended=ONLINE,
    ),
)


SPPO_PAPER = Paper("Self-Play Preference Optimization for Language Model Alignment", "2405.00675", 2024)


def online_sppo(beta: Positive = 0.001, every: Count = 100, by: By = "reward") -> Method:
    """Compose online SPPO: the log-ratio to the last round's policy is fitted to the chance to win in the group."""
    return Method(
        augment=judged(by),
        filter=(Compared(by=by),),
        advantage=Preferred(by=by, itself=True),
        objective=FittedScore(score=FollowingRatio(every=every, share=1.0), beta=beta),
        aggregate=SequenceMean(),
    )


entry(
    "online_sppo",
    online_sppo,
    Card(
        title="SPPO, online",
        papers=[SPPO_PAPER],
        summary="Self-play: each completion's log-ratio to the last round is to be its wins above one half, over β.",
        formula=f"L = mean over completions of (s - A/β)²,  s = Σ_t log π/π_t,  {WON}",
        defaults={"beta": "uclaml/SPPO: 1e-3", "every": "customary; the authors have 3 rounds", "by": BY},
        differs=[
            ROUNDS,
            "All completions are fitted; the authors keep best and worst of five, and halve the loss.",
        ],
        needs=[SEVERAL],
        source="uclaml/SPPO: sppo/trainer.py, scripts/compute_prob.py; the paper, eq. 9",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=ITERATES,
                settings={"beta": 0.1},
                advantage=WINS,
                loss=0.74152611,
                grad=[[-0.75529290, -0.75529290], [0.95529290]],
                why="targets ±1.155293, scores 0.4 and -0.2: (0.755293² + 0.955293²)/2",
                tolerance=2e-6,
            )
        ],
        recommended={**ONLINE, "group": 5},
    ),
)


def rspo(
    base: Method,
    coef: NonNegative = 1.0,
    reverse: NonNegative = 0.05,
    forward: NonNegative = 0.05,
    chi_square: NonNegative = 0.0,
) -> Method:
    """Compose RSPO: online SPPO with a mixture of divergences to the reference."""
    mixed = KLMix(coef=coef, reverse=reverse, forward=forward, chi_square=chi_square)
    return base.with_parts(regularize=(mixed,))


entry(
    "rspo",
    rspo,
    Card(
        title="RSPO: regularised self-play",
        papers=[Paper("Game-Theoretic Regularized Self-Play Alignment of Large Language Models", "2503.00030", 2025)],
        summary="SPPO that stays near the reference by any mixture of reverse KL, forward KL and χ².",
        formula=(
            "L = mean over completions of (s - A/β)² + λ·[λ_r·KL(π || π_ref) + λ_f·KL(π_ref || π) + λ_χ·χ²(π || π_ref)]"
        ),
        defaults={
            "coef": "the whole mixture once",
            "reverse": "not verified: both KLs alike, as its best mixture has both",
            "forward": "not verified: both KLs alike",
            "chi_square": "off; its direction is not stated in the paper",
        },
        differs=[ROUNDS, "Divergences are estimated token by token on the policy's own completions."],
        reduces=[Reduction("online_sppo", settings={"coef": 0.0}, why="nothing is added")],
        needs=[REFERENCE, SEVERAL],
        confidence="partly",
        uncertain="The paper's estimators, its coefficients and the direction of χ².",
        source="reviews of the paper and notes on it",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=BOTH,
                settings={"beta": 0.1},
                advantage=WINS,
                loss=0.74495257,
                grad=[[-0.74131336, -0.75041384], [0.94475783]],
                why="SPPO's 0.741526 and half of 0.05·(0.085818 + 0.009837 + 0.041403)",
                tolerance=2e-6,
            )
        ],
        recommended=ONLINE,
    ),
    base="online_sppo",
)


def gpo(base: Method, by: By = "reward") -> Method:
    """Compose GPO: online SPPO with the score of a preference model instead of the chance to win."""
    return base.with_parts(advantage=Preferred(by=by, unit="log_odds", itself=True))


entry(
    "gpo",
    gpo,
    Card(
        title="GPO: general preference optimisation",
        papers=[GPM_PAPER],
        summary="SPPO on preference scores, which tell a sure win from a narrow one and may go in circles.",
        formula="L = mean over completions of (s - A/β)²,  s = Σ_t log π/π_t,  A = mean_j log P(y ≻ y_j)/P(y_j ≻ y)",
        differs=[
            ROUNDS,
            "The score is the log-odds of the preference; the authors' table may hold twice that.",
            "All completions are fitted; the authors keep the best and the worst of five.",
        ],
        needs=[SEVERAL],
        confidence="partly",
        uncertain="The scale of the authors' scores, and whether they subtract SPPO's ½.",
        source="general-preference/general-preference-model: LLM-Alignment/scripts, models/loss.py",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=ITERATES,
                settings={"beta": 0.1},
                advantage=[0.5, -0.5],
                loss=22.1,
                grad=[[-4.6, -4.6], [4.8]],
                why="A = ±1/2, targets ±5: (4.6² + 4.8²)/2",
            )
        ],
        recommended={**ONLINE, "group": 5},
    ),
    base="online_sppo",
)


def writing_zero(clip: Positive = 0.2, most: Share = 0.6, by: By = "reward") -> Method:
    """Compose BRPO: ±1 against a random completion of the group, clipped as in PPO."""
    return Method(
        augment=(Measure(), *judged(by, "measure")),
        filter=(LopsidedGroups(by=by, most=most),),
        advantage=AgainstOne(by=by),
        objective=Clipped(clip_low=min(clip, 1.0), clip_high=clip),
        aggregate=TokenMean(),
    )


entry(
    "writing_zero",
    writing_zero,
    Card(
        title="BRPO: bootstrapped relative policy optimisation (Writing-Zero)",
        papers=[
            Paper(
                "Writing-Zero: Bridge the Gap Between Non-verifiable Problems and Verifiable Rewards",
                "2506.00103",
                2025,
            )
        ],
        summary="Each completion against one of its own group, chosen at random: 1 for a win, -1 for anything else.",
        formula="L = mean over tokens of -min(ρ·A, clip(ρ)·A),  A_i = +1 if y_i ≻ y_m, -1 if not, A_m = 0",
        defaults={"clip": "PPO's 0.2", "most": "the paper: 0.6", "by": BY},
        differs=[
            "A pair that the judge abstains on is left out; the authors' code counts it as lost.",
            "How often and in which orders the judge votes is a setting of the judge (reward.judge).",
        ],
        needs=[SEVERAL],
        confidence="partly",
        uncertain="The constants of the generative reward model's own rewards.",
        source="a community trainer and two structured notes on the paper",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields={"keys.measure": [0, 1]},
                advantage=[1.0, 0.0],
                loss=-0.76839030,
                grad=[[0.0, -0.36839030], [0.0]],
                why="(-1.2 - e^0.1)/3: the first token is clipped, the measure has no advantage",
                tolerance=1e-6,
            )
        ],
        notes=["E[A] over the measure is 2·(share of wins) - 1 if a comparison with itself counts half a win."],
        recommended={**ONLINE, "group": 16},
    ),
)
