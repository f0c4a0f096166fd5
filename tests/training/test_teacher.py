"""A reference of another architecture, which MiniLLM learns from: a teacher."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

import grouprl
from grouprl import Batch
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.cluster.roofline import _states
from grouprl.plan.cluster.workload import workload
from grouprl.plan.memory import gathered
from grouprl.plan.model_facts import ModelFacts, ReferenceFacts
from grouprl.plan.plan import plan
from grouprl.policy import CausalPolicy, Tokens, load_policy, teacher_kl
from grouprl.training import first_reference
from grouprl.training.first_reference import guide_of
from killed_runs import evidence
from pretraining_runs import config, cut_at, records, run
from small import f64, near, small

WIDER = {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}}
TOKENS = Tokens.of([[1, 5, 3], [1, 4]], [[4, 4, 2], [5, 2]])
POLICY = f64([0.3, -0.5, 0.1]), f64([[0.2, 0.0, -0.7], [1.0, -0.3, 0.4], [-0.2, 0.6, 0.1]])
"""Logits of the first token, and of the second after each first."""
TEACHER = f64([0.5, 0.2, 0.3]).log(), f64([[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.7, 0.1, 0.2]]).log()
STUDENT = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a wider model that has imitated its task for longer than the student will."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    warm = {"steps": 250, "batch": 32, "lr": 1e-2}
    return str(run(folder, model=WIDER, steps=0, warmup=warm) / "model")


def taught(teacher: str, **changes: Any) -> dict[str, Any]:
    return config("minillm", **{"model": {**STUDENT, "reference": teacher}, **changes})


def slope(method: grouprl.Method, batch: Batch, logp_bt: torch.Tensor) -> torch.Tensor:
    logp_bt = logp_bt.detach().requires_grad_()
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    assert logp_bt.grad is not None
    return logp_bt.grad


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Eight rows of one token stand for a policy of chances 1/8, 2/8 and 5/8: their mean is the expectation."""
    token_b = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2])
    logit_v = f64([1, 2, 5]).log().requires_grad_()
    teacher_v = f64([0.5, 0.2, 0.3]).log()
    own_v = logit_v.log_softmax(0)
    logp_bt = own_v[token_b][:, None]
    rows = {"mask_bt": torch.ones(8, 1, dtype=torch.bool), "group_b": torch.zeros(8, dtype=torch.int64)}
    old = {"old_bt": logp_bt.detach(), "ref_bt": teacher_v[token_b][:, None]}
    batch = Batch(**rows, reward_b=torch.zeros(8, dtype=torch.float64), **old)  # type: ignore[arg-type]
    method = grouprl.method("minillm", single_step="sampled")
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    found_v, logit_v.grad = logit_v.grad, None
    own_v = logit_v.log_softmax(0)
    (own_v.exp() * (own_v - teacher_v)).sum().backward()
    assert found_v is not None
    torch.testing.assert_close(found_v, logit_v.grad)


def test_without_normalisation_it_is_the_return_to_go_of_a_kl_in_the_reward() -> None:
    """REINFORCE with the KL as token rewards: A_t = Σ_{k≥t} γ^(k-t)·(log p - log π)."""
    ref_bt, old_bt = f64([[-0.3, -2.0, -0.1], [-1.5, -0.2, 0]]), f64([[-1.0, -0.7, -0.4], [-0.9, -1.1, 0]])
    batch = small([1, 0], [3, 2], ref_bt=ref_bt, old_bt=old_bt)
    a, b, c = 0.7, -1.3, 0.3
    d, e = -0.6, 0.9
    plain = grouprl.method("minillm", single_step="sampled", gamma=0.5, normalized=False)
    near(slope(plain, batch, old_bt), f64([[a + b / 2 + c / 4, b + c / 2, c], [d + e / 2, e, 0]]) / -5)
    mean = grouprl.method("minillm", single_step="sampled", gamma=0.5)
    near(
        slope(mean, batch, old_bt),
        f64([[(a + b / 2 + c / 4) / 1.75, (b + c / 2) / 1.5, c], [(d + e / 2) / 1.5, e, 0]]) / -5,
    )


