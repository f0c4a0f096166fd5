"""What the settings of TRL's trainer have in common in all jobs: what could cost time beside training is off."""

from __future__ import annotations

from typing import Any

from trl import GRPOConfig


def settings(**own: Any) -> GRPOConfig:
    """Return the settings of a job: its `own` beside those that make both libraries compute the same."""
    return GRPOConfig(
        bf16=False,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        loss_type="dapo",
        scale_rewards="group",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **own,
    )
