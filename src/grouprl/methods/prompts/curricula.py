"""Methods that choose which prompts are sampled and how often; the loss is GRPO's or RAFT's."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.advantage import RawReward
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.allocation.papers.allocation import GradientVariance, Knapsack
from grouprl.algorithms.curriculum.papers.bandit import BanditOverSources, ThompsonSampling
from grouprl.algorithms.curriculum.papers.difficulty import VarianceSampling
from grouprl.algorithms.method import Method
from grouprl.core.numbers import Count, NonNegative, Positive, Share, Whole
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP

TWO = "at least two completions per prompt"
COMES_AGAIN = "prompts that are sampled more than once (data.prompts where the task never ends)"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = (R_i - mean_g R)/(std_g R + eps)"
AS_GRPO = "The loss is GRPO's as published, with the mean of completions' means."
DEFAULTS = {
    **PPO_CLIP,
}
SAME_LOSS = Reduction("grpo", ["always"], why="the loss is GRPO's; only the choice of prompts differs")
ONE_OF_FOUR = Golden(
    rewards=[1, 0, 0, 0],
    lengths=[2, 1, 1, 1],
    advantage=[1.499997, -0.499999, -0.499999, -0.499999],
    grad=[[-0.187499625] * 2, [0.12499975], [0.12499975], [0.12499975]],
    why="0.75/0.500001 and -0.25/0.500001; every completion weighs 1/4, its tokens share that",
)
UNEQUAL = Golden(
    rewards=[1, 0, 1, 0, 0],
    groups=[0, 0, 1, 1, 1],
    advantage=[0.707105781, -0.707105781, 1.154698538, -0.577349269, -0.577349269],
    grad=[[-0.141421156], [0.141421156], [-0.230939708], [0.115469854], [0.115469854]],
    why="groups of two and three: 0.5/0.707107 and (2/3)/0.577350; every completion weighs 1/5",
)


def vas(
    base: Method,
    share: Share = 0.5,
    outcome: NonNegative = 0.8,
    diversity: NonNegative = 0.2,
    momentum: Share = 0.0,
    refresh_every: Whole = 0,
    probe: Count = 8,
) -> Method:
    """Compose VAS: GRPO; half of its prompts are sampled by the variance of their outcomes."""
    sampling = VarianceSampling(
        share=share,
        momentum=momentum,
        outcome=outcome,
        diversity=diversity,
        refresh_every=refresh_every,
        probe=probe,
    )
    return base.with_parts(curriculum=sampling)


entry(
    "vas",
    vas,
    Card(
        title="Variance-Aware Sampling (MMR1)",
        papers=[
            Paper(
                "MMR1: Enhancing Multimodal Reasoning with Variance-Aware Sampling and Open Resources",
                "2509.21268",
                2025,
            )
        ],
        summary="GRPO on prompts sampled half at random, half by how much the outcomes of their completions vary.",
        formula=f"{GRPO_LOSS} + β·KL;  weight of a prompt: 0.8·p(1-p) + 0.2·diversity of its completions",
        defaults={
            "share": "MMR1: half of the batch",
            "outcome": "MMR1's example: 0.8",
            "diversity": "MMR1's example: 0.2",
            "momentum": "fresh scores; MMR1's configuration class has 1, which freezes the weights for ever",
            "refresh_every": "off: scores come from the completions of training. MMR1: every 4 steps",
            "probe": "MMR1: 8 completions of every prompt at a refresh",
            **DEFAULTS,
            "kl_coef": "off, so that no reference is needed; the example of MMR1 has 0.01",
            "kl_estimator": "MMR1: low variance KL, which is k3",
        },
        differs=[
            "Scores come from the completions that training samples anyway; a prompt not sampled yet has the "
            "largest. MMR1 "
            "measures every prompt again every few steps, which refresh_every=4 does.",
            "Diversity is the share of different runs of three tokens, one of MMR1's three measures.",
            "The KL to the reference is off by default; MMR1's example has 0.01.",
            AS_GRPO,
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, COMES_AGAIN, KL_NEED],
        source="LengSicong/MMR1 verl/curriculum/metrics.py, samplers.py, examples/mmr1.yaml",
        golden=[ONE_OF_FOUR],
        recommended={"group": 8, "temperature": 0.6, "kl_coef": 0.01, "learning_rate": 1e-6, "batch": 512},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def dump(
    base: Method,
    by: str = "level",
    window: Count = 300,
    temperature: Positive = 0.1,
) -> Method:
    """Compose DUMP: GRPO; a bandit chooses the source of its prompts."""
    return base.with_parts(curriculum=BanditOverSources(by=by, window=window, temperature=temperature))


entry(
    "dump",
    dump,
    Card(
        title="Distribution-level curriculum (DUMP)",
        papers=[
            Paper(
                "DUMP: Automated Distribution-Level Curriculum Learning for RL-based LLM Post-training",
                "2504.09710",
                2025,
            )
        ],
        summary="GRPO on prompts from several sources, sampled by a bandit that seeks large advantages.",
        formula=f"{GRPO_LOSS};  P(source) ∝ exp((mean|A| + sqrt(2 ln(N + 1)/(n + 1)))/0.1)",
        defaults={
            "by": "the level of difficulty; a column that tells where prompts are from makes those the sources",
            "window": "the authors' code: 300",
            "temperature": "the authors' code: 0.1",
            **DEFAULTS,
        },
        differs=[
            "The authors' code feeds the bandit with rewards of the validation set; here are the group advantages of "
            "training, as the paper has it.",
            "The window holds the mean |A| of a group once for each of its completions.",
            AS_GRPO,
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, "prompts of several levels, or from several sources told apart by a column", COMES_AGAIN],
        source="ZhentingWang/DUMP verl/utils/curriculum_learning.py",
        golden=[ONE_OF_FOUR],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def vade(
    base: Method,
    prior: Positive = 1.0,
    decay: Share = 0.999,
    sampled_decay: Share = 0.9,
    gain: Literal["variance", "information"] = "variance",
) -> Method:
    """Compose VADE: GRPO; Thompson sampling chooses its prompts."""
    thompson = ThompsonSampling(prior=prior, decay=decay, sampled_decay=sampled_decay, gain=gain)
    return base.with_parts(curriculum=thompson)


entry(
    "vade",
    vade,
    Card(
        title="Variance-Aware Dynamic sampling (VADE)",
        papers=[
            Paper(
                "VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL",
                "2511.18902",
                2025,
            )
        ],
        summary="GRPO on the prompts that a Beta posterior of their pass rate, sampled at random, calls informative.",
        formula=f"{GRPO_LOSS};  p ~ Beta(a, b) per prompt, the largest p(1-p) are sampled",
        defaults={
            "prior": "uniform: Beta(1, 1)",
            "decay": "not known: 0.999 a step for prompts that were not sampled",
            "sampled_decay": "not known: 0.9 a step for prompts that were sampled",
            "gain": "not known: the variance p(1-p); 'information' is Knapsack RL's p(1-p)²",
            **DEFAULTS,
        },
        differs=["The two-scale decay is one factor for the prompts sampled and one for all others.", AS_GRPO],
        reduces=[SAME_LOSS],
        needs=[TWO, COMES_AGAIN],
        confidence="partly",
        uncertain="The form of the information gain and the rates of decay.",
        source="third-party notes and the abstract",
        golden=[ONE_OF_FOUR],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def knapsack_rl(
    base: Method,
    low: Count = 2,
    high: Count = 128,
    smoothing: NonNegative = 1.0,
) -> Method:
    """Compose Knapsack RL: GRPO on groups whose sizes are chosen so that most of them give a gradient."""
    return base.with_parts(allocation=Knapsack(low=low, high=high, smoothing=smoothing))


entry(
    "knapsack_rl",
    knapsack_rl,
    Card(
        title="Knapsack RL",
        papers=[
            Paper("Knapsack RL: Unlocking Exploration of LLMs via Optimizing Budget Allocation", "2509.25849", 2025)
        ],
        summary="GRPO whose completions are spread over prompts so that most groups carry a gradient.",
        formula=f"{GRPO_LOSS};  max Σ_q [1 - p^N - (1-p)^N]·p(1-p)² over N_q with Σ N_q fixed",
        defaults={
            "low": "the paper: 2",
            "high": "the paper: 128",
            "smoothing": "one right and one wrong completion more than there were (Laplace); the paper's is not known",
            **DEFAULTS,
        },
        differs=[
            "The pass rate is smoothed, so that no prompt counts as hopeless for ever; smoothing=0 takes it as it "
            "was. A prompt not sampled yet counts as half solved.",
            AS_GRPO,
        ],
        reduces=[SAME_LOSS],
        needs=[TWO, COMES_AGAIN],
        confidence="partly",
        uncertain="Formulas come from a re-implementation and notes; the loss of the official code was not seen.",
        source="a third-party re-implementation and survey notes",
        golden=[UNEQUAL],
        recommended={"completions per prompt": "2 to 128"},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def gvm_raft(
    base: Method,
    trains: Literal["raft", "grpo"] = "raft",
    probe: Count = 8,
    alpha: NonNegative = 1e-3,
    beta: NonNegative = 2.0,
    block: Literal["embedding", "head", "trainable"] = "embedding",
    skip_above: Share = 1.0,
    skip_below: NonNegative = 0.0,
) -> Method:
    """Compose GVM-RAFT++: RAFT++ (or GRPO, by `trains`) on groups whose sizes minimise the gradient's variance."""
    if trains == "raft":
        base = base.with_parts(advantage=RawReward(positive_only=True), aggregate=TokenMean())
    allocation = GradientVariance(
        probe=probe, alpha=alpha, beta=beta, block=block, skip_above=skip_above, skip_below=skip_below
    )
    return base.with_parts(allocation=allocation)


