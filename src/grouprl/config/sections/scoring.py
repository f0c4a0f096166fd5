"""The sections on rewards: functions, judges and reward models."""

from __future__ import annotations

from typing import Literal

import pydantic

from grouprl.config.sections.section import (
    Float,
    Section,
    Seed,
    Workers,
    WrittenCount,
    WrittenName,
    WrittenNonNegative,
    WrittenPositive,
    WrittenShare,
    WrittenWhole,
)
from grouprl.core.json_types import JsonObject

PROBED = 10
"""Steps between two probes of a judge."""


class Judge(Section):
    """A model behind an OpenAI-compatible endpoint that ranks the trajectories of each group, from 0 to 1, or compares
    every two (`compare`)."""

    url: str
    """Address of the endpoint with its version, such as http://127.0.0.1:8000/v1 of `grouprl serve`."""
    model: str = ""
    """The model's name there; empty: none is sent, for endpoints that serve one."""
    rubric: str = ""
    """The criteria of the judge, in words; empty: to reach the goal in fewer steps
    (`grouprl.rewards.judging.judge_text.RUBRIC`)."""
    key_env: str = "OPENAI_API_KEY"
    """Environment variable with the API key; one that is not set: no key is sent."""
    tokens: WrittenCount = 2048
    """Largest number of tokens of a reply."""
    temperature: WrittenNonNegative = 0.0
    """Temperature at which the judge samples."""
    json_schema: bool = False
    """Whether the endpoint is asked to hold the reply to its JSON schema (`response_format`)."""
    timeout: WrittenPositive = 60.0
    """Seconds of one request."""
    tries: WrittenCount = 3
    """Largest number of requests per group, if the endpoint does not answer or its reply cannot be used."""
    at_once: WrittenCount = 4
    """Groups that are judged at the same time."""
    characters: WrittenCount = 20_000
    """Characters of a trajectory; a longer one is shown without its middle."""
    seed: Seed = 0
    """Seed of the order in which trajectories are shown, and of the judge's sampling."""
    compare: bool | Literal["tournament"] = False
    """Whether two completions are compared at a time, and a completion's reward is how often it is preferred in its
    group; methods with `by: judge` read the comparisons themselves. tournament: not all pairs are compared, but those
    of two knock-out tournaments, for the best completion, whose reward is 1, and the worst, with 0; others have ½."""
    samples: WrittenCount = 1
    """Replies per pair and order, with `compare`; the judge's seed counts up."""
    both_orders: bool = True
    """Whether each pair is shown in both orders, with `compare`: a judge may prefer what it reads first."""
    probe: WrittenWhole = 4
    """Groups of the tenth step that the judge is asked about again, twice at once and then every ten steps, which shows
    whether its scores drift (`judge_drift`); the rewards stay as they are. 0: none."""
    per_minute: WrittenCount | None = None
    """Largest number of requests per minute; null: no limit."""
    cache: bool | WrittenName = True
    """Whether verdicts are kept in the run's folder, so that equal groups score alike and a resumed run pays what it
    paid before; false: the judge is asked again; a folder: they are kept there, for other runs and evaluations, too."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_line(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class ScoringModels(Section):
    """A trained reward model, or several whose scores become one reward."""

    name: str | tuple[str, ...]
    """The folder of a run that trained one, or any folder for `AutoModelForSequenceClassification` with one label; a
    list of such folders for an ensemble."""
    combine: Literal["mean", "worst", "uncertainty"] = "mean"
    """How the scores of several become one: their mean, the worst (WCO), or mean - spread·variance (UWO)."""
    spread: WrittenNonNegative = 1.0
    """The weight of the variance where `combine` is uncertainty."""
    chat: bool = False
    """Whether prompts of plain text are shown as a user's message in the reward model's chat template."""
    steps: Literal["least", "last", "mean", "product"] | None = None
    """For a process reward model: what is paid of the chances σ(score) at the ends of the steps."""
    separator: str = "\n"
    """What ends a step, with `steps`."""
    after: WrittenName | None = None
    """What ends a thought, such as `</think>`: the model scores only what follows the last one (RLMT)."""
    strict: bool = False
    """With `after`: a completion without it is scored as an empty answer, not as a whole."""
    weights: dict[str, Float] | None = None
    """For a model of several attributes: the weight of each in the reward, by name; null: their mean."""
    device: str = "auto"
    """Device of the models, such as `cpu` or `cuda:1`, whatever `model.device` is; `auto`: a GPU where torch sees one,
    else the CPU."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Type of their weights; `auto`: bfloat16 on a GPU that has it, else float32."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _names_alone(cls, value: object) -> object:
        return {"name": value} if isinstance(value, (str, list, tuple)) else value

    @property
    def names(self) -> tuple[str, ...]:
        """The folders, one or several."""
        return (self.name,) if isinstance(self.name, str) else self.name


