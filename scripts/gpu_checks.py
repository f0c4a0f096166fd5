"""Checks of a device against the CPU: each is a function of the device, so that a CPU can be put through them too.

A check yields what it compared, how far apart the numbers are, and how far they may be.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from finished import finished
from grouprl.config.sections import Vllm
from grouprl.core.errors import GrouprlError
from grouprl.policy import CausalPolicy, compiled_layers, load_policy
from grouprl.policy.fused_attention import fused_attention
from grouprl.policy.passes import PassSettings
from grouprl.protocols import Request
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import generate
from grouprl.rollout.vllm.engine import VllmEngine

ALPHABET = "0123456789+="
CPU = ("cpu", "float32")
SIZES = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 96}
LIMITS = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats by which a log-prob may differ, and the share of its norm by which a gradient may: products of GPUs sum in
another order, and bfloat16 rounds to 1/256."""
PATHS: dict[str, dict[str, Any]] = {
    "lean": {"engine": "lean"},
    "lean, nothing shared": {"engine": "lean", "passes": PassSettings(shared_prefix="off")},
    "lean, layers computed anew": {"engine": "lean", "passes": PassSettings(checkpointing="on")},
    "lean, adapters": {"engine": "lean", "lora": {"r": 4}},
    "transformers, padded": {"engine": "transformers", "passes": PassSettings("off", "off", "off")},
    "transformers, packed": {"engine": "transformers", "passes": PassSettings("on", "off", "off")},
    "transformers, prompts shared": {"engine": "transformers", "passes": PassSettings("off", "on", "off")},
    "transformers, layers computed anew": {"engine": "transformers", "passes": PassSettings("off", "off", "on")},
}
KEPT = 0.25
"""The share of its memory that a server may keep as it sleeps: what CUDA itself needs, and compiled kernels."""
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
LACKS = {("flash", "masked"), ("flash", "float32")}
"""What CUDA's kernels do not take, besides keys that several heads share, of which only flash attention knows."""
OWN_KEYS = {"memory-efficient": {"kv_heads": SIZES["heads"]}}


