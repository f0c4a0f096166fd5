"""Findings on updates and on scores that differ, from numbers, from records and from runs that provoke them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import grouprl
from grouprl.config.rates import ratio_of_squares, summed_squares, update_squares
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.monitor.health import examine
from grouprl.monitor.history import HealthFacts
from grouprl.monitor.scored_twice import both_scores, sampled_twice, twice_metrics
from grouprl.policy import load_policy
from grouprl.policy.thinning import thinned
from grouprl.policy.weight_kinds import weight_kind
from grouprl.training.loop import train
from grouprl.training.measures import gradient_watch
from grouprl.training.measures.gradient_watch import GradientWatch, positive_share, signal_and_noise
from grouprl.training.optimise import moved_kinds

NEW = ("part_too_fast", "part_stands_still", "noisy_gradient", "lopsided_advantage", "verifier_noise")
SMALL = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}


# --- kinds of weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "embeddings"),
        ("transformer.wpe.weight", "embeddings"),
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("transformer.h.11.attn.c_proj.bias", "attention"),
        ("transformer.h.0.ln_1.weight", "norms"),
        ("model.embedding_norm.weight", "norms"),
        ("transformer.h.0.mlp.dense_4h_to_h.weight", "mlp"),
        ("model.decoder.layers.0.fc1.weight", "mlp"),
        ("model.layers.0.mlp.experts.down_proj", "mlp"),
        ("lm_head.weight", "head"),
        ("model.layers.0.self_attn.q_proj.lora_A.default.weight", "adapters"),
        ("boss.model.layers.0.mlp.up_proj.weight", "mlp"),
        ("value_head.weight", "value_head"),
        ("0.weight", "other"),
    ],
)
def test_weights_are_told_by_their_names(name: str, kind: str) -> None:
    assert weight_kind(name) == kind


def test_the_step_of_each_kind_is_measured_against_its_own_weights() -> None:
    """A first step of Adam moves each weight by its rate, 0.1: by 0.05 of weights at 2, by 0.1 of weights at 1."""
    model = nn.ModuleDict({"attn": nn.Linear(3, 2, bias=False), "mlp": nn.Linear(4, 1, bias=False)})
    with torch.no_grad():
        model["attn"].weight.fill_(2.0)
        model["mlp"].weight.fill_(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    sum(x.sum() for x in model.parameters()).backward()
    optimizer.step()  # the weights are measured after it: 1.9 and 0.9
    squares = update_squares(optimizer)
    assert squares is not None
    found = moved_kinds(model, squares)
    assert found == pytest.approx({"update_ratio/attention": 0.1 / 1.9, "update_ratio/mlp": 0.1 / 0.9}, rel=1e-5)
    whole = (10 * 0.1**2 / (6 * 1.9**2 + 4 * 0.9**2)) ** 0.5
    assert ratio_of_squares(squares) == pytest.approx(whole, rel=1e-5)
    assert summed_squares([squares, [(1.0, 2.0), (0.0, 0.0)]])[0] == pytest.approx((6 * 0.01 + 1, 6 * 1.9**2 + 2))
    assert moved_kinds(model["mlp"], squares[1:]) == {}, "one kind alone is all weights"


def test_weights_without_a_step_count_as_such_in_their_place() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([first, second], lr=0.1, weight_decay=0.0)
    second.grad = torch.ones(2)
    optimizer.step()
    squares = update_squares(optimizer)
    assert squares is not None
    assert squares[0] == (0.0, 0.0)
    assert squares[1][0] == pytest.approx(0.02, rel=1e-4)


# --- signal and noise of gradients ------------------------------------------------------------------------------------


def test_signal_and_noise_by_hand() -> None:
    """Minibatches of 3 groups with gradients (2, 0) and (0, 2): their product is 0, so that all of it is noise.

    With (3, 1) and (1, 3) the product is 6; the mean square is 10, of which 4 is the variance of a mean over 3.
    """
    assert signal_and_noise(8.0, [4.0, 4.0], 3) == pytest.approx((0.0, 12.0))
    assert signal_and_noise(32.0, [10.0, 10.0], 3) == pytest.approx((6.0, 12.0))


def test_signal_and_noise_have_no_bias() -> None:
    """Groups' gradients around (1, 0.5, 0, 0) with variance 4 in each of 4 entries: |G|² = 1.25, tr(Σ) = 16."""
    torch.manual_seed(0)
    found = []
    for _ in range(4000):
        minibatch_pd = torch.tensor([1.0, 0.5, 0, 0]) + 2 * torch.randn(3, 5, 4).mean(1)
        squares = minibatch_pd.square().sum(1).tolist()
        found.append(signal_and_noise(float(minibatch_pd.sum(0).square().sum()), squares, 5))
    signal, noise = np.mean(found, 0)
    assert signal == pytest.approx(1.25, abs=0.08)
    assert noise == pytest.approx(16.0, abs=0.4)


