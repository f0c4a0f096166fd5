"""What `make gpu` does, with the CPU in the place of the GPU: the checks are functions of a device."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import gpu
import gpu_catalogue
import gpu_checks
import gpu_page
import gpu_ranks
import gpu_sizes
from gpu_checks import PATHS, Finding
from grouprl.algorithms.update.papers import transported
from grouprl.config.sections import Vllm
from grouprl.plan.cluster.hardware import accelerators
from grouprl.policy import compiled_layers
from grouprl.rollout.vllm.engine import VllmEngine
from vllm_brain import Brain
from vllm_stand_in import StandIn, standing_in

CPU = "cpu"


def test_every_path_of_the_cpu_is_its_own_and_near_in_bfloat16() -> None:
    found = list(gpu_checks.parity(CPU))
    assert all(finding.passed for finding in found)
    assert {f"{name}, {dtype}: gradient" for name in PATHS for dtype in ("float32", "bfloat16")} <= {
        finding.what for finding in found
    }
    rounded = [finding.apart for finding in found if "bfloat16" in finding.what or "mixed" in finding.what]
    assert min(x for x in rounded if x is not None) > 0  # nothing is compared with itself


def free_memory(server: StandIn, asleep: int) -> int:
    return asleep if server.lacks else 20


def test_a_server_that_sleeps_is_put_through_its_checks() -> None:
    """With a stand-in, and numbers in the place of a GPU's memory: 100 without the server, 20 awake, then as given."""
    policy = gpu_checks.policy_on(CPU, "float32")
    server = StandIn(Brain(policy))
    with standing_in(server) as address:
        for asleep, passed in ((95, True), (40, False)):
            engine = VllmEngine(policy, Vllm(addresses=(address,), sleep=True))
            found = list(gpu_checks.slept(engine, policy, 100, partial(free_memory, server, asleep)))
            engine.close()
            memory = [finding for finding in found if "memory" in finding.what]
            assert [finding.apart for finding in memory] == pytest.approx([(100 - asleep) / 80] * 2)
            assert all(finding.passed == passed for finding in memory)
            assert all(finding.passed for finding in found if finding not in memory)
            assert len(found) == 6


def test_what_a_cpu_does_not_have_is_said() -> None:
    (found,) = gpu_checks.sleeping(CPU, sys.executable)
    assert found.apart is None
    assert "refuses --enable-sleep-mode" in found.why


def test_a_wrong_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    build = gpu_checks.policy_on

    def off(device: str, dtype: str, **how: object) -> object:
        policy = build("cpu", dtype, **how)
        if device != "cpu":
            with torch.no_grad():
                next(p for name, p in policy.named_parameters() if "down_proj" in name).mul_(1.5)
        return policy

    monkeypatch.setattr(gpu_checks, "policy_on", off)
    monkeypatch.setattr(gpu_checks, "PATHS", {"lean": PATHS["lean"]})
    found = {finding.what: finding.passed for finding in gpu_checks.parity("elsewhere")}
    assert not found["lean, float32: log-probs"]
    assert not found["lean, float32: gradient"]


def test_attention_kernels_agree_with_and_without_a_mask() -> None:
    found = list(gpu_checks.attention(CPU))
    assert all(finding.passed or finding.why for finding in found)
    for kernel in ("math", "flash"):
        for rows in ("masked", "without a mask"):
            here = [finding for finding in found if f"by {kernel}, {rows}, float32" in finding.what]
            assert len(here) == 3, f"{kernel} was offered rows {rows}"
            assert all(finding.passed for finding in here)
    assert any("flash-attn" in finding.what for finding in found)


