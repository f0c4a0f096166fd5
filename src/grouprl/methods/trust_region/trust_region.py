"""Methods whose step is measured in KL, not in parameters: TRPO."""

from __future__ import annotations

from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.update.papers.trust_region import TrustRegion
from grouprl.core.numbers import Count, NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Paper, Reduction
from grouprl.methods.critic.critic import GAE_PAPER
from grouprl.methods.registry import entry
from grouprl.methods.settings import in_the_update


def trpo(
    delta: Positive = 0.01,
    damping: NonNegative = 0.1,
    cg_iterations: Count = 10,
    fisher_thin: Count = 5,
    backtracks: Count = 10,
    accept: Positive = 1.0,
    critic_steps: Count = 5,
    gamma: Share = 1.0,
    lam: Share = 0.95,
    whiten: bool = True,
    value_coef: NonNegative = 1.0,
) -> Method:
    """Compose TRPO for language models.

    Token mean of -ρA with GAE advantages, climbed by one natural gradient step of mean KL δ with a line search.
    """
    step = TrustRegion(
        delta=delta,
        damping=damping,
        iterations=cg_iterations,
        thin=fisher_thin,
        backtracks=backtracks,
        accept=accept,
        critic_steps=critic_steps,
    )
    return Method(
        advantage=GAE(gamma=gamma, lam=lam),
        advantage_transform=(Whiten(key="batch", count="token", variance="sample"),) if whiten else (),
        objective=Importance(),
        aggregate=TokenMean(),
        critic=ValueLoss(lam=lam, gamma=gamma, clip=None, coef=value_coef),
        update=step,
        on_policy=True,
    )


entry(
    "trpo",
    trpo,
    Card(
        title="Trust Region Policy Optimization",
        papers=[Paper("Trust Region Policy Optimization", "1502.05477", 2015), GAE_PAPER],
        summary="One natural gradient step per rollout, as long as a bound on the KL to the old policy allows.",
        formula=(
            "max_θ 1/Σ|y_i| Σ_i Σ_t ρ_t A_t  subject to  mean_t KL(π_old || π) ≤ δ:  θ + ½^j·√(2δ/xᵀFx)·x, x = F⁻¹g;  "
            "A_t = δ_t + γλA_{t+1}"
        ),
        defaults={
            "delta": "the paper, table 1: 0.01",
            "damping": "customary: 0.1 (OpenAI baselines, Stable-Baselines)",
            "cg_iterations": "the paper, appendix C: 10",
            "fisher_thin": "OpenAI baselines: every fifth",
            "backtracks": "customary: 10 halvings",
            "accept": "the paper: the bound itself; implementations allow 1.5·δ",
            "critic_steps": "OpenAI baselines fit the values 3 to 5 times per rollout: 5",
            "gamma": "1, as for language models everywhere (the paper: 0.99)",
            "lam": "0.95, the low end of what implementations have",
            "whiten": "customary: advantages standardised per batch",
            "value_coef": "1 on half the squared error, as ppo",
        },
        differs=[
            "The Fisher matrix is the sampled one, 1/N Σ_t ∇log π(y_t) ∇log π(y_t)ᵀ: on tokens that the policy sampled "
            "its expectation is the KL's Hessian. The paper takes the Hessian over all actions of each state.",
            "The KL of the line search is k3 on the sampled tokens, which estimates KL(old || new).",
            "Every fifth completion gives the Fisher products of the conjugate gradients, all completions the "
            "curvature along "
            "the step, which sets its length; the paper takes a tenth of the data for both.",
            "The critic is a head on the policy's own trunk: the trunk moves by the natural step alone, the head is "
            "fitted by the optimiser. The paper has a value network of its own.",
        ],
        reduces=[Reduction("ppo", ["on_policy"], why="before the step every ratio is 1: the gradient g is the same")],
        needs=["a critic (value head)", "exactly one update per rollout", "weights in float32"],
        confidence="partly",
        uncertain="Checked against a derived implementation, not against the authors' own code.",
        source="the paper, appendix C; manantomar/Mirror-Descent-Policy-Optimization mdpo_on/mdpo.py (TRPO's settings)",
        golden=[
            Golden(
                rewards=[1],
                lengths=[2],
                log_ratio=[[0.3, -0.5]],
                fields={"value_bt": [[0.5, 0.5]]},
                settings={"whiten": False},
                advantage=[[0.475, 0.5]],
                loss=-0.47222413,
                grad=[[-0.32059147, -0.15163266]],
                why="-ρ·A/2: 0.475·e^0.3/2 and 0.5·e^-0.5/2; nothing is clipped",
            )
        ],
        notes=[
            in_the_update("the unclipped importance-weighted gradient, without trust region"),
            "A step costs 2·cg_iterations forward and cg_iterations backward passes over the completions that give the "
            "Fisher products, some more forward passes for the line search, and critic_steps full ones.",
            "Changed after 0.1: the length came from every fifth completion too, which know little of the "
            "directions of "
            "the others: the line search halved most steps, to an eighth or less.",
            "The sampled Fisher matrix has no more directions than there are tokens: damping decides in the others.",
            "The head alone learns values slowly while the trunk moves under it: lam=1 leans on it least. Without a "
            "critic: {base: dr_grpo, objective: importance, update: trust_region}.",
        ],
        recommended={"delta": 0.01, "lam": "0.95 to 0.98"},
    ),
)