class Given:
    """A policy with one weight whose gradients are given."""

    def __init__(self, gradient: Sequence[float]) -> None:
        self.weight = nn.Parameter(torch.zeros(len(gradient)))
        self.weight.grad = torch.tensor(gradient)

    def parameters(self) -> list[nn.Parameter]:
        return [self.weight]


def watched(*gradients: Sequence[float], parts: int = 2) -> dict[str, float]:
    watch = GradientWatch(parts)
    for gradient in gradients:
        policy: Any = Given(gradient)
        watch.add(policy, batch_of([1.0] * 6, groups=[0, 0, 1, 1, 2, 2]))
    return watch.metrics()


def batch_of(advantages: Sequence[float], weights: Sequence[float] | None = None, groups: Sequence[int] | None = None):
    count = len(advantages)
    return Batch(
        mask_bt=torch.ones(count, 1, dtype=torch.bool),
        group_b=torch.tensor(groups or [0] * count),
        reward_b=torch.zeros(count),
        advantage_bt=torch.tensor(advantages)[:, None],
        weight_bt=torch.tensor(weights or [1.0] * count)[:, None],
    )


def test_the_minibatches_of_a_rollout_are_watched_once() -> None:
    expected = {"gradient_signal": 6.0, "gradient_noise": 12.0}
    assert watched([3.0, 1.0], [1.0, 3.0]) == pytest.approx(expected)
    assert watched([3.0, 1.0], [1.0, 3.0], [9.0, 9.0]) == pytest.approx(expected), "a second pass has the same groups"
    assert watched([3.0, 1.0], parts=1) == {}
    assert watched([0.0, 0.0], [0.0, 0.0]) == {}


def test_evenly_spaced_entries_stand_for_a_large_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[Tensor] = [torch.arange(5.0), torch.arange(5.0, 6.0), torch.arange(6.0, 12.0)]
    kept = [piece.tolist() for piece in thinned(pieces, 3)]
    assert kept == [[0.0, 3.0], [], [6.0, 9.0]], "every third of all twelve, whatever the pieces"
    monkeypatch.setattr(gradient_watch, "LOOKED_AT", 2)
    found = watched([4.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0])
    assert found == pytest.approx({"gradient_signal": 32.0, "gradient_noise": 0.0}), "each entry kept stands for two"


# --- signs of advantages ----------------------------------------------------------------------------------------------


def test_the_share_of_positive_advantage_counts_tokens_as_the_loss_does() -> None:
    assert positive_share(batch_of([3.0, -1.0])) == {"advantage_positive": 0.75}
    assert positive_share(batch_of([3.0, -1.0], [0.1, 0.9])) == pytest.approx({"advantage_positive": 0.25})
    assert positive_share(batch_of([0.0, 0.0])) == {}


# --- scores of the same text ------------------------------------------------------------------------------------------


def scored(rewards: Sequence[float], ok: Sequence[bool] | None = None) -> Any:
    return SimpleNamespace(reward_b=np.array(rewards), ok_b=np.array(ok or [True] * len(rewards)))


class Rows(SimpleNamespace):
    """Rows as far as their scores are compared."""

    def __len__(self) -> int:
        return len(self.group_b)


def test_texts_of_a_group_are_compared_with_their_first_score() -> None:
    texts, groups = [(1, 2), (1, 2), (3,), (1, 2), (1, 2)], [0, 0, 0, 0, 1]
    samples: Any = Rows(
        records=None,
        scores=scored([1.0, 0.0, 0.5, 1.0, 0.25]),
        group_b=np.array(groups),
        rollout=SimpleNamespace(action_ids=texts),
    )
    assert sampled_twice(samples) == [(1.0, 0.0), (1.0, 1.0)]
    assert twice_metrics(sampled_twice(samples)) == {"verifier_noise": 0.5, "scored_twice": 2.0}
    samples.records = (None,) * 5
    assert sampled_twice(samples) == [], "episodes may differ"
    assert twice_metrics([]) == {}
    assert both_scores(scored([1.0, 0.0, 2.0]), scored([1.0, 0.5, 0.0], [True, True, False])) == [
        (1.0, 1.0),
        (0.0, 0.5),
    ]
    assert twice_metrics([(0.1 + 0.2, 0.3)])["verifier_noise"] == 0.0, "rounding is no noise"


