"""A reward for leading the rest of a team to chosen actions (AMI)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.kept_perceptron import KeptPerceptron
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Positive

if TYPE_CHECKING:
    from grouprl.algorithms.seen_numbers import SeenNumbers
    from grouprl.records.samples import ScoredSamples

STAT = "missed"
OWN = ("agent", "earlier")
"""Entries of an observation that tell nothing about the world: the agent's number, and what others just did."""


class TeamRounds(NamedTuple):
    """E episodes of T rounds, and which row of the batch is whose."""

    row_ea: Tensor
    """[E,A] the row of each agent."""
    seen_etf: Tensor
    """[E,T,F] what the team saw."""
    action_eta: Tensor
    """[E,T,A] the action of each agent, those that name targets included."""
    there_et: Tensor
    """[E,T] bool: rounds that were played."""
    choices: int
    """How many actions an agent has."""


@part("reward_transform")
class MinorityInfluence(RewardTransform, DataPart):
    """r_t ← r_t - c·Σ_i |p_i - 1[named for i]|₁ for the adversary and those that name targets (AMI, arXiv:2302.03322).

    p_i is the chance of each *next* action of victim i, whatever the adversary does now: a perceptron of the part's own
    predicts it from what the whole team sees and what the victims do, and is fitted after each rollout (cross entropy,
    `steps` steps of Adam). The sum is 2·Σ_i (1 - p_i[named]). Nothing is added to the last action of an episode, after
    which nobody acts. The first `members` agents are the team, `adversary` one of them, and further agents name the
    targets of the others in their order (`grouprl.envs.builtin.jury.infiltrated`). *Differs from the authors' code*:
    there the prediction reads the adversary's action too and is averaged over ten draws of it; left out, the
    prediction is that average for the policies that it was fitted on.
    """

    metrics: ClassVar = {
        "influence": Metric(
            unit="fraction",
            words="chance that a victim's next action is the one named for it, by the part's prediction",
            good="rises while the team's reward falls",
        ),
        "victims_error": Metric(
            unit="nats", words="cross entropy of the victims' next actions, before the prediction's steps", good="falls"
        ),
    }

    coef: NonNegative = 0.1
    members: Annotated[int, Field(ge=2, le=1000)] = 2
    adversary: Annotated[int, Field(ge=0)] = 0
    lr: Positive = 1e-3
    steps: Count = 20
    width: Count = 64
    says = "the adversary is also paid for leading the others to named actions (weight {coef:g})"
    equation = "r_t ← r_t - {coef:g}·Σ_i |p_i,{{t+1}} - 1[named for i]|₁"
    reads = ("agent_b", f"stats.{STAT}")
    fills = (f"stats.{STAT}",)
    plain = (
        "led_b = (agent_b == {adversary}) | (agent_b >= {members})\n"
        "token_reward_bt = token_reward_bt - {coef:g} * stats['missed'] * led_b[:, None]"
    )
    idle_at = ("coef", 0, "minority_influence has no effect: coef is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Take the weighted distance off the rewards of the adversary and those that name targets."""
        agent_b = batch.need("agent_b", self.name)
        led_b = (agent_b == self.adversary) | (agent_b >= self.members)
        off_bt = self.coef * batch.need(f"stats.{STAT}", self.name) * led_b[:, None]
        before_bt = torch.zeros_like(off_bt) if batch.token_reward_bt is None else batch.token_reward_bt
        return batch.replace(token_reward_bt=before_bt - off_bt)

    def victims(self) -> list[int]:
        """Return the numbers of the team's agents without the adversary, in the order of those that name targets."""
        return [agent for agent in range(self.members) if agent != self.adversary]

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `stats.missed`, [B,T]: Σ_i |p_i - 1[named for i]|₁ in the rows of both learners."""
        missed_bt, rounds = torch.zeros(batch.size, dtype=batch.dtype), self.rounds(batch)
        if len(rounds.row_ea) and rounds.there_et.shape[1] > 1:
            chance_et = self.named(Prediction(self, context, rounds), rounds)
            last_et = rounds.there_et[:, 1:]
            context.note("influence", float(chance_et[last_et].mean()) / len(self.victims()), "mean")
            found_et = torch.where(last_et, 2 * (len(self.victims()) - chance_et), 0).to(batch.dtype)
            for agent in (self.adversary, *range(self.members, rounds.row_ea.shape[1])):
                missed_bt[rounds.row_ea[:, agent], : found_et.shape[1]] = found_et
        return batch.replace(stats={**batch.stats, STAT: missed_bt})

    def named(self, prediction: Prediction, rounds: TeamRounds) -> Tensor:
        """Return [E,T-1] the sum over victims of the chance that the next action is the one named."""
        with torch.no_grad():
            chance_etva = prediction.logits(rounds)[:, :-1].softmax(-1)
        named_etv = rounds.action_eta[:, :-1, self.members :]
        return chance_etva.gather(-1, named_etv[..., None])[..., 0].sum(-1)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Fit the prediction to what the victims did next."""
        if prepared is None:
            return
        rounds = self.rounds(prepared)
        if len(rounds.row_ea) and bool(rounds.there_et[:, 1:].any()):
            context.note("victims_error", Prediction(self, context, rounds).fit(rounds), "mean")

    def rounds(self, batch: Batch) -> TeamRounds:
        """Return the episodes of which every agent has a row, round by round.

        Raises:
            InputError: observations are not named arrays, actions not numbers, or the agents of an episode do not all
                act in every round.
        """
        inputs = batch.inputs
        named = getattr(inputs, "observation_bt", None)
        if not isinstance(named, Mapping) or "earlier" not in named or cast("SeenNumbers", inputs).action_bt.dim() != 2:
            raise InputError(
                f"the part '{self.name}' on {type(inputs).__name__}",
                "it reads agents that see arrays by name, `earlier` actions among them, and act with numbers",
                "Take a world like grouprl.envs.builtin.jury:InfiltratedJury",
            )
        seen = cast("SeenNumbers", inputs)
        row_ea = torch.tensor(self._rows(batch), dtype=torch.int64).reshape(-1, 2 * self.members - 1)
        there_eat = batch.mask_bt[row_ea]
        if not bool((there_eat == there_eat[:, :1]).all()):
            raise InputError(
                "agents of an episode act in different rounds",
                f"{self.name} predicts what all of them do next",
                "Take a world whose agents act from its beginning to its end",
            )
        own = [x[row_ea[:, : self.members]] for name, x in seen.observation_bt.items() if name not in OWN]
        flat = [x.flatten(3).transpose(1, 2).flatten(2).float() for x in own]
        done_eta, choices = seen.action_bt[row_ea].transpose(1, 2), named["earlier"].shape[-1]
        return TeamRounds(row_ea, torch.cat(flat, -1), done_eta, there_eat[:, 0], choices)

    def _rows(self, batch: Batch) -> list[list[int]]:
        """Return the row of each agent in every complete episode."""
        agent_b, episode_b = (x.tolist() for x in (batch.need("agent_b", self.name), batch.grouping("episode")))
        rows: dict[int, dict[int, int]] = {}
        for row, (agent, episode) in enumerate(zip(agent_b, episode_b, strict=True)):
            rows.setdefault(episode, {})[agent] = row
        whole = range(2 * self.members - 1)
        return [[found[agent] for agent in whole] for found in rows.values() if all(a in found for a in whole)]

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose agents are not a team and one that names a target for each victim."""
        wrong = self.adversary >= self.members or (run.agents != 2 * self.members - 1)
        return [
            f"{self.name} has a team of {self.members} with the adversary {self.adversary}, and needs "
            f"{2 * self.members - 1} agents, but the task has {run.agents}. Set method.members and method.adversary, "
            "and take a world like grouprl.envs.builtin.jury:InfiltratedJury"
        ] * wrong


class Prediction(KeptPerceptron):
    """The perceptron that predicts the victims' next actions, and its Adam, kept in the part's memory."""

    def __init__(self, part: MinorityInfluence, context: RunContext, rounds: TeamRounds) -> None:
        self.part, self.victims, self.actions = part, part.victims(), rounds.choices
        given = len(self.victims) * self.actions
        sizes = (rounds.seen_etf.shape[-1] + given, part.width, part.width, given)
        super().__init__(context.state_of(part), sizes, part.lr, int(context.rng(part).integers(2**62)))

    def logits(self, rounds: TeamRounds) -> Tensor:
        """Return [E,T,V,A] the logits of each victim's next action; the adversary's action is not read."""
        done_etv = rounds.action_eta[..., self.victims]
        done_etf = nn.functional.one_hot(done_etv, self.actions).flatten(2).float()
        found_etf: Tensor = self.net(torch.cat([rounds.seen_etf, done_etf], -1))
        return found_etf.unflatten(-1, (len(self.victims), self.actions))

    def fit(self, rounds: TeamRounds) -> float:
        """Take the steps on the cross entropy of the next actions; return it before them, in nats per action."""
        there_et = rounds.there_et[:, 1:]
        next_n = rounds.action_eta[:, 1:, self.victims][there_et].flatten()

        def error() -> Tensor:
            return nn.functional.cross_entropy(self.logits(rounds)[:, :-1][there_et].flatten(0, 1), next_n)

        return self.descend(error, self.part.steps)
