"""A ratio per turn, with a critic: Turn-PPO, ST-PPO."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.adaptive_clip import TurnClip
from grouprl.algorithms.update.papers.clip_bias import ClipBias
from grouprl.core.numbers import NonNegative, Positive
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CRITIC, KL_NEED, ClipLow, in_the_update, kl_terms

ST_PPO_PAPER = Paper(
    "ST-PPO: Stabilized Off-Policy Proximal Policy Optimization for Multi-Turn Agents Training", "2511.20718", 2025
)


def turn_ppo(
    base: Method,
    clip_low: ClipLow,
    clip_high: Positive,
    kl_coef: NonNegative = 0.001,
) -> Method:
    """Compose Turn-PPO.

    PPO's loss with the geometric mean ratio of each turn; GAE, critic and KL loss. The clipping-bias correction of
    ST-PPO is not part of it.
    """
    return base.with_parts(
        reward_transform=(),  # ppo's KL term is part of the reward, this one part of the loss
        objective=TurnClip(clip_low=clip_low, clip_high=clip_high),
        regularize=kl_terms(kl_coef, "k3"),
    )


entry(
    "turn_ppo",
    turn_ppo,
    Card(
        title="Turn-PPO: turn-level importance sampling",
        papers=[ST_PPO_PAPER],
        summary="PPO with one ratio per turn, the geometric mean of its tokens' ratios.",
        formula=(
            "L = -1/Σ|y_i| Σ_i Σ_t min(w_k A_t, clip(w_k, 1-ε, 1+ε) A_t) + value loss + β·KL,  "
            "w_k = exp(mean_{t in turn k} log ρ_t),  A by GAE as in PPO"
        ),
        defaults={
            "clip_low": "the paper: 0.2",
            "clip_high": "the paper: 0.2",
            "gamma": "1, as for language models everywhere",
            "lam": "PPO: 0.95",
            "whiten": "TRL and verl: advantages whitened over all tokens of the batch",
            "value_coef": "as ppo: 1",
            "value_clip": "as ppo: 0.2",
            "kl_coef": "the paper: a KL loss of 0.001",
        },
        differs=[
            "Only the turn-level ratio. The second half of ST-PPO divides the update's gradient by the norm of its "
            "clipping bias: st_ppo has both.",
            "The KL estimator is k3; the paper's was not seen.",
        ],
        reduces=[
            Reduction("ppo", ["one_token_turns"], settings={"kl_coef": 0.0}, why="a turn of one token has its ratio"),
        ],
        needs=["a critic (value head)", KL_NEED],
        confidence="partly",
        uncertain="GAE's λ and the KL estimator of the paper.",
        source="a note on the paper and its reviews",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.2, 0.0]],
                fields={"value_bt": [[0.5, 0.5]], "turn_bt": [[0, 0]]},
                settings={"whiten": False, "kl_coef": 0.0},
                advantage=[[0.475, 0.5]],
                loss=-0.53877082,
                grad=[[-0.26938541, -0.26938541]],
                why="w = e^0.1 for both tokens; each gets w times the mean of 0.475 and 0.5, over two tokens",
            )
        ],
        notes=["With one turn per completion the ratio is GSPO's."],
    ),
    base="ppo",
    keeps=CRITIC,
)


def st_ppo(
    base: Method,
    least: Positive = 1.0,
) -> Method:
    """Compose ST-PPO: Turn-PPO's loss, with smaller steps when the clip leaves much out."""
    return base.with_parts(update=ClipBias(least=least))


entry(
    "st_ppo",
    st_ppo,
    Card(
        title="ST-PPO: stabilised off-policy PPO for many turns",
        papers=[ST_PPO_PAPER],
        summary="Turn-PPO whose policy gradient is divided by the norm of what the clip leaves out of it.",
        formula=(
            "g ← g / max(‖C‖, least),  C = ∇ 1/B Σ_i 1/|y_i| Σ_{t clipped} w_k A_t,  g the gradient of Turn-PPO's "
            "policy loss,  w_k = exp(mean_{t in turn k} log ρ_t)"
        ),
        defaults={
            "least": "our choice: 1, so that steps only become smaller; the paper's guard against ‖C‖ = 0 is not known",
        },
        differs=[
            "The policy's gradient is divided, its KL loss included, but not the critic's: nothing is clipped there.",
            "The KL estimator is k3; the paper's was not seen.",
            "C differentiates the turn's ratio, which its tokens share; the notes write each token's own log-prob.",
        ],
        reduces=[Reduction("turn_ppo", ["always"], why="the losses are equal; only the size of the steps differs")],
        needs=["a critic (value head)", KL_NEED],
        confidence="partly",
        uncertain="The guard where nothing is clipped, GAE's λ and the KL estimator.",
        source="a note on the paper and its reviews (equations 7 and 8)",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.2, 0.0]],
                fields={"value_bt": [[0.5, 0.5]], "turn_bt": [[0, 0]]},
                settings={"whiten": False, "kl_coef": 0.0},
                advantage=[[0.475, 0.5]],
                loss=-0.53877082,
                grad=[[-0.26938541, -0.26938541]],
                why="as turn_ppo: w = e^0.1 for both tokens; nothing is clipped",
            )
        ],
        notes=[
            in_the_update("those of turn_ppo"),
            "Without clipped tokens it is Turn-PPO.",
            "Changed after 0.1: C was a mean over all tokens of the step.",
        ],
    ),
    base="turn_ppo",
)
