"""The kinds of findings of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

from grouprl.config.run import Config
from grouprl.core.finding import Code, Finding, Severity, declare

_plan = partial(declare, "plan")

POLICY_KIND = _plan(
    "policy_kind",
    ("refusal", "note"),
    "A part or setting is for another kind of policy.",
    "Leave it out, or take a model of the kind that it needs.",
    "model.name",
)
SEVERAL_PROCESSES = _plan(
    "several_processes",
    "refusal",
    "The run cannot be spread over several processes.",
    "Train it in one process, or change the setting that is named.",
    "cluster.learners",
)
ROWS = _plan(
    "rows",
    "refusal",
    "The settings do not fit the way in which the task gives rows.",
    "Change the setting that is named, or take another task.",
    "task.name",
)
PART = _plan(
    "part_cannot_work",
    "refusal",
    "A part of the method cannot work in this run.",
    "Change the setting that is named, or leave the part out.",
)
ONE_UPDATE = _plan(
    "one_update_only",
    "refusal",
    "The method is only correct with one update per rollout, and the run takes more.",
    "Set batch.minibatches and batch.epochs to 1.",
    "batch.minibatches",
)
OWN_SAMPLES = _plan(
    "own_samples",
    ("warning", "refusal"),
    "The method's formula is right for completions that the policy samples, and the task has its completions stored.",
    "Take a method of stored completions, such as dpo for pairs and sft for demonstrations, or a task that samples.",
    "method",
)
REFERENCE = _plan(
    "no_reference",
    ("refusal", "note"),
    "The method compares with a reference model, and the run keeps none; as a note, which weights it has.",
    "Set model.reference to auto or initial, or to the folder of another model.",
    "model.reference",
)
FIELD = _plan(
    "missing_field",
    "refusal",
    "The method reads a field of the batch that nothing fills in this run.",
    "Add a part that fills it, or take a task or method that has it.",
)
AHEAD = _plan(
    "sampling_ahead",
    ("refusal", "note"),
    "Sampling ahead of training does not fit the method; as a note, what it means for this run.",
    "Set run.async_steps to 0, or change the part that is named.",
    "run.async_steps",
)
NO_PROMPTS = _plan(
    "no_prompts",
    "refusal",
    "The task has no prompts to train on, or none to evaluate on.",
    "Give it more prompts.",
    "task",
)
NO_DEMONSTRATIONS = _plan(
    "no_demonstrations",
    "refusal",
    "A warm-up is set, and the task has no demonstrations.",
    "Set warmup.steps to 0.",
    "warmup.steps",
)
AGENTS = _plan(
    "agents",
    "refusal",
    "The settings or the method do not fit the agents of the task.",
    "Change the setting that is named.",
    "model.agents",
)
GOLD_ANSWER = _plan(
    "gold_answer",
    ("refusal", "note"),
    "The reward does not accept the task's own known answers, or accepts more than their values.",
    "Fix the reward or the answers: grouprl check-reward shows more of them.",
    "reward",
)
REWARD_TRIAL = _plan(
    "reward_trial",
    ("refusal", "note"),
    "The reward failed on completions that were tried before the run.",
    "Fix it: grouprl check-reward tries many more completions.",
    "reward",
)
JUDGE = _plan(
    "judge",
    ("refusal", "note"),
    "The judge does not fit the method; as a note, how it is called.",
    "Change the setting that is named, or take another method.",
    "reward.judge",
)
BEST = _plan(
    "best_checkpoint",
    ("refusal", "warning"),
    "The measure of eval.best does not tell policies apart, or is not what the method raises.",
    "Name a yardstick of eval.metrics, or reward/gold beside reward.gold.",
    "eval.best",
)
SAMPLING_SERVER = _plan(
    "sampling_server",
    ("refusal", "note"),
    "The sampling servers cannot serve this run; as a note, what they change.",
    "Change the setting that is named, or set sampling.engine to local.",
    "sampling.engine",
)
CLUSTER = _plan(
    "cluster",
    ("refusal", "note"),
    "The cluster cannot run what is placed on it; as a note, what is placed where.",
    "Ask for fewer or smaller workers, or add nodes.",
    "cluster",
)
PROMPTS = _plan(
    "prompts",
    ("refusal", "note"),
    "Prompts or episodes that were looked at cannot be encoded, or are cut off.",
    "Fix the prompts or the chat template, or give the model more positions.",
    "task",
)
NO_POSITIONS = _plan(
    "no_positions",
    "refusal",
    "A prompt and its completions need more positions than the model has.",
    "Lower sampling.max_new_tokens, or give the model more positions.",
    "sampling.max_new_tokens",
)
MEMORY = _plan(
    "memory",
    ("refusal", "note"),
    "The run needs more memory than is free.",
    "Lower what the message names, or set run.memory_check to false to try it all the same.",
    "run.memory_check",
)
PASSES = _plan(
    "passes",
    "refusal",
    "Rows cannot go through this model in the way that is set.",
    "Change the setting that is named.",
    "model",
)
OWN_PART = _plan(
    "own_part",
    ("refusal", "note"),
    "A part of yours breaks the rules of its kind, or failed on a small batch.",
    "Fix it: grouprl methods check shows file and line.",
    "method",
)
RUN_FOLDER = _plan(
    "run_folder",
    ("refusal", "warning"),
    "The run folder cannot be made, or the disk has less room than the run needs.",
    "Choose another place.",
    "run.folder",
)
NO_EFFECT = _plan(
    "no_effect",
    "note",
    "A setting was given that changes nothing in this run.",
    "Leave it out, or change the setting that keeps it from acting.",
)
PART_NO_EFFECT = _plan(
    "part_no_effect",
    "note",
    "A part of the method changes nothing in this run.",
    "Leave it out, or change the setting that keeps it from acting.",
)
METHOD_SETTINGS = _plan(
    "method_settings",
    ("note", "warning"),
    "The parts of the method may not fit together.",
    "Compare with the method's card: grouprl methods show.",
    "method",
)
WORKERS = _plan(
    "workers",
    "note",
    "The number of workers that `environment.workers: auto` starts, where the process of each takes much memory.",
    "Set environment.workers to another number.",
    "environment.workers",
)
REPEATED_PROMPTS = _plan(
    "repeated_prompts",
    "note",
    "Prompts repeat within a step.",
    "Lower batch.prompts, or give the task more prompts.",
    "batch.prompts",
)
TEMPERATURE = _plan(
    "temperature",
    "warning",
    "Sampling is practically greedy, or practically uniform.",
    "The usual temperature is 1.",
    "sampling.temperature",
)
UNVERIFIED = _plan(
    "unverified_method",
    "note",
    "The method could not be checked against its full paper or its authors' code.",
    "Read the card: grouprl methods show.",
    "method",
)
NOT_SHOWN = _plan(
    "not_shown_to_learn",
    "note",
    "The recorded runs of the method or recipe do not show that it learns.",
    "Compare with another method: docs/learning.md.",
    "method",
)
MODEL_ABSENT = _plan(
    "model_absent",
    "note",
    "The model is not on this machine, so that it is checked only once it is downloaded.",
    "Download it first to have it checked now.",
    "model.name",
)
ADDED_TOKENS = _plan(
    "added_tokens",
    "note",
    "The model has no embedding for tokens that its tokenizer knows.",
    "Keep these tokens out of the prompts.",
    "model.name",
)
LORA = _plan(
    "lora",
    "note",
    "Adapters act in a way that is easily overlooked.",
    "Warm up every weight before adapters are trained; leave dropout at 0.",
    "model.lora",
)
LEARNING_RATE = _plan(
    "learning_rate",
    "warning",
    "The learning rate is far from what this kind of model learns at.",
    "Take the rate that the message names.",
    "optim.lr",
)
CUT_DISTRIBUTION = _plan(
    "cut_distribution",
    "note",
    "Completions are sampled from a cut distribution and scored by the whole one.",
    "Set sampling.top_p to 1 and sampling.top_k to 0.",
    "sampling.top_p",
)
FEW_HELD_OUT = _plan(
    "few_held_out",
    "note",
    "The task has fewer held-out prompts than an evaluation asks for.",
    "Lower eval.final_prompts, or expect wider intervals.",
    "eval.final_prompts",
)
UNREACHED_SUCCESS = _plan(
    "unreached_success",
    "warning",
    "The task cuts episodes off before they can count as correct.",
    "Allow more turns, or state from which total reward an episode is correct: task.turns, task.success.",
    "task.turns",
)
RARE_CHECKPOINTS = _plan(
    "rare_checkpoints",
    "note",
    "The run ends before its first regular checkpoint, so that a killed run starts over.",
    "Lower run.checkpoint_every.",
    "run.checkpoint_every",
)
ENGINE = _plan(
    "engine",
    "note",
    "Another engine than this process samples the completions.",
    "Nothing needs to be done.",
    "sampling.engine",
)
PRECISION = _plan(
    "precision",
    "note",
    "The precision of the model has consequences for the run.",
    "Choose another with model.precision.",
    "model.precision",
)

EFFECTS = (NO_EFFECT.name, PART_NO_EFFECT.name)
"""Codes of findings about settings without effect, which a plan lists separately."""
_SETTING = re.compile(rf"\b(?:{'|'.join(Config.model_fields)})\.[a-z]\w*(?:\.[a-z]\w*)*")


def told(code: Code, sentences: Iterable[str], severity: Severity | None = None) -> Iterator[Finding]:
    """Yield a finding for each text, about the first setting that it names; a refusal ends with its remedy."""
    for words in sentences:
        named = _SETTING.search(words)
        key = named[0] if named else None
        refused = (severity or code.severities[0]) == "refusal"
        yield code.said(words, key=key, severity=severity) if refused else code(words, "", key=key, severity=severity)