def test_the_reward_is_not_read_and_a_policy_that_equals_its_teacher_stays() -> None:
    logp_bt, method = f64([[-1.0, -0.7], [-0.9, 0]]), grouprl.method("minillm", single_step="sampled")
    batch = small([1, 0], [2, 1], ref_bt=logp_bt, old_bt=logp_bt)
    assert not slope(method, batch, logp_bt).any()
    other = batch.replace(ref_bt=logp_bt - 0.5)
    rewarded = other.replace(reward_b=f64([5, -3]))
    assert torch.equal(
        *(slope(grouprl.method("minillm", single_step="sampled"), each, logp_bt) for each in (other, rewarded))
    )


def every_answer(single_step: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the expected gradient of a policy of two steps over three tokens, and its expected square.

    All nine answers stand for the expectation, each with its probability.
    """
    first_v, second_vv = POLICY[0].clone().requires_grad_(), POLICY[1].clone().requires_grad_()
    own, taught_ = (first_v.log_softmax(0), second_vv.log_softmax(1)), (TEACHER[0], TEACHER[1])
    kls = [(x.exp() * (x - t)).sum(-1) for x, t in zip(own, taught_, strict=True)]
    mean, square = torch.zeros(12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for a, b in itertools.product(range(3), repeat=2):
        logp_bt, ref_bt = (torch.stack([x[0][a], x[1][a, b]])[None] for x in (own, taught_))
        method = grouprl.method("minillm", single_step=single_step, normalized=False)
        batch = method.prepare(small([0], [2], old_bt=logp_bt.detach(), ref_bt=ref_bt))
        named = {"teacher_kl": torch.stack([kls[0], kls[1][a]])[None]} if "teacher_kl" in method.outputs else {}
        loss = 2 * method.loss(logp_bt, batch, outputs=named).value  # the mean of two tokens
        grads = torch.autograd.grad(loss, (first_v, second_vv), retain_graph=True)
        grad = torch.cat([x.flatten() for x in grads])
        chance = logp_bt.sum().exp().detach()
        mean, square = mean + chance * grad, square + chance * grad.square()
    return mean, square


def test_with_the_sum_over_the_vocabulary_it_is_the_gradient_of_the_reverse_kl_with_less_variance() -> None:
    first_v, second_vv = POLICY[0].clone().requires_grad_(), POLICY[1].clone().requires_grad_()
    own_vv = first_v.log_softmax(0)[:, None] + second_vv.log_softmax(1)
    (own_vv.exp() * (own_vv - TEACHER[0][:, None] - TEACHER[1])).sum().backward()
    expected = torch.cat([first_v.grad, second_vv.grad.flatten()])
    (summed, its_square), (sampled, other_square) = every_answer("vocabulary"), every_answer("sampled")
    near(summed, expected)
    near(sampled, expected)
    assert float((its_square - summed**2).sum()) < 0.8 * float((other_square - sampled**2).sum())


def beside(engine: str, *, columns: int = 0) -> tuple[CausalPolicy, CausalPolicy]:
    """A policy and its teacher, whose output layer has further columns that are no tokens."""
    own = load_policy("tiny", engine=engine, hidden=16, layers=1, heads=2, intermediate=32, seed=1)
    own.teacher = load_policy("tiny", engine=engine, hidden=32, layers=2, heads=4, intermediate=64, seed=2)
    if columns:
        own.teacher.model.resize_token_embeddings(own.teacher.model.config.vocab_size + columns)
        own.teacher = own.teacher.around(own.teacher.model)
    return own, own.teacher


@pytest.mark.parametrize("engine", ["lean", "transformers"])
@pytest.mark.parametrize(("columns", "temperature"), [(0, 1.0), (5, 1.0), (0, 0.5)])
def test_a_policy_compares_whole_distributions_with_its_teacher(engine: str, columns: int, temperature: float) -> None:
    """Value and gradient are those of Σ_v π(v)·log(π(v)/p(v)) from the two models' logits, at one temperature."""
    (own, other), weight_bt = beside(engine, columns=columns), torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, 9.0]])
    size, own.temperature = own.model.config.vocab_size, temperature
    found_bt = own.evaluate(TOKENS, ["teacher_kl"])["teacher_kl"]
    own.backward(TOKENS, {"teacher_kl": weight_bt})
    grads = [p.grad.clone() for p in own.parameters()]
    own.model.zero_grad()
    for row, (prompt, response) in enumerate(zip(TOKENS.prompt_ids, TOKENS.response_ids, strict=True)):
        ids, span = torch.tensor([[*prompt, *response]]), slice(len(prompt) - 1, -1)
        logits_tv = (m.model(input_ids=ids).logits[0, span, :size] for m in (own, other))
        own_tv, other_tv = ((each / temperature).log_softmax(-1) for each in logits_tv)
        kl_t = (own_tv.exp() * (own_tv - other_tv.detach())).sum(-1)
        near(found_bt[row, : len(response)], kl_t.detach(), atol=1e-6)
        (kl_t * weight_bt[row, : len(response)]).sum().backward()
    for grad, p in zip(grads, own.parameters(), strict=True):
        near(grad, p.grad, atol=1e-6)
    assert found_bt[1, 2] == 0  # beyond the row's end
    assert all(p.grad is None for p in other.parameters())


