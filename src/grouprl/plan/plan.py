"""The plan of a run: everything resolved and checked before a step is taken.

`grouprl plan` prints it; training makes the same plan first and refuses to start where it has refusals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.stage_checks import BrokenContract
from grouprl.config.rates import default_rate
from grouprl.config.run import Config
from grouprl.core.display_nouns import worded
from grouprl.core.errors import InputError
from grouprl.core.finding import Finding
from grouprl.core.json_types import JsonObject
from grouprl.evaluation.sample_and_score import example_text
from grouprl.methods.check import fault_of_own_parts
from grouprl.orchestrator.asynchronous.restrictions import async_explanations
from grouprl.orchestrator.chat_prompts import resolve_new
from grouprl.orchestrator.policy_compatibility import kind_refusals
from grouprl.orchestrator.rank_refusals import rank_refusals
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan import codes
from grouprl.plan.best_measure import (
    best_refusals,
    best_warnings,
    check_best,
    idle_yardsticks,
    unknown_component,
)
from grouprl.plan.checks import (
    own_sample_findings,
    refusals,
    sampling_refusals,
    without_effect,
)
from grouprl.plan.codes import told
from grouprl.plan.components import component_refusals
from grouprl.plan.disk import disk_notes
from grouprl.plan.forward_plan import (
    PassChoice,
    pass_choices,
    pass_refusals,
    precision_notes,
    precision_of,
)
from grouprl.plan.gold_answers import formula_notes, gold_refusals
from grouprl.plan.judge_notes import judge_idle, judge_notes, judge_refusals
from grouprl.plan.length_estimates import LOOKED_AT, Lengths, first_examples, lengths_of, needed_by
from grouprl.plan.memory import Arithmetic, Cost, human, peak
from grouprl.plan.model_facts import ModelFacts, read_model
from grouprl.plan.placing import placing_plan, ranks_meant
from grouprl.plan.remarks import remarks
from grouprl.plan.sampling_servers import server_idle, server_notes, server_refusals
from grouprl.plan.setting_sources import Setting, config_settings, method_settings
from grouprl.plan.try_reward import RewardTrial, try_reward
from grouprl.policy.language.call_syntax import call_syntax
from grouprl.policy.optimizers import check_optimizer
from grouprl.rewards.judging.comparing import comparing, judges_groups
from grouprl.rollout.prompt_stream import prompt_count
from grouprl.rollout.rescoring import rescore_refusals
from grouprl.tasks import Example, Task
from grouprl.tasks.questions import QuestionTask
from grouprl.trackers.choice import chosen_tracker


@dataclass(frozen=True)
class StageLine:
    """One part of the method, in words and in symbols."""

    kind: str
    part: str
    words: str
    formula: str


@dataclass(frozen=True, repr=False)
class Plan:
    """A resolved run, which can start if there are no refusals."""

    config: Config
    task: str
    example: str
    shown_as: str
    """The form in which the prompt is put to the model, and the reason; "" if there is no prompt of text."""
    solution: str
    method: Method
    base: str
    model: ModelFacts | None
    batch: Arithmetic
    extra_samples: tuple[str, ...]
    """Completions and rows in addition to those of `batch`, one line per part."""
    costs: tuple[Cost, ...]
    pass_choices: tuple[PassChoice, ...]
    """Choices of how rows are passed through the model."""
    stages: tuple[StageLine, ...]
    formula: str
    settings: tuple[Setting, ...]
    method_settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]
    """Everything that speaks against the run or needs attention, each with a code (`docs/codes.md`)."""
    actions: bool = False
    """Whether the policy takes actions instead of writing tokens."""
    actions_per_step: int | None = None
    """Actions of each environment in a step of training, if its episode continues in the next."""
    graded: bool = False
    """Whether a trial showed that the reward is graded: it gave a score other than 0 and 1."""
    gathered: int = 0
    """Numbers of layers that a process gathers at a time where several divide the model; 0 for an unknown model."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons why the run cannot work, a few sentences each; what several checks find is told once."""
        return tuple(dict.fromkeys(str(found) for found in self.findings if found.severity == "refusal"))

    @property
    def idle(self) -> tuple[str, ...]:
        """The settings and parts that have no effect."""
        return tuple(str(found) for found in self.findings if found.code in codes.EFFECTS)

    @property
    def notes(self) -> tuple[str, ...]:
        """All other findings: warnings and notes."""
        rest = (found for found in self.findings if found.code not in codes.EFFECTS and found.severity != "refusal")
        return tuple(map(str, rest))

    @property
    def peak(self) -> int | None:
        """The estimated peak memory in bytes; None for an unknown model."""
        return peak(self.costs) if self.costs else None

    def raise_if_refused(self) -> None:
        """Raise InputError with every reason why the run cannot work."""
        if len(self.refusals) == 1:
            raise InputError(self.refusals[0])
        if self.refusals:
            raise InputError("this run cannot work:" + "".join(f"\n  • {reason}" for reason in self.refusals))

    def short(self) -> list[str]:
        """Return the plan in a few lines, as training prints it."""
        batch, size = self.batch, "" if self.model is None else f" ({human(self.model.parameters, '')} parameters)"
        memory_line = "" if self.peak is None else f", about {human(self.peak)} of memory"
        lines = [
            f"{self.task} · {self.config.model.name}{size} · {self.config.method_label}",
            f"{batch.steps} steps of {batch.prompts} prompts × {batch.group_size} completions = "
            f"{batch.completions} completions, "
            f"{'' if batch.whole_rows else 'at most '}{batch.updates_per_rollout} optimiser "
            f"step{'s' if batch.updates_per_rollout != 1 else ''} each{memory_line}",
        ]
        lines += [f"note: {sentence}" for sentence in (*self.idle, *self.notes)]
        return [self.worded(line) for line in lines]

    def __repr__(self) -> str:
        """Return the plan in a few lines, with what rules the run out; `as_data` has all of it."""
        return "\n".join([*self.short(), *(f"this run cannot work: {reason}" for reason in self.refusals)])

    def _repr_markdown_(self) -> str:
        """Return the plan as a notebook shows it: its lines, the objective and the parts."""
        parts = "\n".join(f"| {self.worded(each.kind)} | `{each.part}` | {each.words} |" for each in self.stages)
        lines = "\n".join(f"- {line}" for line in self.short())
        refused = "".join(f"\n\n**This run cannot work:** {reason}" for reason in self.refusals)
        return (
            f"{lines}{refused}\n\n`{self.formula}`\n\n| stage | part | what it does |\n| --- | --- | --- |\n{parts}\n"
        )

    def worded(self, text: str) -> str:
        """Return a text with the nouns of this policy: completions and tokens, or episodes and actions."""
        return worded(text, actions=self.actions)

    def as_data(self) -> JsonObject:
        """Return the whole plan as plain data."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("config", "method")]
        data = {name: _plain(getattr(self, name)) for name in (*names, "refusals", "idle", "notes")}
        return data | {"config": self.config.model_dump(mode="json"), "method": self.method.name, "peak": self.peak}


def plan(run: Config | ResolvedRun, *, elsewhere: bool = False) -> Plan:
    """Resolve a configuration, unless it is resolved already, and check it.

    A run that is planned for `elsewhere` needs no weights on this machine.

    Raises:
        InputError: an unknown method, task, reward or model, or options that do not fit them. Contradictions between
            things that exist are `refusals` of the plan instead, so that all of them can be shown.
    """
    run = run if isinstance(run, ResolvedRun) else resolve_new(run)
    _check_names(run)
    model, tokenizer = read_model(run, described=elsewhere)
    requested_precision = run.config.model.precision
    if model is not None and not list(pass_refusals(run.config, model)):
        run = run.with_precision(precision_of(run.config, model).precision)
    config, task, method, facts = run.config, run.task, run.method, run_facts(run)
    if tokenizer is not None:
        call_syntax(tokenizer, config.sampling.tool_calls)
    placing, requested = placing_plan(run), first_examples(task)
    lengths = lengths_of(run, facts, requested, model, tokenizer)
    needed = needed_by(run, facts, lengths, model, described=elsewhere)
    (faults, doubts), trial = _own_parts(method), _trial(run)
    first, rate = requested[0] if requested else None, default_rate(config.model)
    return Plan(
        config=config,
        task=config.task_name,
        example=example_text(first) if first else "",
        shown_as=_shown_as(run, first),
        solution=(task.solution(first) or "") if first else "",
        method=method,
        base=run.resolved.base,
        model=model,
        batch=needed.batch,
        extra_samples=tuple(_extra_sampling(method, facts)),
        costs=needed.costs,
        gathered=needed.gathered,
        pass_choices=pass_choices(config, model, needed.batch),
        stages=tuple(StageLine(p.kind, p.name, p.words(), p.formula()) for p in method.parts()),
        formula=objective(method),
        settings=tuple(config_settings(config, (), {"optim.lr": (rate.lr, rate.source)})),
        method_settings=tuple(method_settings(run.resolved)),
        findings=(
            *_ruled_out(run, facts, requested, model, lengths),
            *told(codes.REWARD_TRIAL, trial.refusals),
            *told(codes.FIELD, component_refusals(run, trial, requested)),
            *told(codes.BEST, unknown_component(run, trial, requested)),
            *told(codes.CLUSTER, placing.refusals),
            *needed.refusals,
            *told(codes.OWN_PART, faults),
            *without_effect(config, method, facts),
            *told(codes.NO_EFFECT, (*judge_idle(config), *server_idle(run), *placing.idle, *lengths.idle)),
            *remarks(run, model, tokenizer),
            *told(codes.PRECISION, () if model is None else precision_notes(config, model, requested_precision)),
            *told(codes.AHEAD, async_explanations(config, method, facts.environment, run.row_kind.whole), "note"),
            *told(codes.GOLD_ANSWER, formula_notes(run.reward, run.task), "note"),
            *told(codes.JUDGE, judge_notes(config, method, task.size("eval"), environment=facts.environment), "note"),
            *told(codes.REWARD_TRIAL, trial.notes, "note"),
            *told(codes.SAMPLING_SERVER, server_notes(run), "note"),
            *told(codes.CLUSTER, placing.notes, "note"),
            *told(codes.PROMPTS, lengths.notes, "note"),
            *told(codes.BEST, best_warnings(config, method, run.reward), "warning"),
            *told(codes.RUN_FOLDER, disk_notes(config, model), "warning"),
            *needed.notes,
            *told(codes.OWN_PART, doubts, "note"),
        ),
        actions=not run.row_kind.text,
        actions_per_step=task.actions_per_step,
        graded=trial.graded,
    )


def _check_names(run: ResolvedRun) -> None:
    """Report things that the configuration names and that do not exist, before models are read."""
    check_best(run)
    _ = run.reward, run.engine
    check_optimizer(run.config.optim)
    for tracker in run.config.run.trackers:
        chosen_tracker(tracker)


def _shown_as(run: ResolvedRun, example: Example | None) -> str:
    """Return how a prompt is put to the model, and which rule or setting says so; "" for an environment's."""
    if example is None or not example.prompt or run.row_kind.acts:
        return ""
    if run.chat_decided:
        return "a user's message, as the model has a chat template (chat: false among the task's options: plain text)"
    if not isinstance(example.prompt, str):
        return "chat messages"
    plain = isinstance(run.task, QuestionTask) and run.task.plain_by_default
    return "plain text" + " (chat: true among the task's options: a user's message)" * plain


