"""Checks of a run before it begins: contradictions, which rule it out, and settings that can have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING

from grouprl.algorithms.data_part import Augmentation, DataPart, SamplingRule, data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import PARTS, RunFacts
from grouprl.algorithms.references import reads_frozen
from grouprl.config.run import Config
from grouprl.config.sections import Section
from grouprl.core.errors import GrouprlError, InputError
from grouprl.core.finding import Finding, Severity
from grouprl.methods.registry import CATALOGUE
from grouprl.orchestrator.agents import APART, team_refusals
from grouprl.orchestrator.asynchronous.restrictions import async_idle, async_refusals, between_refusals
from grouprl.plan import codes
from grouprl.plan.codes import told
from grouprl.plan.memory import Cost, human, peak
from grouprl.policy.generation import end_tokens
from grouprl.policy.language.text import TextModel
from grouprl.records.examples import Example, Prompt
from grouprl.rollout.episode_rows import demonstrates, environments
from grouprl.rollout.row_source import ScoringSource
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUPPLIED = (
    *("old_bt", "behavior_bt", "ref_bt", "entropy_bt", "greedy_reward_b", "truncated_b", "correct_b", "turn_bt"),
    *("token_bt", "max_length", "rewards", "inputs", "source_b", "step", "steps", "last_entropy"),
    *("keys.answer", "keys.form", "marks.thought", "marks.span", "past.visits", "past.mean", "past.std"),
)
"""Batch fields that every run fills; `value_bt` and `return_bt` come with a critic, others with data parts."""


OF_TURNS = (
    *("turn_reward_bs", "state_bs", "valid_bs", "agent_b", "parent_b"),
    *("marks.said", "keys.ended", "keys.prompt", "keys.episode", "keys.context", "keys.caller", "keys.luck"),
)
"""Further batch fields that a run fills if its task has an environment."""


NONE_SAMPLED = "no completions"
"""The first words of `DataPart.extra_samples` where a part adds rows that it does not sample."""


class PromptEncoder(TextModel):
    """The text side of a policy: encodes prompts by the policy's rules, without a model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens of the tokenizer that end a completion."""
        return end_tokens(None, self.tokenizer)


def refusals(config: Config, method: Method, facts: RunFacts, task: Task) -> list[Finding]:
    """Return the reasons why this run cannot work; empty if it can."""
    found = [codes.PART.said(words, key=part.name) for part in method.parts() for words in part.refuse(facts)]
    found += _method_refusals(config, method, facts, found)
    found += told(codes.AHEAD, (*async_refusals(config, method), *between_refusals(config, task)))
    found += [*_task_refusals(config, task), *told(codes.AGENTS, team_refusals(config, method, task))]
    return _each_once(found)


def sampling_refusals(method: Method, facts: RunFacts, rows: type[ScoringSource]) -> Iterator[str]:
    """Say which parts of a method would sample where the task has its rows stored."""
    if rows.samples:
        return
    remedy = "but the task has its rows stored, and nothing is sampled. Take a method without it"
    if "greedy_reward_b" in method.needs():
        yield f"{method.name} compares with a greedy completion of each prompt, {remedy}"
    for part in data_parts(method.parts()):
        if isinstance(part, SamplingRule):
            yield f"{part.name} chooses how completions are sampled, {remedy}"
        elif more := _sampled_and_scored(part, facts):
            yield f"{part.name} samples {more}, {remedy}"


def own_sample_findings(method: Method, facts: RunFacts) -> Iterator[Finding]:
    """Yield a finding for each part whose formula is of completions that the policy samples, if they are stored.

    It is a refusal where the part means nothing for others, else a warning.
    """
    for part in method.of_own_samples() if facts.stored else ():
        said = f"{part.name}: {part.own_samples} for completions that the policy samples, and here they are stored"
        worth = "nothing of the formula holds for them" if part.only_own_samples else STORED_MEANS
        severity: Severity = "refusal" if part.only_own_samples else "warning"
        yield codes.OWN_SAMPLES(f"{said}: {worth}", key=part.name, severity=severity)


STORED_MEANS = (
    "likelihoods are raised and lowered by their advantages, however unlikely the policy is to write them, and nothing "
    "bounds how far they fall"
)
"""Effect of a formula for own samples on stored completions."""


def _sampled_and_scored(part: DataPart, facts: RunFacts) -> str:
    """Return in words what an augmentation samples and has scored; '' if nothing."""
    if not isinstance(part, Augmentation) or not part.scores_samples():
        return ""
    more = part.extra_samples(facts)
    return "" if more.startswith(NONE_SAMPLED) else more


