"""Models of a billion random weights and more on a device, with rows of thousands of tokens: agreement, time, memory.

A step's parts are timed as the plan counts them (`grouprl.plan.cluster.roofline`), so that the plan's seconds stand
beside those measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_checks import LIMITS, Finding, free_memory
from grouprl.plan.cluster.hardware import Accelerator, Cluster, accelerators
from grouprl.plan.cluster.roofline import Efficiency, sampling, training
from grouprl.plan.cluster.workload import Workload
from grouprl.policy import CausalPolicy
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.lora import add_lora
from grouprl.policy.passes import PassSettings
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import generate

VOCABULARY = 32_768
ALPHABET = "0123456789"


@dataclass(frozen=True)
class Size:
    """The sizes of a model, and of the rows it is tried on."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    prompts: int = 2
    group: int = 4
    prompt: int = 1024
    response: int = 3072
    lora: bool = False
    """Whether adapters alone are trained."""

    @property
    def row(self) -> int:
        """Tokens of the longest row."""
        return self.prompt + self.response


SIZES = (
    Size("0.1 G", 30, 576, 1536, 9, 3),
    Size("1.0 G", 16, 2048, 8192, 32, 8),
    Size("7.2 G", 32, 4096, 14336, 32, 8, lora=True),
)
"""Those of SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B, with fewer tokens in the vocabulary."""
WAYS: dict[str, dict[str, Any]] = {
    "lean, bfloat16": {"engine": "lean", "dtype": torch.bfloat16},
    "lean, mixed": {"engine": "lean", "dtype": torch.float32, "precision": "mixed"},
    "transformers, bfloat16": {"engine": "transformers", "dtype": torch.bfloat16},
    "transformers, bfloat16, compiled": {
        "engine": "transformers",
        "dtype": torch.bfloat16,
        "passes": PassSettings(compiled=True),
    },
}


