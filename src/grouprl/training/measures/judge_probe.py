"""A judge that is asked again about the same completions, to see whether its scores drift (`reward.judge.probe`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeAlias

import numpy as np

from grouprl.config.sections import Judge
from grouprl.config.sections.scoring import PROBED
from grouprl.core.json_types import JsonObject
from grouprl.orchestrator.accounting import StepRollout
from grouprl.records.text_samples import TextSamples
from grouprl.rewards.judging.judge import PLACE, GroupPlace, TrajectoryJudge
from grouprl.rewards.judging.judge_costs import Tally
from grouprl.rewards.judging.judge_text import as_messages
from grouprl.rewards.judging.measured import paid_reward
from grouprl.rewards.judging.pair_judge import PairJudge
from grouprl.storage.run_folder import RunFolder, write_json
from grouprl.training.session import Session

Scores: TypeAlias = list[float | None]
"""The score of each kept row; None where the judge gave none."""
ASKED = ("rubric", "compare", "samples", "both_orders", "temperature", "tokens", "characters")
"""Settings of what a judge is asked. After a change of one of them, earlier scores say nothing about the judge."""


@dataclass(frozen=True)
class JudgeProbe:
    """The rows that a judge is asked about again, and what it has said of them so far."""

    settings: JsonObject
    step: int
    """The step at which the rows were sampled."""
    rows: list[JsonObject]
    """The `group`, `sample`, `prompt_id`, `prompt` and `text` of each row."""
    second: Scores
    """The scores when the judge was asked a second time at once."""
    asked: dict[str, Scores]
    """The scores by the step at which the judge was asked; of the first step, those of the first time."""

    @property
    def first(self) -> Scores:
        """The scores of the first time."""
        return self.asked[str(self.step)]


def judge_drift(session: Session, rollout: StepRollout) -> dict[str, float]:
    """Ask the judge of a run again about its kept rows, if it is time, and return how far its scores have moved.

    What it has said is kept in the run's folder, so that a step which is repeated asks nothing.
    """
    judge, asked = paid_reward(session.reward), session.config.reward.judge
    if asked is None or not asked.probe or session.step % PROBED or not isinstance(judge, TrajectoryJudge | PairJudge):
        return {}
    probe = read_probe(session.run)
    if probe is None or probe.settings != _settings(asked):
        probe = _begun(judge, asked, rollout, session.step)
    elif str(session.step) not in probe.asked:
        probe = replace(probe, asked={**probe.asked, str(session.step): _scores(judge, probe.rows)})
    if probe is None:
        return {}
    write_json(session.run.probe, vars(probe))
    return probe_metrics(probe, session.step)


def read_probe(run: RunFolder) -> JudgeProbe | None:
    """Return what a judge has said so far about a run's kept rows; None if nothing, or nothing that can be read."""
    try:
        return JudgeProbe(**json.loads(run.probe.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def probe_metrics(probe: JudgeProbe, step: int) -> dict[str, float]:
    """Return how far the scores of a step, and those of the second time, are from the first ones."""
    moved = {"judge_noise": distance(probe.first, probe.second)}
    if step != probe.step:
        moved["judge_drift"] = distance(probe.first, probe.asked[str(step)])
    return {name: value for name, value in moved.items() if value is not None}


def distance(before: Scores, after: Scores) -> float | None:
    """Return the mean |difference| of two scores of the same rows, of those that have both; None if none has."""
    pairs = [(x, y) for x, y in zip(before, after, strict=True) if x is not None and y is not None]
    return fmean(abs(x - y) for x, y in pairs) if pairs else None


def _settings(judge: Judge) -> JsonObject:
    return judge.model_dump(mode="json", include={*ASKED})


def _begun(judge: TrajectoryJudge | PairJudge, asked: Judge, rollout: StepRollout, step: int) -> JudgeProbe | None:
    """Return a probe of the first groups of a step; None if it has no group that can be compared."""
    rows = _kept(rollout, asked.probe)
    if not rows:
        return None
    return JudgeProbe(
        _settings(asked), step, rows, second=_scores(judge, rows), asked={str(step): _scores(judge, rows)}
    )


def _kept(rollout: StepRollout, groups: int) -> list[JsonObject]:
    """Return the rows of the first groups whose texts differ."""
    samples = rollout.sampled
    if not isinstance(samples, TextSamples):  # a judge reads texts
        return []
    several = [group for group in dict.fromkeys(samples.group_b.tolist()) if _texts(samples, group) > 1]
    chosen_b = np.isin(samples.group_b, several[:groups])
    return [
        {
            "group": int(samples.group_b[i]),
            "sample": int(samples.sample_b[i]),
            "prompt_id": samples.examples[i].id,
            "prompt": as_messages(samples.prompts[i]),
            "text": samples.texts[i],
        }
        for i in np.nonzero(chosen_b)[0].tolist()
    ]


def _texts(samples: TextSamples, group: int) -> int:
    return len({samples.texts[i] for i in np.nonzero(samples.group_b == group)[0].tolist()})


def _scores(judge: TrajectoryJudge | PairJudge, rows: Sequence[JsonObject]) -> Scores:
    """Return the judge's scores of the rows, asked anew: what it has said before is left aside."""
    afresh = replace(judge, store=None)
    if isinstance(afresh, PairJudge):  # how it answers here is not part of how it answers about the step
        afresh = replace(afresh, tally=Tally())
    columns = [{PLACE: GroupPlace(row["group"], row["sample"], row["prompt"])} for row in rows]
    names = [f"{row['prompt_id']}#{row['sample']}" for row in rows]
    found = afresh.verdicts([row["text"] for row in rows], columns, names)
    return [each.reward if each.status == "ok" else None for each in found]