def test_chunks_of_the_vocabulary_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = beside("lean")
    whole = own.evaluate(TOKENS, ["teacher_kl"])["teacher_kl"]
    own.backward(TOKENS, {"teacher_kl": torch.ones_like(whole)})
    grads = [p.grad.clone() for p in own.parameters()]
    own.model.zero_grad()
    monkeypatch.setattr(teacher_kl, "chunk_rows", lambda *_: 2)
    near(own.evaluate(TOKENS, ["teacher_kl"])["teacher_kl"], whole, atol=1e-6)
    own.backward(TOKENS, {"teacher_kl": torch.ones_like(whole)})
    for grad, p in zip(grads, own.parameters(), strict=True):
        near(grad, p.grad, atol=1e-6)


def test_a_policy_beside_itself_has_no_kl_and_one_without_a_teacher_no_such_output() -> None:
    own, _ = beside("lean")
    own.teacher = own.copied(trainable=False)
    near(own.evaluate(TOKENS, ["teacher_kl"])["teacher_kl"], torch.zeros(2, 3), atol=1e-6)
    own.teacher = None
    assert "teacher_kl" not in own.outputs
    with pytest.raises(InputError, match="no output 'teacher_kl'"):
        own.evaluate(TOKENS, ["teacher_kl"])


def test_a_teacher_scores_with_its_own_layers(teacher: str) -> None:
    resolved = resolve(parse_config(taught(teacher)))
    weights, scorer = guide_of(resolved, build_policy(resolved))
    alone = load_policy(teacher)
    torch.testing.assert_close(scorer.logp(TOKENS), alone.logp(TOKENS), rtol=0, atol=0)
    assert {name: x.shape for name, x in weights.items()} == {n: x.shape for n, x in alone.trainable_state().items()}


def test_adapters_have_a_teacher_too(teacher: str, tmp_path: Path) -> None:
    """Its architecture may be the policy's: the base of the adapters and their teacher are two models."""
    pytest.importorskip("peft")
    base = run(tmp_path / "base", model=WIDER, steps=0, warmup={"steps": 20, "batch": 8}) / "model"
    model = {"name": str(base), "lora": {"r": 4}, "reference": teacher}
    resolved = resolve(parse_config(taught(teacher, model=model)))
    _, scorer = guide_of(resolved, build_policy(resolved))
    torch.testing.assert_close(scorer.logp(TOKENS), load_policy(teacher).logp(TOKENS), rtol=0, atol=0)


def test_models_of_other_layers_are_not_averaged(teacher: str, tmp_path: Path) -> None:
    soup = taught(teacher, model={**STUDENT, "reference": {"initial": 0.5, teacher: 0.5}})
    with pytest.raises(InputError, match=r"other layers.*averaged"):
        run(tmp_path / "run", "minillm", model=soup["model"])


