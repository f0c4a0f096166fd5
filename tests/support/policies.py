"""Small models of several families, and token batches, for the tests of policies and rollouts."""

from __future__ import annotations

import types
from dataclasses import replace

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from grouprl.policy import CausalPolicy, Tokens, char_tokenizer
from grouprl.records.rollout import Rollout
from grouprl.rollout.local.decode_loop import decode
from grouprl.rollout.local.sampler import requests_of

torch.set_num_threads(1)  # two threads on a busy machine are many times slower than one

ALPHABET = "0123456789+=. "
SIZES = {
    "vocab_size": 3 + len(ALPHABET),
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "llama-gqa-tied": LlamaConfig(**{**SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama-biased": LlamaConfig(**{**SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": LlamaConfig(**{**SIZES, "head_dim": 12}),
    "mistral": MistralConfig(**{**SIZES, "num_key_value_heads": 1, "sliding_window": None}),
    "qwen2": Qwen2Config(**{**SIZES, "num_key_value_heads": 2}),
    "qwen3": Qwen3Config(**{**SIZES, "num_key_value_heads": 2, "head_dim": 16}),
}


def make_model(config, dtype=torch.float32, seed=0):
    """A model with weights large enough, and norms and biases uneven enough, for a wrong formula to show."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + 0.3 * noise)
    return model


def make_policy(family="llama-gqa-tied", dtype=torch.float32, **options):
    return CausalPolicy(make_model(FAMILIES[family], dtype), char_tokenizer(ALPHABET), **options)


def precise_norms(model):
    """Let the model's own norms compute in float64: they round to float32 inside whatever the model's type."""

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon) * self.weight

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(forward, module)
    return model


def make_tokens(prompts, per_prompt, longest, seed=0, shortest=1):
    """`per_prompt` responses of random lengths for prompts of the given lengths."""
    g = torch.Generator().manual_seed(seed)

    def sample(length):
        return torch.randint(3, 3 + len(ALPHABET), (length,), generator=g).tolist()

    rows = [[1, *sample(length - 1)] for length in prompts]
    lengths = torch.randint(shortest, longest + 1, (len(prompts), per_prompt), generator=g)
    return Tokens.of(
        [prompt for prompt in rows for _ in range(per_prompt)], [sample(int(n)) for row in lengths for n in row]
    )


def kept_rows(policy, prompts, held, names, **settings):
    """What `decode` writes behind `prompts`, known by `names` in `held`."""
    requests = [replace(r, name=n) for r, n in zip(requests_of(prompts, **settings), names, strict=True)]
    written = decode(policy, requests, cache=held)
    return Rollout(
        Tokens(tuple(r.prompt for r in requests), written.ids), written.logp_bt, written.entropy_bt, written.truncated_b
    )
