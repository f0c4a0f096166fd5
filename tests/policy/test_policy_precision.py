"""Mixed precision: products in bfloat16, everything that lasts in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.asynchronous.sampler_canary import forced_logp
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy import load_policy, precision, products
from grouprl.policy.fast_forward import attention
from grouprl.policy.language.arithmetic import rate
from grouprl.policy.language.load import resolve_dtype
from grouprl.policy.passes import PassSettings
from grouprl.policy.precision import Probe, choose_precision
from grouprl.policy.products import SETTABLE, has_onednn, product, times, wide_sums
from grouprl.records.tokens import Tokens
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.storage.run_folder import RunFolder
from grouprl.training.loop import train
from grouprl.training.profile import product_kind

CPU = torch.device("cpu")
ALPHABET = "0123456789+="
SIZES: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 48}
FAMILIES: dict[str, str] = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}


onednn = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")


def tiny(kind: str = "mixed", **more: Any) -> Any:
    return load_policy("tiny", alphabet=ALPHABET, precision=kind, seed=1, **{**SIZES, **more})


def some_tokens(rows: int = 6) -> Tokens:
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(3, 12, (4 + row % 3,), generator=generator).tolist()) for row in range(rows)]
    return Tokens.of(prompts, [torch.randint(3, 12, (5,), generator=generator).tolist() for _ in range(rows)])


def gradient(policy: Any, tokens: Tokens) -> torch.Tensor:
    policy.model.zero_grad()
    ones = torch.ones(len(tokens), tokens.width)
    policy.backward(tokens, {"log_prob": ones / len(tokens)})
    return torch.cat([p.grad.flatten() for _, p in policy.named_parameters()])


def test_a_product_is_that_of_rounded_matrices_by_hand() -> None:
    x = torch.tensor([[1.0, 1.00390625]], requires_grad=True)  # 1 + 1/256 lies between two numbers of bfloat16
    weight = torch.tensor([[2.0, 4.0]], requires_grad=True)
    found = product(x, weight, "mixed")
    found.backward(torch.tensor([[1.0]]))
    assert found.item() == 6.0  # 1.00390625 is rounded to 1, to even
    assert torch.equal(x.grad, torch.tensor([[2.0, 4.0]]))
    assert torch.equal(weight.grad, torch.tensor([[1.0, 1.0]]))
    assert found.dtype == x.grad.dtype == weight.grad.dtype == torch.float32
    assert times(x.detach(), weight.detach().T, "float32").item() == pytest.approx(6.015625)


def test_sums_are_taken_in_float32() -> None:
    ones = torch.ones(1, 4096)
    assert times(ones, ones.T, "mixed").item() == 4096  # sums in bfloat16 would stay at 256


def test_weights_gradients_and_optimiser_are_float32_and_a_small_update_is_not_lost() -> None:
    policy = tiny()
    assert policy.precision == "mixed"
    assert {p.dtype for _, p in policy.named_parameters()} == {torch.float32}
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)
    before = [p.detach().clone() for p in policy.parameters()]
    gradient(policy, some_tokens())
    assert {p.grad.dtype for p in policy.parameters()} == {torch.float32}
    optimizer.step()
    for p, old in zip(policy.parameters(), before, strict=True):
        moved = (p.detach() - old).abs()
        touched = p.grad.abs() > 1e-5
        assert torch.allclose(moved[touched], torch.full_like(moved[touched], 1e-6), rtol=0.2)
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert {value.dtype for value in states} == {torch.float32}


def test_log_probs_and_gradients_are_near_those_of_float32_and_not_the_same() -> None:
    tokens, mixed, full = some_tokens(), tiny(), tiny("float32")
    wanted, found = (policy.evaluate(tokens, ["log_prob", "entropy"]) for policy in (full, mixed))
    assert found["log_prob"].dtype == torch.float32
    gap = (wanted["log_prob"] - found["log_prob"]).abs().max()
    assert 0 < gap < 0.02
    assert (wanted["entropy"] - found["entropy"]).abs().max() < 0.02
    g, h = gradient(full, tokens), gradient(mixed, tokens)
    assert 0 < (g - h).norm() / g.norm() < 0.02


@pytest.mark.parametrize("lora", [None, {"r": 4}])
def test_cutting_into_passes_changes_no_gradient_beyond_rounding(lora: Any) -> None:
    if lora is not None:
        pytest.importorskip("peft")
    tokens = some_tokens(8)
    whole, cut = tiny(lora=lora), tiny(lora=lora, token_budget=12)
    assert len(cut.passes(tokens, range(8))) > len(whole.passes(tokens, range(8)))
    g, h = gradient(whole, tokens), gradient(cut, tokens)
    assert (g - h).norm() <= 0.01 * g.norm()
    assert torch.allclose(whole.logp(tokens), cut.logp(tokens), atol=2e-3)


def test_passes_hold_twice_the_tokens_and_are_of_even_sizes() -> None:
    full, mixed = tiny("float32", token_budget=10**6), tiny(token_budget=10**6)
    assert mixed.pass_tokens == 2 * full.pass_tokens
    rows = [(3, 4 + row % 8, 5 + row // 8, *[6] * 37) for row in range(10)]
    tokens = Tokens.of(rows, [(7,)] * 10)
    own_rows = PassSettings(shared_prefix="off")
    full, mixed = (tiny(kind, token_budget=41 * 8, passes=own_rows) for kind in ("float32", "mixed"))
    assert [len(own) for own in full.passes(tokens, range(10))] == [8, 2]
    assert [len(own) for own in mixed.passes(tokens, range(10))] == [5, 5]


def test_a_feed_forward_with_biases_is_near_that_of_float32() -> None:
    tokens, mixed, full = some_tokens(), tiny(), tiny("float32")
    for policy in (mixed, full):
        torch.manual_seed(4)
        for layer in policy.model.model.layers:
            for module in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
                module.bias = torch.nn.Parameter(0.1 * torch.randn(module.out_features))
    g, h = gradient(full, tokens), gradient(mixed, tokens)
    assert 0 < (g - h).norm() / g.norm() < 0.02
    assert (mixed.logp(tokens) - forced_logp(mixed, tokens)).abs().max() < 5e-3


def test_the_same_passes_give_the_same_bits() -> None:
    tokens = some_tokens()
    assert torch.equal(tiny().logp(tokens), tiny().logp(tokens))
    assert torch.equal(gradient(tiny(), tokens), gradient(tiny(), tokens))


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_trainer_use_the_same_products(family: str) -> None:
    import transformers

    base = tiny("float32")
    config_of = getattr(transformers, FAMILIES[family].replace("ForCausalLM", "Config"))
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = config_of(hidden_size=32, intermediate_size=48, vocab_size=base.model.config.vocab_size, **sizes)
    model = getattr(transformers, FAMILIES[family])(config)
    policy = type(base)(model, base.tokenizer, precision="mixed")
    tokens = Tokens.of([(3, 4, 5), (4, 5, 6, 7)], [(6, 7, 8, 9, 10, 11), (3, 9, 9, 4, 5, 8)])
    gap = (policy.logp(tokens) - forced_logp(policy, tokens)).abs().max()
    assert gap < 5e-3
    assert gap < (policy.logp(tokens) - type(base)(model, base.tokenizer).logp(tokens)).abs().max()


def test_the_sampler_says_that_its_log_probs_are_not_exact() -> None:
    assert LocalSampler(tiny("float32")).exact
    assert not LocalSampler(tiny()).exact


@onednn
def test_onednn_multiplies_in_float32_and_so_are_its_gradients() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, pull = (torch.randn(*size, generator=generator) for size in ((37, 24), (50, 24), (37, 50)))
    x.requires_grad_()
    weight.requires_grad_()
    found = product(x, weight, "onednn")
    wanted = x.double() @ weight.double().T
    assert torch.allclose(found.double(), wanted, atol=1e-5)
    for mine, exact in zip(
        torch.autograd.grad(found, [x, weight], pull),
        torch.autograd.grad(wanted, [x, weight], pull.double()),
        strict=True,
    ):
        assert mine.dtype == torch.float32
        assert torch.allclose(mine, exact, atol=1e-4)


@onednn
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_onednn_takes_few_rows_and_none(rows: int) -> None:
    x, weight = torch.ones(rows, 5), torch.ones(5, 7)
    assert torch.equal(times(x, weight, "onednn"), torch.full((rows, 7), 5.0))
    assert torch.equal(times(weight.T, x.T, "onednn"), torch.full((7, rows), 5.0))


@onednn
@pytest.mark.parametrize("family", [{}, {"lora": {"r": 4}}])
def test_with_onednn_all_numbers_are_those_of_float32_but_for_the_last_bits(family: dict[str, Any]) -> None:
    if family:
        pytest.importorskip("peft")
    tokens, plain, other = some_tokens(), tiny("float32", **family), tiny("onednn", **family)
    assert other.precision == "onednn"
    wanted, found = (policy.evaluate(tokens, ["log_prob", "entropy", "cross@2"]) for policy in (plain, other))
    for name, exact in wanted.items():
        assert torch.allclose(found[name], exact, atol=1e-5)
    g, h = gradient(plain, tokens), gradient(other, tokens)
    assert (g - h).norm() < 1e-5 * g.norm()
    assert (other.logp(tokens) - forced_logp(other, tokens)).abs().max() < 1e-5
    assert LocalSampler(other).exact
    assert torch.equal(other.copied().logp(tokens), other.logp(tokens))


@onednn
def test_where_onednn_alone_is_faster_auto_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(by_onednn: float, bfloat16: float) -> str:
        monkeypatch.setattr(precision, "probe", lambda *_: Probe(1e11, bfloat16, by_onednn))
        return choose_precision("auto", "float32", "cpu", 576, 1536, None).precision

    assert chosen(2e11, 1e11) == "onednn"
    assert chosen(2e11, 2.2e11) == "onednn"  # not 1.25 times as fast as the better float32
    assert chosen(2e11, 4e11) == "mixed"
    assert chosen(1.1e11, 1e11) == "float32"
    assert choose_precision("onednn", "float32", "cpu", 32, 48, None).why == "requested"


def test_onednn_is_refused_where_it_cannot_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"precision='onednn', but the weights are on cuda.*float32"):
        choose_precision("onednn", "float32", "cuda", 576, 1536, None)
    with pytest.raises(InputError, match=r"weights are float64"):
        tiny("onednn", dtype="float64")
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    with pytest.raises(InputError, match=r"this torch has no oneDNN"):
        tiny("onednn")


def test_copies_and_references_keep_the_precision() -> None:
    policy, tokens = tiny(), some_tokens()
    assert policy.copied().precision == "mixed"
    assert torch.equal(policy.reference().logp(tokens), policy.logp(tokens))


def test_what_has_no_mixed_precision_is_refused() -> None:
    with pytest.raises(InputError, match=r"weights are bfloat16.*dtype: float32"):
        tiny(dtype="bfloat16")
    with pytest.raises(InputError, match="the engine transformers"):
        tiny(engine="transformers")
    with pytest.raises(InputError, match=r"'mixt'.*'mixed'"):
        tiny("mixt")
    assert tiny("auto", dtype="bfloat16").precision == "float32"
    assert tiny("auto", engine="transformers").precision == "float32"


@pytest.mark.parametrize(("ratio", "chosen"), [(4.0, "mixed"), (1.1, "float32"), (0.1, "float32")])
def test_auto_takes_what_is_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch, ratio: float, chosen: str) -> None:
    monkeypatch.setattr(precision, "probe", lambda *_: Probe(1e11, ratio * 1e11))
    found = choose_precision("auto", "float32", "cpu", 576, 1536, None)
    assert found.precision == chosen
    assert f"{ratio:.2g} times as fast" in found.why
    assert choose_precision("auto", "float32", "cpu", 64, 176, None).precision == "float32"


def test_the_probe_measures_both_types() -> None:
    found = precision.probe(256, 512)
    assert found.float32 > 0 < found.bfloat16
    assert (found.onednn > 0) == has_onednn()
    assert rate((64, 64, 64), kind=torch.bfloat16) > 0


def test_a_profile_counts_products_in_the_type_they_are_computed_in() -> None:
    assert product_kind(tiny()) == torch.bfloat16
    assert product_kind(tiny("float32")) == torch.float32
    assert rate((64, 64, 64), kind=product_kind(tiny("onednn"))) > 0
    assert product_kind(tiny("float32", dtype="bfloat16")) == torch.bfloat16


@pytest.mark.skipif(not SETTABLE, reason="this torch has no setting for the products of a backend")
def test_float32_products_are_as_they_were_outside_of_mixed_ones() -> None:
    setting: Any = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    with wide_sums(True, CPU):
        assert setting.fp32_precision == "bf16"
    with wide_sums(False, CPU):
        assert setting.fp32_precision == before
    with pytest.raises(ZeroDivisionError), wide_sums(True, CPU):
        raise ZeroDivisionError
    assert setting.fp32_precision == before


def test_mixed_weights_are_float32_where_bfloat16_would_be_the_default() -> None:
    assert resolve_dtype("auto", CPU, "mixed") == torch.float32


def odd(completion: str) -> float:
    """A reward that is rarely the same for a whole group."""
    return float(len(completion) % 2)


def config(**model: Any) -> Any:
    return parse_config(
        {
            "task": "addition",
            "reward": {"function": f"{__file__}:odd", "workers": 0},
            "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 32}, **model},
            "warmup": {"steps": 4, "batch": 8},
            "batch": {"prompts": 4, "group_size": 8},
            "steps": 4,
            "eval": {"every": 0, "final_prompts": 4},
            "run": {"threads": 1, "checkpoint_every": 2, "keep": 10},
        }
    )


def weights(run: Path) -> bytes:
    return (RunFolder(run).model / "model.safetensors").read_bytes()


def test_a_run_is_repeated_and_resumed_to_the_bit_and_shows_the_gap(tmp_path: Path) -> None:
    # Wide and deep enough for sampler and trainer, whose sums differ in their last bits, to round some state apart.
    mixed = config(precision="mixed", tiny={"hidden": 64, "layers": 3, "heads": 4, "intermediate": 128})
    for name in ("a", "b", "c"):
        train(mixed, folder=tmp_path / name)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    rmtree(tmp_path / "c" / "checkpoints" / "step-000004")
    rmtree(RunFolder(tmp_path / "c").model)
    train(mixed, folder=tmp_path / "c", resume=True)
    assert weights(tmp_path / "a") == weights(tmp_path / "c")
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    gaps = [line["logp_gap_mean"] for line in lines if line["phase"] == "train"]
    assert all(0 <= gap < 0.02 for gap in gaps)
    largest = max(line["logp_gap_max"] for line in lines if line["phase"] == "train")
    assert largest > 1e-4  # measured, not assumed: float32 alone would round at 1e-7


def test_a_run_keeps_what_auto_came_to(tmp_path: Path) -> None:
    train(config(precision="auto"), folder=tmp_path / "run")
    assert "precision: float32" in (tmp_path / "run" / "config.yaml").read_text()
    train(config(), folder=tmp_path / "plain")
    assert weights(tmp_path / "run") == weights(tmp_path / "plain")


def test_fingerprints_are_as_before_where_nothing_is_chosen() -> None:
    assert config().fingerprint() == config(precision="float32").fingerprint()
    assert config().fingerprint() != config(precision="mixed").fingerprint()


def test_the_plan_says_what_was_chosen_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(ratio: float, **model: Any) -> list[str]:
        monkeypatch.setattr(precision, "probe", lambda *_: Probe(1e11, ratio * 1e11))
        sizes = {"hidden": 256, "layers": 1, "heads": 2, "intermediate": 256}
        found = plan(resolve(config(**{"tiny": sizes, **model})))
        return [note for note in found.notes if "bfloat16" in note]

    assert any("precision auto is mixed" in note for note in notes(4.0, precision="auto"))
    assert any("precision auto is float32" in note for note in notes(0.2, precision="auto"))
    assert any("model.precision mixed (or auto) takes them" in note for note in notes(4.0))
    assert notes(0.2) == []
    assert any("slows this run down" in note for note in notes(0.2, precision="mixed"))
    refused = plan(resolve(config(precision="mixed", dtype="bfloat16"))).refusals
    assert any("weights are bfloat16" in reason for reason in refused)


def test_a_product_that_is_out_of_the_race_is_timed_on_few_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 took twelve seconds of `plan` on a CPU without a unit for it."""
    timed: list[tuple[str, int]] = []

    def seconds(run: Callable[[], torch.Tensor]) -> float:
        (x,) = run.args
        timed.append(("bfloat16" if "rounded" in run.func.__code__.co_freevars else "other", len(x)))
        return len(x) * (1e-4 if timed[-1][0] == "other" else 1e-3)

    monkeypatch.setattr(precision, "_seconds", seconds)
    monkeypatch.setattr(precision, "LONGEST", 1e9)
    found = precision._probe.__wrapped__(64, 128, 1)
    assert {rows for name, rows in timed if name == "bfloat16"} == {precision.FEW_ROWS}
    assert timed.count(("other", precision.ROWS)) == (precision.SERIES + 1) * (1 + has_onednn())
    assert found.float32 == pytest.approx(10 * found.bfloat16)


