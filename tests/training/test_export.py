"""Export, and evaluation of what was exported; the runs here are made of a configuration and weights, untrained."""

import json

import pytest
import torch
from safetensors.torch import load_file

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.storage.checkpoint import Checkpoint, save_checkpoint, whole_parameters
from grouprl.storage.run_folder import RunFolder
from grouprl.storage.shards import write_parts
from grouprl.training import export as export_module
from grouprl.training.export import export, load_trained, stored_step

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64}}


def shifted(config, amount):
    """The configured policy with every weight moved by `amount`."""
    policy = build_policy(resolve(config))
    policy.load_trainable_state({name: w + amount for name, w in policy.trainable_state().items()})
    return policy


@pytest.fixture
def run(tmp_path):
    """A run folder with checkpoints 2 and 4, whose weights are moved by 0.2 and 0.4, and no final model."""
    config = parse_config({"task": "addition", "model": TINY})
    folder = RunFolder.create(tmp_path / "run")
    folder.config.write_text(config.dump())
    for step in (2, 4):
        weights = shifted(config, step / 10).trainable_state()
        save_checkpoint(
            folder, "train", step, whole_parameters(weights, {"state": {}}), {"phase": "train", "step": step}
        )
    return folder


def first_weight(policy):
    return policy.trainable_state()["model.embed_tokens.weight"]


def test_a_checkpoint_becomes_a_plain_folder(run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert export(run.path, tmp_path / "out", checkpoint=2) == "checkpoint 2"
    assert (stored_step(run.path, 2), stored_step(run.path)) == (2, 4)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    config = parse_config({"task": "addition", "model": TINY})
    expected = first_weight(shifted(config, 0.2))
    assert torch.equal(model.get_input_embeddings().weight, expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("1+2=").input_ids


def test_the_final_model_goes_before_checkpoints(run, tmp_path):
    final = shifted(parse_config({"task": "addition", "model": TINY}), 1.0)
    final.save(run.model)
    assert export(run.path, tmp_path / "out") == "the final model"
    assert torch.equal(first_weight(load_trained(run.path).policy), first_weight(final))


def test_an_interrupted_run_gives_its_newest_checkpoint(run):
    trained = load_trained(run.path)
    assert "newest checkpoint" in trained.when
    assert torch.equal(first_weight(trained.policy), first_weight(load_trained(run.path, 4).policy))
    assert trained.task.name == "addition"


def test_lora_is_exported_as_a_plain_model(run, tmp_path):
    pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    config = parse_config({"task": "addition", "model": {**TINY, "lora": {"r": 2}}})
    folder = RunFolder.create(tmp_path / "lora")
    folder.config.write_text(config.dump())
    policy = shifted(config, 0.1)
    save_checkpoint(folder, "train", 1, whole_parameters(policy.trainable_state(), {}), {})
    export(folder.path, tmp_path / "out")
    ids = torch.tensor([[1, 4, 5, 6]])
    with torch.no_grad():
        expected = policy.model(input_ids=ids).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(input_ids=ids).logits
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("model", "method"), [({}, "grpo"), ({"lora": {"r": 2}}, "grpo"), ({}, "ppo")])
def test_parts_give_the_folder_that_a_whole_checkpoint_gives(tmp_path, monkeypatch, model, method):
    config = parse_config({"task": "addition", "method": method, "model": {**TINY, **model}})
    weights = shifted(config, 0.1).trainable_state()
    for name, write in (("whole", whole_parameters(weights, {})), ("parts", parts(weights))):
        folder = RunFolder.create(tmp_path / name)
        folder.config.write_text(config.dump())
        save_checkpoint(folder, "train", 1, write, {})
        with monkeypatch.context() as patch:
            if name == "parts":
                patch.setattr(Checkpoint, "weights", property(lambda self: pytest.fail("the weights were read whole")))
            assert export(folder.path, tmp_path / f"{name}-out", 1) == "checkpoint 1"
    whole, parted = tmp_path / "whole-out", tmp_path / "parts-out"
    assert {p.name for p in whole.iterdir()} == {p.name for p in parted.iterdir()}
    for path in whole.glob("*.safetensors"):
        one, other = load_file(path), load_file(parted / path.name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    for path in whole.glob("*.json"):
        assert json.loads(path.read_text()) == json.loads((parted / path.name).read_text()), path.name


def test_what_parts_give_is_compared_with_transformers_where_there_is_room(run, tmp_path, monkeypatch):
    config, seen = parse_config({"task": "addition", "model": TINY}), []
    save_checkpoint(run, "train", 6, parts(shifted(config, 0.6).trainable_state()), {})

    def refused(policy, folder, task):
        seen.append(first_weight(policy))
        raise RunError("it answers otherwise")

    monkeypatch.setattr(export_module, "check_final_model", refused)
    with pytest.raises(RunError, match="answers otherwise"):
        export(run.path, tmp_path / "out", 6)
    assert torch.equal(seen[0], first_weight(shifted(config, 0.6)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model", [{"tensor_parallel": 2}, {"context_parallel": 2}, {"offload": True}])
def test_one_process_loads_a_checkpoint_of_a_run_that_needs_several(tmp_path, model):
    config = parse_config({"task": "addition", "model": {**TINY, **model}})
    weights = shifted(parse_config({"task": "addition", "model": TINY}), 0.1).trainable_state()
    folder = RunFolder.create(tmp_path / "run")
    folder.config.write_text(config.dump())
    save_checkpoint(folder, "train", 1, parts(weights), {})
    assert torch.equal(first_weight(load_trained(folder.path, 1).policy), weights["model.embed_tokens.weight"])


def test_parts_without_room_for_the_model_are_written_and_not_compared(run, tmp_path, monkeypatch):
    config = parse_config({"task": "addition", "model": TINY})
    save_checkpoint(run, "train", 6, parts(shifted(config, 0.6).trainable_state()), {})
    monkeypatch.setattr(export_module, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(export_module, "check_final_model", lambda *given: pytest.fail("it was loaded"))
    said = export(run.path, tmp_path / "out", 6)
    assert said == "checkpoint 6 (its answers were not compared with those of transformers: 1000 B of memory are free)"
    assert (tmp_path / "out" / "model.safetensors").is_file()


def parts(weights):
    """What writes weights as several processes do."""

    def write(folder):
        (folder / "shards").mkdir()
        write_parts({f"weights/{name}": weight for name, weight in weights.items()}, folder / "shards", None)

    return write


def test_nothing_is_overwritten(run, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=r"exists already.*never overwrites"):
        export(run.path, tmp_path / "full")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    export(run.path, tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").is_file()


def test_unknown_checkpoints_name_those_there_are(run, tmp_path):
    with pytest.raises(InputError, match=r"no checkpoint 3.*2, 4"):
        export(run.path, tmp_path / "out", checkpoint=3)
    assert not (tmp_path / "out").exists()


def test_a_cut_off_checkpoint_is_refused(run, tmp_path):
    weights = run.checkpoints / "step-000002" / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(RunError, match="damaged"):
        export(run.path, tmp_path / "out", checkpoint=2)
    assert not (tmp_path / "out").exists()


def test_not_a_run(tmp_path):
    with pytest.raises(InputError, match="not a run folder"):
        export(tmp_path, tmp_path / "out")
