"""The dialects of TRL's online trainers: OnlineDPOTrainer, XPOTrainer, NashMDTrainer.

Settings have TRL's names and defaults; how completions are sampled is a setting of the run. `tests/parity` runs the
losses of TRL 1.16.0 (online DPO) and of TRL 1.13.0, the last with the other two, against these entries.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from grouprl.algorithms.augment.opponents import Opponents
from grouprl.algorithms.link.link import Link, Logistic, Squared
from grouprl.algorithms.method import Method
from grouprl.algorithms.pairing.pairing import Across
from grouprl.algorithms.regularize.opponents import Unlikely
from grouprl.algorithms.reward_transform.missing_eos import MissingEOS
from grouprl.core.numbers import NonNegative, Positive, Share
from grouprl.methods.card import Card, Golden, Reduction
from grouprl.methods.preference.composing import TIES, of_pairs, one_pair
from grouprl.methods.preference.online import OPPONENT_ROWS
from grouprl.methods.preference.play import nash_md
from grouprl.methods.registry import entry

OnlineLoss = Literal["sigmoid", "ipo"]
ALWAYS = "A tie is not a pair; TRL takes the first completion (of XPO: the policy's) as the chosen one."
RATES = "A list, one value per epoch, has one: there are no epochs over prompts that are sampled for."
EOS = "None: no penalty"
CONFIG = "OnlineDPOConfig"


def single(value: object) -> object:
    """Return the value of a list that has one, as TRL's defaults do; anything else as it is.

    Raises:
        ValueError: a list of another length.
    """
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise ValueError(
            f"TRL's list has a value per epoch, and epochs are not counted here: give one of the {len(value)}"
        )
    return value[0]


SinglePositive = Annotated[Positive, BeforeValidator(single)]
SingleNonNegative = Annotated[NonNegative, BeforeValidator(single)]
SingleShare = Annotated[Share, BeforeValidator(single)]


def link_of(loss_type: OnlineLoss, beta: float) -> Link:
    """Return the link of a loss of OnlineDPOTrainer; the scores are sums over tokens in both."""
    return Logistic(beta=beta) if loss_type == "sigmoid" else Squared(beta=beta)


def penalised(method: Method, penalty: float | None) -> Method:
    """Return the method with TRL's penalty of completions without an end token."""
    return method if penalty is None else method.with_parts(reward_transform=(MissingEOS(penalty=penalty),))


def online_dpo_trl(
    beta: SinglePositive = 0.1, loss_type: OnlineLoss = "sigmoid", missing_eos_penalty: NonNegative | None = None
) -> Method:
    """Compose the loss of TRL's OnlineDPOTrainer."""
    return penalised(of_pairs(link=link_of(loss_type, beta)), missing_eos_penalty)


entry(
    "online_dpo@trl",
    online_dpo_trl,
    Card(
        title="Online DPO as TRL computes it",
        summary="DPO or IPO on the two completions that the policy samples for a prompt.",
        formula="L = mean over pairs of -log σ(β·Δ), or of (Δ - 1/(2β))²,  Δ of sums over tokens of log π/π_ref",
        defaults={
            "beta": f"{CONFIG}.beta: [0.1]",
            "loss_type": f"{CONFIG}.loss_type: sigmoid",
            "missing_eos_penalty": f"{CONFIG}.missing_eos_penalty: {EOS}",
        },
        differs=[TIES, ALWAYS, RATES],
        reduces=[
            Reduction("online_dpo", ["two_completions"], why="of two completions the best and the worst are the pair"),
            Reduction("ipo", settings={"loss_type": "ipo"}, why="TRL's online IPO sums log-probs, as the paper does"),
        ],
        needs=["a reference model", "two completions per prompt"],
        source="TRL 1.16.0, experimental/online_dpo: OnlineDPOTrainer.training_step, run against this entry",
        golden=[
            one_pair(0.66359711, [-0.04850045, -0.04850045], 0.04850045, "DPO's numbers"),
            one_pair(19.36, [-8.8, -8.8], 8.8, "(0.6 - 5)²", settings={"loss_type": "ipo"}),
        ],
    ),
)


