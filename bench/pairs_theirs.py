"""Worker: TRL's DPOTrainer, KTOTrainer or RewardTrainer on stored completions, one step per turn.

Arguments: kind, model folder, file of rows in the order of the steps, output folder, steps, rows of a pass, `recompute`
or `keep` activations.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

from gate import Gate

LEARNING_RATE, BETA, SEED = 1e-5, 0.1, 0
TRAINERS = {
    "dpo": (DPOTrainer, DPOConfig, {"beta": BETA}),
    "kto": (KTOTrainer, KTOConfig, {"beta": BETA}),
    "reward": (RewardTrainer, RewardConfig, {}),
}


class Turns(TrainerCallback):
    """One training step, data loading included, per turn."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.loss = gate, None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self.loss is None:
            self.gate.ready()
        else:
            self.gate.step_done({"loss": self.loss})
        self.gate.wait()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        self.loss = logs.get("loss", self.loss)


def main(kind: str, model: str, rows: str, folder: str, steps: str, per_pass: str, activations: str) -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    gate, (trainer, configured, own) = Gate(), TRAINERS[kind]
    given = [json.loads(line) for line in Path(rows).read_text(encoding="utf-8").splitlines()]
    step = len(given) // int(steps)
    arguments = configured(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=min(int(per_pass), step),
        gradient_accumulation_steps=max(1, step // int(per_pass)),
        num_train_epochs=2,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        gradient_checkpointing=activations == "recompute",
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=SEED,
        **own,
    )
    auto = AutoModelForSequenceClassification if kind == "reward" else AutoModelForCausalLM
    trainer(
        model=auto.from_pretrained(model, dtype=torch.float32),
        args=arguments,
        train_dataset=Dataset.from_list(given),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[Turns(gate)],
    ).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