def _ruled_out(
    run: ResolvedRun, facts: RunFacts, requested: Sequence[Example], model: ModelFacts | None, lengths: Lengths
) -> Iterator[Finding]:
    """Yield the reasons why the run cannot work that follow from its settings, method, task and prompts."""
    config, task, ranks = run.config, run.task, ranks_meant(run)
    yield from told(codes.POLICY_KIND, kind_refusals(run))
    yield from told(codes.SEVERAL_PROCESSES, rank_refusals(run, ranks) if ranks > 1 else ())
    yield from told(codes.ROWS, run.row_kind.refusals(config, task, requested))
    yield from told(codes.ROWS, sampling_refusals(run.method, facts, run.row_kind))
    yield from own_sample_findings(run.method, facts)
    yield from told(codes.ROWS, rescore_refusals(config, run.row_kind))
    yield from told(codes.ROWS, _unrecorded(run))
    yield from told(codes.ROWS, idle_yardsticks(run))
    yield from refusals(config, run.method, facts, task)
    yield from told(codes.GOLD_ANSWER, gold_refusals(run.reward, task))
    yield from told(codes.JUDGE, judge_refusals(config, run.method))
    yield from told(codes.BEST, best_refusals(config, run.reward, environment=facts.environment))
    yield from told(codes.SAMPLING_SERVER, server_refusals(run, lengths.longest + lengths.behind))
    yield from told(codes.PROMPTS, lengths.refusals)
    yield from told(codes.PASSES, pass_refusals(config, model))


