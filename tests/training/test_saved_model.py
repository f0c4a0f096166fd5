"""A saved model answers in a fresh process, by transformers alone, as the policy does; else it is not exported."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer, GenerationConfig

from chat_policies import CHATML, chatting
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError, RunError
from grouprl.policy import load_policy
from grouprl.records.examples import Chat
from grouprl.training import export as exporting
from grouprl.training import saved_model
from grouprl.training.loop import train
from grouprl.training.saved_model import check_answers, check_saved, questions

TEXTS = ("12+34=", "5+6=")
TALK = ({"role": "user", "content": "What is 2+3?"},)


@pytest.fixture(scope="module")
def adder():
    return load_policy("tiny", alphabet="0123456789+=", hidden=16, layers=1, heads=2, intermediate=16, seed=3)


@pytest.fixture(scope="module")
def talker():
    return chatting(CHATML)


def test_answers_are_as_long_as_there_is_room():
    """A run of short completions may have fewer positions than the answers that are compared usually have."""
    small = load_policy(
        "tiny", alphabet="0123456789+=", hidden=16, layers=1, heads=2, intermediate=16, max_positions=16
    )
    asked = questions(small, TEXTS)
    assert all(0 < len(each.expected) <= 16 - 6 for each in asked)


def test_texts_and_chats_are_answered_alike(adder, talker, tmp_path):
    adder.save(tmp_path / "text")
    check_answers(adder, tmp_path / "text", TEXTS)
    talker.save(tmp_path / "chat")
    check_answers(talker, tmp_path / "chat", [TALK, "plain text"])


def test_the_character_tokenizer_begins_a_text_as_training_did(adder, tmp_path):
    adder.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("12+3=").input_ids == adder.encode_prompt("12+3=")
    assert adder.encode_prompt("12+3=") == [adder.tokenizer.bos_token_id, *adder.encode("12+3=")]


def test_a_tokenizer_that_reads_prompts_otherwise_is_told(adder, tmp_path):
    adder.save(tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {"post_processor": None}))
    with pytest.raises(RunError, match=r"reads the prompt '12\+34='.*training read \[1, "):
        check_answers(adder, tmp_path, TEXTS)


def test_other_weights_are_told(adder, tmp_path):
    other = load_policy("tiny", alphabet="0123456789+=", hidden=16, layers=1, heads=2, intermediate=16, seed=4)
    other.save(tmp_path)
    with pytest.raises(RunError, match=r"answers '.*' in transformers with .* nats"):
        check_answers(adder, tmp_path, TEXTS)


def test_a_folder_that_cannot_be_loaded_is_told(adder, tmp_path):
    adder.save(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunError, match="transformers cannot use the saved model"):
        check_answers(adder, tmp_path, TEXTS)


def test_a_tie_is_no_other_answer(adder):
    question = replace(questions(adder, TEXTS)[0], expected=(5, 6))
    answer = {"prompt_ids": list(question.ids), "ids": [5, 7], "text": "", "gap": 5e-4}
    saved_model._compare(adder, question, answer)
    with pytest.raises(RunError, match=r"0\.01 nats"):
        saved_model._compare(adder, question, answer | {"gap": 0.01})


def test_what_the_template_does_not_show_is_asked_as_text(talker):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    plain, carried = questions(talker, [TALK, Chat(TALK, tools=[tool])])
    assert (plain.rendered, carried.rendered) == (False, True)
    assert isinstance(carried.prompt, str)
    assert talker.encode(carried.prompt) == list(carried.ids)


def test_settings_of_generate_hold_every_end_token_and_no_penalty(adder, tmp_path):
    policy = adder.copied()
    policy.model.generation_config = GenerationConfig(eos_token_id=[2, 5], repetition_penalty=1.3, max_length=7)
    policy.save(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert saved.eos_token_id == [2, 5]
    assert saved.repetition_penalty in (None, 1.0)
    check_answers(policy, tmp_path, TEXTS)


def test_every_member_of_a_team_is_checked(adder, tmp_path, monkeypatch):
    from grouprl.policy.teams.team_policy import TeamPolicy

    asked = []
    monkeypatch.setattr(saved_model, "check_answers", lambda policy, folder, prompts: asked.append(folder.name))
    check_saved(TeamPolicy({"a": adder, "b": adder.copied()}), tmp_path, TEXTS)
    assert asked == ["a", "b"]


@pytest.mark.parametrize("prompts", [[], [TALK]], ids=["none", "chats, which episodes show as texts"])
def test_a_task_without_texts_is_checked_on_any_token(adder, tmp_path, prompts):
    adder.save(tmp_path)
    check_saved(adder, tmp_path, prompts)


def test_an_export_that_answers_otherwise_is_not_written(adder, tmp_path, monkeypatch):
    config = parse_config({"task": "addition"})
    task = exporting.resolve(config).task
    other = adder.copied()
    with torch.no_grad():
        other.model.get_input_embeddings().weight += torch.randn(15, 16)
    monkeypatch.setattr(adder, "save", other.save)
    point = SimpleNamespace(checkpoint=None, when="the final model")
    monkeypatch.setattr(exporting, "find_point", lambda run, checkpoint: point)
    monkeypatch.setattr(exporting, "_load", lambda point: exporting.Trained(config, task, adder, point.when))
    with pytest.raises(RunError, match="in transformers with"):
        exporting.export(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("checked_model")
def test_a_run_whose_final_model_answers_otherwise_fails_and_keeps_it(tmp_path, monkeypatch):
    tiny = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64}
    config = {"task": "addition", "model": {"name": "tiny", "tiny": tiny}, "method": "grpo", "steps": 1}
    config |= {
        "batch": {"prompts": 2, "group_size": 2},
        "eval": {"every": 0, "final_prompts": 2, "samples": 1, "k": [1]},
    }
    train(parse_config(config), folder=tmp_path / "right")
    monkeypatch.setattr(saved_model, "TIES", {torch.float32: -1.0})
    with pytest.raises(RunError, match="in transformers with"):
        train(parse_config(config), folder=tmp_path / "wrong")
    assert (tmp_path / "wrong" / "model" / "config.json").is_file()
    assert (tmp_path / "wrong" / "summary.json").is_file()
    unchecked = config | {"run": {"check_model": False}}
    train(parse_config(unchecked), folder=tmp_path / "unchecked")


def test_a_tokenizer_that_ends_every_text_is_refused(adder, tmp_path):
    adder.tokenizer.save_pretrained(tmp_path)
    policy = adder.copied()
    policy.tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ending = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 2)])
    policy.tokenizer.backend_tokenizer.post_processor = ending
    with pytest.raises(InputError, match="appends its end token '<eos>' to every text"):
        policy.encode_prompts(["1+2="])


def test_an_answer_that_ends_too_early_is_another(adder, tmp_path):
    """Its settings of `generate` hold an end token that training did not know."""
    (question,) = questions(adder, ["12+34="])
    adder.save(tmp_path)
    GenerationConfig(eos_token_id=[2, question.expected[0]]).save_pretrained(tmp_path)
    with pytest.raises(RunError, match="inf nats"):
        check_answers(adder, tmp_path, ["12+34="])
