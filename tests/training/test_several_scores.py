"""Reward models with several numbers: attributes, and vectors by which completions are preferred in circles."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import Batch
from grouprl.config.run import parse_config
from grouprl.core.edges import preference_scores
from grouprl.core.errors import InputError, RunError
from grouprl.orchestrator.compared_reward import load_comparison
from grouprl.orchestrator.model_reward import load_model_reward
from grouprl.policy.language.columns.score_columns import Columns
from grouprl.policy.language.columns.several_scores import AttributeModel, GeneralPreferenceModel
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.rewards.judging.comparing import ComparedPair
from grouprl.rollout.ranked_rows import shares_of_rows
from grouprl.tasks import load_task
from grouprl.training.export import export, load_trained
from grouprl.training.loop import train
from small import f64, near

TINY = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
BEATS = {"a": "b", "b": "c", "c": "a"}
"""The first letter of a word, and that of the words that it is better than: a circle."""


def written(folder: Path, rows: list[dict[str, Any]]) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def circle(folder: Path, count: int = 600) -> str:
    rng = random.Random(1)
    ends = ["".join(letters) for n in range(3) for letters in itertools.product("abc", repeat=n)]
    rows = []
    for number in range(count):
        first = rng.choice("abc")
        chosen, rejected = first + rng.choice(ends), BEATS[first] + rng.choice(ends)
        rows.append({"prompt": f"{number}:", "chosen": chosen, "rejected": rejected})
    return written(folder, rows)


def rated(folder: Path, count: int = 200) -> str:
    rng = random.Random(0)
    texts = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 5))) for _ in range(count)]
    rows = [
        {"prompt": f"{n}:", "response": text, "likes": text.count("a"), "size": len(text)}
        for n, text in enumerate(texts)
    ]
    return written(folder, rows)


RATED = {"completion": "response", "ratings": ["likes", "size"]}
REGRESSION = {"name": "attribute_regression", "attributes": ["likes", "size"]}


def trained(folder: Path, task: Any, method: Any, steps: int = 2, size: int = 2, prompts: int = 4) -> dict[str, float]:
    """Train a tiny reward model into folder/run, and return its last evaluation."""
    config = {
        "task": task,
        "method": method,
        "model": {"name": "tiny", "tiny": TINY},
        "steps": steps,
        "batch": {"prompts": prompts, "group_size": size},
        "optim": {"lr": 3e-3},
        "eval": {"every": 0, "final_prompts": 40},
        "run": {"folder": str(folder / "run")},
    }
    train(parse_config(config))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "eval"][-1]


def test_a_circle_is_learnt_by_vectors_and_not_by_scores(tmp_path: Path) -> None:
    found = {}
    for method in ("gpm", "bradley_terry"):
        (tmp_path / method).mkdir()
        found[method] = trained(tmp_path / method, f"pairs:{circle(tmp_path)}", method, steps=60, prompts=16)
    assert found["gpm"]["eval/pair_accuracy"] > 0.85
    assert found["gpm"]["eval/pair_loss"] < 0.4
    assert found["bradley_terry"]["eval/pair_accuracy"] < 0.75
    assert found["bradley_terry"]["eval/pair_loss"] > 0.6


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    trained(folder, f"pairs:{circle(folder, 60)}", {"name": "gpm", "blocks": 1, "tau": 0.5})
    return folder / "run"


@pytest.fixture(scope="module")
def attributes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attributes")
    trained(folder, {"name": f"pairs:{rated(folder, 60)}", **RATED}, REGRESSION, size=1)
    return folder / "run"


def test_preferences_are_those_of_transformers_logits(compared: Path, tmp_path: Path) -> None:
    """P(first ≻ second) is σ of the skew form of the saved model's own logits over τ, and the orders add up to 1."""
    from transformers import AutoModelForSequenceClassification

    export(compared, tmp_path / "out")
    whole = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    judge = load_comparison(str(tmp_path / "out"))
    asked = [ComparedPair("3:", "ab", "cc", {}), ComparedPair("3:", "cc", "ab", {}), ComparedPair("3:", "b", "b", {})]
    forth, back, same = judge.compare(asked)
    with torch.no_grad():
        (w1, w2), (l1, l2) = (
            whole(torch.tensor([[*row.prompt_ids[0], *row.response_ids[0]]])).logits[0].tolist()
            for row in (judge.model.tokens_of(["3:"], [text]) for text in ("ab", "cc"))
        )
    assert forth == pytest.approx(1 / (1 + math.exp(-(w1 * l2 - w2 * l1) / 0.5)), abs=1e-5)
    assert forth is not None
    assert back is not None
    assert (forth + back, same) == (pytest.approx(1, abs=1e-6), 0.5)
    assert judge.compare([ComparedPair("3:", "a" * 5000, "b", {}), asked[0]])[0] is None


