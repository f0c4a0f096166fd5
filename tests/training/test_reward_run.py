"""A run that trains a reward model: it learns pairs, resumes exactly, and is saved as transformers reads it."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.plan.plan import plan
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.rollout.ranked_rows import share_of_pairs
from grouprl.tasks import load_task
from grouprl.training.export import export, load_trained
from grouprl.training.loop import train
from grouprl.training.saved_model import check_final_model
from grouprl.training.saved_scores import held_out_texts

PAIRS = [
    {"prompt": p, "chosen": f"{p}a{x}", "rejected": f"{p}b{y}"} for p in ("c", "dc") for x in "cd" for y in "cd"
] * 3


def settings(folder, **more):
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair | {"id": str(i)}) + "\n" for i, pair in enumerate(PAIRS)))
    model = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}
    return {
        "task": f"pairs:{file}",
        "method": "bradley_terry",
        "model": model,
        "steps": 6,
        "batch": {"prompts": 8, "group_size": 2},
        "optim": {"lr": 0.005, "schedule": "constant"},
        "eval": {"every": 3, "prompts": 4, "final_prompts": 4},
        "run": {"folder": str(folder / "run"), "checkpoint_every": 3},
        **more,
    }


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward")
    return train(parse_config(settings(folder))).folder


def test_it_learns_and_reports_pairs(run):
    evals = [record for record in records(run) if record["phase"] == "eval"]
    assert [record["step"] for record in evals] == [0, 3, 6]
    assert evals[-1]["eval/pair_accuracy"] == 1
    assert evals[-1]["eval/pair_accuracy_low"] < 1
    assert not any("pass@" in name or "greedy" in name for record in evals for name in record)
    first = next(record for record in records(run) if record["phase"] == "train")
    assert first["loss"] == pytest.approx(0.693, abs=0.02)


def test_calibration_and_biases_stand_in_the_records_and_on_the_page(run):
    last = [record for record in records(run) if record["phase"] == "eval"][-1]
    assert 0.5 < last["eval/pair_confidence"] < 1
    assert 0 < last["eval/pair_loss"] < 0.693
    assert last["eval/pair_loss_low"] < last["eval/pair_loss"] < last["eval/pair_loss_high"]
    assert "eval/longer_better" not in last, "completions of these pairs are equally long"
    page = (run / "report.html").read_text()
    assert "Ranked right by its own σ(|gap|)" in page
    assert "The longer one is better" not in page


def test_a_model_that_prefers_length_and_lists_is_told_beside_what_the_data_prefer(tmp_path):
    pairs = [
        {"prompt": f"{p}{n}", "chosen": "a" * (1 + n % 2), "rejected": "- b\n- b"} for p in "cd" for n in range(12)
    ]
    given = settings(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    folder = train(parse_config(given | {"steps": 1})).folder
    last = [record for record in records(folder) if record["phase"] == "eval"][-1]
    assert last["eval/longer_better"] == last["eval/marked_better"] == 0
    assert last["eval/longer_preferred"] == last["eval/marked_preferred"] == 1 - last["eval/pair_accuracy"]
    assert "eval/longer_better_gain" not in last, "what the data prefer does not change"
    assert "eval/longer_preferred_gain" in last
    assert "The longer one is better" in (folder / "report.html").read_text()


def test_it_is_saved_for_transformers_and_checked_there(run, tmp_path):
    trained = load_trained(run)
    check_final_model(trained.model, run / "model", trained.task)
    export(run, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [
        "LlamaForSequenceClassification"
    ]
    weights = load_file(tmp_path / "out" / "model.safetensors")
    save_file(
        {**weights, "score.weight": weights["score.weight"] * 1.1},
        tmp_path / "out" / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(RunError, match=r"scores .* in transformers"):
        check_final_model(trained.model, tmp_path / "out", trained.task)


@pytest.mark.parametrize(("size", "off", "refused"), [(1.0, 5e-5, True), (1e3, 5e-3, False)])
def test_a_saved_head_may_be_off_by_a_hundred_thousandth_of_the_largest_score(run, tmp_path, size, off, refused):
    """The largest score is `size`, and its saved head gives `off` more; sizes above 1 are held relative to them."""
    trained = load_trained(run)
    texts = held_out_texts(trained.task)
    tokens = trained.model.tokens_of([prompt for prompt, _ in texts], [text for _, text in texts])
    head = trained.model.model.score.weight
    with torch.no_grad():
        head *= size / trained.model.scores(tokens).abs().max()
        trained.model.save(tmp_path)
        head *= 1 - off / size
    if refused:
        with pytest.raises(RunError, match=r"scores .* in transformers"):
            check_final_model(trained.model, tmp_path, trained.task)
    else:
        check_final_model(trained.model, tmp_path, trained.task)


def test_a_padding_token_that_moves_the_reading_is_told(run, tmp_path):
    trained = load_trained(run)
    trained.model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": config["eos_token_id"]}))
    with pytest.raises(RunError, match=r"scores .* in transformers"):
        check_final_model(trained.model, tmp_path, trained.task)


def test_a_stopped_run_ends_as_one_never_stopped(run, tmp_path):
    folder = train(parse_config(settings(tmp_path, steps=3))).folder
    train(parse_config(settings(tmp_path)), folder=folder, resume=True, changes=["steps=6"])
    whole, resumed = (load_file(path / "model" / "model.safetensors") for path in (run, folder))
    assert all(torch.equal(x, resumed[name]) for name, x in whole.items())


def test_adapters_learn_resume_and_are_checked_in_transformers(run, tmp_path, checked_model):
    lora = {"name": str(run / "model"), "lora": {"r": 2}}
    whole = train(parse_config(settings(tmp_path, model=lora, run={"folder": str(tmp_path / "whole")}))).folder
    begun = settings(tmp_path, model=lora, steps=3, run={"folder": str(tmp_path / "begun"), "checkpoint_every": 3})
    folder = train(parse_config(begun)).folder
    train(parse_config(begun), folder=folder, resume=True, changes=["steps=6"])
    first, second = (load_file(path / "model" / "model.safetensors") for path in (whole, folder))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    before = load_file(run / "model" / "model.safetensors")
    changed = {name for name, x in first.items() if not torch.equal(x, before[name])}
    assert "score.weight" in changed
    assert not any("embed" in name or "norm" in name for name in changed)
    check_final_model(load_trained(whole).model, whole / "model", load_trained(whole).task)


def test_the_plan_counts_adapters_and_the_head(run, tmp_path):
    found = plan(parse_config(settings(tmp_path, model={"name": str(run / "model"), "lora": {"r": 2}})))
    assert found.refusals == ()
    model = load_reward_model(run / "model", dtype="float32", trained=True, lora={"r": 2})
    assert found.model.trainable == sum(p.numel() for _, p in model.named_parameters())


def test_the_command_evaluates_pairs(run):
    found = CliRunner().invoke(app, ["eval", str(run), "--prompts", "4"])
    assert found.exit_code == 0, found.output
    assert "pair accuracy" in found.output
    assert "pass@" not in found.output


def test_a_run_says_what_a_reward_model_cannot_do(tmp_path):
    def refused(**more):
        return " ".join(plan(parse_config(settings(tmp_path, **more))).refusals)

    assert "has them sampled" in refused(task="addition")
    assert "warmup.steps imitates" in refused(warmup={"steps": 2})
    assert "model.reference is for policies" in refused(model={"name": "tiny", "reference": "initial"})
    assert refused() == ""


def test_the_plan_names_the_head_and_the_pairs(tmp_path):
    notes = " ".join(plan(parse_config(settings(tmp_path))).notes)
    assert "one linear layer 'score' on the state of the last token" in notes
    assert "share of held-out pairs" in notes


def test_a_policy_is_no_reward_model(run):
    with pytest.raises(InputError, match="RewardModel has no log-probs"):
        _ = load_trained(run).policy


@pytest.mark.parametrize(
    ("reward", "score", "share"),
    [([1, 0], [0.2, 0.1], 1.0), ([1, 0], [0.1, 0.1], 0.0), ([2, 1, 0], [3, 1, 2], 2 / 3), ([1, 1, 0], [0, 2, 1], 0.5)],
)
def test_a_tie_is_not_ranked_right(reward, score, share):
    assert share_of_pairs(torch.tensor(reward).double().numpy(), np.subtract.outer(score, score)) == share


def test_groups_without_pairs_have_no_share():
    assert torch.isnan(torch.tensor(share_of_pairs(torch.ones(2).double().numpy(), np.zeros((2, 2)))))


def test_the_margin_of_a_pair_is_a_number(tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({"prompt": "c", "chosen": "a", "rejected": "b", "margin": "much"}) + "\n")
    with pytest.raises(InputError, match=r"A margin in line 1 of .*pairs\.jsonl is 'much'"):
        load_task({"name": "pairs", "path": str(file), "eval_fraction": 0.0}, 0)