def xpo_trl(
    beta: SinglePositive = 0.1,
    alpha: SingleNonNegative = 1e-5,
    loss_type: OnlineLoss = "sigmoid",
    missing_eos_penalty: NonNegative | None = None,
) -> Method:
    """Compose the loss of TRL's XPOTrainer."""
    method = of_pairs(link=link_of(loss_type, beta), pairing=Across(), regularize=(Unlikely(coef=alpha),))
    return penalised(method.with_parts(augment=(Opponents(initial=1.0, together=True),)), missing_eos_penalty)


entry(
    "xpo@trl",
    xpo_trl,
    Card(
        title="XPO as TRL computes it",
        summary="Online DPO against a completion of the reference, whose log-prob is added.",
        formula="L = mean over prompts of -log σ(β·Δ) + α·log π(ỹ),  ỹ ~ π_ref",
        defaults={
            "beta": f"{CONFIG}.beta: [0.1]",
            "alpha": "XPOConfig.alpha: [1e-5]",
            "loss_type": f"{CONFIG}.loss_type: sigmoid",
            "missing_eos_penalty": f"{CONFIG}.missing_eos_penalty: {EOS}",
        },
        differs=[TIES, ALWAYS, RATES],
        reduces=[Reduction("xpo", why="the same loss")],
        needs=["a reference model"],
        source="TRL 1.13.0, experimental/xpo: XPOTrainer._compute_losses, run against this entry",
        golden=[
            one_pair(
                0.54359711,
                [-0.04850045, -0.04850045],
                0.14850045,
                "DPO's 0.66359711 and 0.1·(-1.2)",
                settings={"alpha": 0.1},
                fields=OPPONENT_ROWS,
            )
        ],
    ),
)


def nash_md_trl(
    beta: SingleNonNegative = 0.1,
    mixture_coef: SingleShare = 0.5,
    missing_eos_penalty: NonNegative | None = None,
    loss_type: OnlineLoss = "sigmoid",
) -> Method:
    """Compose the loss of TRL's NashMDTrainer; as there, `loss_type` is not read."""
    return penalised(nash_md(beta=beta, mixture=mixture_coef), missing_eos_penalty)


entry(
    "nash_md@trl",
    nash_md_trl,
    Card(
        title="Nash-MD as TRL computes it",
        summary="A policy gradient on P(y ≻ y') - ½ against a mixture of logits, with the KL's gradient.",
        formula="L = mean over y of -(P - ½)·log π(y) + β·Σ_t sg(log π/π_ref)·log π(y_t),  P = σ(R - R')",
        defaults={
            "beta": f"{CONFIG}.beta: [0.1]",
            "mixture_coef": "NashMDConfig.mixture_coef: [0.5]",
            "missing_eos_penalty": f"{CONFIG}.missing_eos_penalty: {EOS}",
            "loss_type": f"{CONFIG}.loss_type, which NashMDTrainer does not read",
        },
        differs=[
            RATES,
            "The gradient is TRL's; the value is not, as its KL term is an estimate of no quantity: here it is β·d²/2.",
        ],
        reduces=[Reduction("nash_md", why="the same loss")],
        needs=["a reference model"],
        source="TRL 1.13.0, experimental/nash_md: NashMDTrainer._compute_losses, run against this entry",
        golden=[
            Golden(
                rewards=[1, 0],
                lengths=[2, 1],
                log_ratio=[[0.3, 0.1], [-0.2]],
                fields=OPPONENT_ROWS,
                advantage=[0.23105858, 0.0],
                loss=0.37469373,
                grad=[[-0.20105858, -0.22105858], [0.0]],
                why="A = σ(1) - ½; slopes -A + 0.1·d",
            )
        ],
    ),
)
