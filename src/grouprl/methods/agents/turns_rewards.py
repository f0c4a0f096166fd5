"""Rewards of single turns, and the weights of turns: progress, prompts, ends of turns, durations."""

from __future__ import annotations

from typing import Literal

from grouprl.algorithms.advantage.turn_credit import NormalisedTurns
from grouprl.algorithms.augment.papers.durations import ActionDurations
from grouprl.algorithms.method import Method
from grouprl.algorithms.pretrain.papers.progress import ProgressModel
from grouprl.algorithms.regularize.kl import ValueEstimator
from grouprl.algorithms.reward_transform.papers.turn_rewards import (
    DenseTurns,
    ProactiveRewards,
    ProgressReward,
)
from grouprl.algorithms.reward_transform.turn_ends import RewardAtTurnEnd
from grouprl.algorithms.token_weight.papers.duration import DurationWeight
from grouprl.core.levels import Scale
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, CRITIC, KL_NEED, PPO_CLIP, kl_in_reward

TWO = "at least two completions per prompt"
TURNS = "an environment that is acted in over turns"
A_CRITIC = "a critic (value head)"
PPO_LOSS = "L = -1/Σ|y_i| Σ_i Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t) + value loss,  A by GAE"
WHITEN = "TRL and verl: advantages whitened over all tokens of the batch"
VALUE = "as ppo: 1"
VALUE_CLIP = "as ppo: 0.2"


def spa_rl(
    base: Method,
    kl_coef: NonNegative,
    kl_estimator: ValueEstimator,
    alpha: NonNegative = 1.0,
    beta: NonNegative = 0.5,
    steps: Count = 20,
    ridge: Positive = 1e-3,
    progress_at: Literal["turn", "observation"] = "turn",
) -> Method:
    """Compose SPA-RL: PPO on rewards that a model of progress redistributes over turns."""
    return base.with_parts(
        reward_transform=(ProgressReward(alpha=alpha, beta=beta), *kl_in_reward(kl_coef, kl_estimator)),
        pretrain=(ProgressModel(steps=steps, ridge=ridge, at=progress_at),),
    )


entry(
    "spa_rl",
    spa_rl,
    Card(
        title="SPA-RL: stepwise progress attribution",
        papers=[Paper("SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution", "2505.20732", 2025)],
        summary="PPO whose turns earn their estimated share of the outcome, and something for a valid action.",
        formula=PPO_LOSS + ",  r_k = α c_k + β [valid] on the last token of turn k,  Σ_k c_k ≈ R",
        defaults={
            "alpha": "the paper: 1",
            "beta": "the authors' script: 0.5",
            "steps": "our choice: 20 rollouts of the initial policy to learn progress from",
            "ridge": "our choice: 1e-3",
            "progress_at": "the paper: the turn's last token; observation: after the observation that follows, where "
            "a small frozen model knows what came of the turn",
            "gamma": "TRL: 1",
            "lam": "TRL: 0.95",
            "whiten": WHITEN,
            "value_coef": VALUE,
            "value_clip": VALUE_CLIP,
            "kl_coef": "off, so that no reference is needed; the authors have TRL's KL penalty",
        },
        differs=[
            "The estimator is linear in the last hidden state of the frozen initial policy, fitted in closed form; the "
            "authors train the whole model by gradient descent.",
            "The formula of the paper; the released scripts replace the estimates by centred final rewards for one "
            "environment, and multiply the reward of step k by T - k - 1.",
            "Rollouts are the policy's own, step by step; the authors collect trajectories beforehand.",
        ],
        needs=[TURNS, A_CRITIC, KL_NEED],
        confidence="partly",
        uncertain="The weights α and β of progress and valid actions.",
        source="the authors' repository: prm/train_our_progress_model.py, prm/inference_prm.py, ppo/step_ppotrainer.py",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={
                    "turn_bt": [[0, 1]],
                    "stats.progress": [[0.2, 0.7]],
                    "valid_bs": [[True, False]],
                    "value_bt": [[0.0, 0.0]],
                },
                settings={"whiten": False},
                advantage=[[1.365, 0.7]],
                loss=-1.0325,
                grad=[[-0.6825, -0.35]],
                why="turns earn .2 + .5 and .7; A = .7 + .95·.7 and .7; two tokens",
            )
        ],
        recommended={"learning_rate": 3e-6},
        notes=[
            "β pays every valid action: where β times the turns allowed exceeds the outcome, wandering is what is "
            "learnt (docs/credit.md, task keys). Lower beta there.",
            "With a small frozen policy the state at the turn's last token does not tell what came of the turn. On the "
            "task keys the estimate then explains 10 to 38 % of the variance of outcomes; what it pays rises while the "
            "outcome falls, whatever beta is (0: 0.39 to 0.04) and with 80 rollouts to learn from (0.39 to 0.12). "
            "Behind the observation it explains 51 to 57 %, and the same run learns (0.39 to 0.71): set "
            "progress_at=observation for such policies.",
            "Changed after 0.1: the state was read after the observation that follows (progress_at=observation), "
            "which docs/credit.md still measured.",
        ],
    ),
    base="ppo",
    keeps=(*CLIPS, *CRITIC),
)