@dataclass(frozen=True)
class Finding:
    """One comparison: `apart` is None where it could not be made, and `why` says why not."""

    check: str
    what: str
    apart: float | None
    limit: float
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether the numbers agree; what could not be compared does not."""
        return self.apart is not None and self.apart <= self.limit

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "passed": self.passed}


def some_tokens() -> Tokens:
    """Three prompts with four completions each, of unequal lengths."""
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 12, (count,), generator=generator).tolist())

    prompts = [ids(4 + number) for number in range(3)]
    return Tokens.of([prompt for prompt in prompts for _ in range(4)], [ids(3 + row % 5) for row in range(12)])


def even_tokens() -> Tokens:
    """Three prompts with four completions each, all of one length: such a batch needs no mask, and CUDA's flash kernel
    takes no other.
    """
    found = some_tokens()
    longest = max(found.lengths)
    rest = [row + (3,) * (longest - length) for row, length in zip(found.response_ids, found.lengths, strict=True)]
    return Tokens.of(found.prompt_ids, rest)


BATCHES = {"without a mask": even_tokens(), "masked": some_tokens()}


def policy_on(device: str, dtype: str, **how: Any) -> CausalPolicy:
    """A tiny model, the same on every device but for the rounding of its weights."""
    return load_policy("tiny", alphabet=ALPHABET, device=device, dtype=dtype, seed=1, **{**SIZES, **how})


def gradient_of(policy: CausalPolicy, tokens: Tokens) -> torch.Tensor:
    """The gradient of the mean log-prob by every weight, on the CPU in float64."""
    for parameter in policy.parameters():
        parameter.grad = None
    pull_bt = tokens.present_bt().float() / tokens.present_bt().sum()
    policy.backward(tokens, {"log_prob": pull_bt.to(policy.device)})
    found = [
        (p.grad if p.grad is not None else torch.zeros_like(p)).flatten().cpu().double() for p in policy.parameters()
    ]
    return torch.cat(found)


def compare(
    check: str, what: str, policy: CausalPolicy, wanted: CausalPolicy, limit: float, tokens: Tokens | None = None
) -> Iterator[Finding]:
    """Compare log-probs, entropies and gradients of two policies with the same weights."""
    tokens = tokens or some_tokens()
    names = {"log_prob": "log-probs", "entropy": "entropies"}
    mine, theirs = policy.evaluate(tokens, tuple(names)), wanted.evaluate(tokens, tuple(names))
    for name, words in names.items():
        yield Finding(check, f"{what}: {words}", _apart(mine[name], theirs[name]), limit)
    g, h = gradient_of(policy, tokens), gradient_of(wanted, tokens)
    yield Finding(check, f"{what}: gradient", float((g - h).norm() / h.norm()), limit)


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.detach().cpu().double() - b.detach().cpu().double()).abs().max())


def parity(device: str) -> Iterator[Finding]:
    """Every path in float32 and bfloat16 against the same path on the CPU in float32, and mixed precision."""
    for name, how in PATHS.items():
        for dtype, limit in LIMITS.items():
            wanted = policy_on("cpu", "float32", **how)
            yield from compare("parity", f"{name}, {dtype}", policy_on(device, dtype, **how), wanted, limit)
    mixed, wanted = policy_on(device, "float32", engine="lean", precision="mixed"), policy_on("cpu", "float32")
    yield from compare("parity", "lean, mixed precision", mixed, wanted, LIMITS["bfloat16"])


def attention(device: str) -> Iterator[Finding]:
    """transformers' attention by torch's kernels, each alone, against its plain one; flash-attn where it is there."""
    how = PATHS["transformers, padded"]
    for dtype, limit in LIMITS.items():
        for name, kernel in KERNELS.items():
            if device.startswith("cuda") and (name, dtype) in LACKS:
                continue
            try:
                wanted, policy = (policy_on(*on, **how, **OWN_KEYS.get(name, {})) for on in (CPU, (device, dtype)))
            except GrouprlError as error:
                yield Finding("attention", f"sdpa by {name}, {dtype}", None, limit, str(error))
                continue
            wanted.model.set_attn_implementation("eager")
            policy.model.set_attn_implementation("sdpa")
            for rows, tokens in BATCHES.items():
                if device.startswith("cuda") and (name, rows) in LACKS:
                    continue
                with sdpa_kernel([kernel]), masks_seen() as masked:
                    found = list(_tried("attention", f"sdpa by {name}, {rows}, {dtype}", policy, wanted, limit, tokens))
                if set(masked) == {rows == "masked"}:
                    yield from found
                else:
                    why = f"attention was called {len(masked)} times, {sum(masked)} times with a mask"
                    yield Finding("attention", f"sdpa by {name}, {rows}, {dtype}", None, limit, why)
    wanted, policy = policy_on(*CPU, **how), policy_on(device, "bfloat16", **how)
    try:
        policy.model.set_attn_implementation("flash_attention_2")
    except (ImportError, ValueError) as error:
        yield Finding("attention", "flash-attn, bfloat16", None, LIMITS["bfloat16"], str(error).splitlines()[0])
        return
    yield from _tried("attention", "flash-attn, bfloat16", policy, wanted, LIMITS["bfloat16"])


def shared_heads(device: str) -> Iterator[Finding]:
    """Attention whose heads share keys, by any kernel but plain products, against the CPU; values and gradients."""
    generator = torch.Generator().manual_seed(7)
    rows = [torch.randn(2, heads, 40, 16, generator=generator) for heads in (4, 2, 2)]
    seen = torch.rand(2, 1, 40, 40, generator=generator) < 0.5
    seen |= torch.eye(40, dtype=torch.bool)
    for dtype, limit in LIMITS.items():
        for words, how in {"causal": {"causal": True}, "masked": {"mask": seen}}.items():
            what = f"heads that share keys, {words}, {dtype}"
            wanted = _attended(rows, how)
            moved = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in how.items()}
            try:
                with sdpa_kernel(FUSED if device.startswith("cuda") else list(KERNELS.values())):
                    found = _attended([x.to(device, getattr(torch, dtype)) for x in rows], moved)
            except RuntimeError as error:
                yield Finding("attention", what, None, limit, str(error).splitlines()[0])
                continue
            apart = [_apart(a, b) / float(b.abs().max()) for a, b in zip(found, wanted, strict=True)]
            yield Finding("attention", f"{what}: values and gradients", max(apart), limit)


def _attended(rows: Sequence[torch.Tensor], how: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the values and the gradients of queries, keys and values."""
    rows = [x.detach().clone().requires_grad_() for x in rows]
    out = fused_attention(*rows, scale=0.25, **how)
    out.float().square().sum().backward()
    return [out.detach(), *(x.grad for x in rows if x.grad is not None)]


