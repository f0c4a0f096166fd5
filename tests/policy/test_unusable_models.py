"""Models that cannot be used are refused before a run: weights that are no numbers, tokenizers that are not theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.plan.plan import plan
from grouprl.policy import load_policy
from grouprl.policy.language.tiny import build_tiny

UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, tokenizer = build_tiny("0123456789+=", hidden=16, layers=1, heads=2, intermediate=16)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path, said: str) -> None:
    """The plan, training (which leaves no run folder), and loading a policy say so alike."""
    settings = {"task": {"name": "addition", "digits": 1}, "model": str(folder), "steps": 1}
    with pytest.raises(InputError, match=said):
        plan(parse_config(settings)).raise_if_refused()
    with pytest.raises(InputError, match=said):
        load_policy(folder)
    out = folder.parent / "run"
    done = CliRunner().invoke(app, ["train", "addition", "--set", f"model={folder}", "--folder", str(out)])
    assert done.exit_code == 2
    assert not out.exists()


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_weight_that_is_no_number_is_named(folder: Path, value: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[UP][1, 2] = float(value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, rf"up_proj\.weight holds {value} \(1 of 256 numbers\)")


def test_a_folder_without_a_tokenizer_says_what_was_looked_for(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, r"has no tokenizer.*one of tokenizer\.json, tokenizer\.model, vocab\.json")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_of_a_tokenizer_is_named(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    (folder / name).write_text(text[: len(text) // 2])
    refused(folder, rf"{name} is truncated or damaged")


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    build_tiny("0123456789+=abcdef")[1].save_pretrained(folder)
    refused(folder, r"has the token 'a' as number 15\. The model has embeddings only for the 15 tokens 0 to 14")


def test_tokens_beyond_the_model_that_no_text_needs_are_told(folder: Path) -> None:
    _, tokenizer = build_tiny("0123456789+=")
    tokenizer.add_tokens(["<spare>"])
    tokenizer.save_pretrained(folder)
    found = plan(parse_config({"task": {"name": "addition", "digits": 1}, "model": str(folder), "steps": 1}))
    assert found.refusals == ()
    assert any("no embedding of the added tokens <spare>" in note for note in found.notes)
    tokenizer.chat_template = "{% for m in messages %}<spare>{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    refused(folder, "has the token '<spare>' as number 15")


def test_the_end_stands_in_for_a_padding_that_the_model_does_not_have(folder: Path) -> None:
    _, tokenizer = build_tiny("0123456789+=")
    tokenizer.pad_token = "<beyond>"
    tokenizer.save_pretrained(folder)
    policy = load_policy(folder, device="cpu")
    assert policy.tokenizer.pad_token_id == policy.tokenizer.eos_token_id
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["pad_token"] == "<beyond>"
    tokenizer.eos_token = "<the end>"
    tokenizer.save_pretrained(folder)
    refused(folder, r"has the end token '<the end>' as number 1\d")


def test_a_loaded_model_is_looked_through_whatever_its_file(folder: Path) -> None:
    model, _ = build_tiny("0123456789+=", hidden=16, layers=1, heads=2, intermediate=16)
    state = model.state_dict() | {UP: torch.full_like(model.state_dict()[UP], float("nan"))}
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"up_proj\.weight holds nan \(256 of 256 numbers\)"):
        load_policy(folder)


def test_adapters_alone_are_no_model(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")
    refused(folder, r"adapters of peft alone.*merge_and_unload")
    (folder / "adapter_config.json").unlink()
    refused(folder, r"has no config.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 0}, r"config.json has num_hidden_layers: 0. There must be 1 to 10,000"),
        ({"num_hidden_layers": 1_000_000}, r"num_hidden_layers: 1000000. There must be 1 to 10,000"),
        ({"hidden_size": -4}, r"hidden_size: -4. It must be a whole number from 1"),
        ({"hidden_size": "16"}, r'hidden_size: "16". It must be a whole number'),
        ({"num_attention_heads": 0}, r"num_attention_heads: 0. It must be"),
        ({"num_key_value_heads": 1.5}, r"num_key_value_heads: 1.5. It must be"),
        ({"text_config": {"vocab_size": 0}}, r"vocab_size: 0. It must be"),
        ({"num_attention_heads": 3}, r"hidden size \(16\) is not a multiple of the number of attention heads \(3\)"),
        ({"hidden_size": None}, r"field 'hidden_size'"),
        ({"head_dim": "wide"}, r"field 'head_dim'"),
        ({"hidden_act": "zing"}, r"transformers found nothing by the name 'zing'"),
    ],
    ids=str,
)
def test_sizes_that_no_model_has_are_named(folder: Path, changes: dict[str, object], said: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "head_dim": None, **changes}))
    refused(folder, said)
