"""Reward models as rewards: scores of completions after their prompts, combined or alone; a bad fit is refused."""

import json

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.orchestrator.model_reward import ModelReward, combined, load_model_reward
from grouprl.plan.plan import plan
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.rewards.judging.judge import GroupPlace, placed
from grouprl.training.loop import train

SMALL = {"alphabet": "0123456789+=, ", "hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = [tmp_path_factory.mktemp(f"rm{seed}") for seed in (0, 1, 2)]
    for seed, folder in enumerate(made):
        load_reward_model("tiny", dtype="float32", seed=seed, **SMALL).save(folder)
    return [str(folder) for folder in made]


def scored(reward, texts, prompt="1+2="):
    places = [GroupPlace(0, number, prompt) for number in range(len(texts))]
    return reward.verdicts(texts, placed(reward, [{}] * len(texts), places), [str(i) for i in range(len(texts))])


@pytest.mark.parametrize(
    ("combine", "score", "value"),
    [("mean", [1.0, 2.0, 6.0], 3.0), ("worst", [1.0, 2.0, 6.0], 1.0), ("uncertainty", [1.0, 2.0, 6.0], 3.0 - 0.5 * 7)],
)
def test_scores_are_combined_by_hand(combine, score, value):
    assert float(combined(torch.tensor(score), combine, 0.5)) == pytest.approx(value)
    assert float(combined(torch.full((3,), 1.5), combine, 0.5)) == pytest.approx(1.5)


def test_the_reward_is_the_score_after_the_prompt(folders):
    reward, model = load_model_reward(folders[:1]), load_reward_model(folders[0], trained=True)
    verdicts = scored(reward, ["3", "45, 6"])
    expected_b = model.scores(model.tokens_of(["1+2=", "1+2="], ["3", "45, 6"]))
    assert [v.reward for v in verdicts] == pytest.approx(expected_b.tolist(), abs=1e-5)
    assert all(v.graded and v.status == "ok" for v in verdicts)
    assert scored(reward, ["3"], prompt="9+9=")[0].reward != pytest.approx(verdicts[0].reward, abs=1e-6)


def test_an_ensemble_pays_less_where_its_members_disagree(folders):
    mean, worst, careful = (load_model_reward(folders, combine=way) for way in ("mean", "worst", "uncertainty"))
    for m, w, c in zip(*(scored(reward, ["3", "45, 6"]) for reward in (mean, worst, careful)), strict=True):
        assert m.reward > w.reward
        assert c.reward == pytest.approx(m.reward - m.components["ensemble_std"] ** 2, abs=1e-9)


def test_what_a_model_cannot_read_fails_alone(folders):
    fine, unknown = scored(load_model_reward(folders[:1]), ["3", "three"])
    assert fine.status == "ok"
    assert unknown.status == "bad_value"
    assert "not in the tokenizer's alphabet" in unknown.what


def test_a_folder_whose_batches_transformers_would_read_at_padding_is_refused(tmp_path):
    model = load_reward_model("tiny", dtype="float32", **SMALL)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": 5}))
    with pytest.raises(InputError, match="has the padding token 5, and its tokenizer 0"):
        load_model_reward([str(tmp_path)])


LLAMA = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=128,
    num_labels=1,
)


def of_a_stranger(folder, pad, **changed):
    """A folder that transformers alone has written, with the padding token `pad`."""
    tokenizer = char_tokenizer(SMALL["alphabet"])
    tokenizer.pad_token = pad
    LLAMA.pad_token_id = tokenizer.pad_token_id
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(LLAMA)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    return folder


@torch.no_grad()
def alone(folder, prompt, completion):
    """The score of one text with the end token behind it, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    return model(**tokenizer(prompt + completion + tokenizer.eos_token, return_tensors="pt")).logits.item()


@pytest.mark.parametrize(
    ("pad", "changed"), [("<pad>", {}), ("<eos>", {}), (None, {}), ("<pad>", {"pad_token_id": None})]
)
def test_a_strangers_model_scores_as_in_transformers_alone(tmp_path, pad, changed):
    folder = of_a_stranger(tmp_path, pad, **changed)
    completions = ["3", "", "45, 6+7=13, 8", "12=3"]
    for prompt in ("1+2=", "1<eos><eos>"):
        expected = [alone(folder, prompt, completion) for completion in completions]
        found = [verdict.reward for verdict in scored(load_model_reward([str(folder)]), completions, prompt)]
        assert found == pytest.approx(expected, abs=1e-5)
        assert len({round(score, 4) for score in found}) == len(found)


def test_adapters_alone_are_refused_in_words_about_scores(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"adapters of peft alone.*merge_and_unload"):
        load_model_reward([str(tmp_path)])


ENCODER = {
    "initializer_range": 0.5,
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def encoder(kind, folder, *, labels=1, positions=64):
    """Write an encoder with a head, and a tokenizer of characters."""
    config, model = {
        "bert": (BertConfig, BertForSequenceClassification),
        "roberta": (RobertaConfig, RobertaForSequenceClassification),
    }[kind]
    torch.manual_seed(1)
    given = {**ENCODER, "intermediate_size": 16, "num_labels": labels, "max_position_embeddings": positions}
    tokenizer = char_tokenizer(SMALL["alphabet"])
    model(config(**given, pad_token_id=tokenizer.pad_token_id)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_encoder_scores_pairs_as_in_transformers_alone_in_any_batch(kind, tmp_path):
    folder = encoder(kind, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    texts = ["3", "45, 6", "", "1+1=2, 2+2=4, 3+3=6"]
    with torch.no_grad():
        expected = [float(model(**tokenizer("1+2=", text, return_tensors="pt")).logits) for text in texts]
    reward = load_model_reward([str(folder)])
    assert [each.reward for each in scored(reward, texts)] == pytest.approx(expected, abs=1e-5)
    assert len({round(each, 5) for each in expected}) == len(texts)
    message = ({"role": "user", "content": "1+2="},)
    assert [each.reward for each in scored(reward, texts, message)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("tokenizer", [{"padding_side": "left"}, {"pad_token": None}])
def test_how_an_encoders_tokenizer_pads_does_not_matter(kind, tokenizer, tmp_path):
    folder = encoder(kind, tmp_path)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **tokenizer}))
    reward = load_model_reward([str(folder)])
    together = scored(reward, ["3", "7+12=19", ""], "1+2=")
    alone = [scored(reward, [text], "1+2=")[0] for text in ("3", "7+12=19", "")]
    assert [x.reward for x in together] == pytest.approx([x.reward for x in alone], abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_pair_that_an_encoder_cannot_read_fails_alone(kind, tmp_path):
    """RoBERTa leaves out the positions up to the padding token's number."""
    folder = encoder(kind, tmp_path, positions=16)
    pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    most = 16 if kind == "bert" else 16 - pad - 1
    found = scored(load_model_reward([str(folder)]), ["1" * (most - 2), "1" * (most - 1)], "1+")
    assert [each.status for each in found] == ["ok", "bad_value"]
    assert f"reads at most {most}" in found[1].what


