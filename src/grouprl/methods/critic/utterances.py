"""A critic of whole utterances over a token-level policy: ArCHer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from grouprl.algorithms.advantage.papers.utterance_advantage import UtteranceAdvantage
from grouprl.algorithms.aggregate.aggregate import SequenceSum
from grouprl.algorithms.buffer.papers.utterance_replay import UtteranceReplay
from grouprl.algorithms.critic.papers.utterance_baseline import TokenBaselineCritic
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.update.papers.late_start import LateStart
from grouprl.core.numbers import Count, Positive, Share, Whole
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def archer(
    gamma: Share = 0.95,
    tau: Annotated[float, Field(gt=0, le=1)] = 0.1,
    capacity: Count = 100_000,
    critic_steps: Count = 50,
    critic_batch: Count = 256,
    critic_lr: Positive = 1e-3,
    pool: Count | None = None,
    actions: Count | None = None,
    warmup: Whole = 20,
    encoder: str = "gru",
    width: Count = 64,
    baseline: bool = False,
) -> Method:
    """Compose ArCHer: REINFORCE on single utterances, judged by a critic that learns from all stored turns.

    With `baseline` a value head subtracts from each token the value expected from the tokens before it.
    """
    replay = UtteranceReplay(
        gamma=gamma,
        tau=tau,
        capacity=capacity,
        critic_steps=critic_steps,
        critic_batch=critic_batch,
        critic_lr=critic_lr,
        pool=pool,
        actions=actions,
        warmup=warmup,
        encoder=encoder,
        width=width,
    )
    return Method(
        advantage=UtteranceAdvantage(baseline=baseline),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        critic=TokenBaselineCritic() if baseline else None,
        buffer=replay,
        update=LateStart(start=warmup) if warmup else None,
        on_policy=True,
    )


entry(
    "archer",
    archer,
    Card(
        title="ArCHer: a hierarchy of utterances and tokens",
        papers=[Paper("ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL", "2402.19446", 2024)],
        summary="A critic learns off-policy what utterances are worth; the policy of tokens follows it.",
        formula=(
            "L = -1/N Σ_i (min Q(o_i,a_i) - min V(o_i)) Σ_t log π(a_it),  o_i stored, a_i ~ π(o_i) fresh;  "
            "Q_j(o,a) → r + γ(1-done) V'_j(o'),  V_j(o) → Q'_j(o, a~π),  θ' ← τθ + (1-τ)θ'"
        ),
        defaults={
            "gamma": "the authors' configuration: 0.95 (their class has 0.9)",
            "tau": "the authors' configuration: 0.1",
            "capacity": "the authors' configuration: 100,000 turns",
            "critic_steps": "the authors' configuration: 50",
            "critic_batch": "our choice: 256",
            "critic_lr": "our choice for the small encoder: 1e-3; the authors have 2e-5 for roberta-base",
            "pool": "None: every update reads its own turns, as the authors; fewer share their fresh actions",
            "actions": "None: as many as the run samples completions; the authors take three such sets a step",
            "warmup": "the authors' configuration: 20",
            "encoder": "our choice: gru, so that nothing is downloaded; the authors have roberta-base",
            "width": "our choice: 64 (of the encoder gru)",
            "baseline": "off, as the authors' script for a plain policy; it is their optional value of tokens",
        },
        differs=[
            "One update of the policy per step, on actions sampled for it; the authors take three, each on its own.",
            "What the policy is shown is the row's tokens so far, as everywhere here; the authors decode and encode "
            "text again.",
            "An episode that hits a limit is over like one that ends by itself.",
        ],
        reduces=[
            Reduction(
                "reinforce",
                ["known_worth"],
                why="an episode of one turn whose critic has learnt its reward, with nothing expected before",
            ),
        ],
        needs=["exactly one update per rollout", "a value head with baseline"],
        source="YifeiZhou02/ArCHer archer/algorithms/archer/trainer.py, archer/models/critic.py, archer/data/utils.py",
        golden=[
            Golden(
                rewards=[1, 0.25],
                lengths=[2, 1],
                fields={"past.q": [1.0, 0.25], "past.v": [0.5, 0.5]},
                advantage=[0.5, -0.25],
                loss=0.375,
                grad=[[-0.25, -0.25], [0.125]],
                why="A = Q - V; log-probs are -1: (0.5·2 - 0.25)/2; each token weighs 1/2",
            ),
            Golden(
                rewards=[1, 0.25],
                lengths=[2, 1],
                fields={"past.q": [1.0, 0.25], "past.v": [0.5, 0.5], "value_bt": [[0.1, 0.2], [-0.25]]},
                settings={"baseline": True},
                advantage=[[0.4, 0.3], [0.0]],
                grad=[[-0.2, -0.15], [0.0]],
                why="each token less what its beginning let expect",
            ),
        ],
        recommended={"learning_rate": 1e-6, "prompts": 128, "group": 1, "grad_clip": 1.0},
        notes=[
            in_the_update("those without the late start"),
            "`pass@1` and rewards are those of the episodes sampled; the policy learns from other rows, which is "
            "why the "
            "account calls the sampled ones left out by the replay part.",
            "With one turn per episode Q → r, so that A = r - V(o); with gamma 0 each turn is a contextual bandit.",
        ],
    ),
)