def _each_once(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings without those that repeat the text of an earlier one."""
    kept: dict[str, Finding] = {}
    for each in found:
        kept.setdefault(str(each), each)
    return list(kept.values())


def prompts_of(examples: Sequence[Example], method: Method, task: Task, facts: RunFacts) -> list[Prompt]:
    """Return the prompts that the policy may see for `examples`: the task's, and those of the method's data parts."""
    parts = data_parts(method.parts())
    others = [prompt for part in parts for example in examples for prompt in part.shown(example, task, facts)]
    return [*(example.prompt for example in examples), *others]


def prompt_lengths(tokenizer: object, prompts: Sequence[Prompt]) -> tuple[list[int], list[str]]:
    """Return the number of tokens of each prompt and, if a prompt cannot be encoded, the first error."""
    encoder = PromptEncoder(tokenizer)
    try:
        return [len(encoder.encode_prompt(prompt)) for prompt in prompts], []
    except InputError as error:
        return [], [str(error)]


def without_effect(config: Config, method: Method, facts: RunFacts) -> list[Finding]:
    """Return a finding for each setting and part that can have no effect in this run."""
    if config.steps == 0:
        words = "has no effect: steps is 0, so nothing is trained by reinforcement"
        said = [f"{section}.* {words}" for section in ("batch", "optim") if _set(config, section)]
        return list(told(codes.NO_EFFECT, said))
    found = [codes.PART_NO_EFFECT(words, "", key=part.name) for part in method.parts() for words in part.idle(facts)]
    if method.name in CATALOGUE:
        given = {k: v for k, v in method.settings.items() if k in CATALOGUE[method.name].settings}
        inert = CATALOGUE[method.name].inert(given)
        words = "has no effect: with the other settings it changes nothing"
        found += told(codes.NO_EFFECT, (f"method.{name} {words}" for name in inert))
    found += told(codes.NO_EFFECT, (*async_idle(config, method), *_idle_settings(config, method, facts)))
    return _each_once(found)


def _method_refusals(config: Config, method: Method, facts: RunFacts, said: Sequence[Finding]) -> Iterator[Finding]:
    if method.on_policy and facts.updates_per_rollout > 1:
        yield codes.ONE_UPDATE(
            f"{method.name} is only correct with one update per rollout, but batch.minibatches × batch.epochs"
            f"{' × phases of update' * (method.phases > 1)} is {facts.updates_per_rollout}",
            f"Set both to 1{' and leave out the part update' * (method.phases > 1)}",
        )
    needs = method.needs()
    if "ref_bt" in needs and not facts.has_reference and not any("reference" in str(found) for found in said):
        words = f"{method.name} compares with a reference model, but model.reference is none"
        yield codes.REFERENCE(words, "Set it to auto or initial")
    for name in needs:
        if not supplied(name, method, facts):
            yield codes.FIELD.said(f"{method.name} reads batch.{name}, which {_absent(name)}", key=f"batch.{name}")


def supplied(name: str, method: Method, facts: RunFacts) -> bool:
    """Return whether a run of `method` fills the batch field `name`."""
    turns = OF_TURNS if facts.environment else ()
    critic = ("value_bt", "return_bt") if method.critic is not None else ()
    versions = ("version_bt",) if facts.async_steps else ()
    offered = [field for part in data_parts(method.parts()) for field in part.supplies()]
    phrases = ("marks.plan",) if any(getattr(part, "phrases", ()) for part in method.parts()) else ()
    whole, _, _ = name.partition(".")
    said = whole == "stats" or (whole == "rewards" and not _fillers(name))  # the reward names its own components
    named = whole == "refs" and name.partition(".")[2] in method.references()
    return said or named or name in (*SUPPLIED, *turns, *critic, *versions, *offered, *phrases)


def _absent(name: str) -> str:
    """Say why a batch field is missing, and which data parts would fill it."""
    found = _fillers(name)
    if not found or "." not in name:
        return "a run of single completions does not have"
    return f"no part of it fills. Add {' or '.join(found)}"


def _fillers(name: str) -> list[str]:
    """Return the data parts that fill a batch field."""
    classes = [cls for stage in PARTS.values() for cls in stage.values() if issubclass(cls, DataPart)]
    return [f"{part.kind}: {part.name}" for part in map(_as_it_is, classes) if part and name in part.supplies()]


def _as_it_is(kind: type[DataPart]) -> DataPart | None:
    """Return a part with default settings; None if a setting has no default."""
    settings: tuple[Field[object], ...] = fields(kind) if is_dataclass(kind) else ()
    return None if any(each.default is MISSING for each in settings) else kind()


def _task_refusals(config: Config, task: Task) -> Iterator[Finding]:
    for split, use in (("train", "there must be something to learn from"), ("eval", "progress is measured on them")):
        if task.size(split) == 0:  # type: ignore[arg-type]
            kind = "training" if split == "train" else "held-out"
            yield codes.NO_PROMPTS(f"the task '{task.name}' has no {kind} prompts: {use}", "Give it more prompts")
    if config.warmup.steps and task.size("train") != 0 and not _demonstrates(task):
        words = f"warmup.steps is {config.warmup.steps}, but the task '{task.name}' has no demonstrations to imitate"
        yield codes.NO_DEMONSTRATIONS(words, "Set warmup.steps to 0")


def _demonstrates(task: Task) -> bool:
    acted = environments(task) is not None
    if acted:
        return demonstrates(task)
    try:
        return task.demonstration(task.example("train", 0), 0) is not None
    except GrouprlError:
        raise
    except Exception:  # reward.on_error decides whether a failure is left out of the warm-up or ends it
        return True


def too_large(costs: Sequence[Cost], free: int | None, device: str) -> list[str]:
    """Refuse a run that needs more memory than is free, with the largest entry and what lowers it."""
    if not costs or free is None or peak(costs) <= free:
        return []
    largest = max(costs, key=lambda cost: cost.bytes)
    return [
        f"the run needs about {human(peak(costs))} of memory, and {human(free)} are free on {device}; the largest part "
        f"is '{largest.what}' with {human(largest.bytes)} ({largest.how}). {LESS.get(largest.what, LESS_MODEL)}"
    ]


LESS = {
    "rollout cache": "Lower batch.prompts, batch.group_size or sampling.max_new_tokens",
    "activations of a pass": "Lower batch.tokens_per_microbatch, or set model.checkpointing: on; on a GPU: offload",
}
LESS_MODEL = "Take a smaller model, model.lora, or a smaller model.dtype"
"""Remedies that lower each entry of the memory estimate."""


def room(
    positions: int | None, longest_prompt: int, max_new_tokens: int, more: int = 0, example: str = ""
) -> list[str]:
    """Refuse completions that do not fit after the longest prompt, with `more` tokens that a part appends to them.

    `example` is the name of the example with the longest prompt.
    """
    needed = longest_prompt + max_new_tokens + more
    if positions is None or needed <= positions:
        return []
    added = f", and {more} more where thoughts are cut short and an answer is forced," if more else ""
    fits = max_new_tokens - needed + positions
    which = f" (prompt {example!r})" if example else ""
    remedy = f"Lower sampling.max_new_tokens to {fits} or less" if fits > 0 else "Shorten it"
    return [
        f"a prompt of {longest_prompt} tokens{which} and completions of up to {max_new_tokens}{added} need {needed} "
        f"positions, but the model has {positions}. {remedy}, or give the model more positions"
    ]


def _idle_settings(config: Config, method: Method, facts: RunFacts) -> Iterator[str]:
    warmup, optim, evaluation = config.warmup, config.optim, config.eval
    if not warmup.steps:
        yield from (
            f"warmup.{name} has no effect: warmup.steps is 0" for name in sorted(_set(config, "warmup") - {"steps"})
        )
    if optim.schedule == "constant" and "min_lr_ratio" in optim.model_fields_set:
        yield "optim.min_lr_ratio has no effect: with optim.schedule constant the learning rate never falls"
    if optim.warmup_steps >= config.steps:
        yield (
            f"optim.lr is never reached: optim.warmup_steps is {optim.warmup_steps} and the run has "
            f"{config.steps} steps"
        )
    if method.cuts_rows and "minibatches" in config.batch.model_fields_set:
        yield f"batch.minibatches has no effect: {method.name} takes single actions, and method.size says how many"
    if not evaluation.every and "prompts" in evaluation.model_fields_set:
        yield "eval.prompts has no effect: eval.every is 0, and before and after training final_prompts are used"
    if evaluation.every >= config.steps and "every" in evaluation.model_fields_set:
        yield f"eval.every has no effect: the run ends after {config.steps} steps, when it is evaluated anyway"
    yield from _idle_model_settings(config, method)
    yield from _idle_sampling(config)
    if config.model.agents in APART and facts.agents == 1:
        yield f"model.agents {config.model.agents} has no effect: the task has one agent"
    if not facts.environment and "history" in config.sampling.model_fields_set:
        yield "sampling.history has no effect: the task has a single turn"
    if config.reward.on_error == "raise" and "max_failed_fraction" in config.reward.model_fields_set:
        yield "reward.max_failed_fraction has no effect: with reward.on_error raise the first failure stops the run"
    if config.reward.workers == 0:
        idle = _set(config, "reward") & {"timeout", "memory_gb"}
        yield from (
            f"reward.{name} has no effect: with reward.workers 0 nothing can be stopped" for name in sorted(idle)
        )


def _idle_model_settings(config: Config, method: Method) -> Iterator[str]:
    model, read = config.model, reads_frozen([*method.parts()])
    if model.name != "tiny" and "tiny" in model.model_fields_set:
        yield f"model.tiny has no effect: the model is {model.name}"
    if model.reference == "initial" and not read:
        yield f"model.reference initial only costs memory and time: {method.name} never reads it (kl_ref is logged)"
    if model.reference == "none" and not read:
        yield f"model.reference none has no effect: {method.name} needs no reference, so auto keeps none"


def _idle_sampling(config: Config) -> Iterator[str]:
    sampling = config.sampling
    if sampling.top_k == 1:
        yield (
            "all completions of a group are the same: sampling.top_k is 1, so nothing can be learnt from comparing them"
        )
        if sampling.top_p < 1:
            yield "sampling.top_p has no effect: sampling.top_k is 1"


def _set(config: Config, section: str) -> set[str]:
    part: Section = getattr(config, section)
    return set(part.model_fields_set)
