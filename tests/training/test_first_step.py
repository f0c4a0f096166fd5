"""The first step of a run of preferences: policy and reference are the same, or the run ends in words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl import InputError
from grouprl.config.run import parse_config
from grouprl.core.errors import RunError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy.language.load import load_policy
from grouprl.training.first_reference import check_first_step, guide_of
from grouprl.training.loop import train
from small import f64, small

ANALYTIC = {"dpo": math.log(2), "ipo": 25.0, "slic": 1.0, "apo_zero": 1.0, "nca": 2 * math.log(2), "kto": 0.5}
FOLLOWED = {"tr_dpo": math.log(2), "accelerated_dpo": math.log(2), "dno": math.log(2)}


def config(method: object, **more: object) -> dict[str, object]:
    labels = method == "kto"
    return {
        "task": {"name": "preferences", **({"form": "labels"} if labels else {})},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": method,
        "steps": 1,
        "batch": {"prompts": 4, "group_size": 1 if labels else 2},
        "eval": {"every": 0, "final_prompts": 1},
        **more,
    }


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if record.get("phase") == "train" and "loss" in record]


@pytest.mark.parametrize("method", [*ANALYTIC, *FOLLOWED])
def test_a_run_begins_at_the_analytic_loss(method: str, tmp_path: Path) -> None:
    folder = train(parse_config(config(method)), folder=tmp_path / "run").folder
    assert losses(folder)[0] == pytest.approx((ANALYTIC | FOLLOWED)[method], rel=1e-5)


def test_another_policy_than_the_reference_ends_the_run() -> None:
    batch = small([1, 0], [2, 1], old_bt=f64([[-1.0, -1.0], [-1.0, 0]]), ref_bt=f64([[-1.0, -1.01], [-1.0, 0]]))
    with pytest.raises(RunError, match=r"row 0 differs by 0.01 nats.*model.reference: FOLDER"):
        check_first_step(grouprl.method("dpo"), batch, torch.float32)
    check_first_step(grouprl.method("dpo"), batch, torch.float16)
    check_first_step(grouprl.method("simpo"), batch, torch.float32)
    check_first_step(grouprl.method("dpo"), batch.replace(source_b=torch.tensor([3, 3])), torch.float32)


def test_the_reference_of_tr_dpo_moves_before_an_update_and_counts_from_the_next_step(tmp_path: Path) -> None:
    """With a hard update every second step TRL's losses are log 2 at steps 0, 2, 4; here only the first is."""
    hard = {"name": "tr_dpo", "every": 2, "share": 1.0}
    found = losses(train(parse_config(config(hard, steps=5)), folder=tmp_path / "run").folder)
    assert [abs(each - math.log(2)) < 1e-6 for each in found] == [True, False, False, False, False]


def test_triples_need_three_completions() -> None:
    settings = config("tpo", task="addition")
    for size, told in ((2, True), (3, False)):
        idle = plan(parse_config({**settings, "batch": {"prompts": 4, "group_size": size}})).idle
        assert any("best_apart has no effect" in each for each in idle) is told


def test_another_policy_than_a_reference_that_follows_ends_the_run() -> None:
    same, other = f64([[-1.0, -1.0], [-1.0, 0]]), f64([[-1.0, -1.01], [-1.0, 0]])
    batch = small([1, 0], [2, 1], old_bt=same, refs={"iterates": other})
    for name in FOLLOWED:
        with pytest.raises(RunError, match=r"row 0 differs by 0.01 nats"):
            check_first_step(grouprl.method(name), batch, torch.float32)
        check_first_step(grouprl.method(name), batch.replace(refs={"iterates": same}), torch.float32)


def test_dropout_of_trained_adapters_ends_the_run_and_that_of_new_ones_does_not(tmp_path: Path) -> None:
    """New adapters add 0 whatever drops out; the reference of trained ones is read without dropout."""
    pytest.importorskip("peft")
    model = {**config("dpo")["model"], "lora": {"r": 4, "dropout": 0.5}}
    new = train(parse_config(config("dpo", model=model)), folder=tmp_path / "new").folder
    assert losses(new)[0] == pytest.approx(math.log(2), rel=1e-5)
    trained = config("dpo", model=model, warmup={"steps": 20, "batch": 8, "lr": 0.03})
    with pytest.raises(RunError, match=r"model.lora.dropout changes the log-prob of a token by .* nats"):
        train(parse_config(trained), folder=tmp_path / "trained")
    kept = {**model, "lora": {"r": 4, "dropout": 0.0}}
    without = train(parse_config({**trained, "model": kept}), folder=tmp_path / "without").folder
    assert losses(without)[0] == pytest.approx(math.log(2), rel=1e-5)


def test_a_guiding_reference_gives_margins_at_the_first_step(tmp_path: Path) -> None:
    """The first loss is -log σ(-β·margin of the guide); with itself as guide the run is DPO's."""
    warm = config("dpo", steps=2, warmup={"steps": 2, "batch": 8}, optim={"lr": 3e-3})
    guide = train(parse_config(warm), folder=tmp_path / "guide").folder / "model"
    guided = {**warm, "model": {**warm["model"], "name": str(guide), "reference": str(guide)}, "warmup": {"steps": 0}}
    guided["model"].pop("tiny")
    same = train(parse_config(guided), folder=tmp_path / "same").folder
    assert losses(same)[0] == pytest.approx(math.log(2), rel=1e-5)
    other = config("dpo", model={**config("dpo")["model"], "reference": str(guide)})
    assert "margins do not begin at 0" in str(plan(parse_config(other)).notes)
    first = losses(train(parse_config(other), folder=tmp_path / "other").folder)[0]
    assert abs(first - math.log(2)) > 1e-4


def test_the_plan_says_which_weights_the_reference_is() -> None:
    said = str(plan(parse_config(config("dpo", warmup={"steps": 3}))).notes)
    assert "the reference is the model that the run begins with after 3 warm-up steps, tiny" in said
    assert "the reference is" not in str(plan(parse_config(config("simpo"))).notes)
    said = str(plan(parse_config(config("accelerated_dpo"))).notes)
    assert "the reference 'iterates' is a copy of the model that the run begins with, tiny" in said
    assert "it moves to the policy" in said


def test_a_soup_of_models_is_the_average_of_their_weights(tmp_path: Path) -> None:
    """SALSA: half of each model; of the policy alone it is the policy, and the first loss is DPO's."""
    folder = (
        train(parse_config(config("simpo", steps=2, optim={"lr": 1e-2})), folder=tmp_path / "other").folder / "model"
    )
    model = config("dpo")["model"]
    soup = parse_config(config("dpo", model={**model, "reference": {"initial": 0.25, str(folder): 0.75}}))
    run = resolve(soup)
    policy = build_policy(run)
    own, other = policy.trainable_state(), load_policy(str(folder)).trainable_state()
    assert any(not torch.equal(own[name], other[name]) for name in own)
    for name, x in guide_of(run, policy)[0].items():
        torch.testing.assert_close(x, 0.25 * own[name] + 0.75 * other[name])
    assert f"the average of weights 0.25 of initial and 0.75 of {folder}" in str(plan(soup).notes)
    alone = config("dpo", model={**model, "reference": {"initial": 1}})
    assert losses(train(parse_config(alone), folder=tmp_path / "alone").folder)[0] == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "shares", [{"initial": 0.5, "a": 0.4}, {"auto": 0.5, "a": 0.5}, {"none": 1.0}, {"a": -1, "b": 2}]
)
def test_shares_of_a_soup_are_those_of_models_and_add_up(shares: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"reference"):
        parse_config(config("dpo", model={"name": "tiny", "reference": shares}))
