"""Sequence policies that are asked for a return: decision transformers with one objective and with several (MO-DT)."""

from __future__ import annotations

from grouprl.algorithms.method import Method
from grouprl.algorithms.regularize.papers.foresight import NextObservation, NextToGo
from grouprl.algorithms.update.papers.balanced_terms import BalancedTerms
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def mo_dt(base: Method, observation: NonNegative = 1.0, to_go: NonNegative = 1.0) -> Method:
    """Compose MO-DT: cloning of stored actions, of what is seen next and of what is still to be earned."""
    return base.with_parts(regularize=(NextObservation(coef=observation), NextToGo(coef=to_go)), update=BalancedTerms())


entry(
    "mo_dt",
    mo_dt,
    Card(
        title="Multi-objective decision transformer",
        papers=[
            Paper("Multi-Objective Decision Transformers for Offline Reinforcement Learning", "2308.16379", 2023),
            Paper(
                "Decision Transformer: Reinforcement Learning via Sequence Modeling",
                "2106.01345",
                2021,
            ),
        ],
        summary="Clone stored actions given the return that followed, and foresee the next observation and return.",
        formula=(
            "L = 1/Σ|y_i| Σ_i Σ_t [-log π(a_t|R_≤t, s_≤t, a_<t) + w_s·mean(f_t - s_{t+1})² + w_R·(F_t - "
            "R_{t+1})²],  f, F what is foreseen,  R_t = Σ_{k≥t} r_k;  step along g_a + Σ_k w_k·(|g_a|/|g_k|)·g_k"
        ),
        defaults={
            "observation": "w_s, our choice: as long a gradient as that of actions",
            "to_go": "w_R, our choice: the same",
        },
        differs=[
            "Actions are predicted without a token for their region; for numbered actions each is a region of its own.",
            "How the paper weighs the gradients is not known to us: here all are brought to the length of the actions' "
            "one in the parameters that they share.",
            "A position is one token of the return to go, the observation and the action before; there it is three.",
            "Foresight reads the attention's output and the action by a perceptron; there it has the action's token.",
            "Returns to go are in units of the largest one of the data.",
        ],
        notes=[
            in_the_update("the sum of the errors, whose gradients are not brought to one length"),
            "The return that evaluations ask for is task.target. With weights of 0 it is the decision transformer.",
            "No gain of foresight was found: on stored CartPole, weights of 0 earned more (docs/control.md).",
            "What is asked for is only reached as far as the data show it, and chance that moves returns misleads it.",
        ],
        reduces=[
            Reduction(
                "sft",
                settings={"observation": 0.0, "to_go": 0.0},
                why="cloning; with this policy it is the decision transformer",
            )
        ],
        needs=[
            "stored trajectories with a return to ask for (task: trajectories:FILE, task.target)",
            "a policy that foresees (model: decision_transformer)",
        ],
        confidence="abstract-only",
        uncertain="the weights of the objectives, the rule that balances them, and the tokens of action regions",
        source="the abstract of MO-DT; the paper of the decision transformer",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                settings={"observation": 0.5, "to_go": 2.0},
                fields={"stats.observation_error": [[0.2, 0.4]], "stats.to_go_error": [[0.1, 0.3]]},
                advantage=[1.0],
                loss=1.55,
                grad=[[-0.5, -0.5]],
                why="log-probs -1: 1 + 0.5·0.3 + 2·0.2",
            )
        ],
        recommended={"group": 1, "learning_rate": 1e-3},
        run=[
            "warmup={steps: 0}",
            "task=trajectories:grouprl.envs.construction.combination_lock:expert_episodes",
            "task.of=env:grouprl.envs.construction.combination_lock:CombinationLock",
            "task.target=1",
            "batch.group_size=1",
            "model.name=decision_transformer",
        ],
    ),
    base="sft",
)
