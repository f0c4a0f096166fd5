"""Evaluating what a user names: a run, a checkpoint of it, or any model; by `grouprl eval` and `grouprl.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from grouprl.config.python_objects import reference, without_object
from grouprl.config.sections import Acting, Reward, Sampling
from grouprl.config.yaml_files import read_yaml
from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.evaluation.evaluate import Evaluation
from grouprl.evaluation.evaluate import evaluate as evaluate_policy
from grouprl.evaluation.sample_and_score import Progress
from grouprl.orchestrator.chat_prompts import task_for
from grouprl.orchestrator.reward import opened_reward
from grouprl.policy import load_policy
from grouprl.policy.language.hub import folder_meant
from grouprl.policy.language.models_of import acting_for
from grouprl.policy.language.template_settings import set_defaults_of
from grouprl.policy.own_state import own_state
from grouprl.protocols import Trainable
from grouprl.rollout.engines import configured_engine, opened_engine
from grouprl.rollout.local.sampler import MakeEngine
from grouprl.tasks import Task, load_task
from grouprl.training.export import load_trained
from grouprl.view.runfiles import is_graded


def evaluate(
    source: str | Path,
    task: str | Mapping[str, object] | Task | type[Task] | Callable[..., object] | None = None,
    *,
    prompts: int | None = None,
    samples: int | None = None,
    k: Sequence[int] | None = None,
    greedy: bool | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    checkpoint: int | str | None = None,
    reward: str | Callable[..., object] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    device: str = "auto",
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Evaluation:
    """Evaluate a run or any model on held-out prompts, as `grouprl eval` does.

    Args:
        source: a run folder, or a model: a folder, a GGUF file or a Hub id.
        task: a name or a mapping with options, or a task, its class, or an environment's; None: the run's own. A model
            needs one.
        prompts: held-out prompts; None: as many as the run has at its end, else 1024.
        samples: sampled completions per prompt; None: the largest of `k`.
        k: pass@k for these k; None: the run's.
        greedy: True for greedy completions only, False for sampled ones only, None for both.
        temperature: of the sampled completions; None: the run's, else 1.
        max_new_tokens: tokens per completion; None: the run's, else the task's.
        checkpoint: the step of a checkpoint of the run, its name (`warmup-40`), or "best" (`eval.best`); None: the
            final model.
        reward: a function, `file.py:function` or the name of one; None: the run's.
        seed: of the completions; None: the run's, else 0.
        engine: the sampler; None: the run's.
        device: of a model; a run has its own.
        chat_template_kwargs: values of the chat template's variables, such as {"enable_thinking": False}, before those
            of the run (`model.chat_template_kwargs`); a conversation of the task that sets a variable keeps its own.

    Raises:
        InputError: there is no such run or model, the numbers do not fit, the template does not use a variable, or it
            shows none of the prompts.
    """
    given = cast("str | JsonObject | None", without_object("task", task))
    with own_state("grouprl.evaluate"):
        return evaluated(
            subject_of(str(source), given, checkpoint, device, engine, chat_template_kwargs),
            prompts=prompts,
            samples=samples,
            k=k,
            greedy=greedy,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            reward=reward if isinstance(reward, str | None) else reference(reward),
            seed=seed,
        )[0]


@dataclass(frozen=True)
class Subject:
    """The subject of an evaluation: a policy, a task, their name, default settings, and the reward.

    `sampling` says how turns end and continue, `acting` where environments run.
    """

    policy: Trainable
    task: Task
    title: str
    defaults: JsonObject
    reward: Reward
    sampling: Sampling
    acting: JsonObject
    engine: MakeEngine
    """Factory of the sampler."""
    graded: bool = False
    """Whether the run's records show that the reward is graded."""
    metrics: tuple[str, ...] = ()
    """Yardsticks of the run besides its reward."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """Values of the chat template's variables that were given for this evaluation."""


def subject_of(
    source: str,
    task: str | JsonObject | None,
    checkpoint: int | str | None,
    device: str,
    engine: str | None,
    template_variables: Mapping[str, object] | None = None,
) -> Subject:
    """Return what is evaluated: a run, or any model on a task; `template_variables` are its chat template's.

    Raises:
        InputError: there is no such run, checkpoint or model, a model has no task, or its template does not use a
            variable.
    """
    if (Path(source) / "config.yaml").is_file():
        found = _run(Path(source), task, checkpoint, engine)
    else:
        found = _model(source, task, checkpoint, device, engine)
    set_defaults_of(found.policy, template_variables or {})
    return replace(found, variables=template_variables or {})


def _model(
    source: str, task: str | JsonObject | None, checkpoint: int | str | None, device: str, engine: str | None
) -> Subject:
    if checkpoint is not None:
        raise InputError(f"{source} with --checkpoint", "only a run folder has checkpoints", "Leave it out")
    if source == "tiny":
        raise InputError("the model 'tiny' is untrained", "there is nothing to evaluate", "Give a folder or a Hub id")
    if task is None:
        raise InputError(
            f"{source} is not a run folder, so it is taken for a model",
            "a model is evaluated on a task",
            folder_meant(source) or f"Name one: grouprl eval {source} --task addition",
        )
    loaded = load_task(task)
    defaults = {
        "prompts": 1024,
        "samples": 1,
        "k": (1,),
        "temperature": 1.0,
        "max_new_tokens": loaded.max_new_tokens,
        "seed": 0,
    }
    policy = load_policy(source, device=device)
    loaded = task_for(loaded, policy.tokenizer)
    made_by = configured_engine(Sampling(), engine)
    return Subject(policy, loaded, source, defaults, Reward(), Sampling(), Acting().model_dump(), made_by)


