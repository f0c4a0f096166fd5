"""A preference model as the reward of a run: it compares the completions of a group two at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grouprl.core.errors import InputError
from grouprl.policy.language.columns.score_columns import TAU
from grouprl.policy.language.columns.several_scores import GeneralPreferenceModel
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.records.examples import Prompt
from grouprl.rewards.judging.comparing import ComparedPair, ComparingReward, FailedComparison, Judgement


@dataclass(frozen=True)
class ModelComparison(ComparingReward):
    """The comparisons of a general preference model, P(first ≻ second); pairs that it cannot read have failed.

    Args:
        model: the preference model.
        chat: whether a prompt of plain text is shown to it as a user's message, in its chat template.
    """

    model: GeneralPreferenceModel
    chat: bool = False

    def judged(self, questions: Sequence[ComparedPair]) -> list[Judgement]:
        """Return the chance that the first completion of each question is preferred, or why it cannot be read."""
        try:
            return list(self._chances(questions))
        except InputError:
            return [self._alone(question) for question in questions]

    def _alone(self, question: ComparedPair) -> Judgement:
        try:
            return self._chances([question])[0]
        except InputError as error:
            return FailedComparison(str(error))

    def _chances(self, questions: Sequence[ComparedPair]) -> list[float]:
        prompts = [self._shown(question) for question in questions]
        first, second = [each.first for each in questions], [each.second for each in questions]
        found: list[float] = self.model.chances(prompts, first, second).tolist()
        return found

    def _shown(self, question: ComparedPair) -> Prompt:
        prompt = question.prompt
        return ({"role": "user", "content": prompt},) if self.chat and isinstance(prompt, str) else prompt


def compares(folder: str) -> bool:
    """Return whether a folder holds a preference model."""
    file = Path(folder).expanduser() / "config.json"
    return file.is_file() and TAU in json.loads(file.read_text(encoding="utf-8"))


def load_comparison(folder: str, *, chat: bool = False, device: str = "auto", dtype: str = "auto") -> ModelComparison:
    """Load the preference model in a folder; raises InputError as `load_reward_model` does, and for any other model."""
    model = load_reward_model(folder, device=device, dtype=dtype, trained=True)
    if not isinstance(model, GeneralPreferenceModel):
        raise InputError(f"{folder} holds a reward model", "a preference model compares completions", "Use its scores")
    return ModelComparison(model, chat)
