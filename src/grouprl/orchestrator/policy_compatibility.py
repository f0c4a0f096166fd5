"""Compatibility of a run with a policy that is not a language model, checked before the run begins."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.algorithms.part import KINDS, PARTS
from grouprl.config.run import Config
from grouprl.config.sections import Model, Sampling
from grouprl.core.errors import InputError
from grouprl.core.outputs import LANGUAGE_OUTPUTS, has_output
from grouprl.orchestrator.resolve import ResolvedRun
from grouprl.policy.kinds import policy_kind
from grouprl.protocols import GroupInfluence, Policy, has_memory
from grouprl.rollout.engines import has_sampler

OF_LANGUAGE_MODELS = (
    "tiny",
    "users",
    "lora",
    "engine",
    "packing",
    "shared_prefix",
    "checkpointing",
    "compile",
    "agents",
    "chat_template_kwargs",
)
"""Keys of `model` that apply to language models only."""
OF_WRITERS = ("agents", "reference")
"""Keys of `model` that a reward model does not have."""
OF_TEXT = ("top_p", "top_k", "stop", "max_new_tokens", "history", "tool_calls")
"""Keys of `sampling` that apply to text only."""
TEXT_FIELDS = ("keys.answer", "keys.form", "marks.")
"""Prefixes of the Batch fields that are derived from texts."""
VALUING = "team_values (agents that act together) or choice_values (sub-tasks in an order)"
POLICIES_WITH = {"action_value": VALUING, "best_after": VALUING}
"""Policies of this package that have an output that others lack, by the output."""


def kind_refusals(run: ResolvedRun) -> list[str]:
    """Return the reasons, one sentence each, why the policy does not fit the task, the method or the settings."""
    config, name = run.config, run.config.model.name
    if policy_kind(name) is None:
        return [*_language_model(run), *(_reward_model(run) if run.scores else ())]
    if run.row_kind.text:
        return [f"the policy {name} acts on arrays, but the task '{run.task.name}' is made of text. Set model: tiny"]
    from grouprl.orchestrator.make_policy import build_kind

    try:
        policy = build_kind(run)
    except InputError as error:
        return [str(error)]
    return [*_settings(config), *_parts(name, run.method, policy)]


def kind_notes(run: ResolvedRun) -> Iterator[str]:
    """Yield a sentence on the size of the policy, and one if its critic's values have no bound."""
    name = run.config.model.name
    if run.scores:
        yield f"{run.method.name} trains a reward model: {name} with {_head(run)}"
    if policy_kind(name) is None or run.row_kind.text:
        return
    yield from getattr(run.task, "notes", ())
    from grouprl.orchestrator.make_policy import build_kind

    size = sum(parameter.numel() for parameter in build_kind(run).parameters())
    yield f"the policy {name} has {size:,} trainable parameters"
    if getattr(run.method.critic, "gamma", 0.0) == 1:
        yield (
            f"{run.method.name} has a critic with gamma 1: when a limit cuts an episode, its return continues with "
            "the value of the final observation, and values can grow without bound. Set gamma below 1, unless every "
            "episode ends by itself"
        )


def _head(run: ResolvedRun) -> str:
    """Say how the score of a reward model is read, and evaluated."""
    from grouprl.policy.language.load_reward import HEAD

    where = "the state of the last token, the end token of a completion"
    evaluated = "no completion is sampled, and an evaluation reports the share of held-out pairs that it ranks right"
    if run.of_users:
        return f"layers on {where}, and on what the judgements before a prompt say of its user; {evaluated}"
    columns = run.columns
    if columns is None:
        return f"one linear layer '{HEAD}' on {where}; {evaluated}"
    if columns.tau is None:
        given = f"a score for each of {', '.join(columns.names)}"
        return f"one linear layer '{HEAD}' on {where}, {given}; {evaluated} by their mean"
    given = f"a vector of {len(columns.names)} numbers by which completions are preferred to each other"
    return f"one linear layer '{HEAD}' on {where}, {given}; {evaluated}"


def _language_model(run: ResolvedRun) -> Iterator[str]:
    config = run.config
    if not run.row_kind.text:
        yield (
            f"the task '{run.task.name}' shows arrays, but the model {config.model.name} reads text. Set model: mlp, "
            "or your own policy (file.py:Class)"
        )
    yield from _other_policy(config.model.name, run.method, None)
    if not run.scores:
        yield from (
            f"{run.method.name} reads the output '{output}' of the policy, but a language model lacks it. Take another "
            "method, or a task and a policy over arrays"
            for output in run.method.outputs
            if not has_output(LANGUAGE_OUTPUTS, output)
        )
        yield from _unfilled_statistics(run.method)
    if config.model.users != Model().users and not run.of_users:
        yield f"model.users are sizes of a reward model of users, and {run.method.name} trains none. Leave it out"
    if config.model.settings:
        yield (
            f"model.settings are for other policies, but {config.model.name} is a language model. Leave them out, "
            "or set model.name to mlp or your own policy"
        )


