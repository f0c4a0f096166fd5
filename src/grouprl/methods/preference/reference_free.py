"""Preference losses without a reference model: SimPO, AlphaPO, CPO, ORPO, TPO."""

from __future__ import annotations

from grouprl.algorithms.filter.papers.best_apart import BestApart
from grouprl.algorithms.link.link import Logistic
from grouprl.algorithms.margin.margin import Constant
from grouprl.algorithms.method import Method
from grouprl.algorithms.pair_weight.pair_weight import Even
from grouprl.algorithms.regularize.chosen import ChosenNLL
from grouprl.algorithms.regularize.papers.gold import GoldNLL
from grouprl.algorithms.score.papers.odds import LogOdds
from grouprl.algorithms.score.power import PowerProb
from grouprl.algorithms.score.score import LogProb
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.preference.composing import PAIRS, RECOMMENDED, TIES, TWO, of_pairs, one_pair, three_pairs
from grouprl.methods.registry import entry

MEAN = "s(y) = 1/|y| Σ_t log π(y_t)"


def chosen_nll(coef: float) -> tuple[ChosenNLL, ...]:
    """Return the likelihood of chosen completions as a term, or nothing for a coefficient of 0."""
    return (ChosenNLL(coef=coef),) if coef > 0 else ()


def simpo(beta: Positive = 2.0, gamma: NonNegative = 0.5) -> Method:
    """Compose SimPO: mean over pairs of -log σ(β·Δs - γ) with the mean log-prob of a token as score."""
    return of_pairs(score=LogProb(length="mean"), link=Logistic(beta=beta), margin=Constant(value=gamma))


entry(
    "simpo",
    simpo,
    Card(
        title="Simple Preference Optimization",
        papers=[Paper("SimPO: Simple Preference Optimization with a Reference-Free Reward", "2405.14734", 2024)],
        summary="Mean log-probs are compared, without a reference, and must differ by a margin.",
        formula=f"L = mean over pairs of -log σ(β·[s(y_w) - s(y_l)] - γ),  {MEAN}",
        defaults={
            "beta": "princeton-nlp/SimPO: 2.0 (its README: 2 to 2.5, 10 in v0.2)",
            "gamma": "princeton-nlp/SimPO: gamma_beta_ratio 0.25 times β 2",
        },
        differs=[PAIRS, TIES, "TRL's CPOTrainer adds the likelihood of chosen completions by default: see cpo@trl."],
        reduces=[
            Reduction(
                "alphapo", other={"alpha": 0.0, "beta": 2.0, "gamma": 0.5}, why="the power's limit is the log-prob"
            )
        ],
        needs=[TWO],
        source="princeton-nlp/SimPO: scripts/simpo_trainer.py, simpo_config.py; TRL 1.16.0, experimental/cpo",
        golden=[
            one_pair(0.55435524, [-0.42555748, -0.42555748], 0.85111497, "-log σ(2·(-0.8 + 1.2) - 0.5)"),
            three_pairs(0.979928, "0.313262, 1.313262, 1.313262", settings={"gamma": 1.0}),
        ],
        recommended={**RECOMMENDED, "learning_rate": 6e-7},
    ),
)


def alphapo(beta: Positive = 2.5, gamma: NonNegative = 0.25, alpha: float = 0.25) -> Method:
    """Compose AlphaPO: SimPO with a power of the mean token probability in place of its logarithm."""
    return of_pairs(score=PowerProb(alpha=alpha), link=Logistic(beta=beta), margin=Constant(value=gamma))


entry(
    "alphapo",
    alphapo,
    Card(
        title="AlphaPO: the shape of the reward",
        papers=[Paper("AlphaPO: Reward Shape Matters for LLM Alignment", "2501.03884", 2025)],
        summary="SimPO with the reward (1 - p^-α)/α instead of log p, p the mean token probability.",
        formula=(
            "L = mean over pairs of -log σ(β·[s(y_w) - s(y_l)] - γ),  s(y) = (1 - p^-α)/α,  "
            "log p = 1/|y| Σ_t log π(y_t)"
        ),
        defaults={
            "beta": "of the size of SimPO's; the paper's numbers differ by model and were not seen",
            "gamma": "a tenth of β; the paper's numbers were not seen",
            "alpha": "the paper's usual choice, from memory",
        },
        differs=[PAIRS, TIES, "The exponent is held at 80 or below, with its slope."],
        reduces=[
            Reduction("simpo", settings={"alpha": 0.0, "beta": 2.0, "gamma": 0.5}, why="the power's limit is log p")
        ],
        needs=[TWO],
        confidence="partly",
        uncertain="The defaults of β, γ and α.",
        source="TRL 1.16.0, experimental/cpo, loss_type alphapo",
        golden=[
            one_pair(
                0.46372821,
                [-0.45322046, -0.45322046],
                1.00177215,
                "(1 - e^0.2)/0.25 and (1 - e^0.3)/0.25",
                settings={"beta": 2.0, "gamma": 0.5},
            ),
        ],
        recommended=RECOMMENDED,
    ),
)


def cpo(beta: Positive = 0.1, nll_coef: NonNegative = 1.0) -> Method:
    """Compose CPO: DPO with a uniform reference, and the likelihood of chosen completions."""
    return of_pairs(score=LogProb(length="sum"), link=Logistic(beta=beta), regularize=chosen_nll(nll_coef))


