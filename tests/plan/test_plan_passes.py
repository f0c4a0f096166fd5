"""The plan says how rows go through the model, and refuses what cannot be."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.plan import forward_plan
from grouprl.plan.memory import activations, memory
from grouprl.plan.plan import plan
from grouprl.policy import char_tokenizer


def make(**data):
    return plan(parse_config({"task": "addition", **data}))


def ways(found):
    return {way.name: (way.value, way.why) for way in found.pass_choices}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    tokenizer = char_tokenizer("0123456789+=| abcdef")
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=64)
    GPT2LMHeadModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_tiny_model_takes_the_lean_engine_and_shares_prompts_by_the_arithmetic():
    found = make(batch={"prompts": 4, "group_size": 8}, sampling={"max_new_tokens": 10})
    named, prompt = ways(found), found.batch.prompt_tokens
    assert named["engine"][0] == "lean"
    assert named["packing"][0] == "on"
    ratio = 8 * (prompt + 10) / (prompt + 80)
    assert f"= {ratio:.2f} times fewer" in named["shared prompts"][1]
    assert named["checkpointing"][0] == "off"


@pytest.mark.parametrize(("written", "value"), [(True, "on"), (False, "off"), ("on", "on"), ("auto", "auto")])
def test_yaml_may_write_on_and_off_bare(written, value):
    assert parse_config({"model": {"shared_prefix": written}}).model.shared_prefix == value


def test_what_is_asked_for_is_said():
    named = ways(make(model={"packing": False, "shared_prefix": False, "checkpointing": True}))
    assert named["engine"] == ("transformers", "packing is off, and the lean engine always packs")
    assert named["packing"][0] == named["shared prompts"][0] == "off"
    assert named["checkpointing"][0] == "on"


def test_another_architecture_says_why_and_what_is_tried(gpt2):
    named = ways(make(model=str(gpt2)))
    assert named["engine"][0] == "transformers"
    assert "GPT2LMHeadModel is not one of" in named["engine"][1]
    assert "tried on three rows" in named["packing"][1]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"engine": "lean", "packing": "off"}, "always packs"),
        ({"engine": "transformers", "shared_prefix": "on", "checkpointing": "on"}, "written twice"),
    ],
)
def test_contradictions_are_refused(settings, complaint):
    found = make(model=settings)
    assert any(complaint in sentence for sentence in found.refusals)
    assert not found.pass_choices


def test_checkpointing_lowers_the_estimate():
    plain, anew = make(), make(model={"checkpointing": "on"})
    cost = {name: {c.what: c.bytes for c in x.costs} for name, x in (("plain", plain), ("anew", anew))}
    assert cost["plain"]["activations of a pass"] == activations(plain.model, plain.batch)
    assert cost["anew"]["activations of a pass"] < cost["plain"]["activations of a pass"]
    assert torch.float32.itemsize == plain.model.bytes_each


def test_offloading_is_told_and_leaves_the_input_of_one_layer(monkeypatch):
    on_cpu = make(model={"checkpointing": "offload"})
    assert ways(on_cpu)["engine"] == ("transformers", "the lean engine keeps the inputs of its layers where they are")
    value, why = ways(on_cpu)["checkpointing"]
    assert value == "on"
    assert "on a CPU" in why
    kept = memory(on_cpu.model, on_cpu.batch, reference=0, anew=True)
    assert {cost.what: cost.bytes for cost in kept} | {c.what: c.bytes for c in on_cpu.costs} == {
        cost.what: cost.bytes for cost in on_cpu.costs
    }, "nothing leaves a CPU's memory"
    moved = memory(on_cpu.model, on_cpu.batch, reference=0, anew=True, offloads=True)
    sizes = [{c.what: c.bytes for c in costs}["activations of a pass"] for costs in (kept, moved)]
    model, tokens = on_cpu.model, on_cpu.batch.tokens_per_pass
    assert sizes[0] - sizes[1] == tokens * (model.layers - 1) * model.hidden * 4
    monkeypatch.setattr(forward_plan, "free_bytes", lambda device: 2**33)
    config = parse_config({"task": "addition", "model": {"checkpointing": "offload"}})
    gpu = {way.name: way for way in forward_plan.pass_choices(config, replace(model, device="cuda"), on_cpu.batch)}
    assert gpu["checkpointing"].value == "offload"
    assert "wait in main memory" in gpu["checkpointing"].why


def test_rows_that_processes_share_are_told():
    found = ways(make(model={"context_parallel": 2}))
    assert found["rows"][0] == "shared by 2 processes"
    assert "rows" not in ways(make())


def test_compiled_layers_are_told_and_refused_before_a_run(gpt2):
    named = ways(make(model={"name": str(gpt2), "compile": True}))
    assert named["compiled"][0] == "on"
    assert named["shared prompts"] == ("off", "layers are compiled")
    assert "compiled" not in ways(make(model=str(gpt2)))
    (refusal,) = [said for said in make(model={"compile": True}).refusals if "model.compile" in str(said)]
    assert "set model.engine: transformers" in str(refusal)


def test_learners_compute_in_mixed_precision_whatever_engine_one_process_has(gpt2, tmp_path: Path) -> None:
    """Ranks run every model through transformers, in bfloat16 too; one process needs the lean engine for that."""
    model = {"name": str(gpt2), "precision": "mixed"}
    alone = parse_config({"task": "addition", "model": model})
    assert any("computed by the lean engine" in finding.text for finding in plan(alone).findings)
    learners = alone.model_copy(update={"cluster": alone.cluster.model_copy(update={"learners": 2})})
    assert not any("lean engine" in finding.text for finding in plan(learners).findings)
    (tmp_path / "run.yaml").write_text(json.dumps({"task": "addition", "model": model}))
    said = CliRunner().invoke(app, ["plan", str(tmp_path / "run.yaml"), "--on", "8xH100"])
    assert said.exit_code == 0, said.output
    assert "8 accelerators" in said.output