def _asked_of_policy(method: Method) -> list[str]:
    """Return the statistics that a method reads and none of its parts fills in."""
    filled = {field for part in data_parts(method.parts()) for field in part.supplies()}
    return [n.removeprefix("stats.") for n in method.needs() if n.startswith("stats.") and n not in filled]


def _unfilled_statistics(method: Method) -> Iterator[str]:
    """Yield the statistics that neither a part fills in nor a language model has."""
    for name in _asked_of_policy(method):
        if name == "influence" or has_output(LANGUAGE_OUTPUTS, name):
            continue
        field = f"stats.{name}"
        readers = " and ".join(f"{p.name} ({p.kind})" for p in method.parts() if field in p.needs())
        fillers = [
            f"{p.name} ({kind})" for kind in KINDS for p in PARTS[kind].values() if field in getattr(p, "fills", ())
        ]
        remedy = f"Add {' or '.join(fillers)}, or leave it out" if fillers else "Leave it out"
        remedy = f"Set model: {POLICIES_WITH[name]}, or leave it out" if name in POLICIES_WITH else remedy
        yield f"{readers} reads {field}, which no part fills in and a language model lacks. {remedy}"


def _reward_model(run: ResolvedRun) -> Iterator[str]:
    """Yield what a run cannot have that trains a reward model in place of a policy."""
    config, method, plain = run.config, run.method.name, Model()
    if run.row_kind.samples:
        yield (
            f"{method} trains a reward model, which writes no completions, but the task '{run.task.name}' has them "
            "sampled. Set task: pairs:FILE"
        )
    for key in OF_WRITERS:
        if getattr(config.model, key) != getattr(plain, key):
            yield f"model.{key} is for policies, but {method} trains a reward model. Leave it out"
    if config.model.lora is not None and run.of_users:
        yield f"model.lora is set, but the trunk of {method} and its layers are trained whole. Leave it out"
    if config.warmup.steps:
        yield f"warmup.steps imitates texts, but {method} trains a reward model, which writes none. Set it to 0"


def _settings(config: Config) -> Iterator[str]:
    plain, plain_sampling = Model(), Sampling()
    for key in OF_LANGUAGE_MODELS:
        if getattr(config.model, key) != getattr(plain, key):
            yield f"model.{key} is a setting of language models, but {config.model.name} is not one. Leave it out"
    for key in OF_TEXT:
        if getattr(config.sampling, key) != getattr(plain_sampling, key):
            yield f"sampling.{key} is a setting of text, but {config.model.name} writes none. Leave it out"
    if config.warmup.steps:
        yield "warmup.steps imitates texts, but this policy writes none. Set it to 0"
    if key := config.reward.replaced:
        yield f"reward.{key} scores texts, but this policy writes none. Leave it out: the environment rewards actions"


def _other_policy(name: str, method: Method, policy: Policy | None) -> Iterator[str]:
    """Yield what needs another kind of policy; None: a language model."""
    for part in method.parts():
        if part.needs_policy is not None and not isinstance(policy, part.needs_policy[0]):
            yield f"{part.name} ({part.kind}) cannot train {name}. Set model: {part.needs_policy[1]}"


def _parts(name: str, method: Method, policy: Policy) -> Iterator[str]:
    if not has_sampler(policy):
        yield (
            f"{name} is a {type(policy).__name__}, for which there is no sampler. Derive it from "
            "grouprl.policy.ArrayPolicy, or give it a method make_sampler()"
        )
    yield from _other_policy(name, method, policy)
    for part in method.parts():
        if part.needs_text:
            yield f"{part.name} ({part.kind}) works on prompts and completions of text. Leave it out"
    read = [n for n in method.needs() if n.startswith(TEXT_FIELDS)]
    yield from (
        f"{method.name} reads batch.{need}, which is derived from texts, but {name} writes none. Take another method"
        for need in read
    )
    for output in [*_asked_of_policy(method), *method.outputs]:
        known = output == "influence" and isinstance(policy, GroupInfluence)
        if not (known or has_output(policy.outputs, output)):
            remedy = f"Set model: {POLICIES_WITH[output]}, or take" if output in POLICIES_WITH else "Take"
            lacks = f"reads the output '{output}' of the policy, but {name} lacks it"
            yield f"{method.name} {lacks}. {remedy} another method"
    if has_memory(policy) and method.update is not None and method.update.positions_alone:
        yield (
            f"{method.update.name} (update) scores actions alone, but {name} remembers what came before them. Take a "
            "method that keeps rows whole, such as ppo or grpo"
        )
    for each in method.parts():
        if each.one_policy:
            yield f"{each.name} looks inside a language model, but {name} is not one. Leave it out"