@pytest.mark.parametrize("shares", [1.0, 0.5])
def test_a_method_with_a_critic_has_a_reference_of_other_weights(shares: float, tmp_path: Path) -> None:
    """A critic's parameters are no part of a reference, nor of an average."""
    base = str(run(tmp_path / "base", model=STUDENT, steps=0, warmup={"steps": 10, "batch": 8}) / "model")
    model = {**STUDENT, "reference": base if shares == 1 else {"initial": 1 - shares, base: shares}}
    method = {"name": "ppo", "kl_coef": 0.05}
    whole = run(tmp_path / "run", method, model=model)
    assert max(abs(record["kl_ref"]) for record in records(whole, "train")) > 1e-3
    assert not [name for name in load_file(whole / "reference.safetensors") if name.startswith("value_head")]
    cut = cut_at(whole, tmp_path / "cut", "step-000002")
    run(cut, method, resume=True, model=model)
    assert evidence(cut) == evidence(whole)


def test_a_teacher_of_other_characters_is_refused(teacher: str) -> None:
    resolved = resolve(parse_config(taught(teacher, task={"name": "reverse", "length": 3})))
    with pytest.raises(InputError, match="another tokenizer"):
        guide_of(resolved, build_policy(resolved))


def test_the_plan_counts_the_teacher(teacher: str) -> None:
    found = plan(parse_config(taught(teacher)))
    costs = {cost.what: cost.bytes for cost in found.costs}
    assert costs["reference copy"] == 4 * sum(p.numel() for p in load_policy(teacher).model.parameters())
    assert costs["reference copy"] > 2 * costs["weights"]


def test_a_plan_for_elsewhere_counts_a_teacher_without_its_weights(teacher: str, tmp_path: Path) -> None:
    """Twice its parameters' share of a pass: once for log-probs, and once with each pass that trains."""
    described = shutil.copytree(teacher, tmp_path / "described", ignore=shutil.ignore_patterns("*.safetensors"))
    work = workload(plan(parse_config(taught(str(described))), elsewhere=True))
    own, other = (sum(p.numel() for p in build(**m["tiny"]).model.parameters()) for m in (STUDENT, WIDER))
    assert work.reference == other
    assert work.scorings == 1 + 2 * other / own
    assert _states(work) == 16 * own + 4 * other
    with pytest.raises(InputError, match="weights"):
        plan(parse_config(taught(str(described))))


def build(**sizes: int) -> CausalPolicy:
    alphabet = resolve(parse_config(config("grpo"))).alphabet
    return load_policy("tiny", alphabet=alphabet, **sizes)


def test_ranks_gather_layers_of_the_teacher_within_a_pass_of_the_policy() -> None:
    """Twice the two largest layers, of which the embedding is one: 2·(40 + 15) beside 2·(100 + 50) numbers."""
    own = ModelFacts(100, 100, 4, 4, 8, 4, 10, None, "float32", 4, "cpu")
    teacher = ReferenceFacts(parameters=300, layers=4, embedding=100, tied=True)
    assert gathered(own).bytes == 4 * 2 * (40 + 15)
    assert gathered(own, teacher).bytes == 4 * 2 * (100 + 50)
    assert gathered(own, teacher, teaches=True).bytes == 4 * 2 * (40 + 15 + 100 + 50)


def test_the_model_below_new_adapters_costs_a_plan_nothing(teacher: str) -> None:
    pytest.importorskip("peft")
    model = {"name": teacher, "lora": {"r": 4}}
    kept = {"method": "grpo@nemo_rl", "model": model}
    for warmup, bytes_each in ((0, 0), (5, 4)):
        found = plan(parse_config(config(**kept, warmup={"steps": warmup})))
        costs = {cost.what: cost.bytes for cost in found.costs}
        assert costs["reference copy"] == bytes_each * found.model.parameters
        assert workload(found).scorings == 2


