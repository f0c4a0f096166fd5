"""What a new user meets in the first hour: rates, findings, rewards, checks before the run, paths, resuming."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from grouprl.config.paths import absolute_paths, folder_name
from grouprl.config.rates import (
    FAST_TINY,
    RATES,
    STILL,
    gain_of_adapters,
    ratio_of_squares,
    reach_of_step,
    update_squares,
)
from grouprl.config.run import load_config, parse_config
from grouprl.config.sections import Lora
from grouprl.core.errors import InputError
from grouprl.evaluation.evaluate import evaluate
from grouprl.evaluation.pass_at_k import mean_interval, t_quantile
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.movement import RATIO_FAST
from grouprl.monitor.screen import RunScreen, line, verdict_mark
from grouprl.monitor.summary import summary_table
from grouprl.plan import checks as objections
from grouprl.plan.memory import Cost
from grouprl.plan.plan import plan
from grouprl.policy import build_tiny, load_policy
from grouprl.policy.lora import adapts, check_targets
from grouprl.rewards import combine, score
from grouprl.tasks import Example, Task, load_task
from grouprl.training import interrupt, loop
from grouprl.training.interrupt import Interrupt, Stopped
from grouprl.training.loop import train
from grouprl.training.opening import resume
from grouprl.training.starting import choose
from grouprl.view.report import write_report
from short_runs import SMALL, TINY, quiet


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- learning rates ---------------------------------------------------------------------------------------------------


def test_the_learning_rate_is_that_of_the_kind_of_model():
    kinds = ({"model": "tiny"}, {"model": "some/model"}, {"model": {"name": "some/model", "lora": {}}})
    rates = [parse_config(data).optim.lr for data in kinds]
    assert rates == [RATES["tiny"].lr, RATES["full"].lr, RATES["lora"].lr] == [1e-3, 1e-6, 1e-5]
    assert parse_config({"model": "tiny", "optim": {"lr": 1e-6}}).optim.lr == 1e-6
    assert parse_config({"model": "tiny", "optim": {"warmup_steps": 3}}).optim.warmup_steps == 3
    assert "lr" not in parse_config({"optim": {"warmup_steps": 3}}).optim.model_fields_set


def test_the_plan_says_where_the_rate_comes_from():
    found = plan(parse_config({"task": "addition"}))
    setting = next(s for s in found.settings if s.key == "optim.lr")
    assert setting.value == 1e-3
    assert setting.origin.startswith("default: tiny model")


def test_the_plan_foresees_a_policy_that_stands_still_or_moves_too_fast():
    def notes(lr):
        return " ".join(plan(parse_config({**SMALL, "steps": 40, "optim": {"lr": lr}})).notes)

    assert "will stand still" in notes(1e-6)
    assert "may move too fast" in notes(0.9)
    assert "stand still" not in notes(1e-2) + notes(0.02)
    assert "too fast" not in notes(1e-2)


def test_the_plan_says_what_adapters_on_untrained_weights_come_to():
    def said(model):
        return any(
            "stay as they were initialised" in note for note in plan(parse_config({**SMALL, "model": model})).notes
        )

    assert said({**TINY, "lora": {}})
    assert not said(TINY)
    runs = json.loads((Path(__file__).parents[2] / "docs" / "findings.json").read_text())
    assert len({(run["rank"], run["warmup_lr"]) for run in runs if run["base"] == "random"}) >= 7
    assert not [run for run in runs if run["base"] == "random" and run["verdict"] == "learned"]


def test_on_weights_as_they_were_initialised_no_token_can_be_likely():
    """Why adapters learn nothing there: the output layer stays small, and the norm before it bounds what it gets."""
    model, _ = build_tiny("abcdefghijklmnopqrstuvwxyz>")
    weight_vd = model.lm_head.weight.detach()
    best_vd = weight_vd / weight_vd.norm(dim=1, keepdim=True) * weight_vd.shape[1] ** 0.5  # the norm's longest output
    likeliest_v = torch.softmax(best_vd @ weight_vd.T, -1).diagonal()
    assert float(likeliest_v.max()) < 0.2


def test_adapters_learn_on_weights_that_were_warmed_up():
    runs = json.loads((Path(__file__).parents[2] / "docs" / "findings.json").read_text())
    learned = [run for run in runs if run["rank"] and run["base"] == "warmed" and run["verdict"] == "learned"]
    assert {run["rank"] for run in learned if run["lr"] == RATES["tiny"].lr} == {4, 16, 64}


def test_the_plan_tells_the_truth_about_adapter_dropout():
    found = plan(parse_config({**SMALL, "model": {**TINY, "lora": {"dropout": 0.1}}}))
    assert any("model.lora.dropout acts" in note for note in found.notes)
    assert not any("dropout" in sentence for sentence in found.idle)


def test_update_ratio_is_the_size_of_the_step_that_adam_took():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    assert ratio_of_squares(update_squares(optimizer)) is None
    for _ in range(3):
        before, state = weight.detach().clone(), {}
        weight.grad = torch.randn(5, 3)
        optimizer.step()
        state = {name: x.clone() for name, x in optimizer.state[weight].items()}
        expected = (weight.detach() - before).norm() / weight.detach().norm()
        assert ratio_of_squares(update_squares(optimizer)) == pytest.approx(float(expected), rel=1e-4)
        assert all(torch.equal(x, optimizer.state[weight][name]) for name, x in state.items())  # nothing is touched


# --- findings ---------------------------------------------------------------------------------------------------------


def records(steps, lr=1e-3, ratio=1e-3):
    return [
        {"phase": "train", "step": s, "grad_norm": 0.5, "lr": lr, "update_ratio": ratio, "reward_mean": 0.5}
        for s in range(1, steps + 1)
    ]


def evaluation(step, value, half=0.03):
    names = ("reward", "pass@1", "greedy")
    found = {f"eval/{n}{end}": value + d for n in names for end, d in (("", 0), ("_low", -half), ("_high", half))}
    return {"phase": "eval", "step": step, "eval/prompts": 64, **found}


def keys(history, **facts):
    return {f.code for f in examine(history, HealthFacts(**facts)) if f.persists}


def test_a_policy_whose_evaluation_never_changes_stands_still():
    def told(before, after, steps=20, ratio=1e-4):
        return "stands_still" in keys([evaluation(0, before), *records(steps, ratio=ratio), evaluation(steps, after)])

    assert told(0.5, 0.5)
    assert not told(0.5, 0.52)
    assert not told(1.0, 1.0)  # nothing left to learn
    assert not told(0.5, 0.5, steps=5)  # too early to say
    assert not told(0.5, 0.5, ratio=1e-3)  # the weights have moved by 2 %


def test_a_policy_whose_rates_cannot_carry_it_stands_still():
    noise = [evaluation(0, 0.5), *records(30, lr=1e-6), evaluation(30, 0.51)]
    assert "stands_still" in keys(noise, reach=400.0)
    assert "stands_still" not in keys([*noise[:-1], evaluation(30, 0.6)], reach=400.0)  # it gained all the same
    assert "stands_still" not in keys([evaluation(0, 0.5), *records(30), evaluation(30, 0.51)], reach=400.0)


def test_a_step_that_overturns_the_weights_moves_too_fast():
    assert "moves_too_fast" in keys(records(1, ratio=0.06))
    assert "moves_too_fast" not in keys(records(30, ratio=0.01))
    assert "moves_too_fast" not in keys(records(30, ratio=0.06), adapters=True)  # of their own size


def test_a_step_that_can_move_a_log_prob_far_moves_too_fast():
    fast = {"reach": 2 * 128.0, "updates_per_rollout": 2, "fast": FAST_TINY, "adapters": True}
    assert "moves_too_fast" in keys(records(1, lr=0.01), **fast)
    assert "moves_too_fast" not in keys(records(1, lr=0.001), **fast)


def test_what_adapters_make_of_a_rate_by_hand():
    assert gain_of_adapters(None, 64) == 1.0
    assert gain_of_adapters(Lora(r=12, alpha=48), 64) == 1.0  # 48 / sqrt(3 * 12 * 64)
    assert gain_of_adapters(Lora(r=16, alpha=32), 768) == pytest.approx(1 / 6)  # 32 / sqrt(3 * 16 * 768)


def test_a_run_that_gained_nothing_is_not_called_healthy():
    flat = [evaluation(0, 0.5), *records(40), evaluation(40, 0.52)]
    assert "no_gain" in keys(flat)
    assert "no_gain" not in keys([*flat[:-1], evaluation(40, 0.55)])


def test_a_run_that_lost_what_it_knew_is_warned_of():
    for before, after in ((0.5, 0.3), (0.95, 0.4)):
        (said,) = examine([evaluation(0, before), *records(40), evaluation(40, after)], HealthFacts())
        assert (said.code, said.severity) == ("no_gain", "warning")
        assert said.text.startswith("The policy got worse: reward was")
        assert "earlier checkpoint" in said.remedy


def test_thresholds_agree_with_the_recorded_runs():
    """What docs/findings.json holds: alarms where runs lost what they knew, none where they learned."""
    runs = json.loads((Path(__file__).parents[2] / "docs" / "findings.json").read_text())
    assert len({run["task"] for run in runs}) >= 4
    for run in (each for each in runs if each["base"] == "warmed"):
        lora = Lora(r=run["rank"], alpha=2 * run["rank"]) if run["rank"] else None
        reach = reach_of_step(run["lr"], 64, 2, lora)
        lost = run["after"][2] < run["before"][1] / 2
        if run["verdict"] == "learned":
            assert reach < FAST_TINY
            assert run["ratio"] < RATIO_FAST or run["rank"]
            assert not {"stands_still", "moves_too_fast"} & set(run["findings"])
        if lost:
            assert reach > FAST_TINY
            assert run["ratio"] > RATIO_FAST
            assert "moves_too_fast" in run["findings"]
        if run["before"] == run["after"]:
            assert reach * 2 * 20 < STILL
            assert "stands_still" in run["findings"]


# --- held-out rewards -------------------------------------------------------------------------------------------------


def test_students_t_by_the_table():
    for df, expected in ((1, 12.706), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (255, 1.969)):
        assert t_quantile(df) == pytest.approx(expected, abs=2e-3)


def test_the_interval_of_a_mean_by_hand():
    found = mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))  # sd 1.5811, half = 2.776 * 1.5811 / sqrt(5)
    assert (found.value, found.high - found.value) == (3.0, pytest.approx(1.963, abs=1e-3))
    shifted = mean_interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]) - 7)
    assert shifted.low == pytest.approx(found.low - 7)


class Shades(Task):
    """Completions earn a share for each letter a."""

    name = "shades"
    alphabet = "ab"
    max_new_tokens = 4
    reward = staticmethod(
        lambda completion: {"letters": completion.count("a") / 4, "short": 0.25 * (len(completion) < 3)}
    )

    def example(self, split, index):
        return Example(f"{split}/{index}", "ab"[index % 2] * (1 + index), {})

    def size(self, split):
        return 6


def graded_evaluation():
    policy = load_policy("tiny", alphabet="ab", hidden=16, layers=1, heads=2, intermediate=16, max_positions=32)
    return evaluate(policy, Shades(), prompts=6, samples=3, k=(1,), max_new_tokens=4)


def test_evaluation_has_rewards_and_components_with_intervals_and_marks_no_shade_right_or_wrong():
    found = graded_evaluation()
    record = found.record()
    for name in ("eval/reward", "eval/greedy_reward", "eval/reward/letters", "eval/reward/short", "eval/pass@1"):
        assert record[f"{name}_low"] <= record[name] <= record[f"{name}_high"]
    parts = record["eval/reward/letters"] + record["eval/reward/short"]
    assert record["eval/reward"] == pytest.approx(parts)
    assert found.graded
    assert all(sample.correct is None for sample in found.samples)


def test_rewards_are_graded_unless_somebody_says_what_is_right():
    def graded(reward, **options):
        return score(reward, ["x"] * 2, [{}] * 2, ids=["0", "1"], **options).graded

    assert graded(lambda completion: 0.3)
    assert graded(lambda completion: {"a": 0.5, "b": 0.2})
    assert not graded(lambda completion: 1.0)
    assert not graded(lambda completion: -1.0)
    assert not graded(lambda completion: {"reward": 0.3, "correct": 1})
    assert not graded(lambda completion: 0.3, correct_at=0.2)  # a threshold was set
    half = combine([("right", lambda completion: 1.0, 1.0), ("style", lambda completion: 0.3, 0.5)])
    assert not graded(half)  # the first part says what is right


def test_everything_shown_of_graded_rewards_begins_with_the_reward(tmp_path):
    record = {"phase": "eval", "step": 3, **graded_evaluation().record()}
    assert line(RunScreen(lambda: 0.0), record).plain.startswith("eval at step 3: reward ")
    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(summary_table(record, record))
    shown = console.export_text()
    assert shown.index("mean reward") < shown.index("pass@1")
    assert "letters" in shown
    assert verdict_mark(None)[0] not in "✓✗"
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    page = write_report(tmp_path).read_text()
    assert "Mean reward" in page
    assert "Held-out reward" in page


# --- what is used is checked ------------------------------------------------------------------------------------------


def rows(path: Path, **columns: object) -> str:
    path.write_text("\n".join(json.dumps({"prompt": f"p{n}", **columns}) for n in range(20)))
    return f"jsonl:{path}"


def test_an_own_reward_on_prompts_alone_needs_no_answer_column(work):
    (work / "mine.py").write_text("def mine(completion):\n    return 1.0\n")
    task = rows(work / "prompts.jsonl")
    assert plan(parse_config({**SMALL, "task": task, "reward": {"function": "mine.py:mine"}})).refusals == ()
    with pytest.raises(InputError, match="needs the column 'answer'"):
        plan(parse_config({**SMALL, "task": task}))


def test_a_misspelt_column_of_an_own_reward_is_found_before_the_run(work):
    (work / "mine.py").write_text("def mine(completion, anser):\n    return 1.0\n")
    config = parse_config({**SMALL, "task": rows(work / "q.jsonl", answer="3"), "reward": {"function": "mine.py:mine"}})
    with pytest.raises(InputError, match=r"'anser'.*'answer'"):
        plan(config)
    generated = parse_config({**SMALL, "reward": {"function": "mine.py:mine"}})
    with pytest.raises(InputError, match="needs the column 'anser'"):
        plan(generated)


def test_adapters_on_modules_that_do_not_exist_are_refused():
    model, _ = build_tiny("ab", hidden=16, layers=1, heads=2, intermediate=16)
    check_targets(model, ["q_proj", "v_proj"])
    with pytest.raises(InputError, match=r"'q_prj'.*q_proj"):
        check_targets(model, ["v_proj", "q_prj"])
    with pytest.raises(InputError, match="q_proj"):
        plan(parse_config({**SMALL, "model": {**TINY, "lora": {"target_modules": ["q_prj"]}}}))
    assert adapts(r".*\.(q|v)_proj", "model.layers.0.self_attn.q_proj")
    assert not adapts("q_proj", "model.layers.0.self_attn.q_proj")  # a text is matched whole, as peft does


def model_folder(path: Path, model) -> Path:
    _, tokenizer = build_tiny("0123456789+=| abcdef", hidden=16, layers=1, heads=2, intermediate=16)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_encoders_and_damaged_folders_are_refused_in_words(tmp_path):
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = model_folder(tmp_path / "bert", BertForMaskedLM(BertConfig(**sizes, intermediate_size=16)))
    small = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    t5 = model_folder(tmp_path / "t5", T5ForConditionalGeneration(small))
    tiny, _ = build_tiny("0123456789+=| abcdef", hidden=16, layers=1, heads=2, intermediate=16)
    cut = model_folder(tmp_path / "cut", tiny)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    bare = tmp_path / "bare"
    tiny.save_pretrained(bare)
    for folder, words in ((bert, "of type bert"), (t5, "of type t5"), (cut, "is truncated or damaged"), (bare, "bare")):
        with pytest.raises(InputError, match=words):
            plan(parse_config({**SMALL, "model": str(folder)}))
        with pytest.raises(InputError, match=words):
            load_policy(folder)


def test_a_run_that_needs_more_memory_than_is_free_is_refused(monkeypatch):
    costs = [Cost(name, 0, "") for name in ("activations of a pass", "log-prob chunk")]
    costs += [Cost("weights", 2**30, "…"), Cost("rollout cache", 5 * 2**30, "how")]
    assert objections.too_large(costs, 7 * 2**30, "cpu") == []
    (said,) = objections.too_large(costs, 4 * 2**30, "cpu")
    assert all(words in said for words in ("6 GiB", "4 GiB", "rollout cache", "batch.group_size"))
    monkeypatch.setattr("grouprl.plan.length_estimates.free_bytes", lambda device: 1000)
    assert any(
        "free on cpu" in refusal
        for refusal in plan(parse_config({**SMALL, "model": {**TINY, "device": "cpu"}})).refusals
    )


def test_a_refused_run_leaves_no_folder(work, monkeypatch):
    (work / "mine.py").write_text("def mine(completion):\n    return 1.0\n")
    bad = {
        **SMALL,
        "warmup": {"steps": 2, "batch": 2},
        "task": rows(work / "q.jsonl"),
        "reward": {"function": "mine.py:mine"},
    }
    with pytest.raises(InputError, match="demonstrations"):
        train(parse_config(bad), console=quiet())
    monkeypatch.setattr(loop, "plan", lambda config: Silent())  # so that the run itself finds it
    with pytest.raises(InputError, match="demonstrations"):
        train(parse_config(bad), console=quiet())
    assert not (work / "runs").exists()


class Silent:
    graded = False

    def raise_if_refused(self):
        return None

    def short(self):
        return []


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_sigterm_ends_what_is_going_on_after_a_grace(monkeypatch):
    monkeypatch.setattr(interrupt, "GRACE", 0.2)
    with pytest.raises(KeyboardInterrupt), Interrupt(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        threading.Event().wait(30)


def test_a_grace_ends_with_the_run(monkeypatch):
    monkeypatch.setattr(interrupt, "GRACE", 0.1)
    with Interrupt(lambda text: None) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.give_way()
    threading.Event().wait(0.3)  # nobody kills the process afterwards


def test_an_evaluation_that_was_cut_short_is_made_up_for(work, monkeypatch):
    config = parse_config({**SMALL, "steps": 4, "eval": {"every": 2, "prompts": 4, "final_prompts": 4}})
    whole = train(config, folder=work / "whole", console=quiet()).folder
    real = loop.evaluate_rows

    def stops_at_two(*args, **kwargs):
        if session_step() == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args, **kwargs)

    def session_step():
        lines = (
            (work / "cut" / "metrics.jsonl").read_text().splitlines()
            if (work / "cut" / "metrics.jsonl").exists()
            else []
        )
        return max((json.loads(each)["step"] for each in lines), default=0)

    monkeypatch.setattr(loop, "evaluate_rows", stops_at_two)
    assert train(config, folder=work / "cut", console=quiet()).interrupted
    monkeypatch.setattr(loop, "evaluate_rows", real)
    train(config, folder=work / "cut", resume=True, console=quiet())
    assert figures(work / "cut") == figures(whole)


def figures(run: Path) -> list[dict]:
    timing = ("seconds", "tokens_per_second", "memory_mb")
    found = [json.loads(each) for each in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if not k.startswith(timing)} for record in found]


# --- paths and names --------------------------------------------------------------------------------------------------


def test_paths_of_a_yaml_file_are_relative_to_it_and_absolute_afterwards(work):
    there = work / "configs"
    there.mkdir()
    (there / "r.py").write_text("def r(completion):\n    return 1.0\n")
    rows(there / "q.jsonl")
    data = {**SMALL, "task": "jsonl:q.jsonl", "reward": {"function": [{"name": "r.py:r", "weight": 2.0}]}}
    (there / "run.yaml").write_text(yaml.safe_dump({**data, "run": {"folder": "out", "threads": 1}}))
    config = load_config("configs/run.yaml")
    assert config.task == f"jsonl:{there}/q.jsonl"
    assert config.reward.function == [{"name": f"{there}/r.py:r", "weight": 2.0}]
    assert config.run.folder == str(there / "out")
    assert plan(config).refusals == ()
    assert load_config("configs/run.yaml", ["task=jsonl:here.jsonl"]).task == f"jsonl:{work}/here.jsonl"


def test_every_kind_of_path_becomes_absolute():
    base = Path("/base")
    changed = {
        "env:nim.py:Nim": "env:/base/nim.py:Nim",
        "tools:t.py:one,two": "tools:/base/t.py:one,two",
        "sub/own.py:Task": "/base/sub/own.py:Task",
        "jsonl:~/x.jsonl": f"jsonl:{Path.home()}/x.jsonl",
        "pairs:p.jsonl": "pairs:/base/p.jsonl",
        "rollouts:runs/a": "rollouts:/base/runs/a",
        "task_folders:jobs": "task_folders:/base/jobs",
    }
    for before, after in changed.items():
        assert absolute_paths({"task": before}, base)["task"] == after
        assert absolute_paths({"task": {"name": before, "seed": 1}}, base)["task"] == {"name": after, "seed": 1}
    names = ("addition", "env:pkg.module:Class", "hf:org/data", "program:python agent.py", "gym:CartPole-v1")
    for same in (*names, "textworld:generated"):
        assert absolute_paths({"task": same}, base)["task"] == same
    own = {"model": "policy.py:Mine", "sampling": {"tool_calls": "calls.py:mine", "vllm": {"folder": "w"}}}
    assert absolute_paths(own, base) == {
        "model": "/base/policy.py:Mine",
        "sampling": {"tool_calls": "/base/calls.py:mine", "vllm": {"folder": "/base/w"}},
    }
    pairs = {"name": "pairs", "path": "p.jsonl", "eval": "e.jsonl"}
    assert absolute_paths({"task": pairs}, base)["task"] == pairs | {"path": "/base/p.jsonl", "eval": "/base/e.jsonl"}
    found = absolute_paths({"model": {"name": "./m", "agents": {"a": "org/model"}}, "method": "me.py:f"}, base)
    assert found == {"model": {"name": "/base/m", "agents": {"a": "org/model"}}, "method": "/base/me.py:f"}


def test_a_model_folder_that_is_only_in_the_working_directory_is_not_taken_silently(work):
    (work / "mymodel").mkdir()
    (work / "elsewhere").mkdir()
    with pytest.raises(InputError, match="relative to its file"):
        absolute_paths({"model": "mymodel"}, work / "elsewhere")


def test_prompts_do_not_depend_on_where_a_file_lies(work):
    (work / "a").mkdir()
    (work / "b").mkdir()
    found = []
    for place in (work / "a", work / "b"):
        rows(place / "q.jsonl")
        task = load_task(f"jsonl:{place}/q.jsonl")
        found.append([task.example("train", i).id for i in range(3)] + [task.name])
    assert found[0] == found[1]


def test_folder_names_are_safe_everywhere():
    assert folder_name("jsonl:/data/my prompts.jsonl", "grpo@trl", "s0") == "jsonl-my-prompts.jsonl-grpo@trl-s0"
    assert folder_name("env:nim.py:Nim", "grpo", "s1") == "env-nim.py-Nim-grpo-s1"
    for odd in ("a:b?c*d", 'x<>"|', "ä" * 300, "con", "...", "/"):
        name = folder_name(odd)
        assert 0 < len(name) <= 130
        assert not set(name) & set('<>:"/\\|?* ')
        assert name.isascii()
        assert name.lower() != "con"


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_a_changed_reward_is_refused_with_the_difference_and_may_be_accepted(work, monkeypatch):
    monkeypatch.syspath_prepend(work)
    (work / "mine.py").write_text("from beside import worth\n\n\ndef mine(completion):\n    return worth()\n")
    (work / "beside.py").write_text("def worth():\n    return 0.25\n")
    config = parse_config({**SMALL, "reward": {"function": "mine.py:mine", "workers": 0}})
    run = train(config, folder=work / "r", console=quiet()).folder
    code = json.loads((run / "run.json").read_text())["code"]
    assert set(code) == {str(work / "mine.py"), str(work / "beside.py")}
    resume(run).leave()
    (work / "mine.py").write_text("from beside import worth\n\n\ndef mine(completion):\n    return 2 * worth()\n")
    with pytest.raises(InputError, match=r"mine\.py has changed") as refused:
        resume(run)
    assert "+    return 2 * worth()" in str(refused.value)
    assert "--accept-changes" in str(refused.value)
    resume(run, accept_changes=True).leave()
    resume(run).leave()  # it is what the run goes on with from now on


def test_a_finished_run_can_be_extended_and_only_so(work):
    config = parse_config({**SMALL, "eval": {"every": 2, "prompts": 4, "final_prompts": 4}})
    run = train(config, folder=work / "r", console=quiet()).folder
    chosen = choose(str(run), ["steps=3"], None, True)
    train(chosen.config, folder=chosen.folder, resume=True, changes=chosen.changes, console=quiet())
    found = [(record["phase"], record["step"]) for record in figures(run)]
    assert found == [("eval", 0), ("train", 1), ("train", 2), ("eval", 2), ("train", 3), ("eval", 3)]
    assert load_config(str(run / "config.yaml")).steps == 3
    resume(run).leave()
    with pytest.raises(InputError, match="has made 3"):
        resume(run, ["steps=1"])
    with pytest.raises(InputError, match=r"only these may be changed: steps, eval\.every"):
        resume(run, ["optim.lr=1"])


def test_a_run_resumed_by_its_file_gets_what_is_set_and_says_what_it_keeps(work):
    (work / "run.yaml").write_text(yaml.safe_dump({**SMALL, "eval": {"prompts": 4, "final_prompts": 4}}))
    begun = choose(str(work / "run.yaml"), [], work / "r", False)
    train(begun.config, folder=begun.folder, console=quiet())
    same = choose(str(work / "run.yaml"), ["steps=2"], work / "r", True)
    assert (same.changes, same.notes) == ((), ())
    (work / "run.yaml").write_text(yaml.safe_dump({**SMALL, "optim": {"lr": 0.5}}))
    longer = choose(str(work / "run.yaml"), ["steps=3"], work / "r", True)
    assert longer.changes == ("steps=3",)
    assert any(note.startswith("the run keeps its own optim.lr = 0.0") for note in longer.notes)
    train(longer.config, folder=longer.folder, resume=True, changes=longer.changes, console=quiet())
    assert load_config(str(work / "r" / "config.yaml")).steps == 3
    with pytest.raises(InputError, match=r"only these may be changed: steps, eval\.every"):
        choose(str(work / "run.yaml"), ["seed=7"], work / "r", True)
    by_setting = f"run.folder={work / 'r'}"
    named = choose(str(work / "run.yaml"), [by_setting, "steps=4"], None, True)
    assert (named.folder, named.changes) == (work / "r", ("steps=4",))
    assert any(note.startswith("the run keeps its own optim.lr") for note in named.notes)
    assert not any("run.folder" in note for note in named.notes)
    with pytest.raises(InputError, match=r"only these may be changed: steps, eval\.every"):
        choose(str(work / "run.yaml"), [by_setting, "seed=7"], None, True)


def test_a_run_that_is_not_there_is_said_to_be_none(work):
    (work / "runs" / "hope").mkdir(parents=True)
    (work / "runs" / "hope" / "config.yaml").write_text("task: addition\n")
    with pytest.raises(InputError, match=r"no run runs/nope.*hope"):
        choose("runs/nope", [], None, True)


def test_files_of_a_run_can_be_read_by_others(work):
    before = os.umask(0o022)
    try:
        run = train(parse_config(SMALL), folder=work / "r", console=quiet()).folder
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run.rglob("*") if path.is_file()}
    assert modes["model.safetensors"] == 0o644
    assert {name for name, mode in modes.items() if mode != 0o644} == set()
