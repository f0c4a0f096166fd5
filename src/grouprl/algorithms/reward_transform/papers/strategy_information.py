"""A reward for actions that tell which of several strategies is played (MRA)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.kept_perceptron import KeptPerceptron
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Positive
from grouprl.protocols import ArraySpace, DictSpace, Discrete

if TYPE_CHECKING:
    from grouprl.algorithms.seen_numbers import SeenNumbers
    from grouprl.records.samples import ScoredSamples

STAT = "decoded"
TOLD = "strategy"
"""The entry of observations that tells the strategy (`grouprl.envs.joint_world.ToldWorld`)."""


class Deeds(NamedTuple):
    """N actions of agents, with what each saw before it."""

    known_bt: Tensor
    """[B,T] bool: where they stand in the batch."""
    read_nf: Tensor
    """[N,F] what was seen and done, but for the strategy that was told."""
    strategy_n: Tensor
    """[N] int64 the number of the strategy."""


@part("reward_transform")
class StrategyInformation(RewardTransform, DataPart):
    """r_t ← r_t + c·(log q(z|o_t, a_t) - log p(z)), z the strategy that the agents are told (MRA, arXiv:2108.12988).

    p is even over the strategies (`keys.variant`). q is a perceptron of the part's own, which reads what an agent saw,
    its number and its action, and is fitted to the strategies after each rollout (cross entropy, `steps` steps of
    Adam). The bonus is a lower bound of the information of z in what an agent does: log K where q knows which of K
    strategies is played, 0 where it knows nothing (DIAYN, arXiv:1802.06070). Each action earns its own, so that a team
    may have any number of agents.
    """

    metrics: ClassVar = {
        "strategy_information": Metric(
            unit="nats",
            words="mean of log q(z|o,a) - log p(z): how much an action tells of the strategy that is played",
            good="rises to the logarithm of the number of strategies",
        ),
        "strategy_error": Metric(
            unit="nats", words="cross entropy of the strategies, before the steps of q", good="falls"
        ),
    }

    strategies: Count = 2
    coef: NonNegative = 0.1
    lr: Positive = 1e-3
    steps: Count = 20
    width: Count = 64
    says = "actions that tell which of {strategies} strategies is played earn more (weight {coef:g})"
    equation = "r_t ← r_t + {coef:g}·(log q(z|o_t, a_t) - log p(z))"
    reads = (f"stats.{STAT}",)
    fills = (f"stats.{STAT}",)
    plain = (
        "told_bt = torch.where(mask_bt, stats['decoded'] + {even!r}, 0)\n"
        "token_reward_bt = token_reward_bt + {coef!r} * told_bt"
    )
    idle_at = ("coef", 0, "{name} has no effect: coef is 0")

    @property
    def even(self) -> float:
        """-log p(z), the logarithm of the number of strategies."""
        return math.log(self.strategies)

    def __call__(self, batch: Batch) -> Batch:
        """Add the weighted bonus to the reward of each action."""
        told_bt = torch.where(batch.mask_bt, batch.need(f"stats.{STAT}", self.name) + self.even, 0)
        before_bt = torch.zeros_like(told_bt) if batch.token_reward_bt is None else batch.token_reward_bt
        return batch.replace(token_reward_bt=before_bt + self.coef * told_bt)

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.decoded`, [B,T]: log q(z|o,a) of every action, 0 where there is none."""
        deeds, decoded_bt = self.deeds(batch, context), torch.zeros(batch.size, dtype=batch.dtype)
        if len(deeds.strategy_n):
            with torch.no_grad():
                found_n = StrategyReader(self, context, deeds).logp(deeds)
            decoded_bt[deeds.known_bt] = found_n.to(batch.dtype)
            context.note("strategy_information", float(found_n.mean()) + self.even, "mean")
        return batch.replace(stats={**batch.stats, STAT: decoded_bt})

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Fit q to the strategies of the rows."""
        deeds = None if prepared is None else self.deeds(prepared, context)
        if deeds is not None and len(deeds.strategy_n):
            context.note("strategy_error", StrategyReader(self, context, deeds).fit(deeds), "mean")

    def deeds(self, batch: Batch, context: RunContext) -> Deeds:
        """Return every action of the batch.

        Raises:
            InputError: the agents are not told as many strategies as the part has.
        """
        spaces = context.spaces
        seen = spaces.observation.spaces if spaces and isinstance(spaces.observation, DictSpace) else {}
        if spaces is None or seen.get(TOLD) != Discrete(self.strategies):
            raise InputError(
                f"{self.name} has {self.strategies} strategies, and agents see {', '.join(seen) or 'nothing by name'}",
                f"agents are told which of as many strategies they play, in the entry '{TOLD}' of what they see",
                "Set task.config.strategies to method.strategies, in a world like envs.builtin.meeting:MeetingPlaces",
            )
        known_bt, inputs = batch.mask_bt, cast("SeenNumbers", batch.inputs)
        parts = [_numbers(seen[name], x[known_bt]) for name, x in inputs.observation_bt.items() if name != TOLD]
        done_nf = _numbers(spaces.action, inputs.action_bt[known_bt])
        strategy_bt = batch.need("keys.variant", self.name)[:, None].expand(batch.size)
        return Deeds(known_bt, torch.cat([*parts, done_nf], -1), strategy_bt[known_bt])

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task that tells of another number of strategies."""
        if run.variants in (None, self.strategies):
            return []
        return [
            f"{self.name} tells {self.strategies} strategies apart, but the task tells of {run.variants}. Set "
            "task.config.strategies to method.strategies, in a world like envs.builtin.meeting:MeetingPlaces"
        ]


class StrategyReader(KeptPerceptron):
    """The perceptron q that reads strategies from what is done, and its Adam, kept in the part's memory."""

    def __init__(self, part: StrategyInformation, context: RunContext, deeds: Deeds) -> None:
        sizes = (deeds.read_nf.shape[1], part.width, part.width, part.strategies)
        super().__init__(context.state_of(part), sizes, part.lr, int(context.rng(part).integers(2**62)))
        self.steps = part.steps

    def logp(self, deeds: Deeds) -> Tensor:
        """Return log q(z|o,a) of the strategy that was told, [N]."""
        logp_nk = self.net(deeds.read_nf).log_softmax(-1)
        return logp_nk.gather(1, deeds.strategy_n[:, None])[:, 0]

    def fit(self, deeds: Deeds) -> float:
        """Take the steps on the cross entropy; return it before them, in nats per action."""
        return self.descend(lambda: -self.logp(deeds).mean(), self.steps)


def _numbers(space: ArraySpace, value_n: Tensor) -> Tensor:
    """Return values [N,…] as numbers [N,F] float32: whole numbers one-hot, other arrays flattened."""
    if isinstance(space, Discrete):
        return nn.functional.one_hot(value_n, space.count).float()
    return value_n.flatten(1).float()
