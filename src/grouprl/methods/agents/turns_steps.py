"""Steps compared with those of the same number across episodes: UI-S1, Rank-GRPO."""

from __future__ import annotations

from grouprl.algorithms.advantage.turn_credit import TurnRelative
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.adaptive_clip import TurnClip
from grouprl.algorithms.reward_transform.papers.turn_rewards import RankDiscount
from grouprl.core.levels import Scale
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, KL, KL_NEED, PPO_CLIP, ClipLow

KL_OFF = "off, so that no reference is needed"
TWO = "at least two completions per prompt"
TURNS = "an environment that is acted in over turns"
LOSS = "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + β·KL"


def ui_s1(
    base: Method,
    scale: Scale,
    eps: NonNegative,
    episode: NonNegative = 1.0,
    omega: NonNegative = 1.0,
    gamma: Share = 0.5,
) -> Method:
    """Judge episodes by their group and steps by steps of the same number; credit stops at mismatches."""
    return base.with_parts(
        advantage=TurnRelative(key="turn", episode=episode, omega=omega, gamma=gamma, scale=scale, eps=eps, reset=True),
        aggregate=TokenMean(),
    )


entry(
    "ui_s1",
    ui_s1,
    Card(
        title="UI-S1: semi-online step and episode advantages",
        papers=[Paper("UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning", "2509.11543", 2025)],
        summary="Episodes against their group, steps against the same step of the group; a mismatch stops credit.",
        formula=(
            LOSS + ",  A_t = w_E A_E + w_S A_S(turn of t),  A_E = norm_g(R),  A_S = norm_{g,k}(G_k),  "
            "G_k = r_k + γ G_{k+1} if step k matched, else r_k and nothing of it flows back"
        ),
        defaults={
            "episode": "the authors' script: 1",
            "omega": "the authors' script: 1",
            "gamma": "the authors' script: 0.5",
            "scale": "the authors' script: mean_std_norm, sample (n-1) as in verl",
            "eps": "verl: 1e-6",
            **PPO_CLIP,
            "kl_coef": KL_OFF + "; the authors' script has 1e-4",
            "kl_estimator": "the authors' script: k3",
        },
        differs=[
            "Following an expert's trajectory and patching it in after a mismatch is the environment's business: it "
            "marks the turn as not valid, continues from the expert's state, or ends the episode.",
            "An episode is one row whose turns share a context; the authors' code makes a row of every step.",
            "The authors' filter, groups whose first returns spread by more than 0.3, is left out.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["equal_lengths"],
                settings={"omega": 0.0},
                why="without the steps only the episode is judged; token mean and completion mean agree",
            ),
            Reduction(
                "grpo",
                ["equal_lengths", "one_turn", "all_valid"],
                settings={"episode": 0.0},
                why="one turn returns the whole reward",
            ),
        ],
        needs=[TURNS, TWO, KL_NEED],
        source="the authors' code (core_uis1.py, dapo_ray_trainer.py, train_example.sh), by our notes on it",
        golden=[
            Golden(
                rewards=[3.1, 4],
                lengths=[4, 4],
                fields={
                    "turn_bt": [[0, 1, 2, 3], [0, 1, 2, 3]],
                    "turn_reward_bs": [[1.0, 1.0, 0.1, 1.0], [1.0, 1.0, 1.0, 1.0]],
                    "valid_bs": [[True, True, False, True], [True, True, True, True]],
                },
                settings={"scale": "none"},
                advantage=[[-0.6375, -0.825, -1.15, -0.45], [0.6375, 0.825, 1.15, 0.45]],
                loss=0.0,
                grad=[[0.0796875, 0.103125, 0.14375, 0.05625], [-0.0796875, -0.103125, -0.14375, -0.05625]],
                why="G = 1.5, 1, .1, 1 (cut at the mismatch) and 1.875, 1.75, 1.5, 1; A_E = ∓.45; eight tokens",
            ),
            Golden(
                rewards=[3.1, 4],
                lengths=[4, 4],
                fields={
                    "turn_bt": [[0, 1, 2, 3], [0, 1, 2, 3]],
                    "turn_reward_bs": [[1.0, 1.0, 0.1, 1.0], [1.0, 1.0, 1.0, 1.0]],
                    "valid_bs": [[True, True, False, True], [True, True, True, True]],
                },
                advantage=[
                    [-1.41420978, -1.41421112, -1.41421174, -0.70710567],
                    [1.41420978, 1.41421112, 1.41421174, 0.70710567],
                ],
                why="two values are √½ standard deviations from their mean; the last steps are equal: episode alone",
            ),
        ],
        recommended={"kl_coef": 1e-4, "group": 8, "gamma": 0.5},
        notes=["The task keys with reward 'expert' follows an expert and puts in its moves, without a limit."],
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)