def rows_of(size: Size) -> Tokens:
    """Return groups whose rows share a prompt, with responses of a half of the longest length to the whole."""
    generator = torch.Generator().manual_seed(5)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(20, VOCABULARY, (count,), generator=generator).tolist())

    lengths = torch.linspace(size.response // 2, size.response, size.group).long().tolist()
    shown = [ids(size.prompt) for _ in range(size.prompts)]
    return Tokens.of([each for each in shown for _ in lengths], [ids(n) for _ in shown for n in lengths])


def model_of(size: Size, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    """Return a model with random weights, made on the device."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=2 * size.row,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(1)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype)
    return model.eval()


def policy_of(model: LlamaForCausalLM, **how: Any) -> CausalPolicy:
    """Return the model as a policy that is computed as `how` says."""
    how = {name: value for name, value in how.items() if name != "dtype"}
    return CausalPolicy(model, char_tokenizer(ALPHABET), **how)


def agreement(device: str, sizes: Sequence[Size] = SIZES) -> Iterator[Finding]:
    """Compare the lean engine with transformers on the same weights and long rows, in float32 and in bfloat16."""
    for size in sizes:
        tokens = rows_of(size)
        for name, limit in LIMITS.items():
            if size.lora and name == "float32":
                continue  # two passes of the largest in float32 are the slowest of all, and tell nothing new
            model = model_of(size, device, getattr(torch, name))
            found_bt = [policy_of(model, engine=engine).logp(tokens) for engine in ("lean", "transformers")]
            there_bt = tokens.present_bt().to(found_bt[0].device)
            apart = float((found_bt[0] - found_bt[1]).abs()[there_bt].mean())
            what = f"{size.name}, rows of {size.row} tokens, {name}: log-probs of both engines, on average"
            yield Finding("sizes", what, apart, limit)
            del model


def measured(device: str, sizes: Sequence[Size] = SIZES, repeats: int = 3) -> Iterator[dict[str, Any]]:
    """Yield what a step of each size takes by each way: seconds, memory, and what the plan says of both."""
    for size in sizes:
        tokens = rows_of(size)
        for way, how in WAYS.items():
            yield {"size": size.name, "way": way} | step(size, tokens, device, how, repeats)


def step(size: Size, tokens: Tokens, device: str, how: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return the seconds of scoring, of training and of the optimiser's step, and the peak of memory."""
    clear(device)
    model = model_of(size, device, how["dtype"])
    parameters = sum(p.numel() for p in model.parameters())
    policy = policy_of(add_lora(model, {"r": 16}) if size.lora else model, **how)
    pull_bt = (tokens.present_bt() / tokens.present_bt().sum()).float()
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-6)
    plan = planned(size, tokens, parameters, sum(p.numel() for p in trained), device)
    try:
        score = seconds_of(lambda: policy.logp(tokens), device, repeats)
        train = seconds_of(lambda: policy.backward(tokens, {"log_prob": pull_bt}), device, repeats)
        update = seconds_of(optimizer.step, device, repeats)
    except torch.OutOfMemoryError as error:
        return {"failed": str(error).splitlines()[0]}
    count = sum(len(p) + len(r) for p, r in zip(tokens.prompt_ids, tokens.response_ids, strict=True))
    calls = policy._engine.compiled.calls if how.get("passes") else None
    return {
        "tokens": count,
        "parameters": parameters,
        "scoring": score,
        "training": train,
        "optimiser": update,
        "peak_gib": peak_gib(device),
        **({"compiled_calls": calls} if calls is not None else {}),
        **plan,
    }


def planned(size: Size, tokens: Tokens, parameters: int, trainable: int, device: str) -> dict[str, Any]:
    """Return what the plan says of the same rows on this accelerator; nothing of one that it does not know."""
    kind = accelerator_of(device)
    if kind is None:
        return {}
    response = sum(map(len, tokens.response_ids)) / len(tokens.response_ids)
    work = work_of(size, parameters, trainable, response)
    found = training(work, Cluster(1, 1, kind), 1, 1, Efficiency())
    return {} if found is None else {"planned": {"scoring": found.scoring, "training": found.compute}}


def work_of(size: Size, parameters: int, trainable: int, response: float) -> Workload:
    """Return the rows of a size as the plan counts a step's work."""
    return Workload(
        parameters=parameters,
        trainable=trainable,
        layers=size.layers,
        hidden=size.hidden,
        kv_width=size.kv_heads * size.hidden // size.heads,
        vocabulary=VOCABULARY,
        prompts=size.prompts,
        group_size=size.group,
        prompt_tokens=size.prompt,
        completion_tokens=response,
        longest=size.response,
        updates=1,
        passes=1,
        scorings=1,
        steps=1,
        recomputed=False,
    )


def accelerator_of(device: str) -> Accelerator | None:
    """Return the accelerator that the plan knows by the name and the memory of the device, if any."""
    return known_as(torch.cuda.get_device_name(device), free_memory(device)) if device.startswith("cuda") else None


def known_as(name: str, memory: float) -> Accelerator | None:
    """Return the accelerator that a driver calls `name`; of those of one name, the one with about so much memory."""
    words = {word.partition("-")[0] for word in name.split()}
    found = [each for kind, each in accelerators().items() if kind.partition("-")[0] in words]
    return min(found, key=lambda each: abs(each.memory - memory), default=None)


def decoding(device: str, sizes: Sequence[Size] = SIZES, rows: int = 64, tokens: int = 128) -> Iterator[dict[str, Any]]:
    """Yield what a decoded token of the local engine waits for, in bfloat16, and what the plan says of it."""
    for size in sizes:
        clear(device)
        policy = policy_of(model_of(size, device, torch.bfloat16), engine="lean")
        prompts = rows_of(size).prompt_ids[:: size.group][: rows // 8]
        shown = [list(prompt[: size.prompt // 4]) for prompt in prompts]
        generate(policy, shown, n=2, max_new_tokens=2, seeds=range(2 * len(shown)))
        begun = time.perf_counter()
        each = rows // len(shown)
        found = generate(policy, shown, n=each, max_new_tokens=tokens, seeds=range(rows))
        synchronise(device)
        spent, lengths = time.perf_counter() - begun, [len(ids) for ids in found.tokens.response_ids]
        longest = max(lengths)
        yield {
            "size": size.name,
            "rows": rows,
            "tokens": sum(lengths),
            "seconds": spent,
            "per_token": spent / longest,
            **decoding_planned(size, policy, rows, longest, device),
        }


def decoding_planned(size: Size, policy: CausalPolicy, rows: int, longest: int, device: str) -> dict[str, float]:
    """Return the plan's seconds of the same rollout, if it knows the accelerator."""
    kind = accelerator_of(device)
    if kind is None:
        return {}
    parameters = sum(p.numel() for p in policy.parameters())
    shape = Size(**{**vars(size), "prompt": size.prompt // 4, "response": longest, "group": rows // size.prompts})
    found = sampling(work_of(shape, parameters, parameters, longest), Cluster(1, 1, kind), 1, 1, Efficiency())
    return {} if found is None else {"planned": found.seconds}


def seconds_of(work: Callable[[], object], device: str, repeats: int) -> float:
    """Return the shortest of several durations, after one that is not counted."""
    found = []
    for _ in range(repeats + 1):
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def clear(device: str) -> None:
    """Give back what is free of the device's memory, forget its peak, and what was compiled."""
    torch._dynamo.reset()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: str) -> float:
    """Return the largest memory of tensors since `clear`; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.startswith("cuda") else 0.0
