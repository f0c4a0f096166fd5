"""Levels that are played again while something is left to gain in them, beside new ones (GROOVE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, at_random, pool_size
from grouprl.algorithms.curriculum.papers.probe import rows_of
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, Positive, Share

if TYPE_CHECKING:
    from grouprl.core.batch import Batch
    from grouprl.records.samples import ScoredSamples

Score = Literal["regret", "gain", "advantage", "spread"]
WORDS: Mapping[Score, str] = {
    "regret": "what an antagonist is paid more",
    "gain": "how much better the best rollout so far was than the mean",
    "advantage": "the mean |advantage|",
    "spread": "the variance of the rewards",
}


@part("curriculum")
class LevelReplay(Chooser):
    """Each prompt is, with probability `replay`, one of the stored levels with the highest scores, else a new one.

    A level is a prompt; once played, it is stored with its score, and of more than `capacity` levels those of lowest
    score are forgotten. `score` "regret" is the reward of an antagonist on that level, which the environment or the
    reward gives as the component `best`, less the mean reward; "gain" takes the best rollout on the level so far for
    the antagonist; "advantage" is the mean |A|; "spread" the variance of the rewards, p(1 - p) of right and wrong.
    `order` "top" takes the highest scores, "softmax" draws with exp(score/`temperature`) without replacement. A level
    is played once in a step; where no new one is left, all are stored ones, and the other way round.

    Source: Jackson et al. 2023 (arXiv:2310.02782), and the authors' code. *Differs from the paper*: there an A2C agent
    that is trained on the level is the antagonist, and levels train a learned optimiser, not one policy.
    """

    metrics: ClassVar = {
        "levels_stored": Metric(unit="levels", words="levels that are known with their scores", group="groups"),
        "levels_replayed": Metric(unit="fraction", words="prompts of the step that are stored levels", group="groups"),
        "level_score": Metric(words="mean score of the stored levels", good="falls as they are learnt", group="groups"),
    }

    replay: Share = 0.5
    capacity: Count = 4000
    score: Score = "regret"
    best: str = "#best"
    order: Literal["top", "softmax"] = "top"
    temperature: Positive = 0.1

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Take stored levels and new ones, in this order."""
        scores = self.scores(context)
        stored = [level for level in scores if level not in chosen]
        new = np.setdiff1d(np.arange(pool_size(context)), [*scores, *chosen])
        again = int((rng.random(count) < self.replay).sum())
        again = min(max(again, count - len(new)), len(stored))
        picked = self.replayed({level: scores[level] for level in stored}, again, rng)
        context.note("levels_replayed", len(picked) / max(count, 1), "mean")
        rest = count - len(picked)
        return [*picked, *at_random(new if len(new) else np.arange(pool_size(context)), rest, rng, [*chosen, *picked])]

    def replayed(self, scores: Mapping[int, float], count: int, rng: np.random.Generator) -> list[int]:
        """Return `count` of the levels by their scores."""
        levels, score_n = list(scores), np.array(list(scores.values()))
        if self.order == "softmax":
            score_n = score_n / self.temperature + rng.gumbel(size=len(levels))
        return [levels[i] for i in np.argsort(-score_n, kind="stable")[:count]]

    def scores(self, context: RunContext) -> dict[int, float]:
        """Return the score of each stored level."""
        found: dict[int, float] = context.state_of(self).setdefault("scores", {})
        return found

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Store the levels of the step with their new scores, and forget the lowest ones beyond `capacity`."""
        scores, kept = self.scores(context), samples.scores.ok_b
        for level, rows in rows_of(np.where(kept, samples.index_b, -1)).items():
            if level >= 0:
                scores[int(level)] = self.judged(int(level), rows, samples, context)
        highest = sorted(scores, key=lambda level: -scores[level])[: self.capacity]
        context.state_of(self)["scores"] = {level: scores[level] for level in scores if level in set(highest)}
        if highest:
            context.note("levels_stored", len(highest), "most")
            context.note("level_score", float(np.mean([scores[level] for level in highest])), "mean")

    def judged(self, level: int, rows: np.ndarray, samples: ScoredSamples, context: RunContext) -> float:
        """Return the score of a level by the rows that played it."""
        reward_n = samples.scores.reward_b[rows]
        if self.score == "regret":
            return float(self._antagonist(samples)[rows].mean() - reward_n.mean())
        if self.score == "gain":
            peaks = context.state_of(self).setdefault("peaks", {})
            peaks[level] = max(peaks.get(level, -np.inf), float(reward_n.max()))
            return float(peaks[level] - reward_n.mean())
        if self.score == "advantage":
            visits = context.prompt_history.at(context.step).get(level, [])
            return float(np.mean([visit.advantage for visit in visits])) if visits else 0.0
        return float(reward_n.var())

    def _antagonist(self, samples: ScoredSamples) -> np.ndarray:
        found = samples.scores.components.get(self.best)
        if found is None:
            named = ", ".join(samples.scores.components) or "none"
            raise InputError(
                f"level_replay.score = regret, and rewards have no component '{self.best}' ({named})",
                "the regret is how much more an antagonist is paid on the level",
                "Let the reward or the environment give it (a name with # is not paid), or set score to gain, "
                "advantage or spread",
            )
        return found

    @override
    def needs(self) -> tuple[str, ...]:
        return (f"rewards.{self.best}",) if self.score == "regret" else ()

    @override
    def words(self) -> str:
        how = "those of highest score" if self.order == "top" else f"drawn with exp(score/{self.temperature:g})"
        return (
            f"prompts that are new, or with chance {self.replay:g} stored ones, {how}; the score is "
            f"{WORDS[self.score]}, and {self.capacity} are kept"
        )

    @override
    def formula(self) -> str:
        how = "top by s" if self.order == "top" else f"P ∝ exp(s/{self.temperature:g})"
        of = {"regret": "R_best - mean R", "gain": "max R - mean R", "advantage": "mean |A|", "spread": "Var R"}
        return f"{how},  s = {of[self.score]},  with chance {self.replay:g};  else a new prompt"

    def idle(self, run: RunFacts) -> list[str]:
        """Say what has no effect."""
        found = [f"{self.name} has no effect: replay is 0, which plays new prompts as they come"] * (self.replay == 0)
        lone = self.score in ("spread", "advantage") and run.group_size == 1
        return [*found, *["level_replay.score is 0 for all: groups of one rollout have no spread"] * lone]
