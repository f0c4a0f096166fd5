"""A reward model: one score per row, read at the last token that is not padding, whatever else is in the batch."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    MambaConfig,
    MambaForCausalLM,
    pipeline,
)

from chat_families import CHAT_FAMILIES, family_tokenizer
from grouprl.core.errors import InputError
from grouprl.policy import load_policy
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.reward_model import RewardModel, read_to_end_of_turn
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.passes import PassSettings
from grouprl.records.examples import Example
from grouprl.records.offline import RowLimit, StoredRow
from grouprl.records.tokens import Tokens
from grouprl.rollout.stored.boundary import group_tokens
from grouprl.testing.policies import check_trainable
from policies import ALPHABET, FAMILIES, make_model, make_tokens, precise_norms

LETTERS = "abcdefgh"
SMALL = {"alphabet": LETTERS, "hidden": 16, "layers": 2, "heads": 2, "intermediate": 16}
PROMPTS, COMPLETIONS = ["abc", "abc", "h", "bcdefgh"], ["a", "bcdefg", "", "cc"]


def tiny(**more):
    return load_reward_model("tiny", dtype="float32", **SMALL, **more)


def gpt2(folder, *, pad=None):
    """A folder with a GPT-2 and a tokenizer, whose padding token is `pad`."""
    tokenizer = char_tokenizer(LETTERS)
    tokenizer.pad_token = pad
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=64, n_embd=16, n_layer=2, n_head=2))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def padded(rows, pad, left):
    width = max(map(len, rows))
    blank = [[pad] * (width - len(row)) for row in rows]
    ids_bl = torch.tensor([b + r if left else r + b for r, b in zip(rows, blank, strict=True)])
    mask_bl = torch.tensor(
        [[0] * len(b) + [1] * len(r) if left else [1] * len(r) + [0] * len(b) for r, b in zip(rows, blank, strict=True)]
    )
    return ids_bl, mask_bl


def by_transformers(folder, tokens, left):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [list(p + r) for p, r in zip(tokens.prompt_ids, tokens.response_ids, strict=True)]
    ids_bl, mask_bl = padded(rows, model.config.pad_token_id, left)
    with torch.no_grad():
        return model(ids_bl, attention_mask=mask_bl).logits[:, 0]


def test_a_reward_model_keeps_the_rules_of_trainable_models():
    model = tiny()
    check_trainable(model, model.tokens_of(PROMPTS, COMPLETIONS))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_reward_model_runs_lean_with_the_scores_and_gradients_of_transformers(family, tmp_path):
    make_model(FAMILIES[family], torch.float64).save_pretrained(tmp_path)
    char_tokenizer(ALPHABET).save_pretrained(tmp_path)
    rows = make_tokens([3, 9, 6], 2, 7)
    found = {}
    for engine in ("lean", "transformers"):
        passes = PassSettings("auto", "on" if engine == "lean" else "off")
        model = load_reward_model(str(tmp_path), dtype="float64", engine=engine, passes=passes)
        precise_norms(model.model)
        model.backward(rows, {"score": torch.arange(6.0, dtype=torch.float64) - 2})
        found[engine] = model.scores(rows), {name: p.grad for name, p in model.named_parameters()}
    torch.testing.assert_close(found["lean"], found["transformers"], rtol=0, atol=1e-9)
    assert load_reward_model(str(tmp_path)).engine == "lean"


def test_adapters_and_the_head_are_trained_and_saved_merged(tmp_path):
    """The trunk stays as it was; a folder for transformers scores like the adapted model."""
    plain, model = tiny(), tiny(lora={"r": 2})
    tokens = model.tokens_of(PROMPTS, COMPLETIONS)
    torch.testing.assert_close(model.scores(tokens), plain.scores(tokens), rtol=0, atol=1e-6)
    check_trainable(model, tokens)
    names = {name for name, _ in model.named_parameters()}
    assert all("lora_" in name or ".score." in name for name in names)
    assert sum(".score." in name for name in names) == 1
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter.add_(0.1)
    score_b = model.scores(tokens)
    assert float((score_b - plain.scores(tokens)).abs().min()) > 1e-3
    model.save(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()
    torch.testing.assert_close(by_transformers(tmp_path, tokens, left=True), score_b, rtol=0, atol=1e-5)
    again = load_reward_model(tmp_path, dtype="float32", trained=True)
    torch.testing.assert_close(again.scores(tokens), score_b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("targets", [["score"], ["q_proj", "score"], ".*score"])
def test_adapters_of_the_head_are_refused(targets):
    with pytest.raises(InputError, match="The layer score of a reward model is trained whole"):
        tiny(lora={"target_modules": targets})


@pytest.mark.parametrize("passes", [PassSettings(), PassSettings(packing="off", shared_prefix="off")])
def test_a_score_is_that_of_the_text_alone(passes):
    model = tiny(passes=passes)
    tokens = model.tokens_of(PROMPTS, COMPLETIONS)
    together_b, order = model.scores(tokens), [3, 0, 2, 1]
    alone_b = torch.stack([model.scores(tokens.rows([row]))[0] for row in range(4)])
    torch.testing.assert_close(together_b, alone_b, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.scores(tokens.rows(order)), together_b[order], rtol=0, atol=1e-5)
    assert together_b.unique().numel() == 4


@pytest.mark.parametrize("left", [False, True])
def test_transformers_reads_the_same_score_in_any_padding(tmp_path, left):
    model = tiny()
    tokens = model.tokens_of(PROMPTS, COMPLETIONS)
    model.save(tmp_path)
    torch.testing.assert_close(by_transformers(tmp_path, tokens, left), model.scores(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pad", [None, "<eos>"])
def test_a_model_without_a_padding_token_of_its_own_gets_one(tmp_path, pad):
    """With the end token as padding, transformers would read the score before the end token."""
    model = load_reward_model(gpt2(tmp_path / "trunk", pad=pad), dtype="float32")
    tokens = model.tokens_of(PROMPTS, COMPLETIONS)
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["architectures"] == ["GPT2ForSequenceClassification"]
    assert config["pad_token_id"] == model.tokenizer.pad_token_id == 11 != model.tokenizer.eos_token_id
    found_b = by_transformers(tmp_path / "saved", tokens, left=False)
    torch.testing.assert_close(found_b, model.scores(tokens), rtol=0, atol=1e-5)
    again = load_reward_model(tmp_path / "saved", dtype="float32", trained=True)
    torch.testing.assert_close(again.scores(tokens), model.scores(tokens), rtol=0, atol=1e-5)


def test_the_end_token_counts_and_padding_does_not():
    model = tiny()
    whole = model.tokens_of(["ab"], ["cd"])
    pad = model.tokenizer.pad_token_id
    cut = Tokens(whole.prompt_ids, (whole.response_ids[0][:-1],))
    longer = Tokens(whole.prompt_ids, ((*whole.response_ids[0], pad, pad),))
    assert float(model.scores(whole)[0]) == pytest.approx(float(model.scores(longer)[0]), abs=1e-6)
    assert abs(float(model.scores(whole) - model.scores(cut))) > 1e-5


def test_a_new_head_follows_from_the_seed_alone():
    one, again, other = (tiny(seed=seed).trainable_state() for seed in (1, 1, 2))
    assert all(torch.equal(x, again[name]) for name, x in one.items())
    assert not torch.equal(one["score.weight"], other["score.weight"])
    trunk = load_policy("tiny", dtype="float32", seed=1, **SMALL).trainable_state()
    assert all(torch.equal(x, one[name]) for name, x in trunk.items())


def test_a_folder_without_a_head_is_no_trained_reward_model(tmp_path):
    gpt2(tmp_path, pad="<pad>")
    with pytest.raises(InputError, match=r"a language model: its weights lack score\.weight.*train reward_model"):
        load_reward_model(tmp_path, trained=True)


def test_a_reward_model_whose_head_was_lost_is_refused(tmp_path):
    model = tiny()
    model.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"weights lack score\.weight, which would be random numbers"):
        load_reward_model(tmp_path, trained=True)


def test_a_head_with_several_labels_is_refused(tmp_path):
    model = tiny()
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {"0": "bad", "1": "good"}}))
    with pytest.raises(InputError, match="head with 2 labels"):
        load_reward_model(tmp_path)


def test_architectures_without_such_a_class_are_refused(tmp_path):
    MambaForCausalLM(MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "mamba")
    bert = BertConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertForSequenceClassification(bert).save_pretrained(tmp_path / "bert")
    for name in ("mamba", "bert"):
        char_tokenizer(LETTERS).save_pretrained(tmp_path / name)
    with pytest.raises(InputError, match="transformers has no such class"):
        load_reward_model(tmp_path / "mamba")
    with pytest.raises(InputError, match="attends to later ones"):
        load_reward_model(tmp_path / "bert")


def test_it_has_no_log_probs_and_writes_nothing():
    model = tiny()
    tokens = model.tokens_of(["ab"], ["c"])
    with pytest.raises(InputError, match="no output 'log_prob'"):
        model.evaluate(tokens, ("log_prob",))
    with pytest.raises(InputError, match="writes none"):
        model.make_sampler().sample([])


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(InputError, match="reads at most 16"):
        tiny(max_positions=16).tokens_of(["abcdefgh"], ["abcdefgh"])


QUESTION = ({"role": "user", "content": "1+2?"},)


def of_family(name, *, ours):
    """A reward model with a family's tokenizer; `ours`: as if it had been trained here."""
    tokenizer = family_tokenizer(CHAT_FAMILIES[name])
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForSequenceClassification(LlamaConfig(vocab_size=len(tokenizer), num_labels=1, **sizes))
    if ours:
        read_to_end_of_turn(model.config)
    return RewardModel(model, tokenizer)