@contextmanager
def masks_seen() -> Iterator[list[bool]]:
    """Yield a list that grows by one entry with each call of torch's attention: whether it was given a mask."""
    plain, seen = torch.nn.functional.scaled_dot_product_attention, []

    def noted(*arguments: Any, **named: Any) -> torch.Tensor:
        seen.append((named.get("attn_mask") if len(arguments) < 4 else arguments[3]) is not None)
        return plain(*arguments, **named)

    torch.nn.functional.scaled_dot_product_attention = noted
    try:
        yield seen
    finally:
        torch.nn.functional.scaled_dot_product_attention = plain


def _tried(
    check: str, what: str, policy: CausalPolicy, wanted: CausalPolicy, limit: float, tokens: Tokens | None = None
) -> Iterator[Finding]:
    """Compare, or say why the device has no such kernel."""
    try:
        yield from list(compare(check, what, policy, wanted, limit, tokens))
    except (RuntimeError, ImportError) as error:
        yield Finding(check, what, None, limit, str(error).splitlines()[0])


def compiled(device: str, backend: str = "inductor") -> Iterator[Finding]:
    """A policy whose layers are compiled by torch (`model.compile`) against the plain one on the CPU; compiled calls
    are counted.
    """
    how, what = PATHS["transformers, padded"], f"torch.compile, {backend}, float32"
    wanted, passes = policy_on("cpu", "float32", **how), replace(how["passes"], compiled=True)
    try:
        with patch.object(compiled_layers, "BACKEND", backend):
            policy = policy_on(device, "float32", engine="transformers", passes=passes)
            layers = policy._engine.compiled
            before = layers.calls
            found = list(_tried("compile", what, policy, wanted, LIMITS["float32"]))
    except GrouprlError as error:
        yield Finding("compile", what, None, LIMITS["float32"], str(error))
        return
    if layers.calls > before:
        yield from found
    else:
        yield Finding("compile", what, None, LIMITS["float32"], "it was never called")


def sampling(device: str) -> Iterator[Finding]:
    """Log-probs as they are sampled against those that the CPU gives the same completions."""
    for dtype, limit in LIMITS.items():
        policy, wanted = policy_on(device, dtype), policy_on("cpu", "float32")
        prompts = [policy.encode_prompt(text) for text in ("1+2=", "23+4=")]
        sampled = generate(policy, prompts, n=4, max_new_tokens=6, seeds=range(8))
        expected_bt = wanted.logp(sampled.tokens)
        yield Finding("sampling", f"log-probs sampled, {dtype}", _apart(sampled.logp_bt, expected_bt), limit)


REWARD = """def digits(completion, **_):
    return sum(character in "0123" for character in completion) / 12
"""
"""A reward of which hardly two completions get the same, so that groups differ from the first step on."""
STEPS = 4


