"""Small GGUF files: a Llama of random weights with a tokenizer of single characters and a chat template."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789+="
"""Single tokens; what the byte-level tokenizer calls a space and a line's end follow."""
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HIDDEN, HEADS, LAYERS, FEED = 64, 4, 2, 96


def write_gguf(path: Path, *, template: str | None = TEMPLATE, architecture: str = "llama") -> Path:
    """Write a file of float32 weights and return its path."""
    from gguf import GGUFWriter

    rng = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "Ġ", "Ċ", "ab"]
    writer = GGUFWriter(str(path), architecture)
    writer.add_name("Tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    width = HIDDEN // 2
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (width, HIDDEN),
            "attn_v": (width, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FEED, HIDDEN),
            "ffn_up": (FEED, HIDDEN),
            "ffn_down": (HIDDEN, FEED),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.1, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