@pytest.mark.parametrize("name", CHAT_FAMILIES)
def test_a_conversation_is_scored_as_the_rows_that_were_trained_on(name):
    """Templates put a closed thought, a space or a channel before an answer, trim it, and end its turn."""
    model = of_family(name, ours=True)
    for text in ("3", " 3 ", "three\n", "a\n\nb"):
        (row,) = group_tokens(model, [(Example("q", QUESTION, {}), [StoredRow(text, 1.0)])], RowLimit(), None)
        found = model.tokens_of([QUESTION], [text])
        assert (row.prompt_ids, row.ids) == (found.prompt_ids[0], found.response_ids[0])
    assert model.tokens_of([QUESTION], [""]).response_ids[0][-1] in model.eos_ids


@pytest.mark.parametrize("name", ["qwen 2.5", "qwen 3", "llama 3", "glm 4.5", "phi 4"])
def test_of_others_the_whole_conversation_is_read_as_their_template_writes_it(name):
    """`apply_chat_template` of the conversation is what model cards and TRL's RewardTrainer show such a model."""
    model = of_family(name, ours=False)
    for text in ("3", "three"):
        rows = model.tokens_of([QUESTION], [text])
        whole = [*QUESTION, {"role": "assistant", "content": text}]
        expected = model.tokenizer.apply_chat_template(whole, return_dict=True)["input_ids"]
        assert [*rows.prompt_ids[0], *rows.response_ids[0]] == list(expected)


def test_an_end_token_in_the_text_is_the_end_token():
    model = tiny()
    once, twice = (model.tokens_of(["ab"], [text]).response_ids[0] for text in ("cd", "cd<eos>"))
    assert once == twice
    inside = model.tokens_of(["ab"], ["c<eos>d"]).response_ids[0]
    assert inside.count(model.eos_ids[0]) == 2


def test_the_pipeline_of_transformers_gives_the_score_itself(tmp_path):
    """Without a problem_type it would be σ(score)."""
    model = tiny()
    with torch.no_grad():
        model.head.weight.mul_(100)
    model.save(tmp_path)
    score = float(model.scores(model.tokens_of(["abc"], ["de"])))
    (found,) = pipeline("text-classification", model=str(tmp_path))("abcde<eos>")
    assert found["score"] == pytest.approx(score, abs=1e-5)
    assert abs(score) > 0.1
