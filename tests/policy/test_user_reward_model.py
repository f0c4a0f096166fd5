"""A reward model of users: judgements and beliefs by hand, what they depend on, and scores from the saved folder."""

import math

import pytest
import torch
from transformers import AutoModel

from grouprl.core.errors import InputError, RunError
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.policy.language.tiny import char_tokenizer
from grouprl.policy.language.users.layers import UserLayers, UserSizes, kl_from_prior
from grouprl.policy.language.users.reading import Reader
from grouprl.policy.language.users.user_reward_model import UserRewardModel
from grouprl.records.judgements import BETWEEN, END, judged_prompt
from grouprl.testing.policies import check_trainable
from grouprl.training.saved_scores import check_reloaded

LETTERS = "abcdefgh>"
SMALL = {"alphabet": LETTERS + BETWEEN + END, "hidden": 16, "layers": 2, "heads": 2, "intermediate": 16}
ONE, OTHER = ("abc>", "aa", "bb"), ("bcd>", "b", "c")
PROMPTS = [
    judged_prompt([ONE, OTHER], "abc>"),
    judged_prompt([OTHER, ONE], "abc>"),
    "abc>",
    judged_prompt([(ONE[0], ONE[2], ONE[1])], "h>"),
]
COMPLETIONS = ["a", "a", "a", "bcd"]


def users(seed: int = 0, noise: float = 1.0) -> UserRewardModel:
    found = load_reward_model("tiny", dtype="float64", users=UserSizes(4, 8, noise), seed=seed, **SMALL)
    assert isinstance(found, UserRewardModel)
    return found


def outputs(model, prompts=PROMPTS, completions=COMPLETIONS):
    return model.evaluate(model.tokens_of(prompts, completions), model.outputs)


def test_it_keeps_the_rules_of_trainable_models():
    model = users()
    check_trainable(model, model.tokens_of(PROMPTS, COMPLETIONS))
    names = [name for name, _ in model.named_parameters()]
    assert "score.weight" not in names
    assert {"users.mean.bias", "users.judged.0.weight"} <= set(names)


def test_judgements_are_read_from_tokens():
    reader = Reader(between=7, end=8, begin=(1,))
    assert reader.cut([1, 3, 7, 4, 4, 7, 5, 8, 3, 7, 7, 6, 8, 9]) == (
        (((1, 3), (4, 4), (5,)), ((1, 3), (), (6,))),
        (1, 9),
    )
    assert reader.cut([1, 9]) == ((), (1, 9))
    assert Reader(between=7, end=8).cut([3, 7, 4, 7, 5, 8, 9]) == ((((3,), (4,), (5,)),), (9,))


@pytest.mark.parametrize("ids", [[1, 3, 7, 4, 8, 9], [1, 8, 9], [1, 7, 4, 7, 5, 8, 9], [1, 3, 7, 4, 7, 5, 7, 6, 8, 9]])
def test_a_judgement_of_other_parts_is_refused(ids):
    with pytest.raises(InputError, match="a prompt, the better and the worse completion"):
        Reader(between=7, end=8, begin=(1,)).cut(ids)


def test_a_prompt_that_ends_with_a_judgement_is_refused():
    with pytest.raises(InputError, match="ends with a judgement"):
        Reader(between=7, end=8).cut([3, 7, 4, 7, 5, 8])


def test_a_tokenizer_without_the_separators_is_refused():
    with pytest.raises(InputError, match="no token of its own"):
        Reader.of(char_tokenizer(LETTERS + "?"))


def test_the_kl_by_hand():
    """One dimension: ½(μ² + σ² - 1 - log σ²); the prior has 0."""
    mean_uz = torch.tensor([[0.5, 0.0], [0.0, 0.0]], dtype=torch.float64)
    log_variance_uz = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([0.5 * 0.25 + 0.5 * (math.e - 2), 0.0], dtype=torch.float64)
    torch.testing.assert_close(kl_from_prior(mean_uz, log_variance_uz), expected)


def test_the_belief_by_hand():
    """Attention within a user, the mean of what it gives, then two linear layers, within ±1."""
    layers = UserLayers(states=1, latent=1, hidden=1).double()
    for layer, weight in ((layers.query, 1.0), (layers.key, 1.0), (layers.value, 2.0), (layers.mean, 0.25)):
        torch.nn.init.constant_(layer.weight, weight)
        torch.nn.init.zeros_(layer.bias)
    torch.nn.init.constant_(layers.log_variance.weight, 100.0)
    layers.judged = torch.nn.Linear(2, 1).double()
    torch.nn.init.constant_(layers.judged.bias, 0.0)
    layers.judged.weight.data = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    better, worse = torch.tensor([[1.0], [0.0], [3.0]]).double(), torch.zeros(3, 1).double()
    mean_uz, log_variance_uz = layers.belief(better, worse, torch.tensor([0, 0, 2]), users=3)
    share = math.e / (math.e + 1)  # the first judgement attends to values 2 and 0 by e¹ and e⁰, the second evenly
    torch.testing.assert_close(mean_uz[:, 0], torch.tensor([0.25 * (2 * share + 1) / 2, 0.0, 1.0]).double())
    torch.testing.assert_close(log_variance_uz[:, 0], torch.tensor([1.0, 0.0, 1.0]).double())


