"""Methods in which the policy reviews its own episodes, and one that learns what the environment says."""

from __future__ import annotations

from grouprl.algorithms.advantage.advantage import Relative
from grouprl.algorithms.advantage_transform.papers.reviewed import AdvantageOfReviewed, AmplifyPositive
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.reflect_retry import ReflectRetry
from grouprl.algorithms.augment.papers.regenerate import CutAndRegenerate
from grouprl.algorithms.augment.papers.retrospect import Actor, Retrospect
from grouprl.algorithms.augment.review_forms import AUTO
from grouprl.algorithms.filter.source_apart import SourceApart
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.off_policy import RegionGradient
from grouprl.algorithms.regularize.kl import Estimator
from grouprl.algorithms.regularize.papers.observation_likelihood import ObservationLikelihood
from grouprl.algorithms.reward_transform.papers.outcome_gated_process import OutcomeGatedProcess
from grouprl.core.numbers import Count, NonNegative, Positive, Whole
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import CLIPS, GROUP, KL, KL_NEED, PPO_CLIP, kl_terms

TURNS = "an environment that is acted in over turns, by one agent"
TWO = "at least two completions per prompt"
WRITES = "a policy that can write reviews: one that follows instructions, or was warmed up (then it is shown reviews)"
FORM = "json where the model has a chat template (as the paper), compact for small models"
LENGTH = "what the form needs: 256 for json, 12 for compact"
GRPO_LOSS = "L = -1/B Σ_i 1/|y_i| Σ_t min(ρ_t A_i, clip(ρ_t, 1-ε, 1+ε) A_i)"
GRPO_DEFAULTS = {
    **PPO_CLIP,
    "kl_coef": "off, so that no reference is needed",
}
Tokens = Count | None


def r3l(
    amplify: Positive = 3.0,
    perfect: float | None = 1.0,
    form: str = AUTO,
    tokens: Tokens = None,
    kl_coef: NonNegative = 0.0,
    kl_estimator: Estimator = "k2",
) -> Method:
    """Compose R³L: reviews and second attempts, pivotal credit, amplified positive advantages, no ratio."""
    return Method(
        advantage=Relative(scale="none", alone="raw"),
        advantage_transform=(AmplifyPositive(factor=amplify, perfect=perfect),),
        objective=RegionGradient(region="none"),
        aggregate=TokenMean(),
        regularize=kl_terms(kl_coef, kl_estimator),
        augment=(ReflectRetry(form=form, tokens=tokens, perfect=1.0 if perfect is None else perfect),),
    )


entry(
    "r3l",
    r3l,
    Card(
        title="R³L: reflect, then retry",
        papers=[
            Paper(
                "R^3L: Reflect-then-Retry Reinforcement Learning with Language-Guided Exploration, Pivotal Credit, and "
                "Positive Amplification",
                "2601.03715",
                2026,
            )
        ],
        summary="The policy reviews its episodes and tries again, advised, from the turn that went wrong.",
        formula=(
            "L = -1/N Σ_i Σ_{t in turns ≥ k_i} A_i·log π(y_t) + β·KL,  A_i = 1 if R_i ≥ perfect, else "
            "α(R_i - mean_g R) where positive, else R_i - mean_g R;  g: first and second attempts of a "
            "prompt;  groups of one, R = 1: reviews and advised attempts that led to a perfect reward"
        ),
        defaults={
            "amplify": "the authors' code: 3.0",
            "perfect": "the authors' code: a reward of 1",
            "form": FORM,
            "tokens": LENGTH,
            "kl_coef": "off, so that no reference is needed",
            "kl_estimator": "the authors' configuration: k2",
        },
        differs=[
            "The authors divide the loss by 1 + τ with τ = 1; that constant is left to the learning rate.",
            "Each sample is learned from in the step that samples it. The authors' queue hands out the newest "
            "first and "
            "could hand each out three times, but puts none back unless reuse_cooldown_time is set, which no "
            "configuration of theirs for R³L does.",
            "batch.group_size counts the first attempts, so half of the authors' budget of n.",
            "The wording of the prompts is ours (grouprl.algorithms.augment.review_forms); `form` takes one "
            "of your own.",
            "The second attempt's log-probs are those without the advice; the loss has no ratio, so that they only "
            "show in metrics and in a KL to the old policy.",
        ],
        reduces=[
            Reduction(
                "opmd",
                settings={"amplify": 1.0, "perfect": None},
                why="without amplification; groups of one, which have no baseline here, do not occur",
            )
        ],
        needs=[TURNS, WRITES, KL_NEED],
        source=(
            "shiweijiezero/R3L: R3L_workflow.py, opmd_advantage.py, opmd_policy_loss.py, opmd_R3L_1.5B.yaml, by our "
            "notes on them"
        ),
        golden=[
            Golden(
                rewards=[1, 0, 0, 0.4],
                log_ratio=[[0.3], [0.0], [0.0], [0.0]],
                advantage=[1.0, -0.35, -0.35, 0.15],
                loss=0.0375,
                grad=[[-0.25], [0.0875], [0.0875], [-0.0375]],
                why="mean 0.35; the perfect one gets 1, the 0.4 three times 0.05; -(1·(-0.7) + 0.7 - 0.15)/4, no ratio",
            ),
            Golden(
                rewards=[1, 0, 1],
                lengths=[3, 3, 1],
                groups=[0, 0, 1],
                fields={"loss_mask_bt": [[False, True, True], [False, True, True], [True]], "source_b": [6, 0, 7]},
                advantage=[[0.0, 1.0, 1.0], [0.0, -0.5, -0.5], 1.0],
                loss=0.4,
                grad=[[0.0, -0.2, -0.2], [0.0, 0.1, 0.1], [-0.2]],
                why="the shared first turn is trained in neither attempt; five tokens; the review is alone with R = 1",
            ),
        ],
        recommended={"group": 4, "learning_rate": 1e-6, "grad_clip": 1.0},
        notes=[
            "reviews_unread, reviews_content, retries, retries_good and retry_gain tell how the reviews do.",
            "A new model is shown reviews made in hindsight in its warm-up: of two demonstrations of a prompt, what "
            "the better one did where they part.",
        ],
    ),
)


