"""TRL's own trainers, asked for the advantages, loss and gradient of a given batch.

The trainers' real methods run: scoring (`_generate_and_score_completions`) and loss (`_compute_loss`). Only what lies
outside the prompt is replaced: the completions that generation would sample, and the log-probs of the model.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from batches import Case

PAD, EOS, WORD = 0, 1, 2
TRAINERS = {
    "grpo": (GRPOConfig, GRPOTrainer),
    "rloo": (RLOOConfig, RLOOTrainer),
    "gmpo": (GMPOConfig, GMPOTrainer),
}


class Oracle:
    """One trainer, built from TRL's options by name, that can be asked about batches with groups of four."""

    def __init__(self, trainer: str, rows: int, width: int, components: Sequence[str] = (), **options: Any) -> None:
        config_class, trainer_class = TRAINERS[trainer]
        self.components = list(components)
        self.rloo = trainer == "rloo"
        config = config_class(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=rows,
            num_generations=4,
            num_iterations=2,  # more than one update per rollout: old log-probs are kept
            max_completion_length=width,
            use_cpu=True,
            bf16=False,
            report_to=[],
            **options,
        )
        self.reward_b: list[float] = []
        self.parts: dict[str, list[float]] = {}
        self.trainer = trainer_class(
            model=_model_folder(),
            reward_funcs=[self._component(name) for name in self.components] or self._whole,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["w"] * rows}),
            processing_class=_tokenizer(),
        )
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1

    def request(self, case: Case) -> tuple[Tensor, Tensor, Tensor]:
        """Return advantages [B], the loss and dLoss/dlogp [B,T] of a case."""
        batch, width = case.batch, int(case.batch.mask_bt.any(0).nonzero().max()) + 1
        self.reward_b = batch.reward_b.tolist()
        self.parts = {name: batch.rewards[name].tolist() for name in self.components}
        self.entropy_bt = case.entropy_bt
        ends = [int(row.nonzero().max()) + 1 for row in batch.mask_bt]
        cut_b = batch.truncated_b.tolist() if self.trainer.args.mask_truncated_completions else [False] * len(ends)
        ids = [[WORD] * (n - 1) + [WORD if cut else EOS] for n, cut in zip(ends, cut_b, strict=True)]
        self.trainer._generate_single_turn = lambda *_: ids if self.rloo else (ids, None)
        log_probs = iter([batch.old_bt[:, :width], batch.ref_bt[:, :width]])
        self._answer(lambda: next(log_probs))
        with torch.no_grad():
            inputs = self.trainer._generate_and_score_completions([{"prompt": "w"}] * len(ids))
        mask_bt = batch.mask_bt[:, :width] & ~torch.tensor(cut_b)[:, None]
        if not bool((inputs["completion_mask"].bool() == mask_bt).all()):
            inputs["tool_mask"], inputs["num_items_in_batch"] = mask_bt.long(), mask_bt.sum()
        leaf_bt = case.logp_bt.clone().requires_grad_()
        self._answer(lambda: leaf_bt[:, :width])
        loss = self.trainer._compute_loss(self.trainer.model, inputs)
        return inputs["advantages"], loss.detach(), torch.autograd.grad(loss, leaf_bt)[0]

    def _whole(self, completions: Any, **_: Any) -> list[float]:
        return self.reward_b

    def _component(self, name: str) -> Any:
        def reward(completions: Any, **_: Any) -> list[float]:
            return self.parts[name]

        reward.__name__ = name
        return reward

    def _answer(self, log_probs: Any) -> None:
        def replaced(*_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
            logp_bt = log_probs()
            return logp_bt, self.entropy_bt[:, : logp_bt.shape[1]], None

        self.trainer._get_per_token_logps_and_entropies = replaced


@functools.cache
def _model_folder() -> str:
    """A model of a few hundred weights on disk, from where TRL loads policy and reference."""
    config = LlamaConfig(
        vocab_size=3,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=EOS,
    )
    folder = tempfile.mkdtemp()
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({"<pad>": PAD, "<eos>": EOS, "w": WORD}, unk_token="w"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="w")