def test_the_order_of_judgements_does_not_matter_and_who_won_does():
    found = outputs(users())
    for x_b in found.values():
        torch.testing.assert_close(x_b[0], x_b[1], rtol=0, atol=1e-12)
    turned = outputs(users(), [judged_prompt([(a, c, b) for a, b, c in (ONE, OTHER)], "abc>")], ["a"])
    assert abs(float(turned["score"][0] - found["score"][0])) > 1e-4


def test_without_judgements_the_user_is_anyone():
    model, found = users(), outputs(users())
    assert float(found["user_kl"][2]) == 0
    state_bh = model._states(model.tokens_of(["abc>"], ["a"]))
    expected = model.layers.scores(state_bh, torch.zeros(1, 4, dtype=torch.float64))
    torch.testing.assert_close(found["score"][2:3], expected.detach())
    assert float(found["drawn_score"][2]) != float(found["score"][2])


def test_both_rows_of_a_pair_have_one_user_who_moves_with_the_weights():
    """The noise is that of the judgements and the weights: the same with and without a graph, another after a step."""
    model = users()
    tokens = model.tokens_of(PROMPTS, COMPLETIONS)
    first = model.evaluate(tokens, ("drawn_score",), grad=True)["drawn_score"].detach()
    torch.testing.assert_close(first, model.evaluate(tokens, ("drawn_score",))["drawn_score"], rtol=0, atol=0)
    mean_b = model.scores(tokens)
    with torch.no_grad():
        model.layers.log_variance.bias += 1e-9
    torch.testing.assert_close(model.scores(tokens), mean_b)
    assert float((model.evaluate(tokens, ("drawn_score",))["drawn_score"] - first).abs().min()) > 1e-4


def test_without_noise_the_user_is_the_mean_of_the_belief():
    found = outputs(users(noise=0.0))
    torch.testing.assert_close(found["drawn_score"], found["score"])


def test_training_goes_on_from_saved_layers(tmp_path):
    model = users(seed=3)
    model.save(tmp_path)
    again = load_reward_model(tmp_path, dtype="float64", users=UserSizes(4, 8, 0.5))
    assert again.noise == 0.5
    torch.testing.assert_close(outputs(again)["score"], outputs(model)["score"], rtol=0, atol=1e-12)


def test_noise_is_standard_normal():
    model = users()
    drawn = torch.stack([model._noise((((i,), (i + 1,), (i + 2,)),)) for i in range(2000)])
    assert abs(float(drawn.mean())) < 0.05
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)


def test_gradients_of_every_output_are_the_finite_differences():
    model = users()
    tokens = model.tokens_of(PROMPTS[:1] + PROMPTS[3:], ["a", "bcd"])
    weight_b = torch.tensor([1.0, -2.0], dtype=torch.float64)
    given = {name: weight_b * (1 + i) for i, name in enumerate(model.outputs)}
    model.backward(tokens, given)
    named = dict(model.named_parameters())
    for name in (
        "users.mean.weight",
        "users.log_variance.weight",
        "users.query.weight",
        "model.layers.0.mlp.up_proj.weight",
    ):
        parameter, step = named[name], 1e-6
        found = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[0, 1] += sign * step
                found.append(sum(float((given[k] * x).sum()) for k, x in model.evaluate(tokens, model.outputs).items()))
                parameter[0, 1] -= sign * step
        assert float(parameter.grad[0, 1]) == pytest.approx((found[0] - found[1]) / (2 * step), abs=1e-6)


def test_the_saved_folder_is_a_trunk_for_transformers_and_reads_back(tmp_path):
    model = users(seed=3)
    model.save(tmp_path)
    again = load_reward_model(tmp_path, dtype="float64", trained=True)
    assert isinstance(again, UserRewardModel)
    for name, x_b in outputs(model).items():
        torch.testing.assert_close(outputs(again)[name], x_b, rtol=0, atol=1e-12)
    assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "LlamaModel"


def test_what_products_in_bfloat16_round_is_no_other_score(tmp_path):
    model = load_reward_model("tiny", dtype="float32", precision="mixed", users=UserSizes(16, 32, 1.0), **SMALL)
    model.save(tmp_path)
    texts = list(zip(PROMPTS, COMPLETIONS, strict=True))
    check_reloaded(model, tmp_path, texts)
    with torch.no_grad():
        dict(model.named_parameters())["users.mean.bias"].add_(3.0)
    with pytest.raises(RunError, match="the saved reward model scores"):
        check_reloaded(model, tmp_path, texts)


def test_adapters_are_refused(tmp_path):
    with pytest.raises(InputError, match="trained whole"):
        load_reward_model("tiny", users=UserSizes(4, 8), lora={"r": 2}, **SMALL)
    users().save(tmp_path)
    with pytest.raises(InputError, match="trained whole"):
        load_reward_model(tmp_path, trained=True, lora={"r": 2})