def wrong(plain, drop: bool):
    """Attention that sees later tokens, or of which each number is off by a fiftieth."""

    def attend(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
        if drop:
            return plain(q, k, v, None, dropout_p, False, **more)
        return 1.02 * plain(q, k, v, attn_mask, dropout_p, is_causal, **more)

    return attend


@pytest.mark.parametrize("drop", [True, False])
def test_a_dropped_mask_and_a_wrong_kernel_are_noticed(monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    monkeypatch.setattr(gpu_checks, "KERNELS", {"math": gpu_checks.KERNELS["math"]})
    plain, built = torch.nn.functional.scaled_dot_product_attention, gpu_checks.policy_on

    def built_with_the_right_one(*where: Any, **how: Any) -> Any:  # a model that sees later tokens is refused
        with monkeypatch.context() as right:
            right.setattr(torch.nn.functional, "scaled_dot_product_attention", plain)
            return built(*where, **how)

    monkeypatch.setattr(gpu_checks, "policy_on", built_with_the_right_one)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong(plain, drop))
    found = [finding for finding in gpu_checks.attention(CPU) if "float32: log-probs" in finding.what]
    assert len(found) == 2
    assert not any(finding.passed or finding.apart is None for finding in found)


def test_a_model_that_sees_later_tokens_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", wrong(plain, drop=True))
    found = next(finding for finding in gpu_checks.attention(CPU) if "sdpa" in finding.what)
    assert found.apart is None
    assert "later ones" in found.why


def test_attention_that_is_never_called_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "KERNELS", {"math": gpu_checks.KERNELS["math"]})
    monkeypatch.setattr(gpu_checks, "_tried", lambda *arguments: iter(()))
    found = [finding for finding in gpu_checks.attention(CPU) if "sdpa" in finding.what]
    assert {finding.why for finding in found} == {"attention was called 0 times, 0 times with a mask"}
    assert all(finding.apart is None for finding in found)


def test_a_compiled_model_gives_the_same_numbers() -> None:
    torch._dynamo.reset()
    found = list(gpu_checks.compiled(CPU, backend="eager"))
    assert len(found) == 3
    assert all(finding.passed for finding in found)


def test_wrong_compiled_code_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right as the model is loaded, whose probe would refuse it otherwise."""
    torch._dynamo.reset()
    tried, loaded = gpu_checks._tried, []

    def late(graph, inputs):
        return lambda *arguments: tuple(
            1.01 * x if loaded and torch.is_tensor(x) and x.is_floating_point() else x
            for x in graph.forward(*arguments)
        )

    def after_loading(*arguments):
        loaded.append(True)
        return tried(*arguments)

    monkeypatch.setattr(gpu_checks, "_tried", after_loading)
    found = list(gpu_checks.compiled(CPU, backend=late))
    assert all(finding.apart is not None for finding in found)
    assert {finding.what.rpartition(": ")[2] for finding in found if not finding.passed} >= {"log-probs", "gradient"}


def broken(graph, inputs):
    """A backend that has no compiler."""
    raise RuntimeError("no compiler here")


def test_what_cannot_be_compiled_was_not_compared() -> None:
    torch._dynamo.reset()
    (found,) = gpu_checks.compiled(CPU, backend=broken)
    assert found.apart is None
    assert "no compiler here" in found.why


def test_compiled_code_that_is_never_called_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_layers.CompiledLayers, "__call__", lambda self, forward: forward)
    (found,) = gpu_checks.compiled(CPU, backend="eager")
    assert (found.apart, found.why) == (None, "it was never called")


def test_log_probs_as_sampled_and_stale_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(finding.passed for finding in gpu_checks.sampling(CPU))
    build = gpu_checks.policy_on
    count = iter(range(100))

    def every_other_is_stale(device: str, dtype: str, **how: object) -> object:
        policy, factor = build(device, dtype, **how), 1.0 + 0.3 * (next(count) % 2)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(factor)
        return policy

    monkeypatch.setattr(gpu_checks, "policy_on", every_other_is_stale)
    assert not any(finding.passed for finding in gpu_checks.sampling(CPU))


STALE = """from grouprl.rollout.local.sampler import LocalSampler


class Stale(LocalSampler):
    def __init__(self, policy):
        super().__init__(policy.copied())
        self.own, self.before = policy, policy.trainable_state()

    def publish(self, version, policy):
        self.policy.load_trainable_state(self.before)
        self.before = {name: x.clone() for name, x in policy.trainable_state().items()}
        self.version = version
