"""A judge of pairs behind an endpoint: several replies per pair, in both orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeAlias

from typing_extensions import override

from grouprl.rewards.judging import tournament
from grouprl.rewards.judging.comparing import (
    Ask,
    ComparedPair,
    ComparingReward,
    FailedComparison,
    Judgement,
    decided,
    of_turned,
)
from grouprl.rewards.judging.judge import side_by_side
from grouprl.rewards.judging.judge_client import JudgeClient, NoAnswer, check_url
from grouprl.rewards.judging.judge_costs import Tally, answer_shares
from grouprl.rewards.judging.judge_text import as_messages
from grouprl.rewards.judging.pair_text import PAIR_RUBRIC, read_better, shown_pair
from grouprl.rewards.judging.verdict_store import VerdictStore
from grouprl.rewards.validation import Verdict

Replies: TypeAlias = list[Judgement]
"""What was said of one pair in one order: 1 the first is better, 0 the second, ½ neither, None unsure, or no answer."""


@dataclass(frozen=True)
class PairJudge(ComparingReward):
    """A judge that says which of two completions is better, by a model behind an OpenAI-compatible endpoint.

    The chance that the first is preferred is the mean of the replies in each order, averaged over the orders, so that a
    judge that always takes what it reads first says ½. "unsure" and requests without a usable reply are not replies; a
    pair that has none in one of the orders has no verdict, and has failed if a request did.

    Args:
        client: the endpoint.
        rubric: what makes a completion better, as text.
        samples: replies per order, each with a seed of its own.
        both_orders: whether a pair is shown in both orders.
        tokens: the largest number of tokens of a reply.
        temperature: the judge's sampling temperature.
        at_once: number of pairs judged at the same time.
        longest: the largest number of characters shown of a completion; a longer one loses its middle.
        seed: seed of the judge's sampling; reply number n has seed + n.
        store: keeps the replies by prompt, model and seed; with None, equal pairs are judged again.
        knock_out: whether the completions of a group meet in tournaments, instead of each with each.

    Raises:
        InputError: if the client's URL is not a valid address.
    """

    client: JudgeClient
    rubric: str = PAIR_RUBRIC
    samples: int = 1
    both_orders: bool = True
    tokens: int = 2048
    temperature: float = 0.0
    at_once: int = 4
    longest: int = 20_000
    seed: int = 0
    store: VerdictStore | None = None
    knock_out: bool = False
    tally: Tally = field(default_factory=Tally, compare=False)

    def __post_init__(self) -> None:
        check_url(self.client.url)

    def judged(self, questions: Sequence[ComparedPair]) -> list[Judgement]:
        """Return the chance that the first completion of each question is preferred, or why there is no verdict."""
        return side_by_side(self._judged, questions, self.at_once)

    @override
    def standings(self, groups: Sequence[Sequence[int]], ask: Ask) -> dict[int, Verdict]:
        return tournament.standings(groups, ask) if self.knock_out else super().standings(groups, ask)

    def notes(self) -> Mapping[str, float]:
        """Return how the judge answered since the last call: agreement, flips, abstentions, and its costs."""
        return {**answer_shares(self.tally.read()), **self.client.costs()}

    def _judged(self, question: ComparedPair) -> Judgement:
        """Return the verdict on one pair, and count how it came about."""
        orders = [self._replies(question, turned=False)]
        if self.both_orders:
            orders.append([of_turned(x) for x in self._replies(question, turned=True)])
        means = [fmean(said) if (said := decided(replies)) else None for replies in orders]
        self._count(orders, means)
        if None not in means:
            return fmean(decided(means))
        return next((x for replies in orders for x in replies if isinstance(x, FailedComparison)), None)

    def _count(self, orders: Sequence[Replies], means: Sequence[float | None]) -> None:
        flat = [x for replies in orders for x in replies]
        said = Counter(decided(flat))
        sides = {mean > 0.5 for mean in means if mean is not None and mean != 0.5}
        whole = len(means) == 2 and None not in means
        self.tally.add(
            replies=len(flat),
            unsure=len(flat) - said.total(),
            decided=said.total(),
            agreeing=max(said.values(), default=0),
            turned=int(whole),
            flipped=int(whole and len(sides) == 2),
        )

    def _replies(self, question: ComparedPair, *, turned: bool) -> Replies:
        texts = (question.second, question.first) if turned else (question.first, question.second)
        told = shown_pair(as_messages(question.prompt), texts, self.rubric, self.seed, self.longest)
        return [self._reply(told.messages, told.names, self.seed + number) for number in range(self.samples)]

    def _reply(self, messages: Sequence[Mapping[str, str]], names: Sequence[str], seed: int) -> Judgement:
        """Return one reply, from the store if it was given before; requests that fail are not stored."""
        settings = {"max_tokens": self.tokens, "temperature": self.temperature, "seed": seed}
        request = [self.client.url, self.client.model, settings, *messages]

        def attempt(complaint: str) -> tuple[float, ...]:
            again = {"role": "user", "content": f"{complaint[:300]}. Reply with the JSON alone."}
            more = [again] if complaint else []
            better = read_better(self.client.complete([*messages, *more], settings), names)
            return () if better is None else (better,)  # an abstention is kept as no score

        try:
            found = self.client.answered(self.store, request, (1, 0), attempt)
        except NoAnswer as error:
            return FailedComparison(error.what, error.late)
        return found[0] if found else None
