"""Worker: TRL's GRPOTrainer, one step per turn. Arguments: job, model folder, output folder, steps, quick."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

import rewards
from gate import Gate
from jobs import JOBS as ALL_JOBS
from jobs import LEARNING_RATE, SEED, Job, smaller
from theirs_settings import settings
from theirs_turns import Turns, measure


def main(name: str, model: str, folder: str, steps: int, quick: bool) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    job, gate = smaller(ALL_JOBS[name]) if quick else ALL_JOBS[name], Gate()
    trainer = build(job, model, folder, steps)
    seconds: dict[str, float] = defaultdict(float)
    measure(trainer, seconds)
    trainer.add_callback(Turns(gate, seconds))
    trainer.train()


def build(job: Job, model: str, folder: str, steps: int) -> GRPOTrainer:
    """The trainer with the settings of the job."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    examples = job.examples(job.prompts * (steps + 1))
    rows = [{"prompt": f"{tokenizer.bos_token}{q.prompt}", "answer": q.columns["answer"]} for q in examples]
    arguments = settings(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=job.rows,
        gradient_accumulation_steps=1,
        num_generations=job.group,
        max_completion_length=job.max_new_tokens,
        max_steps=steps + 1,
        learning_rate=LEARNING_RATE,
        seed=SEED,
    )

    def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        function = getattr(rewards, job.reward)
        return [function(text, answer=known) for text, known in zip(completions, answer, strict=True)]

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return GRPOTrainer(
        model=network,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "quick")