def rank_grpo(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    scale: Scale,
    eps: NonNegative = 1e-4,
) -> Method:
    """Judge each rank of a list by the discounted hits from there on, with one ratio per item."""
    return base.with_parts(
        reward_transform=(RankDiscount(),),
        advantage=TurnRelative(key="turn", episode=0.0, gamma=1.0, scale=scale, eps=eps, absent="zero"),
        objective=TurnClip(clip_low=clip_low, clip_high=clip_high),
    )


entry(
    "rank_grpo",
    rank_grpo,
    Card(
        title="Rank-GRPO: each rank of a list judged by what follows from it",
        papers=[
            Paper(
                "Rank-GRPO: Training LLM-based Conversational Recommender Systems with Reinforcement Learning",
                "2510.20150",
                2025,
            )
        ],
        summary="Item j of a list earns the discounted hits from j on, judged against rank j of the group's lists.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(w_j A_j, clip(w_j, 1-ε, 1+ε) A_j) + β·KL,  "
            "w_j = exp(mean_{t in j} log ρ_t),  A_j = (r_j - mean_g r_j) / (std_g r_j + eps),  "
            "r_j = Σ_{l≥j} hit_l / log2(l+1)"
        ),
        defaults={
            **PPO_CLIP,
            "scale": "the authors' code, as TRL: sample standard deviation, per rank",
            "eps": "the authors' code: 1e-4",
            "kl_coef": KL_OFF + "; the authors' code has 1e-3",
        },
        differs=[
            "An item is a turn (turn_bt), its hit the turn's reward: an environment takes one item per turn. The "
            "authors cut one completion at its line ends.",
            "Everything from the last item on belongs to it: the bonus for exactly N items and the penalty on tokens "
            "after them are left out.",
        ],
        reduces=[
            Reduction(
                "gspo",
                ["one_turn"],
                other={"clip_low": 0.2, "clip_high": 0.2, "eps": 1e-4},
                why="one segment has the ratio and the reward of the whole completion",
            ),
        ],
        needs=["completions in items (turns), each with its hit as reward", TWO, KL_NEED],
        source="the authors' repository: rank_grpo_trainer.py, reward_funcs.py, metrics_align.py",
        golden=[
            Golden(
                rewards=[2, 1],
                lengths=[3, 2],
                fields={"turn_bt": [[0, 1, 2], [0, 1]], "turn_reward_bs": [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]},
                advantage=[[0.70699173, -0.70634384, 0.70690684], [-0.70699173, 0.70634384]],
                loss=-0.11776382,
                grad=[[-0.11783196, 0.11772397, -0.11781781], [0.17674793, -0.17658596]],
                why="r = 1.5, .5, .5 and .6309, .6309, 0 (no third item): ±½ difference over its std + 1e-4, by rank",
            )
        ],
        recommended={"kl_coef": 1e-3, "group": 8, "learning_rate": 1e-6},
    ),
    base="grpo",
    keeps=(*CLIPS, *KL),
)