def echo(base: Method, observation_coef: NonNegative = 0.1) -> Method:
    """Compose ECHO: GRPO and the likelihood of the environment's tokens, each with its own denominator."""
    term = (ObservationLikelihood(coef=observation_coef),) if observation_coef > 0 else ()
    return base.with_parts(regularize=(*base.regularize, *term))


entry(
    "echo",
    echo,
    Card(
        title="ECHO: GRPO that also learns what tools return",
        papers=[Paper("prime-rl, library of Prime Intellect", "", 2025)],
        summary="GRPO on the policy's tokens, and the likelihood of what the environment says as a second loss.",
        formula=f"{GRPO_LOSS} - λ·1/N Σ_o log π(o_t),  o_t the environment's N tokens of the step",
        defaults={
            "observation_coef": "prime-rl: 0.1",
            **GRPO_DEFAULTS,
        },
        differs=[
            "The environment's tokens are all that stands between the policy's turns, with what a chat template writes "
            "there.",
            "The policy loss is this catalogue's GRPO, not prime-rl's own.",
        ],
        reduces=[Reduction("grpo", settings={"observation_coef": 0.0}, why="no second loss")],
        needs=[TURNS, TWO, KL_NEED],
        confidence="partly",
        uncertain="Only the composition and its coefficient were seen, not the code of the second loss.",
        source="prime-rl's algorithms, by our notes on it",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[3, 2],
                fields={
                    "mask_bt": [[True, False, True], [True, False]],
                    "marks.said": [[False, True, False], [False, True]],
                },
                advantage=[[0.70710578, 0.0, 0.70710578], [-0.70710578, 0.0]],
                loss=0.1,
                grad=[[-0.176776445, -0.05, -0.176776445], [0.35355289, -0.05]],
                why="the policy's terms cancel; two tokens of the environment at log-prob -1 cost 0.1·1, each 1/2",
            )
        ],
        recommended={"group": 8, "observation_coef": 0.1},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def search_r2(
    base: Method,
    process: NonNegative = 1.0,
    form: str = AUTO,
    tokens: Tokens = None,
) -> Method:
    """Compose Search-R2: GRPO over accepted or regenerated episodes and the reviews that chose between them."""
    return base.with_parts(
        reward_transform=(OutcomeGatedProcess(coef=process),) if process > 0 else (),
        filter=(SourceApart(source="review"),),
        advantage_transform=(AdvantageOfReviewed(),),
        augment=(CutAndRegenerate(form=form, tokens=tokens),),
    )