def _unrecorded(run: ResolvedRun) -> Iterator[str]:
    """Say why the numbers of updates cannot be recorded (`run.record_updates`)."""
    if run.scores and run.config.run.record_updates != "none":
        yield "run.record_updates: a reward model has scores, and no log-probs of tokens. Leave it out"


def _trial(run: ResolvedRun) -> RewardTrial:
    """Return the result of trying the run's reward; an empty one if rewards are stored."""
    return try_reward(run.config.reward, run.reward, run.task) if run.row_kind.samples else RewardTrial()


def _own_parts(method: Method) -> tuple[list[str], list[str]]:
    """Return refusals of the user's own parts, and doubts about them that a small batch raised."""
    fault = fault_of_own_parts(method)
    if fault is None:
        return [], []
    if isinstance(fault, BrokenContract):
        return [str(fault)], []
    return [], [f"tried on a small batch, {fault}"]


def _extra_sampling(method: Method, facts: RunFacts) -> Iterator[str]:
    """Say, part by part, which completions a method samples in addition to those of a rollout."""
    if method.greedy_baseline:
        yield f"greedy baseline: {facts.prompts} greedy completions per rollout, as baselines"
    for part in data_parts(method.parts()):
        if said := part.extra_samples(facts):
            yield f"{part.name}: {said}"