class Reward(Section):
    """The source of the reward, and the treatment of its failures."""

    function: str | JsonObject | list[str | JsonObject] | None = None
    """A built-in name, `pkg.module:function` or `file.py:function`; None: the task's own reward. Or a mapping of one of
    these as `name` and the function's own parameters, or a list of both, each with a `weight`, for a weighted sum."""
    judge: Judge | None = None
    """A model that ranks the trajectories of each group relative to each other, in place of a function: its
    endpoint's address, or a mapping with these keys. What an environment pays is added, as to a function's reward."""
    model: ScoringModels | None = None
    """A trained reward model whose score is the reward: the folder of its run or of a model, a list of them, or a
    mapping with these keys."""
    gold: str | JsonObject | None = None
    """A reward that is measured but not paid, beside a judge or a reward model, which may err: `task` for the task's
    own, or a function as above. It is logged as the component `gold`, and says which completions are right."""
    correct_at: Float = 1.0
    """A completion counts as correct from this total reward on, unless the reward says `correct` itself."""
    rescore: WrittenWhole = 0
    """Completions of each step whose reward is computed once more, to see whether it says the same; it changes nothing
    else. Completions that were sampled twice are compared without it."""
    on_error: Literal["drop_row", "drop_group", "zero", "raise"] = "drop_group"
    """The fate of a completion whose reward or environment failed: it is left out, or its whole group, or it is worth
    0, or the run stops. A demonstration that failed is left out of the warm-up, unless the run stops."""
    max_failed_fraction: WrittenShare = 0.1
    """More failures than this share of 1024 completions (demonstrations of the warm-up count among them) stop the
    run. Prompts whose environment hung, ended its process or failed on every episode are set aside and do not count,
    unless this is 0; the run stops if most of the last 64 prompts fail in this way."""
    workers: Workers | Literal["auto"] = "auto"
    """Processes in which the reward runs, killed and replaced when they hang; 0: in the trainer's own, without a clock.
    `auto`: one per core, but none for built-in rewards that always end within microseconds. Each imports the reward
    once; what it prints is shown only when it fails."""
    timeout: WrittenPositive = 10.0
    """Seconds per completion, in workers; a reward that takes the whole batch in one call has the sum of these."""
    memory_gb: WrittenPositive = 4.0
    """Memory of a worker, in GiB."""
    self_test: bool = True
    """Whether the reward is tested on its known correct and known wrong completions before the run, and one of yours on
    a few completions of the first prompts: it is refused if it fails on all of them."""

    @property
    def replaced(self) -> str:
        """The key that names another reward than the task's own; '' if there is none."""
        given = {"function": self.function, "judge": self.judge, "model": self.model}
        return next((key for key, value in given.items() if value is not None), "")

    @pydantic.model_validator(mode="after")
    def _one_source(self) -> Reward:
        given = {"function": self.function, "judge": self.judge, "model": self.model}
        named = [key for key, value in given.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} both say what a completion is worth: leave one of them out")
        if self.gold is not None and self.judge is None and self.model is None:
            raise ValueError("gold is measured beside a judge or a model: add a function of weight 0 beside a function")
        if self.function is not None and not self.function:
            raise ValueError("an empty function names no reward: leave it out for the task's own, or name one")
        return self
