"""The model of each agent of a task, and the reasons why a run cannot give agents their own models."""

from __future__ import annotations

from collections.abc import Iterator

from grouprl.algorithms.data_part import data_parts
from grouprl.algorithms.method import Method
from grouprl.config.run import Config
from grouprl.core.errors import InputError
from grouprl.tasks.task import Task

REMEDY = "Set model.agents: shared"
SEPARATE = "Set model.agents: separate"
APART = ("separate", "heads")
"""Values of model.agents with which every agent of a task has weights of its own, all begun from one model."""


def model_names(config: Config, task: Task) -> dict[str, str]:
    """Return the model of each agent of `task` that has its own weights; a single entry if all share them.

    Raises:
        InputError: the configured models do not match the task's agents.
    """
    chosen, agents = config.model.agents, task.agents
    if chosen == "shared" or (chosen in APART and len(agents) == 1):
        return {"": config.model.name}
    if chosen in APART:
        return dict.fromkeys(agents, config.model.name)
    assert isinstance(chosen, dict)
    if set(chosen) != set(agents) or len(agents) == 1:
        raise InputError(
            f"model.agents names {sorted(chosen)}",
            f"the agents of the task '{task.name}' are {sorted(agents)}",
            "Give every agent a model, or set model.agents: shared",
        )
    return {agent: chosen[agent] for agent in agents}


def team_refusals(config: Config, method: Method, task: Task) -> Iterator[str]:
    """Yield the reasons, one sentence each, why the agents of this run cannot have their own models."""
    try:
        names = model_names(config, task)
    except InputError as error:
        yield str(error)
        return
    if len(names) == 1:
        lonely = [part.name for part in method.parts() if part.own_policies]
        yield from (
            f"{name} trains the model of one agent, but all agents share a model. {SEPARATE}" for name in lonely
        )
        return
    wrong = [name for name in names if not name or "." in name or "/" in name or name == "value_head"]
    if wrong:
        yield (
            f"the agent {wrong[0]!r} cannot have its own model: weights are saved under an agent's name, which may not "
            f"be empty or 'value_head', or hold '.' or '/'. {REMEDY}"
        )
    filled = {name for part in data_parts(method.parts()) for name in part.supplies()}
    read = sorted(need for need in method.needs() if need == "stats.influence" and need not in filled)
    if read:
        yield f"{method.name} reads batch.{read[0]}, a statistic of one policy, but each agent has its own. {REMEDY}"
    for part in method.parts():
        if part.one_policy:
            yield f"{part.name} looks inside one model, but each agent has its own. {REMEDY}"
    if config.model.agents == "heads":
        if config.model.lora is not None:
            yield "model.agents heads trains output layers and their trunk whole. Set model.lora: null"
        if method.critic is not None:
            yield f"{method.name} has a critic, and heads of several agents have none. {SEPARATE}"
    if config.run.async_steps:
        yield "run.async_steps samples with one model, but each agent has its own. Set it to 0, or model.agents: shared"