def run_facts(run: ResolvedRun) -> RunFacts:
    """Return the facts of the run that the parts of its method may read."""
    config, task, method = run.config, run.task, run.method
    size, count = task.size("train"), prompt_count(task, config.data.prompts)
    return RunFacts(
        updates_per_rollout=run.updates_per_rollout,
        group_size=config.batch.group_size,
        has_reference=run.needs_reference,
        named_reference=bool(run.guides),
        stored=not run.row_kind.samples,
        exact_sampler=run.exact and not config.run.async_steps and not (method.sampling and method.sampling.mixes),
        rounded=run.rounded,
        async_steps=config.run.async_steps,
        fresh_old=not config.run.async_steps or config.run.proximal == "recompute",
        max_length=run.max_new_tokens * task.max_turns,
        prompts=config.batch.prompts,
        steps=config.steps,
        examples=count,
        demonstrations=size != 0 and task.solution(task.example("train", 0)) is not None,
        forms=len(task.forms),
        alphabet=task.alphabet or "",
        kinds=_kinds(task, count),
        variants=None if size == 0 else len(task.variants(task.example("train", 0))),
        vectors=task.tells_vectors,
        cases=task.cases,
        environment=run.row_kind.acts,
        turns=task.max_turns,
        agents=len(task.agents),
        compares=comparing(run.reward) is not None,
        judges_groups=judges_groups(run.reward),
    )


def _kinds(task: Task, count: int | None) -> dict[str, int]:
    """Count the values of 'level' and of each column in a few prompts, spread over all `count` if there is an end."""
    places = range(LOOKED_AT) if count is None else range(0, count, max(1, -(-count // LOOKED_AT)))
    examples = [task.example("train", place) for place in places]
    names = set.intersection(*(set(q.columns) for q in examples)) if examples else set()
    found = {name: len({str(q.columns[name]) for q in examples}) for name in sorted(names)}
    return {"level": len({q.level for q in examples}), **found}


def objective(method: Method) -> str:
    """Combine the parts' formulas into the loss that is minimised."""
    extra = "".join(f"  {term.formula()}" for term in method.regularize)
    weight = "w_t · " * bool(method.token_weight) + "".join(f"{gate.formula()} · " for gate in method.token_gate)
    inner = f"[ {weight}ℓ_t{extra} ]" if extra or weight else "ℓ_t"
    critic = f",   with the critic's own loss {method.critic.formula()}" if method.critic is not None else ""
    return f"L = {method.aggregate.formula()} {inner},   ℓ_t = {method.objective.formula()}{critic}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in dataclasses.asdict(value).items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)
