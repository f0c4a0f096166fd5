"""A process reward model: steps as rows, their likelihood, a run, and its chances as a reward."""

import json
import math

import pytest
import torch

import grouprl
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.model_reward import load_model_reward, reduced, steps_of
from grouprl.tasks import load_task
from grouprl.tasks.adapters.preferences.step_labels import labelled_steps
from grouprl.training.loop import train

ROWS = [
    {"prompt": f"{p}:", "completions": ["a", x, "a"], "labels": [True, x == "a", x == "a"]}
    for p in ("c", "d", "cd", "dc", "ccd", "ddc")
    for x in "ab"
] * 2


def written(folder):
    file = folder / "steps.jsonl"
    file.write_text("".join(json.dumps(row | {"id": str(i)}) + "\n" for i, row in enumerate(ROWS)))
    return file


def test_a_step_is_the_answer_up_to_its_end(tmp_path):
    task = load_task(f"step_labels:{written(tmp_path)}")
    example = next(e for i in range(12) if (e := task.example("train", i)).columns["completions"][1] == "b")
    assert [(row.completion, row.reward) for row in task.stored_rows(example)] == [
        ("a\n", 1.0), ("a\nb\n", 0.0), ("a\nb\na\n", 0.0),
    ]  # fmt: skip
    assert task.solution(example) is None
    last = load_task({"name": f"step_labels:{tmp_path / 'steps.jsonl'}", "last_only": True, "separator": ";"})
    assert [row.completion for row in last.stored_rows(example)] == ["a;b;a;"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"completions": "a", "labels": [True]}, "has the completions 'a'"),
        ({"completions": ["a"]}, "has the labels None"),
        ({"completions": ["a", ""], "labels": [True, True]}, "not a text, or empty"),
        ({"completions": ["a"], "labels": [True, False]}, "1 steps and the labels"),
        ({"completions": ["a"], "labels": [2]}, "1 steps and the labels"),
        ({"completions": [[{"role": "user", "content": "a"}]], "labels": [True]}, "not a text, or empty"),
        ({"completions": [[{"role": "assistant", "content": ""}]], "labels": [True]}, "not a text, or empty"),
        ({"completions": [[{"role": "assistant", "content": "a"}] * 2], "labels": [True]}, "not a text, or empty"),
    ],
)
def test_rows_of_other_forms_are_refused_by_name(row, said):
    with pytest.raises(InputError, match=f"line 7 .*{said}|line 7 {said}|step of line 7"):
        labelled_steps(row, "line 7")


def test_steps_may_be_messages_of_the_assistant(tmp_path):
    """Alone, or in a list of their own, behind a prompt of messages; a picture is refused as elsewhere."""
    said = {"role": "assistant", "content": "a"}
    row = {"prompt": [{"role": "user", "content": "p"}], "completions": [said, [said]], "labels": [True, False]}
    file = tmp_path / "talks.jsonl"
    file.write_text("".join(json.dumps(row | {"id": str(n)}) + "\n" for n in range(2)))
    task = load_task({"name": f"step_labels:{file}", "eval_fraction": 0})
    found = task.stored_rows(task.example("train", 0))
    assert [(each.completion, each.reward) for each in found] == [("a\n", 1.0), ("a\na\n", 0.0)]
    file.write_text(json.dumps(row | {"images": ["x.png"]}))
    with pytest.raises(InputError, match="column 'images'"):
        load_task(f"step_labels:{file}")


def test_steps_are_read_from_parquet_and_from_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(ROWS)
    table.to_parquet(tmp_path / "steps.parquet")
    datasets.DatasetDict({"train": table, "test": table.select([0, 1])}).save_to_disk(tmp_path / "folder")
    file = load_task(f"step_labels:{tmp_path / 'steps.parquet'}")
    folder = load_task({"name": f"step_labels:{tmp_path / 'folder'}", "eval_split": "test", "drop_overlap": True})
    assert (folder.size("train"), folder.size("eval")) == (len(ROWS) - 4, 2)
    for task in (file, folder):
        example = task.example("train", 0)
        steps, labels = labelled_steps(example.columns, "the row")
        assert [row.reward for row in task.stored_rows(example)] == [float(each) for each in labels]
        assert task.stored_rows(example)[-1].completion == "".join(step + "\n" for step in steps)


def test_the_loss_is_that_of_two_classes():
    score_b = torch.tensor([0.3, -2.0, 500.0, -500.0], dtype=torch.float64, requires_grad=True)
    label_b = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    mask_bt = torch.ones(4, 2, dtype=torch.bool)
    batch = grouprl.Batch(mask_bt=mask_bt, group_b=torch.tensor([0, 0, 1, 1]), reward_b=label_b)
    method = grouprl.method("process_reward")
    loss = method.loss(None, method.prepare(batch), outputs={"score": score_b})
    logits_bc = torch.stack([-score_b / 2, score_b / 2], 1)
    torch.testing.assert_close(loss.value, torch.nn.functional.cross_entropy(logits_bc, label_b.long()))
    loss.value.backward()
    torch.testing.assert_close(score_b.grad, (score_b.detach().sigmoid() - label_b) / 4)
    assert float(loss.metrics["label_accuracy"]) == 0.75


def test_steps_of_a_text_and_what_is_paid_of_them():
    assert steps_of("a\n\nb", "\n") == ["a\n", "a\nb\n"]
    assert steps_of("", "\n") == [""]
    chance = torch.tensor([[0.5, 0.25, 0.75]])
    assert [float(reduced(chance, kind)) for kind in ("least", "last", "mean", "product")] == [0.25, 0.75, 0.5, 0.09375]


def test_a_run_learns_steps_and_pays_their_least_chance(tmp_path):
    model = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}}
    settings = {
        "task": f"step_labels:{written(tmp_path)}",
        "method": "process_reward",
        "model": model,
        "steps": 30,
        "batch": {"prompts": 8, "group_size": 3},
        "optim": {"lr": 0.01, "schedule": "constant"},
        "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
        "run": {"folder": str(tmp_path / "prm")},
    }
    train(parse_config(settings))
    lines = [json.loads(x) for x in (tmp_path / "prm" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["phase"] == "train"]
    assert losses[0] == pytest.approx(math.log(2), abs=0.03)
    assert losses[-1] < 0.4
    reward = load_model_reward([str(tmp_path / "prm")], steps="least")
    one = reward.models[0]
    found = [each.reward for each in reward.verdicts(["a\na\na", "a\nb\na"], [{}, {}], ["0", "1"])]
    chances = one.scores(one.tokens_of([""] * 3, ["a\n", "a\nb\n", "a\nb\na\n"])).double().sigmoid()
    assert found[1] == pytest.approx(float(chances.min()), abs=1e-6)
    assert found[0] > found[1]
