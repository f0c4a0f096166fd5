"""Policy gradients with another surrogate or towards a distribution: discovered policy optimisation, also aware of the
run's length, f-DPG."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage.papers.f_divergence import Divergence, TargetDivergence
from grouprl.algorithms.aggregate.aggregate import SequenceSum, TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.objective.papers.drift import DiscoveredDrift, HorizonDrift
from grouprl.core.numbers import Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry


def f_dpg(beta: Positive = 1.0, divergence: Divergence = "js") -> Method:
    """Compose f-DPG: a policy gradient towards the reference tilted by the reward, under an f-divergence."""
    return Method(
        advantage=TargetDivergence(beta=beta, divergence=divergence),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        on_policy=True,
    )


entry(
    "f_dpg",
    f_dpg,
    Card(
        title="f-DPG: distributional policy gradient",
        papers=[
            Paper("Aligning Language Models with Preferences through f-divergence Minimization", "2302.08215", 2023)
        ],
        summary="A policy gradient to the reference tilted by the reward, under any f-divergence.",
        formula=(
            "L = -1/B Σ_i A_i Σ_t log π(y_t),  A = -f'(t) - mean_g[-f'(t)],  t = π(y)/p(y),  "
            "p = π_ref·exp(R/β)/Z,  Z = mean_g π_ref·exp(R/β)/π"
        ),
        defaults={
            "beta": "the paper's temperature of human preferences varies; 1",
            "divergence": "the paper's best: JS",
        },
        differs=[
            "One group at a time: Z and the baseline are those of its completions; the authors' code has moving "
            "averages over all.",
            "Completions are the policy's own, so that the paper's importance ratio is 1.",
            "log t is held within ±20.",
        ],
        needs=["at least two completions per prompt", "exactly one update per rollout", "a reference model"],
        confidence="partly",
        uncertain="The paper's temperatures.",
        source="naver/disco: disco/tuners/losses, fdpg_tuner.py",
        golden=[
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.0], [-1.0]]},
                settings={"divergence": "reverse_kl"},
                advantage=[0.5, -0.5],
                loss=0.0,
                grad=[[-0.25], [0.25]],
                why="log t = -R + log Z: the reward less the group's mean, as REINFORCE with a KL",
            ),
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.0], [-1.0]]},
                advantage=[0.23530746, -0.23530746],
                grad=[[-0.11765373], [0.11765373]],
                why="-log 2 + log(1 + 1/t) of t = Z/e and Z, Z = (e + 1)/2, less their mean",
            ),
            Golden(
                rewards=[1, 0],
                fields={"ref_bt": [[-1.0], [-1.0]]},
                settings={"divergence": "forward_kl"},
                advantage=[0.46211716, -0.46211716],
                why="1/t = e/Z and 1/Z, less their mean",
            ),
        ],
    ),
)


def discovered_drift(alpha: Positive = 2.0, beta: Positive = 0.6) -> Method:
    """Compose discovered policy optimisation: a drift that holds the ratio in place of PPO's clip."""
    return Method(
        advantage=Relative(key="batch", center="mean", scale="sample_std"),
        objective=DiscoveredDrift(alpha=alpha, beta=beta),
        aggregate=TokenMean(),
    )