@pytest.mark.parametrize("reference", ["none", "auto", "initial", {"initial": 1}])
def test_the_policy_is_not_its_own_teacher(reference: object) -> None:
    found = plan(parse_config(config("minillm", model={**STUDENT, "reference": reference})))
    assert "model.reference names no model" in str(found.refusals)


def test_a_student_comes_closer_to_its_teacher_and_no_reward_is_read(teacher: str, tmp_path: Path) -> None:
    """The KL to the teacher falls; the task's reward is not read."""
    settings = {"model": taught(teacher)["model"], "steps": 40, "optim": {"lr": 1e-2}, "data": {"prompts": None}}
    folder = run(tmp_path / "run", "minillm", **settings)
    kls = [record["teacher_kl"] for record in records(folder, "train")]
    assert sum(kls[-5:]) < 0.85 * sum(kls[:5])


def test_tokens_of_the_mixture_with_the_teacher_have_a_weight(teacher: str, tmp_path: Path) -> None:
    """The sampler's log-probs are those of the mixture; the policy's over them weigh the loss, by at most 1/(1-α)."""
    method, model = {"name": "minillm", "teacher_share": 0.25, "normalized": False}, taught(teacher)["model"]
    settings = {"model": model, "steps": 3, "warmup": {"steps": 0}}
    settings |= {"run": {"rollouts_every": 1, "checkpoint_every": 1, "keep": 9}}
    folder = run(tmp_path / "run", method, **settings)
    first = sorted((folder / "rollouts").glob("*.parquet"))[0]
    rows = [row for row in parquet.read_table(first).to_pylist() if row["step"] == 1]
    tokens = Tokens.of([row["prompt_ids"] for row in rows], [row["completion_ids"] for row in rows])
    own_bt = build_policy(resolve(parse_config(config(method, **settings)))).logp(tokens)
    taught_bt = load_policy(teacher).logp(tokens)
    mixed_bt = (0.75 * own_bt.exp() + 0.25 * taught_bt.exp()).log()
    for row, length in enumerate(tokens.response_lengths):
        near(torch.tensor(rows[row]["behavior_logp"]), mixed_bt[row, :length], atol=1e-4)
        gain_t = (taught_bt - own_bt)[row, :length]
        near(torch.tensor(rows[row]["advantage"]), gain_t.flip(0).cumsum(0).flip(0) - gain_t, atol=1e-4)
    assert not [name for record in records(folder, "train") for name in record if name.startswith("logp_gap")]
    again = cut_at(folder, tmp_path / "again", "step-000001")
    run(again, method, resume=True, **settings)
    assert evidence(again) == evidence(folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"run": {"async_steps": 1}}, "run.async_steps: 0"),
        ({"model": {**STUDENT, "reference": "initial"}}, "model.reference names no model"),
    ],
)
def test_what_cannot_sample_from_the_mixture_is_refused(teacher: str, changes: dict[str, Any], word: str) -> None:
    method = {"name": "minillm", "teacher_share": 0.2}
    found = plan(parse_config(config(method, **{"model": {**STUDENT, "reference": teacher}, **changes})))
    assert word in str(found.refusals)


def test_the_reference_without_its_adapters_is_no_teacher() -> None:
    pytest.importorskip("peft")
    adapted = load_policy("tiny", hidden=16, layers=1, heads=2, intermediate=32, lora={"r": 2})
    with pytest.raises(InputError, match=r"without its adapters.*model.reference: FOLDER"):
        first_reference.teacher_of(adapted.reference())


def test_a_run_continues_with_the_teacher_that_it_began_with(teacher: str, tmp_path: Path) -> None:
    """Its weights are those that the run has kept, also where the folder has others by now."""
    folder = shutil.copytree(teacher, tmp_path / "teacher")
    model = taught(str(folder))["model"]
    whole = run(tmp_path / "whole", "minillm", model=model)
    cut = cut_at(whole, tmp_path / "cut", "step-000002")
    weights = load_file(folder / "model.safetensors")
    save_file({name: 2 * x for name, x in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    run(cut, "minillm", resume=True, model=model)
    assert evidence(cut) == evidence(whole)