def test_an_encoder_refuses_conversations_and_other_heads(tmp_path):
    turns = tuple({"role": role, "content": "1"} for role in ("user", "assistant", "user"))
    (found,) = scored(load_model_reward([str(encoder("bert", tmp_path / "one"))]), ["3"], turns)
    assert found.status == "bad_value"
    assert "3 messages" in found.what
    with pytest.raises(InputError, match="head with 2 labels"):
        load_model_reward([str(encoder("bert", tmp_path / "two", labels=2))])


def test_one_model_is_no_ensemble_and_a_template_must_exist(folders):
    with pytest.raises(InputError, match="several reward models become one"):
        ModelReward((load_reward_model(folders[0], trained=True),), "worst")
    with pytest.raises(InputError, match="has no chat template"):
        load_model_reward(folders[:1], chat=True)


def settings(folders, **more):
    return {
        "task": "addition",
        "method": "grpo",
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
        "reward": {"model": folders},
        "steps": 2,
        "batch": {"prompts": 2, "group_size": 4},
        "eval": {"prompts": 2, "final_prompts": 2, "samples": 1, "k": [1]},
        **more,
    }


def test_a_run_is_paid_by_an_ensemble(folders, tmp_path):
    config = settings({"name": folders, "combine": "worst"}, run={"folder": str(tmp_path / "run")})
    folder = train(parse_config(config)).folder
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in found if record["phase"] == "train"]
    assert len(steps) == 2
    assert all(record["reward_mean"] < record["reward/ensemble_mean"] for record in steps)


def test_the_models_have_a_device_and_a_type_of_their_own(folders):
    from grouprl.config.sections.scoring import Reward
    from grouprl.orchestrator.reward import chosen_reward

    def loaded(**more):
        return chosen_reward(Reward(model={"name": folders, **more}), None)

    assert {each.dtype for each in loaded(device="cpu", dtype="float64").models} == {torch.float64}
    assert {each.dtype for each in loaded(device="cpu").models} == {torch.float32}
    with pytest.raises(InputError, match="Use auto, cpu or cuda"):
        loaded(device="gpu0")


def test_a_run_has_one_source_of_rewards(folders):
    with pytest.raises(InputError, match="function and model both say"):
        parse_config(settings(folders[0], reward={"model": folders[0], "function": "exact_match"}))


def test_a_folder_without_a_head_is_refused_before_the_run(tmp_path):
    from grouprl.policy import load_policy

    load_policy("tiny", dtype="float32", **SMALL).save(tmp_path)
    with pytest.raises(InputError, match=r"lack score\.weight"):
        plan(parse_config(settings(str(tmp_path))))


def test_relative_folders_start_at_the_configuration(folders, tmp_path):
    from grouprl.config.paths import absolute_paths

    (tmp_path / "rm").mkdir()
    found = absolute_paths({"reward": {"model": ["rm", "hub/id"]}}, tmp_path)
    assert found["reward"] == {"model": [str(tmp_path / "rm"), "hub/id"]}


def test_only_the_answer_behind_the_thought_is_scored(folders):
    """RLMT: whatever is thought, the score is that of the answer; without an end it is the whole's, or the empty's."""
    plain, answers = load_model_reward(folders[:1]), load_model_reward(folders[:1], after="=,")
    strict = load_model_reward(folders[:1], after="=,", strict=True)
    alone, empty, whole = scored(plain, ["45", "", "1 45"])
    for reward in (answers, strict):
        given = scored(reward, ["1+1=, 45", "45=,9=,45 ", "=,", "45=,"])
        assert [v.reward for v in given] == pytest.approx([alone.reward] * 2 + [empty.reward] * 2, abs=1e-6)
    assert scored(answers, ["1 45"])[0].reward == pytest.approx(whole.reward, abs=1e-6)
    assert scored(strict, ["1 45"])[0].reward == pytest.approx(empty.reward, abs=1e-6)
    assert abs(alone.reward - whole.reward) > 1e-6


def test_strict_needs_the_end_of_a_thought(folders):
    with pytest.raises(InputError, match="strict is on without"):
        load_model_reward(folders[:1], strict=True)
