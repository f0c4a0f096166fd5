"""Findings of a plan that need attention, apart from refusals and settings without effect."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.references import scored_followers, scores_against_frozen
from grouprl.config.rates import kind_of_model, rate_warnings
from grouprl.config.run import Config
from grouprl.core.finding import Finding
from grouprl.envs.environment_pool_choice import automatic
from grouprl.evaluation.sample_and_score import example_text
from grouprl.methods.recorded_evidence import shown
from grouprl.methods.registry import CATALOGUE
from grouprl.orchestrator.policy_compatibility import kind_notes
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.plan import codes
from grouprl.plan.codes import told
from grouprl.plan.components import component_notes
from grouprl.plan.length_estimates import LOOKED_AT
from grouprl.plan.model_facts import ModelFacts
from grouprl.policy.kinds import policy_kind
from grouprl.policy.language.tokenizer_checks import unused_ids
from grouprl.processes.usage import core_count, free_memory
from grouprl.rollout.engines import LOCAL, ChosenEngine
from grouprl.rollout.prompt_stream import prompt_count
from grouprl.tasks import Task

COLDEST, HOTTEST = 0.01, 100.0
"""Temperatures that turn a difference of 1 between two logits into one of 100 nats, and of 0.01 nats."""


def remarks(run: ResolvedRun, model: ModelFacts | None, tokenizer: object) -> Iterator[Finding]:
    """Yield what is doubtful about the method, the task, the model and the settings."""
    if model is not None:
        yield from told(codes.ADDED_TOKENS, unused_ids(tokenizer, model.vocabulary))
    yield from told(codes.METHOD_SETTINGS, run.resolved.warnings, "warning")
    yield from told(codes.METHOD_SETTINGS, run.resolved.notes, "note")
    yield from told(codes.REFERENCE, _reference(run), "note")
    yield from _repeats(run.config, run.task)
    yield from _temperature(run.config.sampling.temperature)
    yield from _evidence(run.resolved.base)
    yield from told(codes.POLICY_KIND, kind_notes(run), "note")
    yield from told(codes.METHOD_SETTINGS, component_notes(run), "note")
    yield from _model(run, model)
    yield from _settings(run.config, run.task)
    yield from _engine(run.engine)
    yield from told(codes.WORKERS, _workers(run), "note")


def _reference(run: ResolvedRun) -> Iterator[str]:
    """Say which weights a loss of preferences compares the policy with."""
    steps = run.config.warmup.steps
    begun = f"the model that the run begins with{f' after {steps} warm-up steps' if steps else ''}"
    for name, rule in scored_followers(run.method.parts()).items():
        when = "each step" if rule.every == 1 else f"every {rule.every} steps"
        where = "to the policy" if rule.share == 1 else f"{rule.share:g} of the way to the policy"
        yield (
            f"the reference '{name}' is a copy of {begun}, {run.config.model.name}; at the first step every margin "
            f"against it must be 0, and after {when} it moves {where}"
        )
    if not run.needs_reference or not scores_against_frozen(run.method.parts()):
        return
    if run.guides:
        shares = " and ".join(f"{share:g} of {name}" for name, share in run.guides.items())
        what = f"the average of weights {shares}" if len(run.guides) > 1 else f"the model in {next(iter(run.guides))}"
        yield f"the reference is {what}: margins do not begin at 0"
        return
    yield f"the reference is {begun}, {run.config.model.name}; at the first step every margin must be 0"


def _workers(run: ResolvedRun) -> Iterator[str]:
    """Say how many workers there will be, if each starts a heavy process."""
    heavy = run.task.started_gb
    if run.config.environment.workers != "auto" or not run.row_kind.acts or heavy <= 0:
        return
    count, _ = automatic(run.task)
    free = free_memory()
    room = "" if free is None else f" and {free / 2**30:.1f} GiB of free memory"
    cores = core_count()
    yield (
        f"environment.workers is auto, which starts {count} here: each starts a process of about {heavy:g} GiB, and "
        f"this machine has {cores} core{'s' * (cores != 1)}{room}"
    )


def _repeats(config: Config, task: Task) -> Iterator[Finding]:
    """Yield a finding if a step samples some prompts more than once."""
    prompts = config.batch.prompts
    count = prompt_count(task, config.data.prompts)
    if count is not None and count < prompts:
        why = f"a step takes {prompts} prompts and there are {count}"
    elif task.size("train") is None:
        # Only as many as a step takes are compared: a small task repeats prompts by chance.
        seen = [example_text(task.example("train", index)) for index in range(min(prompts, LOOKED_AT))]
        different = len(set(seen))
        if different == len(seen):
            return
        why = f"of the first {len(seen)} that the task gives, only {different} differ"
    else:
        return
    meant = "Each is a group of its own, compared by itself; a step has fewer different prompts than batch.prompts says"
    yield codes.REPEATED_PROMPTS(f"prompts repeat within a step: {why}. {meant}", "")


def _temperature(value: float) -> Iterator[Finding]:
    """Yield a finding if sampling is practically greedy, or practically uniform."""
    if value < COLDEST:
        yield codes.TEMPERATURE(
            f"sampling.temperature {value:g} is practically greedy: the completions of a prompt are all the same, "
            "and groups without variance teach nothing",
            "Usual is 1",
        )
    elif value > HOTTEST:
        yield codes.TEMPERATURE(
            f"sampling.temperature {value:g} is practically uniform: the model has no say in what is sampled, "
            "and log-probs hardly depend on it",
            "Usual is 1",
        )


def _evidence(method: str) -> Iterator[Finding]:
    """Yield a finding if the evidence for a method of the catalogue is incomplete."""
    card = CATALOGUE[method].card if method in CATALOGUE else None
    if card is not None and card.confidence != "verified":
        yield codes.UNVERIFIED(f"{method}: {card.confidence}. {card.uncertain}", "")
    if (found := shown(method)).verdict == "not shown":
        yield codes.NOT_SHOWN(f"{method}: {found.words}", "")


def _model(run: ResolvedRun, model: ModelFacts | None) -> Iterator[Finding]:
    """Yield what is doubtful about the model, its adapters and its learning rate."""
    config, method = run.config, run.method
    if model is None and policy_kind(config.model.name) is None:
        yield codes.MODEL_ABSENT(
            f"the model {config.model.name} is not on this machine: its size, memory, room and chat template are "
            "checked when it is downloaded",
            "",
        )
    if config.model.lora is not None and kind_of_model(config.model) == "tiny":
        yield codes.LORA(
            "model.lora on tiny trains adapters of weights that stay as they were initialised: the output layer among "
            "them, whose weights are so small that no token can ever be likely (docs/findings.md: nothing is learned "
            "at any rank or rate)",
            "Warm up every weight first (steps: 0, without model.lora), then put adapters on "
            "that run's folder `model`: there they learn at optim.lr 1e-3",
        )
    if config.model.lora is not None and config.model.lora.dropout:
        yield codes.LORA(
            "model.lora.dropout acts in the passes that take gradients, not where completions are sampled or old "
            "log-probs are read: ratios to the old policy differ from 1 before any step, by chance",
            "",
            key="model.lora.dropout",
        )
    if model is not None and method.update is None:
        updates = config.updates_per_rollout * method.phases
        said = rate_warnings(config.model, config.optim, config.steps, model.hidden, model.layers, updates)
        yield from told(codes.LEARNING_RATE, said)


def _settings(config: Config, task: Task) -> Iterator[Finding]:
    """Yield what is doubtful about single settings."""
    if config.sampling.top_p < 1 or config.sampling.top_k > 0:
        yield codes.CUT_DISTRIBUTION(
            "top_p and top_k cut the distribution that completions are sampled from, while log-probs are those of "
            "the whole one: the gradient is biased",
            "",
        )
    if task.doubt[0]:
        yield codes.UNREACHED_SUCCESS(*task.doubt)
    size = task.size("eval")
    if size is not None and 0 < size < config.eval.final_prompts:
        said = f"'{task.name}' has {size} held-out prompts; eval.final_prompts is {config.eval.final_prompts}"
        yield codes.FEW_HELD_OUT(said, "")
    if config.run.checkpoint_every > max(config.steps, config.warmup.steps):
        said = f"run.checkpoint_every is {config.run.checkpoint_every}: a killed run starts over"
        yield codes.RARE_CHECKPOINTS(said, "")


def _engine(engine: ChosenEngine) -> Iterator[Finding]:
    """Yield how the run differs with an engine other than that of this process."""
    if engine.name == LOCAL:
        return
    if engine.exact:
        old = "its log-probs are taken as those of the policy at the start of the update"
    else:
        old = "where it does not say that its log-probs are exact, old log-probs are computed by the trainer"
    yield codes.ENGINE(f"completions are sampled by the engine {engine.name}; {old}", "")