def _run(run: Path, task: str | JsonObject | None, checkpoint: int | str | None, engine: str | None) -> Subject:
    trained = load_trained(run, checkpoint)
    config = trained.config
    tokenizer = getattr(trained.model, "tokenizer", None)
    requested = trained.task if task is None else task_for(load_task(task, config.seed), tokenizer)
    reward = (
        config.reward
        if task is None
        else config.reward.model_copy(update={"function": None, "judge": None, "model": None})
    )
    defaults = {
        "prompts": config.eval.final_prompts,
        "samples": config.eval.samples,
        "k": config.eval.k,
        "temperature": config.sampling.temperature,
        "max_new_tokens": config.sampling.max_new_tokens or requested.max_new_tokens,
        "seed": config.seed,
    }
    title, acting = f"{run}, {trained.when}", config.environment.model_dump()
    policy = acting_for(trained.model, requested.agents)
    made_by = configured_engine(config.sampling, engine)
    graded = task is None and is_graded(run)
    return Subject(
        policy, requested, title, defaults, reward, config.sampling, acting, made_by, graded, config.eval.metrics
    )


def task_spec(text: str | None) -> str | JsonObject | None:
    """Return a task as it is written in a configuration: a name, or "{name: addition, digits: 3}".

    Raises:
        InputError: braces that are not closed, or hold no YAML.
    """
    return cast("JsonObject", read_yaml(text, f"--task {text}")) if text and text.startswith("{") else text


def evaluated(
    subject: Subject,
    *,
    prompts: int | None = None,
    samples: int | None = None,
    k: Sequence[int] | None = None,
    greedy: bool | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    reward: str | None = None,
    seed: int | None = None,
    shown: int = 16,
    progress: Progress | None = None,
) -> tuple[Evaluation, list[str]]:
    """Return the evaluation of a subject, and notes on how it was made; see `evaluate` for the numbers."""
    given = {"prompts": prompts, "temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
    numbers = _numbers_of(subject.defaults, given, k, samples)
    if greedy is True:
        numbers["samples"] = 0
    numbers |= {"greedy": greedy is not False, "shown": shown, "progress": progress}
    _check_variables(subject, numbers["prompts"])
    scoring = subject.reward.model_copy(update={"function": reward} if reward else {})
    found, notes = _made(subject, scoring, numbers)
    return found.knowing(subject.graded and reward is None), notes


def _check_variables(subject: Subject, prompts: int) -> None:
    """Raise InputError if variables of the chat template were given and it shows none of the prompts."""
    if not subject.variables or subject.task.environment() is not None:
        return
    size = subject.task.size("eval")
    count = prompts if size is None else min(prompts, size)
    if all(isinstance(subject.task.example("eval", place).prompt, str) for place in range(count)):
        raise InputError(
            f"chat_template_kwargs is {dict(subject.variables)}, and all held-out prompts of '{subject.task.name}' are "
            "plain text",
            "a chat template shows messages",
            "Leave it out, or let the task ask by messages",
        )


def _numbers_of(defaults: JsonObject, given: JsonObject, k: Sequence[int] | None, samples: int | None) -> JsonObject:
    """Return the numbers of an evaluation: those that are given, else the run's."""
    _check_numbers(k, samples)
    numbers = {name: defaults[name] if value is None else value for name, value in given.items()}
    ks = tuple(k) if k is not None else tuple(n for n in defaults["k"] if samples is None or n <= samples)
    return {**numbers, "k": ks, "samples": samples or max(max(ks), defaults["samples"] if k is None else 1)}


def _check_numbers(k: Sequence[int] | None, samples: int | None) -> None:
    """Raise InputError for a `k` or `samples` that is not a whole number, or too small."""
    if k is not None and not (isinstance(k, list | tuple) and k and all(map(_counts, k))):
        raise InputError(f"k={shortened(k)}", "it must be a list of whole numbers, each at least 1", "Write: k=[1, 8]")
    if samples is not None and not _counts(samples):
        rule = "it must be a whole number, at least 1"
        raise InputError(f"samples={shortened(samples)}", rule, "For greedy completions alone: greedy=True")


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _made(subject: Subject, scoring: Reward, numbers: JsonObject) -> tuple[Evaluation, list[str]]:
    """Return an evaluation, and notes on how it was made; what it needs is open meanwhile."""
    acted = subject.task.environment() is not None
    stage, why_here = open_stage(subject.task, **subject.acting) if acted else (None, "")
    with (
        opened_reward(scoring, subject.task) as (scorer, notes),
        closing(stage) if stage is not None else nullcontext(),
        opened_engine(subject.engine, subject.policy) as sampler,
    ):
        found = evaluate_policy(
            subject.policy,
            subject.task,
            **numbers,
            reward=scorer if scoring.function or not acted else None,
            correct_at=scoring.correct_at,
            stop=subject.sampling.stop,
            history=subject.sampling.history,
            stage=stage,
            sampler=sampler,
            metrics=subject.metrics,
        )
    return found, [*notes, *[why_here] * bool(why_here)]