"""


def test_a_run_whose_groups_differ_and_one_with_stale_weights(tmp_path: Path) -> None:
    (found,) = gpu_checks.learning(CPU)
    assert found.passed, found
    (tmp_path / "stale.py").write_text(STALE)
    (found,) = gpu_checks.learning(CPU, {"engine": f"{tmp_path / 'stale.py'}:Stale"})
    assert found.apart is not None
    assert not found.passed, found


def test_a_run_whose_groups_do_not_differ_was_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "REWARD", "def digits(completion, **_):\n    return 0.0\n")
    (found,) = gpu_checks.learning(CPU)
    assert found.apart is None
    assert "had a group that differs" in found.why


def test_a_run_that_cannot_be_is_named() -> None:
    (found,) = gpu_checks.servers(CPU, "/nowhere/vllm")
    assert found.apart is None
    assert "/nowhere/vllm" in found.why


def test_without_a_gpu_it_says_so_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(typer.Exit) as ended:
        gpu.main("cuda", "", "", tmp_path, "")
    assert ended.value.exit_code == gpu.NO_GPU
    assert "No GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    shutil.copy(Path(gpu.ROOT) / "docs" / "gpu.md", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("apart", "code"), [(0.05, 0), (0.2, 1), (None, gpu.NOT_COMPARED)])
def test_what_was_found_is_written_and_is_the_exit_code(
    docs: Path, apart: float | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding("parity", "so far lean", apart, 0.1, "" if apart is not None else "no such kernel")
    monkeypatch.setattr(gpu, "CHECKS", {"parity": (lambda device: [found],)})
    with pytest.raises(typer.Exit) as ended:
        gpu.main("cpu", "", "", docs, "parity")
    assert ended.value.exit_code == code
    assert json.loads((docs / "gpu.json").read_text())["parity"][0]["apart"] == apart
    said = {0: "agrees", 1: "**differs**", gpu.NOT_COMPARED: "no such kernel"}
    (line,) = [line for line in (docs / "gpu.md").read_text().splitlines() if "so far lean" in line]
    assert said[code] in line


def test_a_check_that_is_run_again_replaces_its_rows_and_no_others(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = iter((0.01, 0.02))
    one = {"what": "one thing", "limit": 0.1}
    monkeypatch.setattr(
        gpu,
        "CHECKS",
        {
            "parity": (lambda device: [Finding("parity", apart=next(apart), **one)],),
            "sizes": (lambda device: [Finding("sizes", apart=0.03, **one)],),
        },
    )
    for only in ("parity,sizes", "parity"):
        with pytest.raises(typer.Exit):
            gpu.main("cpu", "", "", docs, only)
    found = json.loads((docs / "gpu.json").read_text())
    assert {name: [row["apart"] for row in found[name]] for name in ("parity", "sizes")} == {
        "parity": [0.02],
        "sizes": [0.03],
    }
    with pytest.raises(typer.BadParameter, match="pariti"):
        gpu.main("cpu", "", "", docs, "pariti")


SMALL = (
    gpu_sizes.Size("small", 2, 64, 96, 4, 2, prompt=16, response=24),
    gpu_sizes.Size("small, adapters", 2, 64, 96, 4, 2, prompt=16, response=24, lora=True),
)


def test_engines_agree_on_long_rows_and_a_wrong_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(gpu_sizes.agreement(CPU, SMALL[:1]))
    assert len(found) == 2
    assert all(finding.passed for finding in found)
    build = gpu_sizes.policy_of

    def off(model, **how):
        if how["engine"] == "transformers":
            with torch.no_grad():
                model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
        return build(model, **how)

    monkeypatch.setattr(gpu_sizes, "policy_of", off)
    found = list(gpu_sizes.agreement(CPU, SMALL[:1]))
    assert not found[0].passed


def test_what_a_step_takes_is_measured_and_written(docs: Path) -> None:
    rows = list(gpu_sizes.measured(CPU, SMALL, repeats=1))
    assert len(rows) == 8
    assert all(row["training"] > 0 and row["scoring"] > 0 for row in rows)
    assert [row["compiled_calls"] > 0 for row in rows if "compiled" in row["way"]] == [True, True]
    (decoded,) = gpu_sizes.decoding(CPU, SMALL[:1], rows=16, tokens=4)
    assert 0 < decoded["tokens"] <= 16 * 4
    record: gpu_page.Record = {}
    for check, row in [*(("steps", row) for row in rows), ("decoding", decoded)]:
        record = gpu_page.joined(record, check, row, {"device": "cpu"})
    record = gpu_page.joined(record, "steps", {**rows[0], "failed": "no memory"}, {"device": "cpu"})
    gpu_page.write(docs, record)
    said = (docs / "gpu.md").read_text()
    assert said.count("| small | ") == 2 * 4 - 1 + 1
    assert "no memory" in said
    assert "- device cpu: steps, decoding" in said


def test_an_accelerator_of_the_plan_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, memory, kind in (
        ("NVIDIA H200", 140e9, "H200"),
        ("NVIDIA A100-SXM4-80GB", 79e9, "A100"),
        ("NVIDIA A100-SXM4-40GB", 39e9, "A100-40"),
        ("NVIDIA H100 80GB HBM3", 79e9, "H100"),
    ):
        assert gpu_sizes.known_as(name, memory) == accelerators()[kind]
    assert gpu_sizes.known_as("Quadro", 8e9) is None
    assert gpu_sizes.accelerator_of("cpu") is None
    monkeypatch.setattr(gpu_sizes, "accelerator_of", lambda device: accelerators()["H200"])
    planned = gpu_sizes.planned(gpu_sizes.SIZES[1], gpu_sizes.rows_of(SMALL[0]), 10**9, 10**9, "cuda")
    assert planned["planned"]["training"] > planned["planned"]["scoring"] > 0


def test_an_entry_resumes_to_the_same_bits_and_one_that_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_catalogue.entry("n_pg_igt", CPU)
    assert (found.apart, found.why) == (0.0, "")
    seen = []

    def forgets_once(store, name, otherwise_p):
        seen.append(name)
        return otherwise_p if len(seen) > 8 else store.get(name, otherwise_p)

    monkeypatch.setattr(transported, "kept", forgets_once)
    assert not gpu_catalogue.entry("n_pg_igt", CPU).passed
    monkeypatch.setattr(transported, "kept", lambda store, name, otherwise_p: otherwise_p.to("meta"))
    assert "RuntimeError" in gpu_catalogue.entry("n_pg_igt", CPU).why


def test_ranks_are_held_against_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = gpu_ranks.ranks(CPU, 2)
    assert found.apart is not None
    assert found.passed
    assert found.apart > 0, "sums in another order differ by something"
    monkeypatch.setattr(gpu_ranks, "REWARD", "def digits(completion, **_):\n    return 0.0\n")
    (found,) = gpu_ranks.ranks(CPU, 2)
    assert (found.apart, found.why) == (None, "there was a step without a gradient")


def test_attention_whose_heads_share_keys_and_a_wrong_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(gpu_checks.shared_heads(CPU))
    assert len(found) == 4
    assert all(finding.passed for finding in found)
    plain, calls = gpu_checks.fused_attention, []

    def every_other_forgets_its_mask(*qkv, **how):
        calls.append(how)
        return plain(*qkv, scale=how["scale"]) if len(calls) % 2 == 0 else plain(*qkv, **how)

    monkeypatch.setattr(gpu_checks, "fused_attention", every_other_forgets_its_mask)
    found = list(gpu_checks.shared_heads(CPU))
    assert not any(finding.passed or finding.apart is None for finding in found)


def test_a_run_on_ranks_that_ends_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_ranks, "_trained", lambda arguments: "")
    said = {"alone": [[1.0, 6.0, 2.3, 0.5]], "spread": [[1.0, 6.0, 2.3, 0.50002]]}
    monkeypatch.setattr(gpu_ranks, "_lines", lambda folder: said[folder.name])
    (found,) = gpu_ranks.ranks(CPU, 2)
    assert found.apart == pytest.approx(4e-5)
    assert not found.passed
