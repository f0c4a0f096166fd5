"""The training loop on tiny runs: what it leaves, how it reacts to bad rewards, refill, reference and critic."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from grouprl import InputError, RunError
from grouprl.config.run import parse_config
from grouprl.core.terminal import READING
from grouprl.training import loop
from grouprl.training.loop import train
from single_runs import launch, records, run_config


def test_a_run_leaves_everything_it_promises(tmp_path: Path) -> None:
    summary = launch(tmp_path / "run")
    names = {path.name for path in summary.folder.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "rollouts", "checkpoints", "model", "report.html", "summary.json"} <= names
    assert {"samples.json", "health.json", "before.json", "run.json"} <= names
    assert [r["step"] for r in records(summary.folder, "train")] == [1, 2]
    assert [r["step"] for r in records(summary.folder, "eval")] == [0, 1, 2]
    table = pq.read_table(summary.folder / "rollouts" / "step-000002.parquet").to_pylist()
    assert len(table) == 16
    row = table[0]
    assert len(row["completion_ids"]) == len(row["behavior_logp"]) == len(row["advantage"]) == len(row["mask"])


def test_the_final_model_is_an_ordinary_folder(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = launch(tmp_path / "run").folder / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("1+2=", add_special_tokens=False).input_ids) == "1+2="
    assert model.config.hidden_size == 16


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("do not lose me")
    with pytest.raises(InputError, match="exists already"):
        launch(tmp_path / "run")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "do not lose me"


def test_what_is_read_before_a_run_is_said_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise InputError("too early", "nothing is planned here")

    monkeypatch.setattr(loop, "plan", refused)
    said = io.StringIO()
    with pytest.raises(InputError, match="too early"):
        train(parse_config(run_config()), folder=tmp_path / "run", console=Console(file=said, force_terminal=True))
    assert READING in said.getvalue()


def test_a_task_that_changed_is_refused_on_resume(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(40)]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    task = {"name": f"jsonl:{data}", "reward": "exact_match"}
    folder = launch(tmp_path / "run", task=task, warmup={"steps": 0}).folder
    data.write_text("\n".join(json.dumps(row) for row in rows[:30]))
    with pytest.raises(InputError, match="has changed"):
        train(parse_config(run_config()), folder=folder, resume=True, console=Console(file=io.StringIO()))


REWARDS = """
def fails_on_some(completion, answer, **_):
    if answer.endswith("7"):
        raise ZeroDivisionError("no sevens")
    return float(completion == answer)

def always_fails(completion, **_):
    raise ValueError("out of order")

def not_a_number(completion, **_):
    return float("nan")

def never(completion, **_):
    return 0.0

def length(completion, **_):
    return float(len(completion))
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def test_failing_rewards_drop_their_groups_and_are_counted(tmp_path: Path, rewards: Path) -> None:
    reward = {"function": f"{rewards}:fails_on_some", "max_failed_fraction": 1.0}
    config = run_config(reward=reward, batch={"prompts": 24, "group_size": 2}, eval={"prompts": 1, "final_prompts": 1})
    folder = train(parse_config(config), folder=tmp_path / "run", console=Console(file=io.StringIO())).folder
    last = records(folder, "train")
    assert sum(r["reward_errors"] for r in last) > 0
    assert all(r["rows_dropped"] >= r["reward_errors"] for r in last)
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    failed = [row for row in rows if row["status"] == "error"]
    assert failed
    assert all(not row["used"] and row["reward"] is None for row in failed)


@pytest.mark.parametrize("name", ["always_fails", "not_a_number"])
def test_a_reward_that_always_fails_stops_the_run_naming_a_sample(tmp_path: Path, rewards: Path, name: str) -> None:
    with pytest.raises(RunError, match=r"sample addition/"):
        launch(tmp_path / "run", reward={"function": f"{rewards}:{name}", "self_test": False})


def test_dead_groups_only_move_nothing(tmp_path: Path, rewards: Path) -> None:
    folder = launch(tmp_path / "run", reward={"function": f"{rewards}:never"}).folder
    last = records(folder, "train")
    assert [r["groups_all_wrong"] for r in last] == [1.0, 1.0]
    assert [r["rows_trained"] for r in last] == [0.0, 0.0]
    assert [r["grad_norm"] for r in last] == [0.0, 0.0]
    assert [r["loss"] for r in last] == [0.0, 0.0]


def test_refill_samples_again_for_dead_groups(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run", method={"name": "dapo", "max_rounds": 3}, steps=1).folder
    record = records(folder, "train")[0]
    assert record["refill_rounds"] == 3 or record["groups_zero_variance"] < 1
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    groups = {row["group"] for row in rows}
    assert len(groups) > 4
    used = {row["group"] for row in rows if row["used"]}
    for group in used:
        assert len({row["correct"] for row in rows if row["group"] == group}) == 2


@pytest.mark.parametrize("method", ["ppo", "remax", {"name": "grpo", "kl_coef": 0.05}, "rloo", "gspo", "cispo"])
def test_methods_that_need_more_than_rewards_run(tmp_path: Path, rewards: Path, method: Any) -> None:
    folder = launch(tmp_path / "run", method=method, reward={"function": f"{rewards}:length"}).folder
    record = records(folder, "train")[-1]
    if method == "ppo":
        assert "value_loss" in record
        assert "explained_variance" in record
    if isinstance(method, dict):
        assert record["kl_ref"] > 1e-5
        assert (folder / "reference.safetensors").is_file()


def test_warm_up_without_demonstrations_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"{i}=", "answer": str(i)}) for i in range(40)))
    with pytest.raises(InputError, match="demonstrations"):
        launch(tmp_path / "run", task={"name": f"jsonl:{data}", "reward": "exact_match"})


def chat_model(folder: Path) -> Path:
    """Save a tiny GPT-2 (not Llama-like) with a character tokenizer and a chat template as a Hugging Face folder."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from grouprl.policy.language.tiny import char_tokenizer

    tokenizer = char_tokenizer("0123456789+=|abcdefghijklmnopqrstuvwxyz: ")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} {% endfor %}completion: "
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, eos_token_id=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat_task(tmp_path: Path) -> dict[str, Any]:
    data = tmp_path / "chat.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1)} for i in range(60)]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    return {"name": f"jsonl:{data}", "prompt": "messages", "reward": "exact_match"}


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_any_model_folder_with_chat_data(tmp_path: Path, lora: Any) -> None:
    model = {"name": str(chat_model(tmp_path / "gpt2")), "lora": lora}
    sampling = {"max_new_tokens": 4}
    folder = launch(
        tmp_path / "run", model=model, task=chat_task(tmp_path), warmup={"steps": 0}, sampling=sampling
    ).folder
    prompt = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()[0]["prompt"]
    assert prompt.startswith("user: ")
    assert (folder / "model" / "config.json").is_file()


def test_chat_data_without_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chat template"):
        launch(tmp_path / "run", task=chat_task(tmp_path), warmup={"steps": 0})
    assert not (tmp_path / "run").exists()
