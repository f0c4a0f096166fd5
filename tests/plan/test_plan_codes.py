"""Findings of a plan by their codes, each provoked by a small configuration, and absent without its cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grouprl.config.run import parse_config
from grouprl.methods.registry import CATALOGUE
from grouprl.plan.plan import Plan, plan
from grouprl.policy.language.tiny import build_tiny
from short_runs import SMALL


def planned(**changed: object) -> Plan:
    return plan(parse_config({**SMALL, **changed}))


def said(found: Plan, code: str, severity: str) -> str:
    """The only finding of this code and severity; "" if there is none."""
    (text,) = [str(each) for each in found.findings if (each.code, each.severity) == (code, severity)] or [""]
    return text


def rows(folder: Path, count: int) -> str:
    path = folder / "rows.jsonl"
    each = ({"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in each), encoding="utf-8")
    return f"jsonl:{path}"


def test_no_prompts(tmp_path: Path) -> None:
    task = {"name": rows(tmp_path, 8), "eval_fraction": 0.0}
    assert "no held-out prompts" in said(planned(task=task), "no_prompts", "refusal")
    assert not said(planned(task={**task, "eval_fraction": 0.5}), "no_prompts", "refusal")


def test_no_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def one(completion):\n    return float('1' in completion)\n", encoding="utf-8")
    (tmp_path / "bare.jsonl").write_text('{"prompt": "say one"}\n{"prompt": "say 1"}\n' * 4, encoding="utf-8")
    bare = {"task": f"jsonl:{tmp_path / 'bare.jsonl'}", "reward": {"function": f"{path}:one"}}
    assert "no demonstrations to imitate" in said(planned(**bare, warmup={"steps": 5}), "no_demonstrations", "refusal")
    assert not said(planned(**bare), "no_demonstrations", "refusal")
    assert not said(planned(warmup={"steps": 5}), "no_demonstrations", "refusal")


@pytest.mark.parametrize(("body", "severity"), [("1 / 0", "refusal"), ("1 / len(completion)", "note")])
def test_reward_trial(tmp_path: Path, body: str, severity: str) -> None:
    path = tmp_path / "own.py"
    path.write_text(f"def own(completion):\n    return {body}\n", encoding="utf-8")
    found = planned(reward={"function": f"{path}:own", "workers": 0})
    assert "ZeroDivisionError" in said(found, "reward_trial", severity)
    assert not said(planned(), "reward_trial", severity)


def test_unverified_method() -> None:
    entry = next(each for each in CATALOGUE.values() if each.card.confidence == "partly" and each.card.uncertain)
    with_it = plan(parse_config({"task": "addition", "method": entry.name}))
    assert said(with_it, "unverified_method", "note").startswith(f"{entry.name}: partly. ")
    assert not said(planned(method="grpo"), "unverified_method", "note")


def test_added_tokens(tmp_path: Path) -> None:
    model, tokenizer = build_tiny(
        "0123456789+=| abcdefghijklmnopqrstuvwxyz>", hidden=16, layers=1, heads=2, intermediate=32, max_positions=64
    )
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert not said(planned(model=str(tmp_path / "model")), "added_tokens", "note")
    tokenizer.add_tokens(["<call>"])
    tokenizer.save_pretrained(tmp_path / "model")
    assert "<call>" in said(planned(model=str(tmp_path / "model")), "added_tokens", "note")


def test_few_held_out(tmp_path: Path) -> None:
    task = {"name": rows(tmp_path, 8), "eval_fraction": 0.5}
    found = planned(task=task, eval={"prompts": 4, "final_prompts": 5})
    assert "has 4 held-out prompts; eval.final_prompts is 5" in said(found, "few_held_out", "note")
    assert not said(planned(task=task, eval={"prompts": 4, "final_prompts": 4}), "few_held_out", "note")


def test_unreached_success() -> None:
    cut = planned(task={"name": "gym:FrozenLake-v1", "turns": 5})
    assert "is cut off at 5 turns, its own limit is 100" in said(cut, "unreached_success", "warning")
    assert not said(planned(task={"name": "gym:FrozenLake-v1", "turns": 100}), "unreached_success", "warning")


def test_sampling_server() -> None:
    asked = {"engine": "vllm", "vllm": {"addresses": ["http://127.0.0.1:9"]}}
    found = planned(sampling={"max_new_tokens": 8, **asked})
    assert "http://127.0.0.1:9" in said(found, "sampling_server", "refusal")
    assert not said(planned(), "sampling_server", "refusal")


def test_settings_without_effect_are_told_in_one_order() -> None:
    """The order of a set of texts hangs on how this process hashes them; here a process hashes them otherwise."""
    script = """
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan
seen = plan(parse_config({"task": "addition", "warmup": {"lr": 0.1, "batch": 4, "warmup_steps": 3}}))
print([each.split()[0] for each in seen.idle if each.startswith("warmup.")])
"""
    seed = {**os.environ, "PYTHONHASHSEED": "3"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=seed)
    assert done.stdout.strip() == str(["warmup.batch", "warmup.lr", "warmup.warmup_steps"]), done.stderr