# --- findings of records ----------------------------------------------------------------------------------------------


def found(records: Sequence[Mapping[str, Any]], **facts: Any) -> dict[str, Any]:
    return {each.code: each for each in examine(records, HealthFacts(**facts))}


def records(count: int = 24, **values: float) -> list[dict[str, Any]]:
    """Records with constant metrics; `__` stands for `/`, `AT` for `@`."""
    named = {name.replace("__", "/").replace("AT", "@"): value for name, value in values.items()}
    return [{"phase": "train", "step": n, **named} for n in range(1, count + 1)]


def test_a_kind_of_weights_that_moves_too_fast_is_named() -> None:
    finding = found(records(update_ratio=0.001, update_ratio__attention=0.15))["part_too_fast"]
    assert (
        finding.text == "One optimiser step changes the attention by 15 % of their size, all weights together by 0.1 %."
    )
    assert finding.key == "update_ratio/attention"
    assert "part_too_fast" not in found(records(update_ratio=0.001, update_ratio__attention=0.09))
    assert "part_too_fast" not in found(records(update_ratio=0.05, update_ratio__attention=0.15)), (
        "moves_too_fast says it"
    )
    assert "part_too_fast" not in found(records(update_ratio=0.001, update_ratio__value_head=0.5)), "it began at 0"


def test_a_kind_of_weights_that_stands_still_is_named() -> None:
    finding = found(records(update_ratio=0.001, update_ratio__head=0.001, update_ratio__mlp=0.0))["part_stands_still"]
    assert finding.text == "One optimiser step changes the MLP by 0 of their size, all weights together by 0.001."
    assert "part_stands_still" not in found(records(update_ratio=0.001, update_ratio__norms=0.00002))
    assert "part_stands_still" not in found(records(19, update_ratio=0.001, update_ratio__mlp=0.0))
    assert "part_stands_still" not in found(records(update_ratio=0.0, update_ratio__mlp=0.0))


NOISE = {"gradient_signal": 0.01, "gradient_noise": 1.0}


def test_gradients_without_a_common_direction_are_named() -> None:
    text = found(records(**NOISE), groups_per_update=8)["noisy_gradient"].text
    assert "equal at about 1e+02 groups; an optimiser step has 8" in text
    hidden = found(records(gradient_signal=-0.01, gradient_noise=1.0), groups_per_update=8)["noisy_gradient"].text
    assert "No common direction" in hidden


@pytest.mark.parametrize(
    ("values", "groups", "count"),
    [
        (NOISE, 16, 24),
        (NOISE, 0, 24),
        (NOISE, 8, 19),
        ({**NOISE, "passAT1": 0.95}, 8, 24),
    ],
    ids=["enough groups", "unknown groups", "too early", "solved"],
)
def test_gradients_are_not_called_noisy_otherwise(values: dict[str, float], groups: int, count: int) -> None:
    assert "noisy_gradient" not in found(records(count, **values), groups_per_update=groups)


def test_gradients_are_not_called_noisy_while_the_policy_gets_better() -> None:
    better = [each | {"pass@1": each["step"] / 40} for each in records(**NOISE)]
    assert "noisy_gradient" not in found(better, groups_per_update=8)


def test_advantage_of_one_sign_is_named_unless_a_method_has_no_other() -> None:
    assert (
        "95 % of the advantage in the loss is negative"
        in found(records(advantage_positive=0.05))["lopsided_advantage"].text
    )
    assert "is positive" in found(records(advantage_positive=0.93))["lopsided_advantage"].text
    for share in (0.0, 0.15, 0.5, 0.85, 1.0):
        assert "lopsided_advantage" not in found(records(advantage_positive=share))


def test_texts_that_are_scored_differently_are_named() -> None:
    finding = found(records(verifier_noise=0.06, scored_twice=8))["verifier_noise"]
    assert finding.text == "6.0 % of 80 completions got another score the second time."
    assert "verifier_noise" not in found(records(verifier_noise=0.04, scored_twice=8))
    assert "verifier_noise" not in found(records(verifier_noise=0.5, scored_twice=3))