entry(
    "gvm_raft",
    gvm_raft,
    Card(
        title="GVM-RAFT++",
        papers=[
            Paper(
                "Optimizing Chain-of-Thought Reasoners via Gradient Variance Minimization in Rejection Sampling and RL",
                "2505.02391",
                2025,
            )
        ],
        summary="RAFT++ or GRPO with completions spread over prompts so that the gradient's variance is least.",
        formula=(
            "raft: L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i),  A_i = max(R_i, 0);  grpo: GRPO's;  "
            "n_q ∝ G_q/sqrt(p_q + α/p_q^(β-1)),  G_q the gradient norm of correct completions"
        ),
        defaults={
            "trains": "the paper's name: RAFT++; its other variant is GRPO",
            "probe": "the authors' code: 8 (4 to 32)",
            "alpha": "the authors' code: 0.001",
            "beta": "the authors' code: 2",
            "block": "the authors' code: the input embeddings (embed_tokens; lm_head is its other choice)",
            "skip_above": "off: 1, no prompt is too easy",
            "skip_below": "off: 0",
            **PPO_CLIP,
            "kl_coef": "off, so that no reference is needed",
        },
        differs=[
            "The completions of the probe are not trained on.",
            "Where no completion of any prompt is right the completions are split evenly.",
        ],
        reduces=[
            Reduction("raft_pp", ["always"], why="the loss is RAFT++'s; only the numbers of completions differ"),
            Reduction("grpo", ["always"], settings={"trains": "grpo"}, why="the loss is GRPO's"),
        ],
        needs=["rewards above 0 for correct completions alone", KL_NEED],
        source="RLHFlow/GVM em/stage_2_calc_sample_size.py, stage_2_calc_acceptRates_grads.py, run_em.sh",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                lengths=[1, 2, 1],
                groups=[0, 0, 1],
                advantage=[1.0, 0.0, 1.0],
                loss=-0.5,
                grad=[[-0.25], [0.0, 0.0], [-0.25]],
                why="two correct completions of one token among four tokens",
            )
        ],
        recommended={"probes per prompt": 8},
        notes=["Each correct completion of the probe costs a forward and a backward pass."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)
