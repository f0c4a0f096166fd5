"""Policy gradients of a reward whose components are weighed by what they do for one of them: BARFI."""

from __future__ import annotations

from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.aggregate.aggregate import SequenceSum
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.objective import PolicyGradient
from grouprl.algorithms.update.papers.blended_rewards import BlendedRewards
from grouprl.core.numbers import NonNegative
from grouprl.methods.card import Card, Golden, Paper
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def barfi(primary: str = "accuracy", rate: NonNegative = 0.1, lowest: float = 0.0) -> Method:
    """Compose BARFI: policy gradients of all components, weighed by how they served the primary one."""
    return Method(
        advantage=DecoupledComponents(weights={primary: 1.0}, scale="none"),
        objective=PolicyGradient(),
        aggregate=SequenceSum(),
        update=BlendedRewards(primary=primary, rate=rate, lowest=lowest),
        on_policy=True,
    )


entry(
    "barfi",
    barfi,
    Card(
        title="Behaviour alignment via reward function optimisation",
        papers=[Paper("Behavior Alignment via Reward Function Optimization", "2310.19007", 2023)],
        summary="Pay a designer's rewards beside the primary one, as far as following them raises the primary one.",
        formula=(
            "r_φ = r_p + Σ_k φ_k·r_k;  inner step θ' = θ - lr·∇L_{r_φ}(θ),  outer step "
            "φ_k ← max(φ_k + η·cos(∇L_p(θ'), ∇L_k(θ)), lowest),  L_k = -1/B Σ_i Σ_t (r_{k,i} - mean_g r_k) log π(y_t)"
        ),
        defaults={
            "primary": "ours: the component of most tasks here that says what is right",
            "rate": "ours: a component that always points the other way is gone after ten steps",
            "lowest": "ours: 0, at which a component is not paid; the paper has no bound",
        },
        differs=[
            "The paper solves the inner problem and takes the implicit gradient, with an inverse Hessian by conjugate "
            "gradients or a Neumann series; here one step is the inner problem and the identity the inverse.",
            "A cosine stands for the inner product, so that η has the same meaning at any scale of a reward.",
            "The weight of the primary component is 1: only ratios matter.",
            "No function of states and actions is learnt besides the weights, and no discount.",
        ],
        needs=["a reward with components, one of which is the primary", "exactly one update per rollout"],
        confidence="partly",
        uncertain="rates, and the regulariser of the inner problem: from the abstract and general knowledge",
        notes=[
            in_the_update("those of the primary component alone"),
            "Each component takes a backward pass of its own.",
            "On words with variety no difference from the plain sum is shown, five seeds at tuned rates "
            "(docs/reward_models.md): a single step does not see where a component leads.",
        ],
        source="the abstract, and general knowledge of the paper",
        golden=[
            Golden(
                rewards=[3, 1],
                lengths=[2, 1],
                fields={"rewards.accuracy": [1.0, 0.0], "rewards.format": [2.0, 1.0]},
                advantage=[0.5, -0.5],
                loss=0.25,
                grad=[[-0.25, -0.25], [0.25]],
                why="the primary component is ±1/2 about its mean; log-probs -1: (2·1/2 - 1/2)/2",
            )
        ],
        run=[
            "task=words",
            "task.variety=2",
            "method.primary=liked",
            "batch.minibatches=1",
        ],
    ),
)