entry(
    "cpo",
    cpo,
    Card(
        title="Contrastive Preference Optimization",
        papers=[
            Paper(
                "Contrastive Preference Optimization: Pushing the Boundaries of LLM Performance in Machine Translation",
                "2401.08417",
                2024,
            )
        ],
        summary="DPO without a reference, kept near good completions by their likelihood.",
        formula=(
            "L = mean over pairs of -log σ(β·Δ) - λ·mean over tokens of all y_w of log π,  Δ = log π(y_w) - log π(y_l)"
        ),
        defaults={
            "beta": "the paper, TRL's CPOConfig.beta: 0.1",
            "nll_coef": "the paper, TRL's CPOConfig.cpo_alpha: 1",
        },
        differs=[
            PAIRS,
            TIES,
            "The likelihood is a mean over the tokens of all chosen completions of the step, as in TRL.",
        ],
        needs=[TWO],
        source="TRL 1.16.0, experimental/cpo",
        golden=[
            one_pair(1.51334717, [-0.55099987, -0.55099987], 0.05099987, "Δ = -1.6 + 1.2; 0.8 is the mean NLL"),
            three_pairs(0.737600, "0.554355, 1.037488, 0.620957", settings={"nll_coef": 0.0}),
        ],
        recommended=RECOMMENDED,
    ),
)


def orpo(beta: Positive = 0.1, nll_coef: NonNegative = 1.0) -> Method:
    """Compose ORPO: the likelihood of chosen completions and the logistic loss of the log-odds ratio."""
    return of_pairs(score=LogOdds(), link=Logistic(beta=1.0), weight=Even(value=beta), regularize=chosen_nll(nll_coef))


entry(
    "orpo",
    orpo,
    Card(
        title="Odds Ratio Preference Optimization",
        papers=[Paper("ORPO: Monolithic Preference Optimization without Reference Model", "2403.07691", 2024)],
        summary="Imitation of chosen completions and a comparison of odds in one loss, without a reference.",
        formula=(
            "L = -λ·mean over tokens of all y_w of log π - β·mean over pairs of log σ(Δ),  Δ = log[p_w/(1-p_w)] - "
            "log[p_l/(1-p_l)],  log p = 1/|y| Σ_t log π(y_t)"
        ),
        defaults={
            "beta": "the paper's λ, TRL's ORPOConfig.beta: 0.1",
            "nll_coef": "the paper: the likelihood weighs 1",
        },
        differs=[
            PAIRS,
            TIES,
            "The likelihood is that of the completion; TRL and the authors' code count the prompt's tokens too.",
            "log p is held the type's rounding below 0, where the odds are infinite.",
        ],
        needs=[TWO],
        source="TRL 1.16.0, experimental/orpo: odds_ratio_loss, concatenated_forward",
        golden=[
            one_pair(0.84241061, [-0.53138403, -0.53138403], 0.04946232, "0.8 - 0.1·log σ of the odds' ratio"),
            three_pairs(0.055835, "0.028875, 0.069315, 0.069315", settings={"nll_coef": 0.0}),
        ],
        recommended={**RECOMMENDED, "learning_rate": 8e-6},
    ),
)


def tpo(beta: Positive = 0.01, alpha: NonNegative = 1.0, gamma: NonNegative | None = None) -> Method:
    """Compose TPO: CPO's loss of a pair, and the likelihood of a third completion that is better than both."""
    score, margin = (LogProb(length="sum"), 0.0) if gamma is None else (LogProb(length="mean"), gamma)
    pairs = of_pairs(score=score, link=Logistic(beta=beta), margin=Constant(value=margin))
    return pairs.with_parts(filter=(BestApart(), *pairs.filter), regularize=(GoldNLL(coef=alpha),) if alpha else ())


entry(
    "tpo",
    tpo,
    Card(
        title="Triple Preference Optimization",
        papers=[
            Paper(
                "Triple Preference Optimization: Achieving Better Alignment using a Single Step Optimization",
                "2405.16681",
                2024,
            )
        ],
        summary="A pair is compared without a reference while a third, best completion is imitated.",
        formula=(
            "L = mean over pairs of -log σ(β·[s(y_w) - s(y_l)] - γ) - α·mean over tokens of all gold y of log π,  "
            "s = Σ_t log π; with a γ (TPO-L) s = 1/|y| Σ_t log π"
        ),
        defaults={
            "beta": "TRL's TPOConfig: 0.01",
            "alpha": "TRL's TPOConfig: 1",
            "gamma": "none, TPO; TPO-L in TRL has 0.5",
        },
        differs=[
            "Of a group of three or more completions the best is imitated, and the others are compared; of a group of "
            "two none is imitated.",
            PAIRS,
            TIES,
        ],
        reduces=[Reduction("cpo", ["two_completions"], other={"beta": 0.01, "nll_coef": 0.0}, why="no third one")],
        needs=[
            "three completions per prompt: the best to imitate, and a pair (task pairs:FILE with a column reference)"
        ],
        confidence="partly",
        uncertain="The paper's own values of β and α.",
        source="TRL 1.16.0, experimental/tpo: TPOTrainer._compute_loss",
        golden=[
            Golden(
                rewards=[1, 0, 2],
                lengths=[2, 1, 1],
                log_ratio=[[0.3, 0.1], [-0.2], [-0.5]],
                advantage=[1.0, 0.0, 0.0],
                loss=0.6951491806 + 1.5,
                grad=[[-0.00501, -0.00501], [0.00501], [-1.0]],
                why="-log σ(0.01·(-1.6 + 1.2)), and 1.5 nats of the gold one's token",
            ),
        ],
        recommended={**RECOMMENDED, "group": 3, "learning_rate": 5e-7},
    ),
)