entry(
    "search_r2",
    search_r2,
    Card(
        title="Search-R2: accept, or cut and regenerate",
        papers=[
            Paper(
                "Search-R2: Enhancing Search-Integrated Reasoning via Actor-Refiner Collaboration", "2602.03647", 2026
            )
        ],
        summary="The policy accepts each episode or cuts it at its first flaw and continues anew; all of it "
        "is trained.",
        formula=(
            f"{GRPO_LOSS},  y = (episode, accepted or from turn k on anew) and its review,  "
            "A_i = (R_i - mean_g R)/(std_g R + eps) over episodes, the same for their reviews,  R = r_o·(1 + c·r_p)"
        ),
        defaults={
            "process": "the abstract: the process reward is coupled to the outcome; the constant is not known",
            "form": FORM,
            "tokens": LENGTH,
            **GRPO_DEFAULTS,
        },
        differs=[
            "Verdict and cut are one review: 'ok', or the number of the first flawed turn. One that cannot be read "
            "accepts.",
            "Reviews do not count in group statistics: each would count its episode twice.",
            "r_p is the share of the documents read that the completion needs ('#density' of the search task), by what "
            "the task knows; the paper has chunks judged.",
        ],
        reduces=[
            Reduction(
                "grpo",
                ["all_sampled"],
                settings={"process": 0.0},
                why="every episode is accepted, and the verdicts are left aside",
            )
        ],
        needs=[
            TURNS,
            TWO,
            WRITES,
            "an environment that gives the component '#density' when process is above 0",
            KL_NEED,
        ],
        confidence="abstract-only",
        uncertain="How outcome and process reward are coupled, and whether reviews have losses of their own.",
        source="the abstract",
        golden=[
            Golden(
                rewards=[1, 0, 1],
                lengths=[2, 1, 1],
                fields={"source_b": [0, 6, 7], "keys.review": [5, 6, 5], "rewards.#density": [0.5, 0.0, 0.0]},
                advantage=[0.70710611, -0.70710611, 0.70710611],
                loss=-0.23570204,
                grad=[[-0.11785102, -0.11785102], [0.23570204], [-0.23570204]],
                why="R = 1.5 and 0, std 1.0607; the review of the first episode has its advantage; each row weighs 1/3",
            )
        ],
        recommended={"group": 8},
        run=["task=search"],
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)


def retroformer(
    base: Method,
    trials: Count = 1,
    actor: Actor = "initial",
    imagined: Whole = 0,
    pilot: Whole = 10,
    fits: Count = 20,
    encoder: str = "gru",
    model_lr: Positive = 1e-3,
    form: str = AUTO,
    tokens: Tokens = None,
) -> Method:
    """Compose Retroformer: GRPO over reviews, each rewarded by the difference of two trials."""
    return base.with_parts(
        augment=(
            Retrospect(
                form=form,
                tokens=tokens,
                trials=trials,
                actor=actor,
                imagined=imagined,
                pilot=pilot,
                fits=fits,
                encoder=encoder,
                model_lr=model_lr,
            ),
        )
    )


entry(
    "retroformer",
    retroformer,
    Card(
        title="Retroformer: a review earns what it brings",
        papers=[
            Paper(
                "Retroformer: Retrospective Large Language Agents with Policy Gradient Optimization", "2308.02151", 2023
            )
        ],
        summary="Policy gradient on reviews alone, rewarded by how much the next, advised trial does better.",
        formula=(
            f"{GRPO_LOSS} over reviews,  R = G_{{k+1}} - G_k, or a model fitted to it,  A_i = "
            "(R_i - mean_g R)/(std_g R + eps)"
        ),
        defaults={
            "trials": "one further trial, the least; the paper continues until success or a limit",
            "actor": "the paper: a frozen model acts",
            "imagined": "0: no reward model, since each review is tried; the paper learns from its model alone",
            "pilot": "our choice: 10 steps of the differences themselves before the reward model is believed",
            "fits": "our choice: 20 updates of the reward model on 64 reviews each per step",
            "encoder": "our choice: gru, so that nothing is downloaded",
            "model_lr": "our choice for the small encoder: 1e-3",
            "form": FORM,
            "tokens": LENGTH,
            **GRPO_DEFAULTS,
        },
        differs=[
            "The frozen actor is the policy as it was before the first step; actor policy lets the weights act that "
            "are trained on reviews.",
            "With a frozen actor the episodes that the step samples serve as luck and as metrics alone: the actor "
            "plays "
            "its own first trials.",
            "The paper works in stages on stored trials: it imitates reviews with a positive difference, trains a "
            "reward model on all, then PPO on that model with a KL to the imitating policy. Here trials are played as "
            "training continues: the difference itself is the reward, its baseline the prompt's other reviews. With "
            "imagined reviews a reward model, fitted to all differences so far, rewards these and the tried ones, and "
            "the reviews of one trial are compared. The warm-up imitates; kl_coef and model.reference add the KL.",
        ],
        reduces=[Reduction("grpo", why="reviews are judged as completions are")],
        needs=[TURNS, TWO, WRITES, KL_NEED],
        confidence="abstract-only",
        uncertain="Prompts, the number of trials, that successes are not reviewed, what the reward model is.",
        source="the abstract",
        golden=[
            Golden(
                rewards=[1, 0, -1],
                fields={"source_b": [7, 7, 7]},
                advantage=[0.999999, 0.0, -0.999999],
                loss=0.0,
                grad=[[-0.333333], [0.0], [0.333333]],
                why="differences of returns with mean 0 and deviation 1; no action among the rows",
            )
        ],
        recommended={"group": 8},
    ),
    base="grpo",
    keeps=(*CLIPS, *GROUP, *KL),
)
