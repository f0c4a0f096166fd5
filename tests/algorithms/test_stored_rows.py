"""Groups whose completions lie ready: pairs with a known winner, and rollouts of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from grouprl.config.run import load_config, parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.account_words import in_words, totals
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.records.requests import RolloutRequest
from grouprl.rollout.offline_rows import likeliest, stored
from grouprl.tasks import load_task
from grouprl.testing import check_stored_rows
from grouprl.training.loop import train

SMALL = {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}}


def pairs_file(folder: Path, count: int = 40) -> Path:
    """Pairs that end in 'a' or 'b': the winner is the one with 'a'."""
    luck = np.random.default_rng(0)
    words = sorted({"".join(luck.choice(list("cdefgh"), 3)) for _ in range(4 * count)})[:count]
    rows = [{"prompt": f"{word}:", "chosen": f"{word[0]}a", "rejected": f"{word[0]}b"} for word in words]
    path = folder / "pairs.jsonl"
    if path.exists():
        return path
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(folder: Path, settings: dict[str, Any], name: str = "run") -> list[dict[str, Any]]:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    train(load_config(str(path)), folder=folder / name, console=Console(quiet=True))
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def preferences(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "task": f"pairs:{pairs_file(folder)}",
        "model": SMALL,
        "method": "grpo",
        "steps": 8,
        "batch": {"prompts": 16, "group_size": 2, "minibatches": 2},
        "optim": {"lr": 3e-3, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 8},
        "run": {"checkpoint_every": 4, "threads": 1},
        **changes,
    }


def test_pairs_are_groups_of_two_with_a_known_winner(tmp_path: Path) -> None:
    task = load_task(f"pairs:{pairs_file(tmp_path)}")
    policy = load_policy("tiny", hidden=16, layers=1, heads=2, intermediate=16)
    requests = [RolloutRequest(7 + i, i, task.example("train", i), 2) for i in range(3)]
    rows = stored(task, policy, requests)
    assert rows.group_b.tolist() == [7, 7, 8, 8, 9, 9]
    assert rows.scores.reward_b.tolist() == [1.0, 0.0] * 3
    assert [text[-1] for text in rows.texts[:2]] == ["a", "b"]
    assert rows.rollout.response_ids[0][-1] == policy.eos_ids[0]
    assert rows.foreign_b.all()  # the policy scores them itself


def test_the_policy_learns_what_is_preferred(tmp_path: Path) -> None:
    rows = run(tmp_path, preferences(tmp_path))
    evals = [row["eval/greedy"] for row in rows if row["phase"] == "eval"]
    assert evals[-1] == 1.0  # on pairs that it was never shown
    steps = [row for row in rows if row["phase"] == "train"]
    assert all(row["rows_used"] == 32 for row in steps)


@pytest.mark.parametrize("way", ["keep_start", "keep_end", "drop"])
def test_what_is_cut_or_left_out_stands_in_the_account(tmp_path: Path, way: str) -> None:
    """With its first and its end token a row has 8; of 7 it loses one, or its group is left out. One pair fits."""
    lines = pairs_file(tmp_path).read_text().splitlines()
    short = {"prompt": "cd:", "chosen": "ca", "rejected": "cb"}
    (tmp_path / "pairs.jsonl").write_text("\n".join([*lines[:15], json.dumps(short)]))
    (tmp_path / "other.jsonl").write_text(json.dumps({**short, "prompt": "ef:"}))
    settings = preferences(tmp_path, steps=1)
    settings["task"] = {
        "name": f"pairs:{tmp_path / 'pairs.jsonl'}",
        "eval": str(tmp_path / "other.jsonl"),
        "max_length": 7,
        "truncation": way,
    }
    [step] = [row for row in run(tmp_path, settings) if row["phase"] == "train"]
    if way == "drop":
        assert (step["rows_lost/too_long"], step["rows_used"], step["prompts_trained"]) == (30, 2, 1)
        assert "rows_cut" not in step
    else:
        assert (step["rows_cut"], step["tokens_cut"], step["rows_used"]) == (30, 30, 32)
        said = in_words(totals([step]))
        assert "30 tokens of 30 stored rows were cut (max_length)." in said


def test_likeliest_is_the_row_of_most_log_prob(tmp_path: Path) -> None:
    task = load_task(f"pairs:{pairs_file(tmp_path)}")
    policy = load_policy("tiny", hidden=16, layers=1, heads=2, intermediate=16)
    example = task.example("train", 0)
    end = policy.eos_ids[0]
    prompt = policy.encode_prompt(example.prompt)
    from grouprl.policy import Tokens

    both = [[*policy.encode(row.completion), end] for row in task.stored_rows(example)]
    sums = policy.logp(Tokens.of([prompt, prompt], both)).sum(1)
    row, length = likeliest(task, policy, example)
    assert row == task.stored_rows(example)[int(sums.argmax())]
    assert len(length.ids) == 3


def sampled(folder: Path) -> Path:
    """A short run that leaves rollouts."""
    settings = {
        "task": {"name": "addition", "digits": 1},
        "model": SMALL,
        "warmup": {"steps": 20, "batch": 32, "lr": 1e-2},
        "method": "grpo",
        "steps": 4,
        "batch": {"prompts": 8, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1},
    }
    run(folder, settings, "sampled")
    return folder / "sampled"


def test_rollouts_of_a_run_are_trained_on_as_they_were_sampled(tmp_path: Path) -> None:
    folder = sampled(tmp_path)
    task = load_task(f"rollouts:{folder}")
    check_stored_rows(task)
    policy = load_policy(folder / "model")
    requests = [RolloutRequest(i, i, task.example("train", i), 4) for i in range(2)]
    rows = stored(task, policy, requests)
    first = requests[0].example.columns["rows"]
    assert [list(ids) for ids in rows.rollout.response_ids[:4]] == [row["completion_ids"] for row in first]
    assert rows.scores.reward_b[:4].tolist() == [row["reward"] for row in first]
    want = torch.tensor(first[0]["behavior_logp"])
    assert torch.equal(rows.rollout.logp_bt[0, : len(want)].float(), want)

    settings = {
        "task": f"rollouts:{folder}",
        "model": str(folder / "model"),
        "method": "grpo",
        "steps": 3,
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
        "optim": {"lr": 1e-4},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1},
    }
    steps = [row for row in run(tmp_path, settings, "offline") if row["phase"] == "train"]
    assert len(steps) == 3
    assert all((row["rows_stored"], row["rows_sampled"]) == (16, 0) for row in steps)


def test_rollouts_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    task = load_task(f"rollouts:{sampled(tmp_path)}")
    other = load_policy(
        "tiny", alphabet="zyxwvutsrqponml+=0987654321.; ", hidden=16, layers=1, heads=2, intermediate=16
    )
    with pytest.raises(InputError, match="another tokenizer"):
        stored(task, other, [RolloutRequest(0, 0, task.example("train", 0), 4)])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"prompt": "p", "chosen": "a"}, "rejected"),
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, "the same"),
        ({"prompt": "p", "chosen": "a", "rejected": ""}, "A completion is text"),
        ({"prompt": "p", "chosen": "a", "rejected": [{"role": "user", "content": "b"}]}, "assistant"),
    ],
)
def test_pairs_that_are_none_are_named(tmp_path: Path, line: Any, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    good = [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(5)]
    path.write_text("\n".join(map(json.dumps, [*good, line])))
    with pytest.raises(InputError, match=said) as found:
        load_task({"name": "pairs", "path": str(path), "eval_fraction": 0})
    assert "line 6" in str(found.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": {"prompts": 16, "group_size": 4}}, "batch.group_size is 4"),
        ({"run": {"async_steps": 1}}, "run.async_steps"),
        ({"reward": {"function": "exact_match"}}, "reward.function"),
    ],
)
def test_what_stored_rows_cannot_do_is_refused(tmp_path: Path, changes: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(parse_config(preferences(tmp_path, **changes))).raise_if_refused()


def test_pairs_keep_their_tokens_where_the_policy_samples_beside_them(tmp_path: Path) -> None:
    """HyPO: of every group two stored completions and two sampled ones, and the pairs have a loss and a margin."""
    settings = preferences(tmp_path, task="preferences", method={"name": "hypo", "coef": 0.1}, steps=2)
    settings |= {"eval": {"every": 0, "final_prompts": 2}, "batch": {"prompts": 4, "group_size": 2}}
    first, second = [row for row in run(tmp_path, settings) if "loss" in row]
    assert first["opponent_rows"] == 2 * 4
    assert first["logps/chosen"] < -1, "log-probs of a completion's tokens, which it has"
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert second["rewards/margins"] != 0


def test_opponents_that_are_scored_need_a_task_that_samples(tmp_path: Path) -> None:
    found = plan(parse_config(preferences(tmp_path, task="preferences", method="xpo")))
    assert any("opponents has its completions scored" in str(refusal) for refusal in found.refusals)
