"""Methods that train on more than a step's fresh completions: on old ones, the initial policy's, or demonstrations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage_transform.advantage_transform import FixedAdvantage
from grouprl.algorithms.aggregate.by_source import BySource
from grouprl.algorithms.augment.demonstrations import DemonstrationRow
from grouprl.algorithms.augment.papers.demonstration_switch import DemonstrationSwitch
from grouprl.algorithms.buffer.papers.reference_rows import ReferenceRows
from grouprl.algorithms.buffer.papers.replay import PolicyReplay
from grouprl.algorithms.curriculum.initial_rate import InitialRate
from grouprl.algorithms.filter.source_apart import SourceApart
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.papers.hybrid import HybridGradient
from grouprl.algorithms.objective.papers.shifted_clip import ShiftedClip
from grouprl.algorithms.pretrain.initial_completions import InitialCompletions
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.algorithms.regularize.papers.coverage import Coverage, Divergence
from grouprl.algorithms.regularize.papers.schedule import ConvexKL
from grouprl.algorithms.regularize.regularize import EntropyBonus
from grouprl.algorithms.token_weight.token_weight import WithoutPolicyLoss
from grouprl.core.levels import Alone
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import ALONE, CLIPS, GROUP, ClipLow

TWO = "at least two completions per prompt"


def remix(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    probability: Share = 0.4,
    policies: Annotated[int, Field(ge=1)] = 2,
    reincarnation: Annotated[int, Field(ge=1)] | None = 50,
    kl_coef: NonNegative = 0.001,
    kl_start: Annotated[int, Field(ge=0)] = 50,
    kl_every: Annotated[int, Field(ge=1)] = 10,
    kl_floor: Annotated[float, Field(ge=0, le=1)] = 0.5,
    kl_estimator: ValueEstimator = "k3",
    entropy_coef: NonNegative = 0.001,
) -> Method:
    """Compose ReMix.

    GRPO in which a prompt comes with probability p as a group of one of the last policies; the clip moves with
    π_old/π_behavior; KL to two anchors; entropy bonus.
    """
    kl = ConvexKL(coef=kl_coef, start=kl_start, every=kl_every, floor=kl_floor, estimator=kl_estimator)
    bonus = EntropyBonus(coef=entropy_coef)
    return base.with_parts(
        objective=ShiftedClip(clip_low=clip_low, clip_high=clip_high),
        regularize=(*([kl] if kl_coef > 0 else []), *([bonus] if entropy_coef > 0 else [])),
        buffer=PolicyReplay(probability=probability, policies=policies, reincarnation=reincarnation),
    )


entry(
    "remix",
    remix,
    Card(
        title="ReMix: Reincarnating Mix-policy Proximal Policy Gradient",
        papers=[
            Paper(
                "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model",
                "2507.06892",
                2025,
            )
        ],
        summary=(
            "Completions of the last policies are used again, each with its own ratio and a clip that moves with it."
        ),
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(r_t A_i, clip(r_t, c_t-ε, c_t+ε) A_i) + β[λ KL(π||π_ref) + "
            "(1-λ) KL(π||π_old)] - c_H·H,  r_t = π/π_behavior, c_t = π_old/π_behavior,  "
            "λ = max(1 - 0.1·⌈max(t-50, 0)/10⌉, 0.5)"
        ),
        defaults={
            "probability": "notes on the paper: p = 0.4",
            "policies": "notes on the paper: N = 2",
            "reincarnation": "notes on the paper: T = 50 (with PPO 50 or 100); None: never",
            "clip_low": "PPO's 0.2; the paper's value was not seen",
            "clip_high": "PPO's 0.2; the paper's value was not seen",
            "kl_coef": "ours: 0.001; the paper's β was not seen",
            "kl_start": "notes on the paper: λ falls from step 50 on",
            "kl_every": "notes on the paper: every 10 steps",
            "kl_floor": "notes on the paper: down to 0.5",
            "kl_estimator": "k3, as GRPO; the paper's was not seen",
            "entropy_coef": "ours: 0.001; the paper's c was not seen",
        },
        differs=[
            "On GRPO's advantages; the paper has this and PPO's.",
            "Whole groups come back, each with probability p; the paper chooses samples.",
            "At the reincarnation the policy becomes its own reference and continues without old completions, but "
            "the number "
            "of passes over a batch (m = 2, batch.epochs) is the run's and does not fall to 1.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["on_policy"],
                settings={"kl_coef": 0.0, "entropy_coef": 0.0},
                why="completions of the policy itself: ratio and centre are 1",
            )
        ],
        needs=[
            TWO,
            "log-probs of the policy that sampled each completion",
            "a reference model when kl_coef is above 0",
        ],
        confidence="partly",
        uncertain=(
            "ε, β and c; the mechanism and the schedule of λ are from notes on the paper. They call the second anchor "
            "π_{k-1}: here it is the policy at the start of the update."
        ),
        source="notes on the paper and its project page",
        golden=[
            Golden(
                rewards=[1, 0],
                log_ratio=[[0.05], [0.1]],
                fields={"behavior_bt": [[-2.0], [-1.0]], "step": 0},
                settings={"kl_coef": 0.0, "entropy_coef": 0.0},
                advantage=[0.70710578, -0.70710578],
                loss=-0.61959444,
                grad=[[-1.01033081], [0.39073637]],
                why="c = e and 1: e^1.05 lies in e ± 0.2, far outside 1 ± 0.2",
            )
        ],
        recommended={"epochs": 2},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP),
)


def dph_rl(
    base: Method,
    divergence: Divergence = "forward_kl",
    eta: NonNegative = 0.01,
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    clip_high: Positive = 0.28,
    presamples: Annotated[int, Field(ge=1)] = 8,
    solved: Annotated[float, Field(gt=0, le=1)] = 1.0,
    pool_share: NonNegative = 1.0,
) -> Method:
    """Compose DPH-RL.

    Before training the initial policy completes every prompt `presamples` times. Prompts that it solved give one
    correct completion each, with the loss η·f(π/π_0); the others are sampled and trained by GRPO. Each pool is averaged
    separately.
    """
    return base.with_parts(
        filter=(SourceApart(source="reference"),),
        token_weight=(WithoutPolicyLoss(source="reference"),),
        aggregate=BySource(source="reference", inside="token_mean", outside="token_mean"),
        regularize=(Coverage(coef=eta, divergence=divergence, alpha=alpha),),
        pretrain=(InitialCompletions(completions=presamples, beta=0.0),),
        curriculum=InitialRate(below=solved),
        buffer=ReferenceRows(share=pool_share, solved=solved),
    )


entry(
    "dph_rl",
    dph_rl,
    Card(
        title="Diversity-Preserving Hybrid RL",
        papers=[
            Paper(
                "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in Reinforcement Learning "
                "with Verifiable Reward",
                "2509.07430",
                2025,
            )
        ],
        summary="A mass-covering divergence on the initial policy's own correct completions keeps what it could do.",
        formula=(
            "L = -1/Σ_RL|y_i| Σ_RL Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε_low, 1+ε_high) A_i) + η/Σ_0|y_i| Σ_0 Σ_t f(u_t),  "
            "u_t = π(y_t)/π_0(y_t),  f = u - log u - 1 (forward KL), u log u - (u+1) log((u+1)/2) (JS), "
            "(u^(1-a) - (1-a)u - a)/(a(a-1)) (α)"
        ),
        defaults={
            "divergence": "forward KL, the paper's first; JS and α-divergence are its others",
            "eta": "the scripts: 0.01 to 0.05 for forward KL and α, 0.05 to 0.2 for JS",
            "alpha": "the scripts: a = 0.2; only with divergence alpha",
            "clip_low": "0.2, PPO's",
            "clip_high": "the scripts: 0.28",
            "presamples": "the paper: 8 completions of the initial policy to each prompt",
            "solved": "ours: a prompt is solved when all of them are right; below 1 nearly all suffice",
            "pool_share": "ours: one stored completion for each new prompt",
        },
        differs=[
            "log u is held at 20 or below; the code has no bound for JS and α.",
            "Each of the two pools has its own token mean, so that η does not depend on how many rows each has.",
            "Both pools join every step in a fixed proportion; the paper shuffles them together.",
        ],
        reduces=[
            Reduction(
                "grpo", ["all_sampled", "equal_lengths"], other={"clip_high": 0.28}, why="no row of the initial policy"
            )
        ],
        needs=[TWO, "a finite set of prompts (data.prompts)"],
        source="seamoke/DPH-RL verl/trainer/ppo/core_algos.py, verl/workers/actor/dp_actor.py, README, scripts",
        golden=[
            Golden(
                rewards=[1, 0, 0],
                groups=[0, 0, 1],
                log_ratio=[[0.0], [0.0], [0.5]],
                fields={"source_b": [0, 0, 4]},
                advantage=[0.70710578, -0.70710578, 0.0],
                loss=0.0014872127,
                grad=[[-0.35355289], [0.35355289], [0.0064872127]],
                why="f = e^0.5 - 1.5 = 0.14872127, its slope e^0.5 - 1, times 0.01",
            ),
            Golden(
                rewards=[1, 1],
                groups=[0, 0],
                log_ratio=[[0.6931471805599453], [0.0]],
                fields={"source_b": [4, 4]},
                settings={"divergence": "js", "eta": 1.0},
                loss=0.0849495,
                grad=[[0.28768207], [0.0]],
                why="u = 2: 2 log 2 - 3 log 1.5 = 0.169899, slope u·log(2u/(u+1)) = 2 log(4/3), both halved; f(1) = 0",
            ),
        ],
        notes=["Prompts that are solved already give the divergence, the others the reinforcement."],
    ),
    base="grpo",
    keeps=(*GROUP, "clip_low"),
)


def hpt(
    gamma: Annotated[float, Field(ge=-1, le=1)] = 0.0,
    strategy: Literal["switch", "soft"] = "switch",
    sft_coef: NonNegative = 1.0,
    entropy_coef: NonNegative = 0.001,
    alone: Alone = "zero",
) -> Method:
    """Compose HPT.

    Dr. GRPO without clip on sampled completions, token-mean likelihood on demonstrations, which replace the completions
    to prompts of which at most the share `gamma` is right, or join all of them (strategy="soft").
    """
    demonstrate = DemonstrationSwitch(gamma=gamma) if strategy == "switch" else DemonstrationRow(replace=False)
    return Method(
        filter=(SourceApart(source="demonstration"),),
        advantage=Relative("group", center="mean", scale="none", alone=alone),
        advantage_transform=(FixedAdvantage(source="demonstration", value=sft_coef),),
        objective=HybridGradient(source="demonstration"),
        aggregate=BySource(source="demonstration", inside="token_mean", outside="constant_length"),
        regularize=(EntropyBonus(coef=entropy_coef),) if entropy_coef > 0 else (),
        augment=(demonstrate,),
    )


entry(
    "hpt",
    hpt,
    Card(
        title="Hybrid Post-Training",
        papers=[Paper("Towards a Unified View of Large Language Model Post-Training", "2509.04419", 2025)],
        summary="Fine-tuning where a prompt is out of reach, reinforcement where it is not, in one step.",
        formula=(
            "L = -1/(B·Lmax) Σ_sampled Σ_t ρ_t (R_i - mean_g R) - c/Σ_shown|y_i| Σ_shown Σ_t log π(y_t) - c_H·H,  "
            "shown: demonstrations, which take the place of a prompt's completions while too few of them are right"
        ),
        defaults={
            "gamma": "the authors' scripts: 0 of 8 right for Qwen2.5-Math-7B (2 of 8 for Llama)",
            "strategy": "the paper's switch; 'soft', of the authors' code, adds a demonstration to every group",
            "sft_coef": "the authors' scripts: 1 (0.3 for the 1.5B model)",
            "entropy_coef": "the authors' scripts: 0.001",
            "alone": ALONE,
        },
        differs=[
            "The entropy bonus is on all rows, demonstrations included, with the weights of each.",
        ],
        reduces=[
            Reduction(
                "dr_grpo",
                ["all_sampled", "on_policy"],
                settings={"entropy_coef": 0.0},
                why="no demonstration; at ratio 1 nothing is clipped",
            )
        ],
        needs=[
            TWO,
            "a task with right solutions to show",
            "the longest allowed length (max_length)",
        ],
        source=("TsinghuaC3I/Unify-Post-Training: README, mix_src/mix_trainer.py, mix_src/mix_actor.py, exp_scripts"),
        golden=[
            Golden(
                rewards=[1, 0, 0],
                lengths=[1, 1, 2],
                groups=[0, 0, 1],
                fields={"source_b": [0, 0, 2], "max_length": 2},
                settings={"entropy_coef": 0.0},
                advantage=[0.5, -0.5, 1.0],
                loss=1.0,
                grad=[[-0.125], [0.125], [-0.5, -0.5]],
                why="sampled tokens weigh 1/(2·2), the demonstration's two tokens 1/2 each; log-probs are -1",
            )
        ],
        recommended={"group": 8, "learning_rate": 5e-6, "grad_clip": 80},
    ),
)