def learning(device: str, engine: Mapping[str, Any] | None = None, what: str = "") -> Iterator[Finding]:
    """A short run on the device at a high learning rate: the log-probs of sampler and trainer, read off its metrics.

    Each step moves log-probs by more than the limit, so that a sampler that is a step behind is noticed. `engine` are
    keys of `sampling`, for instance those of servers of vLLM.
    """
    name, limit = what or "a run", LIMITS["bfloat16"]
    with tempfile.TemporaryDirectory() as folder:
        reward = Path(folder) / "reward.py"
        reward.write_text(REWARD)
        try:
            lines = _trained(device, f"{reward}:digits", engine or {}, Path(folder) / "run")
        except GrouprlError as error:
            yield Finding("run", name, None, limit, str(error))
            return
    gaps = [line["logp_gap_mean"] for line in lines if "logp_gap_mean" in line]
    trained = sum(line["rows_trained"] > 0 for line in lines)
    if len(gaps) < STEPS or trained < STEPS:
        yield Finding("run", name, None, limit, f"{trained} of {STEPS} steps had a group that differs")
        return
    yield Finding("run", f"{name}: sampler and trainer", max(gaps), limit)


def _trained(device: str, reward: str, engine: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Train; return the metrics of each step."""
    config = {
        "task": "addition",
        "model": {"name": "tiny", "tiny": SIZES, "device": device},
        "method": "grpo",
        "optim": {"lr": 0.03},
        "warmup": {"steps": 20, "batch": 16},
        "batch": {"prompts": 4, "group_size": 8},
        "steps": STEPS,
        "eval": {"every": 0, "final_prompts": 4},
        "sampling": {"max_new_tokens": 12, **engine},
        "reward": {"function": reward, "workers": 0},
        "run": {"checkpoint_every": STEPS},
    }
    finished(config, folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "train"]


def servers(device: str, command: str) -> Iterator[Finding]:
    """The same with samples from an own server of vLLM on the same device, weights handed over after every step."""
    engine = {"engine": "vllm", "vllm": {"command": command}}
    yield from learning(device, engine, "samples from a server of vLLM")


def sent(device: str, command: str) -> Iterator[Finding]:
    """The same with weights that are broadcast by NCCL, to a server on a GPU of its own."""
    what = "weights sent to a server by NCCL"
    if device.startswith("cuda") and torch.cuda.device_count() < 2:
        why = "there is one GPU, and NCCL wants each member of a group on another one"
        yield Finding("run", what, None, LIMITS["bfloat16"], why)
        return
    vllm = {"command": command, "weights": "broadcast", "env": {"CUDA_VISIBLE_DEVICES": "1"}}
    yield from learning(device, {"engine": "vllm", "vllm": vllm}, what)


def sleeping(device: str, command: str) -> Iterator[Finding]:
    """An own server of vLLM that sleeps while the trainer computes: the memory that it keeps, and what it says then."""
    policy, before = policy_on(device, "float32"), free_memory(device)
    try:
        engine = VllmEngine(policy, Vllm(command=(command,), sleep=True))
    except GrouprlError as error:
        yield Finding("sleep", "a server on the trainer's GPU", None, KEPT, str(error))
        return
    try:
        yield from slept(engine, policy, before, lambda: free_memory(device))
    except GrouprlError as error:
        yield Finding("sleep", "a server on the trainer's GPU", None, KEPT, str(error))
    finally:
        engine.close()


def slept(engine: VllmEngine, policy: CausalPolicy, before: int, free: Callable[[], int]) -> Iterator[Finding]:
    """Let servers sleep twice; `before` bytes were free without them, `free()` are now."""
    requests = [Request(policy.encode_prompt("1+2="), 6, seed) for seed in range(8)]
    engine.publish(0, policy)
    for version in (1, 2):
        awake = free()
        engine.rest()
        kept = (before - free()) / max(before - awake, 1)
        yield Finding("sleep", f"memory kept asleep, as a share, version {version}", kept, KEPT)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        engine.publish(version, policy)
        yield Finding("sleep", f"canary after waking, version {version}", engine.gap, LIMITS["float32"] * 100)
        found = engine.sample(requests)
        told_bt = policy.logp(Tokens.of([r.prompt for r in requests], found.actions))
        apart = _apart(torch.as_tensor(found.logp_bt), told_bt)
        yield Finding("sleep", f"log-probs sampled after waking, version {version}", apart, LIMITS["float32"] * 100)


def free_memory(device: str) -> int:
    """Bytes that are free on the device, for all processes."""
    if not device.startswith("cuda"):
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])