# --- runs that provoke them -------------------------------------------------------------------------------------------

REWARDS = """import random

def steady(completion: str) -> float:
    return sum(letter in "abcdefgh" for letter in completion) / 6

def luck(completion: str) -> float:
    return 0.9 * random.random()

def short(completion: str) -> float:
    return float(len(completion) < 2)
"""


def ran(folder: Path, reward: str, **changes: Any) -> dict[str, Any]:
    (folder / "paid.py").write_text(REWARDS)
    rows = [{"prompt": f"{a}{b}:", "answer": b} for a in "abcdefgh" for b in "abcdefgh"]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "task": f"jsonl:{folder / 'rows.jsonl'}",
        "model": {"name": "tiny", "tiny": SMALL},
        "reward": {"function": f"{folder / 'paid.py'}:{reward}", "workers": 0, "rescore": 4},
        "sampling": {"max_new_tokens": 6},
        "warmup": {"steps": 0},
        "steps": 24,
        "batch": {"prompts": 8, "group_size": 8, "minibatches": 2},
        "optim": {"lr": 3e-3, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 8},
        "run": {"threads": 1, "check_model": False},
    }
    made = train(parse_config(settings | changes), folder=folder / "run", console=Console(quiet=True)).folder
    return {each["code"]: each for each in json.loads((made / "health.json").read_text())}


def test_a_run_that_learns_has_none_of_them(tmp_path: Path) -> None:
    assert not set(NEW) & set(ran(tmp_path, "steady"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["phase"] == "train"][-1]
    assert last["scored_twice"] >= 4
    assert last["gradient_noise"] > 0
    assert last["update_ratio/norms"] > 0


def test_a_reward_by_chance_is_noise_and_gives_no_direction(tmp_path: Path) -> None:
    findings = ran(tmp_path, "luck", optim={"lr": 1e-4, "schedule": "constant"})
    assert "100 % of" in findings["verifier_noise"]["text"]
    assert findings["noisy_gradient"]["severity"] == "note"


def test_a_run_whose_good_completions_are_far_shorter_is_lopsided(tmp_path: Path) -> None:
    method = {"base": "grpo", "aggregate": "token_mean"}
    optim = {"lr": 1e-5, "schedule": "constant"}
    findings = ran(tmp_path, "short", method=method, optim=optim, sampling={"max_new_tokens": 64})
    assert "is negative" in findings["lopsided_advantage"]["text"]


@pytest.mark.parametrize(("method", "there"), [("tb", False), ("vargrad", False), ("reinforce", True)])
def test_the_sign_of_advantage_is_measured_where_it_is_a_direction(method: str, there: bool, tmp_path: Path) -> None:
    config = {
        "task": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
        "model": {"name": "mlp", "settings": {"hidden": [4]}},
        "method": method,
        "steps": 1,
        "batch": {"prompts": 1, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 1},
        "run": {"threads": 1},
    }
    run = grouprl.train(config, folder=tmp_path / "run")
    assert run is not None
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (step,) = (each for each in map(json.loads, lines) if each["phase"] == "train")
    assert ("advantage_positive" in step) == there


def test_a_model_with_dead_attention_and_a_tiny_mlp_is_named(tmp_path: Path) -> None:
    """Values and outputs of 0 leave the attention no gradient; an MLP a thousandth of its usual size is overturned."""
    policy = load_policy("tiny", **SMALL, alphabet="abcdefgh:", seed=0)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            weight.mul_(0.0 if "v_proj" in name or "o_proj" in name else 0.001 if "mlp" in name else 1.0)
    policy.save(tmp_path / "model")
    optim = {"lr": 1e-4, "schedule": "constant"}
    findings = ran(tmp_path, "steady", model={"name": str(tmp_path / "model")}, optim=optim)
    assert findings["part_stands_still"]["key"] == "update_ratio/attention"
    assert findings["part_too_fast"]["key"] == "update_ratio/mlp"


def test_episodes_cannot_be_scored_again(tmp_path: Path) -> None:
    settings = {"task": "guess", "model": "tiny", "reward": {"rescore": 4}, "steps": 1}
    with pytest.raises(InputError, match=r"reward\.rescore = 4, but only texts"):
        train(parse_config(settings), folder=tmp_path / "run", console=Console(quiet=True))
