"""Reward models as the reward of a run: one, or several that are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from grouprl.core.errors import InputError, suggest
from grouprl.orchestrator.encoder_scorer import EncoderScorer, is_encoder, load_encoder
from grouprl.policy.language.columns.several_scores import AttributeModel, GeneralPreferenceModel
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel
from grouprl.records.examples import Prompt
from grouprl.rewards.contract import Columns
from grouprl.rewards.judging.judge import PLACE
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward

if TYPE_CHECKING:
    from torch import Tensor

Combine = Literal["mean", "worst", "uncertainty"]
OfSteps = Literal["least", "last", "mean", "product"]


@dataclass(frozen=True)
class ModelReward(VerdictReward):
    """A reward that is the score of a reward model, or of several that were trained with different seeds.

    With several models it is their mean, the worst of their scores (WCO), or mean - spread·variance (UWO), as in
    "Reward Model Ensembles Help Mitigate Overoptimization" (arXiv:2310.02743); the variance is the unbiased one.

    Args:
        models: the reward models.
        combine: how several scores become one.
        spread: the weight of the variance.
        chat: whether a prompt of plain text is shown to the models as a user's message, in their chat template.
        steps: for process reward models, what of the chances σ(score) at the ends of the steps is paid; None: the score
            of the whole completion.
        separator: what ends a step.
        after: what ends a thought: only the text after the last one is scored ("Language Models that Think, Chat
            Better"); None: the whole completion.
        strict: whether a completion without `after` is scored as an empty answer, instead of as a whole.
        weights: for a model of several attributes, the weight of each in the reward, 0 for those that are left out;
            None: their mean.

    Raises:
        InputError: several scores of a single model are to be combined, `strict` without `after`, or weights of
            attributes that the model does not have.
    """

    models: tuple[RewardModel | EncoderScorer, ...]
    combine: Combine = "mean"
    spread: float = 1.0
    chat: bool = False
    steps: OfSteps | None = None
    separator: str = "\n"
    after: str | None = None
    strict: bool = False
    weights: Mapping[str, float] | None = None
    sees_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if len(self.models) < 2 and self.combine != "mean":
            raise InputError(
                f"reward.model.combine is {self.combine}",
                "it tells how the scores of several reward models become one, and there is one",
                "Leave it out, or name several folders",
            )
        if self.strict and self.after is None:
            raise InputError(
                "reward.model.strict is on without reward.model.after",
                "it says what a completion without the end of its thought is worth",
                "Set after, e.g. </think>, or leave strict out",
            )
        if self.weights is not None:
            known = () if self._attributes is None else self._attributes.columns.names
            for name in self.weights:
                if name not in known:
                    raise InputError(
                        f"reward.model.weights names '{name}'",
                        f"the model scores {', '.join(known)}"
                        if known
                        else "it is not one model of several attributes",
                        suggest(name, known) if known else "Leave weights out",
                    )

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the score of each completion after its prompt, which stands in the columns (see `placed`).

        A completion that a model cannot read, such as one that is too long, has failed.
        """
        prompts = [self._shown(each[PLACE].prompt if PLACE in each else "") for each in columns]
        answers = [self._answer(each) for each in completions]
        try:
            return self._together(prompts, answers, terms)
        except InputError:
            return [self._alone(*row, terms) for row in zip(prompts, answers, strict=True)]

    def _alone(self, prompt: Prompt, completion: str, terms: Terms) -> Verdict:
        try:
            return self._together([prompt], [completion], terms)[0]
        except InputError as error:
            return Verdict("bad_value", what=str(error))

    def _together(self, prompts: Sequence[Prompt], completions: Sequence[str], terms: Terms) -> list[Verdict]:
        """Return a verdict on each completion; a model of several attributes names the score of each."""
        if self._attributes is None:
            return [self._verdict(score_m, terms) for score_m in self._scores(prompts, completions).unbind(1)]
        found = self._attributes.attributes_of(prompts, completions)
        names, value_bn = list(found), torch.stack([x.double().cpu() for x in found.values()], 1)
        weight_n = torch.tensor([self._weight(name, len(names)) for name in names], dtype=torch.float64)
        return [
            self._verdict((weight_n * value_n).sum()[None], terms, dict(zip(names, value_n.tolist(), strict=True)))
            for value_n in value_bn
        ]

    @property
    def _attributes(self) -> AttributeModel | None:
        """The model, if there is one and it scores several attributes."""
        (first, *others) = self.models
        return first if isinstance(first, AttributeModel) and not others and self.steps is None else None

    def _weight(self, name: str, count: int) -> float:
        """Return the weight of an attribute: the same for all, unless weights are given."""
        return 1 / count if self.weights is None else self.weights.get(name, 0.0)

    def _scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> Tensor:
        """Return [M,B] the scores by each model."""
        if self.steps is not None:
            return self._of_steps(self.steps, prompts, completions)
        found = [model.scores_of(prompts, completions) for model in self.models]
        return torch.stack([score_b.double().cpu() for score_b in found])

    def _of_steps(self, steps: OfSteps, prompts: Sequence[Prompt], completions: Sequence[str]) -> Tensor:
        """Return [M,B] what `steps` says of the chances at the ends of each completion's steps."""
        each = [steps_of(text, self.separator) for text in completions]
        shown = [prompt for prompt, texts in zip(prompts, each, strict=True) for _ in texts]
        whole = ModelReward(self.models, self.combine if len(self.models) > 1 else "mean", self.spread)
        score_ms = whole._scores(shown, [text for texts in each for text in texts])
        parts = score_ms.sigmoid().split([len(texts) for texts in each], dim=1)
        return torch.stack([reduced(part_ms, steps) for part_ms in parts], dim=1)

    def _verdict(self, score_m: Tensor, terms: Terms, attributes: Mapping[str, float] | None = None) -> Verdict:
        total = float(combined(score_m, self.combine, self.spread))
        if not bool(score_m.isfinite().all()):
            return Verdict("bad_value", what=f"a reward model gave scores that are not finite: {score_m.tolist()}")
        several = len(self.models) > 1
        parts = {"ensemble_mean": float(score_m.mean()), "ensemble_std": float(score_m.std())} if several else {}
        parts |= attributes or {}
        return Verdict("ok", total, parts, total >= terms.correct_at, graded=terms.correct_at == 1.0)

    def _answer(self, completion: str) -> str:
        """Return the text that the models score: what follows the thought, without the blanks around it."""
        if self.after is None:
            return completion
        _, end, answer = completion.rpartition(self.after)
        if end:
            return answer.strip()
        return "" if self.strict else completion

    def _shown(self, prompt: Prompt) -> Prompt:
        return ({"role": "user", "content": prompt},) if self.chat and isinstance(prompt, str) else prompt


def steps_of(text: str, separator: str) -> list[str]:
    """Return the text up to the end of each step, including the separator after it; a text without steps is one."""
    steps = [step for step in text.split(separator) if step]
    return ["".join(step + separator for step in steps[: end + 1]) for end in range(len(steps))] or [text]


def reduced(chance_ms: Tensor, steps: OfSteps) -> Tensor:
    """Return [M] of the chances [M,S] of S steps: the least, the last, the mean or the product."""
    if steps == "last":
        return chance_ms[:, -1]
    if steps == "least":
        return chance_ms.amin(1)
    return chance_ms.mean(1) if steps == "mean" else chance_ms.prod(1)


def combined(score_m: Tensor, combine: Combine, spread: float) -> Tensor:
    """Return one score of M: their mean, the worst, or mean - spread·variance (the unbiased one)."""
    if combine == "worst":
        return score_m.min()
    return score_m.mean() - spread * score_m.var() if combine == "uncertainty" else score_m.mean()


def load_model_reward(
    names: Sequence[str],
    *,
    combine: Combine = "mean",
    spread: float = 1.0,
    chat: bool = False,
    steps: OfSteps | None = None,
    separator: str = "\n",
    after: str | None = None,
    strict: bool = False,
    weights: Mapping[str, float] | None = None,
    device: str = "auto",
    dtype: str = "auto",
) -> ModelReward:
    """Load the reward models in folders, each that of a run or any with a head for one label, or for attributes.

    Raises:
        InputError: a folder holds no such model, its padding token, tokenizer or chat template does not fit, or it
            holds a preference model, which scores nothing alone (`load_comparison`).
    """
    models = tuple(_scorer(model_folder(name), device, dtype) for name in dict.fromkeys(names))
    for name, model in zip(dict.fromkeys(names), models, strict=True):
        if chat and not getattr(model.tokenizer, "chat_template", None):
            raise InputError(
                f"reward.model.chat is on, and the tokenizer of {name} has no chat template",
                "a prompt is shown in the template of the reward model's tokenizer",
                "Leave it out",
            )
    return ModelReward(models, combine, spread, chat, steps, separator, after, strict, weights)


def _scorer(spec: str, device: str, dtype: str) -> RewardModel | EncoderScorer:
    if is_encoder(spec):
        return load_encoder(spec, device=device, dtype=dtype)
    model = load_reward_model(spec, device=device, dtype=dtype, trained=True)
    if isinstance(model, GeneralPreferenceModel):
        raise InputError(
            f"{spec} is a preference model",
            "it compares completions and gives none a score of its own",
            "Load it with load_comparison of grouprl.orchestrator.compared_reward",
        )
    return model


def model_folder(name: str) -> str:
    """Return the folder of a run's final model, or the name itself for any other model."""
    run = Path(name).expanduser()
    if (run / "config.yaml").is_file() and not (run / "model").is_dir():
        raise InputError(f"The run {run} has no final model yet", "a reward model is the final one of its run")
    return str(run / "model") if (run / "config.yaml").is_file() else name
