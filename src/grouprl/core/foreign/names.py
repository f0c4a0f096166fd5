"""Keys of other libraries, each with the key that means the same here, or with what takes its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from grouprl.core.foreign.trl import ALGORITHM, ENTROPY, PASSES, TRACKERS, TRL, UPDATES, WHOLE

AGGREGATE = "method.aggregate: token_mean, sequence_mean or constant_length"

VERL: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "model.name",
    "actor_rollout_ref.model.lora_rank": "model.lora.r",
    "actor_rollout_ref.model.lora_alpha": "model.lora.alpha",
    "actor_rollout_ref.model.target_modules": "model.lora.target_modules",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "model.checkpointing",
    "actor_rollout_ref.model.use_remove_padding": "model.packing",
    "actor_rollout_ref.actor.optim.lr": "optim.lr",
    "actor_rollout_ref.actor.optim.weight_decay": "optim.weight_decay",
    "actor_rollout_ref.actor.optim.betas": "optim.betas",
    "actor_rollout_ref.actor.optim.clip_grad": "optim.grad_clip",
    "actor_rollout_ref.actor.optim.lr_warmup_steps": "optim.warmup_steps",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": "optim.warmup_steps",
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "optim.schedule",
    "actor_rollout_ref.actor.optim.min_lr_ratio": "optim.min_lr_ratio",
    "actor_rollout_ref.actor.grad_clip": "optim.grad_clip",
    "actor_rollout_ref.actor.ppo_mini_batch_size": UPDATES,
    "actor_rollout_ref.actor.ppo_micro_batch_size": PASSES,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": PASSES,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "batch.tokens_per_microbatch",
    "actor_rollout_ref.actor.use_dynamic_bsz": PASSES,
    "actor_rollout_ref.actor.ppo_epochs": "batch.epochs",
    "actor_rollout_ref.actor.clip_ratio": "method.clip_low, method.clip_high",
    "actor_rollout_ref.actor.clip_ratio_low": "method.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "method.clip_high",
    "actor_rollout_ref.actor.clip_ratio_c": "method.dual_clip",
    "actor_rollout_ref.actor.entropy_coeff": ENTROPY,
    "actor_rollout_ref.actor.use_kl_loss": "method.kl_coef: 0 is without",
    "actor_rollout_ref.actor.kl_loss_coef": "method.kl_coef",
    "actor_rollout_ref.actor.kl_loss_type": "method.kl_estimator",
    "actor_rollout_ref.actor.loss_agg_mode": AGGREGATE,
    "actor_rollout_ref.actor.policy_loss.loss_mode": ALGORITHM,
    "actor_rollout_ref.actor.fsdp_config.param_offload": "model.offload",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": PASSES,
    "actor_rollout_ref.rollout.name": "sampling.engine",
    "actor_rollout_ref.rollout.n": "batch.group_size",
    "actor_rollout_ref.rollout.temperature": "sampling.temperature",
    "actor_rollout_ref.rollout.top_p": "sampling.top_p",
    "actor_rollout_ref.rollout.top_k": "sampling.top_k",
    "actor_rollout_ref.rollout.response_length": "sampling.max_new_tokens",
    "actor_rollout_ref.rollout.dtype": "model.dtype",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "sampling.vllm.args",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "sampling.vllm.args",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": PASSES,
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "task",
    "actor_rollout_ref.rollout.val_kwargs.n": "eval.samples",
    "data.train_files": "task: jsonl:FILE, or hf:FILE.parquet",
    "data.val_files": "task: {name: jsonl:FILE, eval: FILE}",
    "data.prompt_key": "task.prompt",
    "data.train_batch_size": "batch.prompts",
    "data.gen_batch_size": "batch.prompts",
    "data.val_batch_size": "eval.prompts",
    "data.train_max_samples": "data.prompts",
    "data.max_prompt_length": "task: prompts are never cut; plan refuses those that do not fit",
    "data.max_response_length": "sampling.max_new_tokens",
    "data.seed": "seed",
    "data.shuffle": "seed",
    "algorithm.adv_estimator": ALGORITHM,
    "algorithm.gamma": "method.gamma",
    "algorithm.lam": "method.lam",
    "algorithm.norm_adv_by_std_in_grpo": "method.scale",
    "algorithm.use_kl_in_reward": "method.add: {reward_transform: [{part: kl_in_reward}]}",
    "algorithm.kl_penalty": "method.kl_estimator",
    "algorithm.kl_ctrl.kl_coef": "method.kl_coef",
    "algorithm.filter_groups.enable": "method.refill: dynamic_sampling, as in dapo",
    "critic.optim.lr": "optim.lr",
    "critic.cliprange_value": "method.value_clip",
    "custom_reward_function.path": "reward.function: FILE.py:FUNCTION",
    "custom_reward_function.name": "reward.function: FILE.py:FUNCTION",
    "reward_model.reward_manager": "reward.function",
    "trainer.total_epochs": WHOLE,
    "trainer.total_training_steps": "steps",
    "trainer.test_freq": "eval.every",
    "trainer.val_before_train": "eval.every",
    "trainer.save_freq": "run.checkpoint_every",
    "trainer.max_actor_ckpt_to_keep": "run.keep",
    "trainer.default_local_dir": "run.folder",
    "trainer.project_name": "run.folder",
    "trainer.experiment_name": "run.folder",
    "trainer.logger": TRACKERS,
    "trainer.resume_mode": "run.folder: grouprl train FOLDER --resume",
    "trainer.n_gpus_per_node": "cluster.learners",
    "trainer.nnodes": "cluster.learners",
}
OPENRLHF: Mapping[str, str] = {
    "pretrain": "model.name",
    "param_dtype": "model.dtype",
    "lora_rank": "model.lora.r",
    "zero_stage": PASSES,
    "target_modules": "model.lora.target_modules",
    "adam_offload": "model.offload",
    "bf16": "model.dtype: bfloat16",
    "packing_samples": "model.packing",
    "gradient_checkpointing": "model.checkpointing",
    "prompt_data": "task: jsonl:FILE, or hf:NAME",
    "input_key": "task.prompt",
    "label_key": "reward.function",
    "apply_chat_template": "task.chat",
    "input_template": "task.chat",
    "max_samples": "data.prompts",
    "rollout_batch_size": "batch.prompts",
    "n_samples_per_prompt": "batch.group_size",
    "max_epochs": "batch.epochs",
    "train_batch_size": UPDATES,
    "micro_train_batch_size": PASSES,
    "micro_rollout_batch_size": PASSES,
    "num_episodes": WHOLE,
    "generate_max_len": "sampling.max_new_tokens",
    "prompt_max_len": "task",
    "actor_learning_rate": "optim.lr",
    "critic_learning_rate": "optim.lr",
    "lr_scheduler": "optim.schedule",
    "lr_warmup_ratio": "optim.warmup_steps",
    "adam_betas": "optim.betas",
    "l2": "optim.weight_decay",
    "max_norm": "optim.grad_clip",
    "init_kl_coef": "method.kl_coef",
    "use_kl_loss": "method.kl_coef: 0 is without",
    "eps_clip": "method.clip_low, method.clip_high",
    "eps_clip_low_high": "method.clip_low, method.clip_high",
    "dual_clip": "method.dual_clip",
    "value_clip": "method.value_clip",
    "lambd": "method.lam",
    "advantage_estimator": ALGORITHM,
    "gamma": "method.gamma",
    "entropy_loss_coef": ENTROPY,
    "kl_estimator": "method.kl_estimator",
    "dynamic_filtering": "method.refill: dynamic_sampling, as in dapo",
    "remote_rm_url": "reward.function",
    "reward_pretrain": "reward.model",
    "flash_attn": "model.engine",
    "attn_implementation": "model.engine",
    "colocate_all_models": "sampling.vllm.sleep",
    "save_path": "run.folder",
    "ckpt_path": "run.folder",
    "save_steps": "run.checkpoint_every",
    "max_ckpt_num": "run.keep",
    "eval_steps": "eval.every",
    "eval_n_samples_per_prompt": "eval.samples",
    "use_wandb": TRACKERS,
    "vllm_num_engines": "sampling.vllm.servers",
    "vllm_tensor_parallel_size": "sampling.vllm.args",
    "vllm_enable_sleep": "sampling.vllm.sleep",
    "async_train": "run.async_steps",
    "actor_num_nodes": "cluster.learners",
}
LIBRARIES: Mapping[str, Mapping[str, str]] = {"TRL": TRL, "verl": VERL, "OpenRLHF": OPENRLHF}
VALUES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.float32": "float32",
    "cosine_with_min_lr": "cosine",
    "constant_with_warmup": "constant",
}
"""Values of other libraries, and how they are written here."""


def foreign(path: Sequence[str], value: object = None, settings: Collection[str] | None = None) -> str:
    """Return a remedy that names our keys for a key of another library; "" if none is known.

    Args:
        path: the parts of the unknown key.
        value: what it was set to; a mapping is searched for keys of the library further down.
        settings: what may stand below `method`, if the key stands there: others are not named.
    """
    found = [words for key in _below(".".join(path), value) if (words := _said(key))]
    if not found and len(path) > 1:
        found = [words for words in (_said(path[-1]),) if words]
    said = " ".join(found[:3])
    named = re.findall(r"\bmethod\.(\w+)", said)
    return "" if settings is not None and named and not set(named) & {"add", *settings} else said


def _below(key: str, value: object) -> list[str]:
    """Return the dotted keys that a value contains; the key itself if it is not a mapping."""
    if not isinstance(value, Mapping):
        return [key]
    return [inner for name, each in value.items() for inner in _below(f"{key}.{name}", each)]


def _said(key: str) -> str:
    """Return a sentence with our key for `key`, for the first library that has it."""
    named = next(((library, key, names[key]) for library, names in LIBRARIES.items() if key in names), None)
    named = named or next((("verl", theirs, VERL[theirs]) for theirs in VERL if _ends_in(theirs, key)), None)
    return f"{named[0]}'s '{named[1]}' is here: {named[2]}." if named else ""


def _ends_in(theirs: str, key: str) -> bool:
    """Return whether `key` is a dotted key without its first parts; one plain word is no sign of it."""
    return theirs.endswith(f".{key}") and ("_" in key or "." in key)
