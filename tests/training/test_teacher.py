"""A reference of another architecture, which MiniLLM learns from: a teacher."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import grouprl
from grouprl import Batch
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy import Tokens, load_policy
from grouprl.training import first_reference
from grouprl.training.first_reference import guide_of
from killed_runs import evidence
from pretraining_runs import config, cut_at, records, run
from small import f64, near, small

WIDER = {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}}
TOKENS = Tokens.of([[1, 5, 3], [1, 4]], [[4, 4, 2], [5, 2]])
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
    method = grouprl.method("minillm")
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
    plain = grouprl.method("minillm", gamma=0.5, normalized=False)
    near(slope(plain, batch, old_bt), f64([[a + b / 2 + c / 4, b + c / 2, c], [d + e / 2, e, 0]]) / -5)
    mean = grouprl.method("minillm", gamma=0.5)
    near(
        slope(mean, batch, old_bt),
        f64([[(a + b / 2 + c / 4) / 1.75, (b + c / 2) / 1.5, c], [(d + e / 2) / 1.5, e, 0]]) / -5,
    )


def test_the_reward_is_not_read_and_a_policy_that_equals_its_teacher_stays() -> None:
    logp_bt = f64([[-1.0, -0.7], [-0.9, 0]])
    batch = small([1, 0], [2, 1], ref_bt=logp_bt, old_bt=logp_bt)
    assert not slope(grouprl.method("minillm"), batch, logp_bt).any()
    other = batch.replace(ref_bt=logp_bt - 0.5)
    rewarded = other.replace(reward_b=f64([5, -3]))
    assert torch.equal(*(slope(grouprl.method("minillm"), each, logp_bt) for each in (other, rewarded)))


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


def test_a_teacher_stands_beside_a_policy_in_one_process(teacher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(parse_config(taught(teacher)))
    monkeypatch.setattr(first_reference, "distributed", lambda policy: policy)
    with pytest.raises(InputError, match="in several processes"):
        guide_of(resolved, build_policy(resolved))


def test_a_teacher_of_other_characters_is_refused(teacher: str) -> None:
    resolved = resolve(parse_config(taught(teacher, task={"name": "reverse", "length": 3})))
    with pytest.raises(InputError, match="another tokenizer"):
        guide_of(resolved, build_policy(resolved))


def test_the_plan_counts_the_teacher(teacher: str) -> None:
    found = plan(parse_config(taught(teacher)))
    costs = {cost.what: cost.bytes for cost in found.costs}
    assert costs["reference copy"] == 4 * sum(p.numel() for p in load_policy(teacher).model.parameters())
    assert costs["reference copy"] > 2 * costs["weights"]


@pytest.mark.parametrize("reference", ["none", "auto", "initial", {"initial": 1}])
def test_the_policy_is_not_its_own_teacher(reference: object) -> None:
    found = plan(parse_config(config("minillm", model={**STUDENT, "reference": reference})))
    assert "model.reference names no model" in str(found.refusals)


def test_a_student_comes_closer_to_its_teacher_and_no_reward_is_read(teacher: str, tmp_path: Path) -> None:
    """The KL to the teacher falls; the task's reward is not read."""
    settings = {"model": taught(teacher)["model"], "steps": 40, "optim": {"lr": 1e-2}, "data": {"prompts": None}}
    folder = run(tmp_path / "run", "minillm", **settings)
    kls = [record["kl_ref"] for record in records(folder, "train")]
    assert sum(kls[-5:]) < 0.75 * sum(kls[:5])


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
