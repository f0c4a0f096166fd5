"""The common starting point: a tiny model after a short warm-up, as an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from grouprl import method
from grouprl.config.sections import Warmup
from grouprl.core.batch import Batch
from grouprl.policy import CausalPolicy, Tokens, load_policy
from grouprl.tasks.task import Task
from grouprl.training.update import update
from grouprl.training.warmup import warmup_rate
from jobs import SEED, Job

FILLER = "+"


def warm_folder(job: Job, folder: Path) -> Path:
    """Build, warm up and save the job's model in `folder`, unless it is there already."""
    if not (folder / "config.json").is_file():
        task = job.task()
        policy = load_policy("tiny", alphabet=task.alphabet or "", seed=SEED, **job.sizes())
        _warm_up(policy, task, job)
        policy.save(folder)
    return folder


def _warm_up(policy: CausalPolicy, task: Task, job: Job) -> None:
    settings, sft = Warmup(steps=job.warm_steps, batch=128), method("sft")
    optimizer = torch.optim.AdamW(policy.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(job.warm_steps):
        optimizer.param_groups[0]["lr"] = warmup_rate(settings, step)
        first = 10**6 + step * settings.batch
        batch = _demonstrations(policy, task, job, range(first, first + settings.batch))
        update(policy, optimizer, sft, sft.compute_advantages(batch))


def _demonstrations(policy: CausalPolicy, task: Task, job: Job, indices: range) -> Batch:
    examples = [task.example("train", index) for index in indices]
    completions = [policy.encode(task.demonstration(example, SEED) or "") for example in examples]
    if job.full_length:
        completions = [(ids + policy.encode(FILLER) * job.max_new_tokens)[: job.max_new_tokens] for ids in completions]
    else:
        completions = [[*ids, policy.tokenizer.eos_token_id] for ids in completions]
    tokens = Tokens.of([policy.encode_prompt(example.prompt) for example in examples], completions)
    return Batch(
        mask_bt=tokens.present_bt(), group_b=torch.arange(len(tokens)), reward_b=torch.ones(len(tokens)), inputs=tokens
    )