def test_a_preference_model_judges_a_game(compared: Path, tmp_path: Path) -> None:
    config = {
        "task": "addition",
        "model": {"name": "tiny", "tiny": TINY},
        "method": {"name": "gpo", "by": "judge"},
        "reward": {"model": str(compared)},
        "steps": 1,
        "batch": {"prompts": 2, "group_size": 3},
        "warmup": {"steps": 0},
        "eval": {"every": 0, "final_prompts": 2},
        "run": {"folder": str(tmp_path / "run")},
    }
    train(parse_config(config))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    first = next(line for line in lines if line["phase"] == "train")
    assert first["reward_mean"] == pytest.approx(0.5)
    assert first["preferences_abstained"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [({"combine": "worst"}, "combine beside the preference model"), ({"after": "x"}, "after beside the preference")],
)
def test_options_of_scores_are_refused_beside_it(compared: Path, options: dict[str, str], said: str) -> None:
    config = {"task": "addition", "method": "grpo", "reward": {"model": {"name": str(compared), **options}}}
    with pytest.raises(InputError, match=said):
        grouprl.plan(config)


def test_it_scores_nothing_alone(compared: Path) -> None:
    with pytest.raises(InputError, match="It compares completions and gives none a score"):
        load_model_reward([str(compared)])
    model = load_trained(compared).model
    assert isinstance(model, GeneralPreferenceModel)
    with pytest.raises(InputError, match="score of a completion alone"):
        model.scores_of(["1:"], ["a"])


def test_a_run_of_one_score_does_not_go_on_from_it(compared: Path) -> None:
    with pytest.raises(InputError, match="has a head with 2 labels"):
        load_reward_model(compared / "model")


def test_attributes_have_a_score_each_and_their_names(attributes: Path) -> None:
    model = load_trained(attributes).model
    assert isinstance(model, AttributeModel)
    found = model.attributes_of(["1:", "2:"], ["ab", "b"])
    assert list(found) == ["likes", "size"]
    both_b = torch.stack([*found.values()]).mean(0)
    assert model.scores_of(["1:", "2:"], ["ab", "b"]).tolist() == pytest.approx(both_b.tolist())
    config = json.loads((attributes / "model" / "config.json").read_text())
    assert (config["id2label"], config["problem_type"]) == ({"0": "likes", "1": "size"}, "regression")


def test_a_reward_weighs_them(attributes: Path) -> None:
    model = load_trained(attributes).model
    assert isinstance(model, AttributeModel)
    each = {name: float(x) for name, x in model.attributes_of([""], ["ab"]).items()}
    (mean,) = load_model_reward([str(attributes)]).verdicts(["ab"], [{}], ["x"])
    (weighed,) = load_model_reward([str(attributes)], weights={"likes": 2.0}).verdicts(["ab"], [{}], ["x"])
    assert mean.reward == pytest.approx((each["likes"] + each["size"]) / 2, abs=1e-6)
    assert weighed.reward == pytest.approx(2 * each["likes"], abs=1e-6)
    assert dict(mean.components) == {name: pytest.approx(x, abs=1e-6) for name, x in each.items()}
    with pytest.raises(InputError, match=r"names 'kind'.*scores likes, size"):
        load_model_reward([str(attributes)], weights={"kind": 1.0})


def test_weights_need_attributes(tmp_path: Path) -> None:
    load_reward_model("tiny", **TINY).save(tmp_path / "one")
    with pytest.raises(InputError, match="not one model of several attributes"):
        load_model_reward([str(tmp_path / "one")], weights={"likes": 1.0})


