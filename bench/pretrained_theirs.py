"""Worker: TRL's GRPOTrainer on a pretrained model, one step per turn.

Arguments: model folder, output folder, steps, type of the weights (`onednn`: float32, with products by oneDNN), rows of
a pass, the job.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from gate import Gate
from onednn_linear import onednn_linear
from rewards import even_digits
from theirs_settings import settings
from theirs_turns import Turns, measure

LEARNING_RATE, SEED = 1e-8, 0


def main(model: str, folder: str, steps: int, dtype: str, rows: int, job: Mapping[str, Any]) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if dtype == "onednn":
        torch.nn.functional.linear = onednn_linear
    gate, seconds = Gate(), defaultdict[str, float](float)
    trainer = build(model, folder, steps, dtype, rows, job)
    measure(trainer, seconds)
    trainer.add_callback(Turns(gate, seconds))
    trainer.train()


def build(model: str, folder: str, steps: int, dtype: str, rows: int, job: Mapping[str, Any]) -> GRPOTrainer:
    """The trainer with the settings of the job."""
    arguments = settings(
        output_dir=folder,
        use_cpu=job.get("device", "cpu") == "cpu",
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=job["rows"] // rows,
        num_generations=job["group"],
        max_completion_length=job["max_new_tokens"],
        max_steps=steps + 1,
        learning_rate=LEARNING_RATE,
        seed=SEED,
    )

    def reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return [even_digits(messages[0]["content"]) for messages in completions]

    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32
        ),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in job["prompts"]]),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), json.loads(sys.argv[6]))