def multi_turn_ppo(
    base: Method,
    kl_estimator: ValueEstimator,
    most: Count | None = None,
    lam: Share = 1.0,
    kl_coef: NonNegative = 0.01,
) -> Method:
    """Compose multi-turn PPO: rewards at the ends of turns; `most` scales dense rewards so that they
    sum to at most 1.
    """
    scaled = () if most is None else (DenseTurns(most=most),)
    return base.with_parts(reward_transform=(*scaled, RewardAtTurnEnd(), *kl_in_reward(kl_coef, kl_estimator)))


entry(
    "multi_turn_ppo",
    multi_turn_ppo,
    Card(
        title="PPO with rewards of turns",
        papers=[Paper("A Practitioner's Guide to Multi-turn Agentic Reinforcement Learning", "2510.01132", 2025)],
        summary="PPO over the whole episode, each turn's reward paid on the turn's last token.",
        formula=PPO_LOSS + ",  r_t = r_k on the last token of turn k, R - Σ r_k on the last token",
        defaults={
            "most": "none: rewards of turns as the environment gives them; the authors scale their sum to 1",
            "clip_low": "the authors' script: 0.2",
            "clip_high": "the authors' script: 0.2",
            "gamma": "the authors' script: 1",
            "lam": "verl: 1",
            "whiten": WHITEN,
            "value_coef": VALUE,
            "value_clip": VALUE_CLIP,
            "kl_coef": "the authors' script: 0.01, in the reward",
        },
        differs=["None known in the method; its findings on environments and on fine-tuning before are not settings."],
        reduces=[
            Reduction(
                "ppo",
                ["no_turn_rewards"],
                settings={"kl_coef": 0.0, "lam": 0.95},
                why="only the last token earns something (the guide's single reward)",
            ),
        ],
        needs=[TURNS, A_CRITIC, KL_NEED],
        source="the authors' repository: reward_manager/agentic_verified.py, recipes/textworld_cooking_ppo.sh",
        golden=[
            Golden(
                rewards=[1.5],
                lengths=[3],
                fields={
                    "turn_bt": [[0, 0, 1]],
                    "turn_reward_bs": [[0.5, 0.25]],
                    "value_bt": [[0.5, 0.5, 0.5]],
                },
                settings={"whiten": False, "kl_coef": 0.0, "lam": 0.5},
                advantage=[[0.375, 0.75, 0.5]],
                loss=-1.625 / 3,
                grad=[[-0.125, -0.25, -0.5 / 3]],
                why="rewards 0, .5, .25 + .75; δ = 0, .5, .5; A = δ + ½·A_next: .375, .75, .5",
            ),
        ],
        recommended={"learning_rate": 1e-6, "critic's learning rate": 1e-5},
        notes=[
            "The guide's RLOO is rloo: it judges whole episodes, wherever their rewards were earned. It gained less "
            "from dense rewards than PPO and GRPO."
        ],
    ),
    base="ppo",
    keeps=(*CLIPS, *CRITIC),
)


def promed(
    base: Method,
    eps: NonNegative,
    information: NonNegative = 2.0,
    question_right: NonNegative = 1.0,
    answered_right: NonNegative = 3.0,
    together: bool = False,
    scale: Scale = "none",
) -> Method:
    """Compose ProMed: questions earn their information and the diagnosis, the last turn the diagnosis,
    each by itself.
    """
    paid = ProactiveRewards(information=information, question_right=question_right, answered_right=answered_right)
    return base.with_parts(
        reward_transform=(paid,),
        advantage=NormalisedTurns(together=together, gamma=0.0, scale=scale, eps=eps),
    )