@pytest.mark.parametrize("columns", [Columns(("x", "y")), Columns(("p1", "p2", "p3", "p4"), tau=0.1)])
def test_numbers_do_not_depend_on_the_batch(columns: Columns) -> None:
    model = load_reward_model("tiny", columns=columns, dtype="float64", **TINY)
    assert isinstance(model, (AttributeModel, GeneralPreferenceModel))
    texts = ["a", "abcabc", "bb"]
    together = model.column_values(model.tokens_of(["q:"] * 3, texts))
    alone = torch.cat([model.column_values(model.tokens_of(["q:"], [text])) for text in texts])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
    with pytest.raises(InputError, match="has no output 'score@9'"):
        model.evaluate(model.tokens_of(["q:"], ["a"]), ["score@9"])


def test_the_skew_form_by_hand() -> None:
    near(preference_scores(f64([[1, 2, 3, 4]]), f64([[5, 6, 7, 8]])), [1 * 6 - 2 * 5 + 3 * 8 - 4 * 7])
    three = f64([[math.cos(x), math.sin(x)] for x in (0, 2 * math.pi / 3, 4 * math.pi / 3)])
    near(preference_scores(three, three.roll(-1, 0)), [math.sqrt(3) / 2] * 3)


def test_with_second_coordinates_of_one_it_is_bradley_terry() -> None:
    reward_b, mask_bt = f64([1.0, 0.0, 1.0, 0.0]), torch.ones(4, 2, dtype=torch.bool)
    batch = Batch(mask_bt=mask_bt, group_b=torch.tensor([0, 0, 1, 1]), reward_b=reward_b)
    score_b = f64([0.3, -1.0, 400.0, 2.0]).requires_grad_()
    found = []
    for name, settings, outputs in (
        ("gpm", {"blocks": 1, "tau": 0.5}, {"preference@1": score_b, "preference@2": torch.ones_like(score_b)}),
        ("bradley_terry", {"tau": 0.5}, {"score": score_b}),
    ):
        method = grouprl.method(name, **settings)
        value = method.loss(None, method.prepare(batch), outputs=outputs).value
        found.append((float(value.detach()), torch.autograd.grad(value, score_b)[0]))
    (one, one_b), (other, other_b) = found
    assert one == pytest.approx(other, abs=1e-12)
    near(one_b, other_b.tolist(), 1e-12)


@pytest.mark.parametrize("names", [["likes"], ["likes", "likes"], []])
def test_attributes_are_two_or_more(names: list[str]) -> None:
    with pytest.raises(InputError, match="two or more, each named once"):
        grouprl.method("attribute_regression", attributes=names)


def test_ratings_of_a_file(tmp_path: Path) -> None:
    task = load_task({"name": f"pairs:{rated(tmp_path, 3)}", **RATED, "eval_fraction": 0})
    (row,) = task.stored_rows(example := task.example("train", 0))
    said = {"likes": float(example.columns["likes"]), "size": float(example.columns["size"])}
    assert (row.completion, dict(row.components)) == (example.columns["response"], said)
    assert row.reward == sum(said.values()) / 2
    written(tmp_path, [{"prompt": "q", "response": "a", "likes": 1, "size": "much"}])
    with pytest.raises(InputError, match=r"rating 'size' in line 1 .*'much'"):
        load_task({"name": f"pairs:{tmp_path / 'rows.jsonl'}", **RATED})


def test_lone_rows_are_ranked_among_each_other() -> None:
    score_n = np.array([3.0, 1.0, 2.0, 2.0])
    found_n = shares_of_rows(np.array([2.0, 0.0, 1.0, 1.0]), np.subtract.outer(score_n, score_n))
    assert found_n.tolist() == [1.0, 1.0, 1.0, 1.0]
    found_n = shares_of_rows(np.array([2.0, 0.0, 1.0, 0.0]), np.subtract.outer(score_n, score_n))
    assert found_n.tolist() == pytest.approx([1.0, 1.0, 2 / 3, 1 / 2])
    assert np.isnan(shares_of_rows(np.ones(2), np.zeros((2, 2)))).all()


def test_a_regression_on_single_completions_is_evaluated(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}:", "completion": "ab"[n % 2], "label": n % 2 == 0} for n in range(40)]
    found = trained(tmp_path, f"pairs:{written(tmp_path, rows)}", "reward_regression", size=1)
    assert 0 <= found["eval/pair_accuracy"] <= 1


def test_completions_that_are_all_alike_cannot_be_ranked(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}:", "completion": "ab"[n % 2], "label": True} for n in range(40)]
    with pytest.raises(RunError, match="none of these is better than another"):
        trained(tmp_path, f"pairs:{written(tmp_path, rows)}", "reward_regression", size=1)
