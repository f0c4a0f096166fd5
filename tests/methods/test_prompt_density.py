"""BCO's matching of prompts: ratios and weights by hand, the classifier's optimum, runs, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import grouprl
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.papers.prompt_density import PromptDensity, balanced_fit, density_ratio, drawn
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.methods.diff import EXAMPLES, ContrastExample, numbers
from grouprl.training.export import export
from grouprl.training.loop import train
from small import f64, near, small

TINY = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}
UNEVEN = {**dict.fromkeys("abcd", 6), **dict.fromkeys("efgh", 2)}
"""Of eight completions of each prompt, how many are liked."""


def test_ratios_by_hand() -> None:
    """3 = 0.75/0.25; what lies beyond the bounds, certainty included, is at them."""
    near(
        density_ratio(f64([0.75, 0.5, 0.1, 0.95, 1.0]), 0.5, 10.0),
        [0.75 / (0.25 + 1e-8), 1 / (1 + 2e-8), 0.5, 10.0, 10.0],
    )


def test_disliked_completions_have_the_weight_of_their_prompt() -> None:
    """s = 0.4, -0.2 and 0.3 against δ = 0: the liked one weighs 1, the others 3 and 0.5, over three rows."""
    batch = small(
        [1, 0, 0],
        [2, 1, 1],
        groups=[0, 1, 2],
        old_bt=None,
        ref_bt=[[-1.0, -1.0], [-1.0], [-1.0]],
        past={"score_mean": f64([0.0] * 3), "density_ratio": f64([7.0, 3.0, 0.5])},
    )
    made = grouprl.method("bco", encoder="policy")
    logp_bt = f64([[-0.7, -0.9], [-1.2, 0.0], [-0.7, 0.0]]).requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    ours = [math.log1p(math.exp(-0.04)), 3 * math.log1p(math.exp(-0.02)), 0.5 * math.log1p(math.exp(0.03))]
    near(value, sum(ours) / 3)
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    near(grad_bt[1, 0], 3 * 0.1 / (1 + math.exp(0.02)) / 3)


def test_even_prompts_change_nothing() -> None:
    fields = {"score_mean": f64([0.1] * 2), "density_ratio": f64([1.0] * 2)}
    batch = small([1, 0], [1, 1], groups=[0, 1], old_bt=None, ref_bt=[[-1.0], [-1.0]], past=fields)
    logp_bt = f64([[-0.5], [-1.2]])
    plain, weighed = (grouprl.method("bco", encoder=encoder) for encoder in (None, "policy"))
    near(weighed.loss(logp_bt, weighed.prepare(batch)).value, plain.loss(logp_bt, plain.prepare(batch)).value)


@pytest.mark.parametrize("example", EXAMPLES)
def test_methods_that_are_compared_in_numbers_have_even_prompts(example: ContrastExample) -> None:
    plain, weighed = (grouprl.method("bco", encoder=encoder) for encoder in (None, "policy"))
    assert numbers(weighed, example) == numbers(plain, example)


def test_a_classifier_of_one_number_by_hand() -> None:
    """Rows at 1 and -1, the liked one three times: each label weighs 2 in all, so that w = 4/(1 + e^w) and b = 0."""
    weight_d, bias = balanced_fit(f64([[1.0], [1.0], [1.0], [-1.0]]), torch.tensor([True, True, True, False]))
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 + math.exp(middle)) < 4 else (low, middle)
    near(weight_d, [low], 1e-6)
    near(bias, 0.0, 1e-6)


def test_the_fit_is_the_optimum_of_its_objective() -> None:
    """In each direction the slope of the weighed likelihood is that of the penalty."""
    generator = torch.Generator().manual_seed(0)
    embedding_nd = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    liked_n = torch.rand(60, generator=generator) < (embedding_nd[:, 0] * 2).sigmoid() * 0.6
    weight_d, bias = balanced_fit(embedding_nd, liked_n)
    given = weight_d.clone().requires_grad_(), bias.clone().requires_grad_()
    count_n = torch.where(liked_n, 30 / liked_n.sum(), 30 / (~liked_n).sum()).double()
    error_n = binary_cross_entropy_with_logits(embedding_nd @ given[0] + given[1], liked_n.double(), reduction="none")
    slope_d, slope = torch.autograd.grad((count_n * error_n).sum(), given)
    near(slope_d, -weight_d, 1e-5)
    near(slope, 0.0, 1e-5)
    assert weight_d[0] > 0.5


def test_the_fit_is_that_of_scikit_learn() -> None:
    """LogisticRegression(class_weight="balanced", tol=1e-12) of scikit-learn 1.9.1 on these rows, of which 10 are
    liked; with its own tolerance its weights differ by up to 1e-4.
    """
    n, k_d = torch.arange(24, dtype=torch.float64), torch.arange(1, 4, dtype=torch.float64)
    embedding_nd = 2 * (1.3 * n[:, None] * k_d + 0.7 * k_d).sin()
    liked_n = (1.3 * n + 0.7).sin() + 0.8 * (5.1 * n).cos() > 0.35
    assert int(liked_n.sum()) == 10
    weight_d, bias = balanced_fit(embedding_nd, liked_n)
    near(weight_d, [1.887057325897623, -0.29402150825328227, 0.34697704040522737], 1e-6)
    near(bias, -0.7805061766034456, 1e-6)
    chance_n = (embedding_nd @ weight_d + bias).sigmoid()
    near(chance_n[:4], [0.841627287052036, 0.9479658113891372, 0.13278390752652577, 0.017863033789650904], 1e-6)
    near(density_ratio(chance_n, 0.5, 10.0)[:6], [5.3142187, 10.0, 0.5, 0.5, 0.5, 6.7639652], 1e-5)


def test_up_to_so_many_rows_of_each_label_are_drawn() -> None:
    liked_n = torch.tensor([True] * 3 + [False] * 20)
    index_n = drawn(liked_n, 5, np.random.default_rng(0))
    assert sorted(index_n[:3].tolist()) == [0, 1, 2]
    assert len(index_n) == len(set(index_n.tolist())) == 8
    assert not liked_n[index_n[3:]].any()


def labelled(folder: Path, liked_of: dict[str, int], count: int = 8) -> str:
    """Labels of one completion: of each prompt that many are liked."""
    rows = [
        {"prompt": prompt, "completion": "ab" if number % 2 else "b", "label": number < liked}
        for prompt, liked in liked_of.items()
        for number in range(count)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"pairs:{folder / 'rows.jsonl'}"


def configured(folder: Path, liked_of: dict[str, int], method: Any) -> Any:
    return parse_config(
        {
            "task": {"name": labelled(folder, liked_of), "eval_fraction": 0.25},
            "model": {"name": "tiny", "tiny": TINY},
            "warmup": {"steps": 0},
            "method": method,
            "steps": 1,
            "batch": {"prompts": 4, "group_size": 1},
            "eval": {"every": 0, "final_prompts": 2},
            "run": {"threads": 1},
        }
    )


def test_rows_have_the_ratio_of_their_prompt() -> None:
    """A row that does not count has 1, also if its prompt is not known."""
    part, batch = PromptDensity(), small([1, 0, 0], [1, 1, 1], groups=[0, 1, 2], old_bt=None)
    context: Any = SimpleNamespace(state_of=lambda _: {"ratio": {"one": 2.5, "other": 0.5}})
    examples = [SimpleNamespace(id=name) for name in ("other", "unknown", "one")]
    samples: Any = SimpleNamespace(examples=examples, valid_b=np.array([True, False, True]))
    near(part.fill(batch, samples, context).past["density_ratio"], [0.5, 1.0, 2.5])


@pytest.mark.parametrize("encoder", ["policy", "other"])
def test_a_run_tells_prompts_that_are_liked_more(encoder: str, tmp_path: Path) -> None:
    """By prompts alone three quarters of the labels can be told, and half without looking."""
    if encoder == "other":
        train(configured(tmp_path, UNEVEN, "bco"), folder=tmp_path / "first")
        export(tmp_path / "first", tmp_path / "encoder")
        encoder = str(tmp_path / "encoder")
    config = configured(tmp_path, UNEVEN, {"name": "bco@trl", "encoder": encoder, "prompt_sample_size": 64})
    train(config, folder=tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (told,) = [record for record in records if record["phase"] == "pretraining"]
    assert 0.6 < told["density_accuracy"] < 0.77


def test_the_ratios_are_there_after_a_resume(tmp_path: Path) -> None:
    """They are fitted once, so that a run that is continued has those of the first weights."""
    method = {"name": "bco@trl", "encoder": "policy", "prompt_sample_size": 64}
    config = configured(tmp_path, UNEVEN, method)
    longer = parse_config({**config.model_dump(mode="json"), "steps": config.steps + 1})
    train(longer, folder=tmp_path / "whole")
    train(config, folder=tmp_path / "cut")
    train(config, folder=tmp_path / "cut", resume=True, changes=[f"steps={longer.steps}"])

    def losses(name: str) -> list[float]:
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [record["loss"] for record in map(json.loads, lines) if record["phase"] == "train"]

    assert losses("cut") == pytest.approx(losses("whole"), rel=1e-12)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InputError, match="low = 2 and high = 1"):
        grouprl.method("bco@trl", encoder="policy", min_density_ratio=2.0, max_density_ratio=1.0)


def test_what_a_run_lacks_is_told() -> None:
    part = PromptDensity()
    told = " ".join(part.refuse(RunFacts(stored=False, examples=None)))
    assert "reads stored labels" in told
    assert "Set data.prompts" in told
    assert part.refuse(RunFacts(stored=True, examples=8)) == []


def test_completions_of_one_label_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing to match"):
        train(
            configured(tmp_path, dict.fromkeys("abcdefgh", 8), {"name": "bco", "encoder": "policy"}),
            folder=tmp_path / "run",
        )