entry(
    "promed",
    promed,
    Card(
        title="ProMed: Shapley information gain",
        papers=[
            Paper(
                "ProMed: Shapley Information Gain Guided Reinforcement Learning for Proactive Medical LLMs",
                "2508.13514",
                2025,
            )
        ],
        summary="Questions earn the facts they reveal and the diagnosis, the final answer the diagnosis.",
        formula=(
            "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_t, clip(ρ_t, 1-ε, 1+ε) A_t),  A_k = r_k - mean_g r (questions and "
            "answers apart),  r_k = α·SIG_k + β·[right], r_K = γ·[right],  SIG = Σ_{facts revealed anew} φ"
        ),
        defaults={
            "information": "the authors' README: α = 2",
            "question_right": "the authors' README: β = 1",
            "answered_right": "the authors' README: γ = 3",
            "together": "our choice: questions are compared with questions, answers with answers",
            "scale": "the mean alone, as far as is known",
            **PPO_CLIP,
        },
        differs=[
            "The information gain is the environment's reward of a turn; grouprl.rewards.by_task.shapley computes it "
            "from what sets of facts are worth (exactly, or by random orders), with the softmax of temperature 2.",
            "Rewards for format are left out; tokens outside questions and answers, which the paper gives 0, "
            "belong to their turn.",
            "The first stage, fine-tuning on trajectories found by tree search, is not part of it.",
        ],
        needs=[TURNS, "rewards of turns that are information gains", TWO],
        confidence="partly",
        uncertain="The form of the baseline.",
        source="the authors' README and a script built on it, by our notes on it",
        golden=[
            Golden(
                rewards=[1.4, 0.1],
                lengths=[2, 2],
                fields={
                    "turn_bt": [[0, 1], [0, 1]],
                    "turn_reward_bs": [[0.4, 0.0], [0.1, 0.0]],
                    "correct_b": [True, False],
                },
                advantage=[[0.8, 1.5], [-0.8, -1.5]],
                loss=0.0,
                grad=[[-0.2, -0.375], [0.2, 0.375]],
                why="questions earn .8 + 1 and .2, answers 3 and 0; a token weighs ¼",
            )
        ],
    ),
    base="grpo",
    keeps=CLIPS,
)


def duration_aware(
    base: Method,
) -> Method:
    """Compose PPO with the loss of each turn weighted by its action's duration."""
    return base.with_parts(token_weight=(DurationWeight(),), augment=(ActionDurations(),))


entry(
    "duration_aware",
    duration_aware,
    Card(
        title="Duration-aware policy gradient for agents that wait for their actions",
        papers=[Paper("Reinforcement Learning for Machine Learning Engineering Agents", "2509.01684", 2025)],
        summary="PPO whose turns are weighted by how long their actions took, so that slow actions are not "
        "drowned out.",
        formula=PPO_LOSS + ",  the policy's loss of turn k times Δt_k / mean Δt",
        defaults={
            "gamma": "1, as for language models everywhere",
            "lam": "PPO: 0.95",
            "whiten": WHITEN,
            "value_coef": VALUE,
            "value_clip": VALUE_CLIP,
        },
        differs=[
            "Durations are what the environment says (Step.info['seconds']); 1 where it says nothing.",
            "Partial credit is the environment's: rewards of turns for what a program reaches.",
            "Episodes are sampled to their end; the paper's actors are cut off by time, which is where the bias comes "
            "from.",
        ],
        reduces=[
            Reduction("ppo", ["equal_durations"], why="every turn weighs 1"),
        ],
        needs=[TURNS, A_CRITIC, "an environment that says how long actions take"],
        confidence="partly",
        uncertain="PPO's settings; the authors' code was not read.",
        source="a note on the paper and its abstract, by our notes on it",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                fields={"turn_bt": [[0, 1]], "stats.duration": [[1.0, 10.0]], "value_bt": [[0.5, 0.5]]},
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.4977273,
                grad=[[-0.04318182, -0.45454545]],
                why="A as in ppo; durations 1 and 10 weigh 2/11 and 20/11; two tokens",
            )
        ],
        recommended={"learning_rate": 1e-5, "batch": 128},
    ),
    base="ppo",
    keeps=(*CLIPS, *CRITIC),
)