entry(
    "discovered_drift",
    discovered_drift,
    Card(
        title="Discovered Policy Optimisation: a drift instead of a clip",
        papers=[Paper("Discovered Policy Optimisation", "2210.05639", 2022)],
        summary="The surrogate of PPO with a penalty, found by meta-learning, in place of the clip.",
        formula=(
            "L = -mean over tokens of [ρA - f],  f = max(0, x - c·tanh(x/c)),  x = (ρ-1)A and c = 2 where A ≥ 0, "
            "x = log(ρ)A and c = 0.6 where A < 0;  A the reward, standardised over the batch"
        ),
        defaults={"alpha": "luchris429/purejaxrl: DPO_ALPHA 2.0", "beta": "luchris429/purejaxrl: DPO_BETA 0.6"},
        differs=[
            "One advantage per completion, without a critic; the paper's is GAE's, standardised over the batch alike.",
            "LPO, the network that the closed form was read off, is not here.",
        ],
        needs=["several updates per rollout, or nothing is held (batch.minibatches or batch.epochs of 2 or more)"],
        source="luchris429/purejaxrl: purejaxrl/dpo_continuous_action.py",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.9], [-1.2]],
                advantage=[0.70710578, -0.70710578],
                loss=-0.56396,
                grad=[[-0.67369], [-0.17255]],
                why="f of ρ = e^0.9 at A = √½, and of ρ = e^-1.2 at -√½",
                tolerance=1e-5,
            ),
        ],
        notes=["On a rollout's first update it is the plain policy gradient: f and its slope are 0 at ρ = 1."],
    ),
)


def horizon_drift(
    alpha: Positive = 2.0, beta: Positive = 0.6, alpha_end: Positive = 0.5, beta_end: Positive = 0.15
) -> Method:
    """Compose discovered policy optimisation whose drift depends on how much of the run is over."""
    return Method(
        advantage=Relative(key="batch", center="mean", scale="sample_std"),
        objective=HorizonDrift(alpha=alpha, beta=beta, alpha_end=alpha_end, beta_end=beta_end),
        aggregate=TokenMean(),
    )


entry(
    "horizon_drift",
    horizon_drift,
    Card(
        title="A drift instead of a clip that knows the training horizon (after TA-LPO)",
        papers=[
            Paper("Discovering Temporally-Aware Reinforcement Learning Algorithms", "2402.05828", 2024),
            Paper("Discovered Policy Optimisation", "2210.05639", 2022),
        ],
        summary="Discovered Policy Optimisation whose penalty holds the ratio the earlier the more of the run is over.",
        formula=(
            "L = -mean over tokens of [ρA - f],  f = max(0, x - c·tanh(x/c)),  x = (ρ-1)A and c from α to α_end where "
            "A ≥ 0, x = log(ρ)A and c from β to β_end where A < 0, by u = step/(steps-1);  A as in discovered_drift"
        ),
        defaults={
            "alpha": "discovered_drift's: 2",
            "beta": "discovered_drift's: 0.6",
            "alpha_end": "our choice: a quarter of alpha",
            "beta_end": "our choice: a quarter of beta",
        },
        differs=[
            "The learned optimisers are not here: TA-LPO's drift is a network on the features of the ratio and their "
            "products with n/N, TA-LPG's a recurrent one on whole episodes, and evolution strategies train both.",
            "How the closed form moves over the run is ours; the paper gives none. The part feature_drift has TA-LPO's "
            "features, with weights that are set by hand.",
            "One advantage per completion, without a critic, as discovered_drift.",
        ],
        reduces=[
            Reduction(
                "discovered_drift", settings={"alpha_end": 2.0, "beta_end": 0.6}, why="the scales stay as they are"
            ),
        ],
        needs=["several updates per rollout, or nothing is held (batch.minibatches or batch.epochs of 2 or more)"],
        confidence="partly",
        uncertain="Whether TA-LPO's own drift tightens as this one does.",
        source="EmptyJackson/groove (TA-LPG); luchris429/purejaxrl: purejaxrl/dpo_continuous_action.py",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.9], [-1.2]],
                fields={"step": 5, "steps": 11},
                advantage=[0.70710578, -0.70710578],
                loss=-0.430126,
                grad=[[-0.469685], [-0.232076]],
                why="halfway: scales 1.25 and 0.375",
                tolerance=1e-5,
            ),
        ],
        notes=[
            "On a rollout's first update it is the plain policy gradient: f and its slope are 0 at ρ = 1.",
            "On CartPole it is behind the drift that stays as it is, in all of three seeds (docs/control.md).",
        ],
    ),
)