def test_a_crowded_machine_gets_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def seconds(run: Callable[[], torch.Tensor]) -> float:
        timed.append(len(run.args[0]))
        return 0.01

    monkeypatch.setattr(precision, "_seconds", seconds)
    monkeypatch.setattr(precision, "LONGEST", -1.0)
    precision._probe.__wrapped__(64, 128, 1)
    assert timed.count(precision.ROWS) == (precision.ENOUGH + 1) * (2 + has_onednn())


@pytest.mark.skipif(not SETTABLE, reason="this torch has no setting for the products of a backend")
def test_on_a_gpu_inputs_of_float32_products_are_rounded_to_tf32_and_the_setting_returns() -> None:
    matmul, gpu = torch.backends.cuda.matmul, torch.device("cuda")
    before = matmul.fp32_precision
    with wide_sums(True, gpu):
        assert matmul.fp32_precision == "tf32"
    assert matmul.fp32_precision == before != "tf32"
    with wide_sums(False, gpu):
        assert matmul.fp32_precision == before


@pytest.mark.parametrize("shared", ["on", "off"])
def test_fused_attention_of_rounded_numbers_is_near_that_of_float32(
    monkeypatch: pytest.MonkeyPatch, shared: Any
) -> None:
    """As on a GPU: long rows, causal ones and ones behind a shared beginning, which need a mask."""
    tokens = Tokens.of([[1, *range(3, 11)] * 20] * 3, [[4, 5, 6], [7, 8], [9]])
    policy = tiny(passes=PassSettings(shared_prefix=shared))
    monkeypatch.setattr(attention, "SHORT_KEYS", 0)
    plain, place = (policy.logp(tokens), gradient(policy, tokens)), attention.HeadLayout.__init__

    def rounded(self: Any, *arguments: Any, **named: Any) -> None:
        place(self, *arguments, **named)
        self.rounded = True

    monkeypatch.setattr(attention.HeadLayout, "__init__", rounded)
    found = (policy.logp(tokens), gradient(policy, tokens))
    assert 0 < float((found[0] - plain[0]).abs().max()) < 0.05
    assert 0 < float((found[1] - plain[1]).norm() / plain[1].norm()) < 0.05
