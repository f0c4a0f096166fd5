"""BARFI: weights of components move by what these did for the primary return, held against exact expectations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import grouprl
from grouprl import InputError, method
from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.objective.importance import flat
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.blended_rewards import BlendedRewards, cosine
from grouprl.config.run import parse_config
from grouprl.core.batch import Batch
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.training.loop import train
from grouprl.training.update import Learner
from part_context import PartContext

SPACES = Spaces(observation=Box((2,)), action=Discrete(3))
SEEN = np.array([0.5, -1.0], np.float32)
PRIMARY, MISLEADS, HELPS = [1.0, 0.0, 0.2], [0.0, 3.0, 0.0], [0.5, -0.5, 0.0]


def learner_of(part: BlendedRewards, lr: float = 0.5) -> Learner:
    policy = Mlp(Build(SPACES, seed=3, dtype=torch.float64), hidden=(4,))
    optimizer = torch.optim.SGD(policy.parameters(), lr)
    entry = method("barfi").with_parts(update=part)
    return Learner(policy, optimizer, entry, grad_clip=0, context=PartContext())  # type: ignore[arg-type]


def every_outcome(learner: Learner, **components: list[float]) -> Batch:
    """Each action once, weighted by its probability: gradients over it are those of exact expectations."""
    inputs = ArrayInputs.of([SEEN[None]] * 3, [[0], [1], [2]])
    logp_bt = learner.policy.logp(inputs)  # type: ignore[attr-defined]
    rewards = {name: torch.tensor(pay, dtype=torch.float64) for name, pay in components.items()}
    batch = Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.zeros(3, dtype=torch.int64),
        reward_b=torch.stack([*rewards.values()]).sum(0),
        rewards=rewards,
        old_bt=logp_bt,
        inputs=inputs,
    )
    ready = learner.method.compute_loss_weights(learner.method.compute_advantages(batch))
    return ready.replace(weight_bt=logp_bt.exp())


@dataclass
class OneStep:
    """A learner whose step is the batch as it is."""

    inner: Learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def steps(self, prepared: Batch) -> list[Batch]:
        return [prepared]


def played(part: BlendedRewards, steps: int, **components: list[float]) -> tuple[Learner, list[dict[str, float]]]:
    learner, found = learner_of(part), []
    for _ in range(steps):
        found += list(part(OneStep(learner), every_outcome(learner, accuracy=PRIMARY, **components)))  # type: ignore[arg-type]
    return learner, found


def chances(learner: Learner) -> torch.Tensor:
    inputs = ArrayInputs.of([SEEN[None]] * 3, [[0], [1], [2]])
    return learner.policy.logp(inputs)[:, 0].exp()  # type: ignore[attr-defined]


def test_a_misleading_component_is_no_longer_paid_and_without_learning_it_wins() -> None:
    learner, found = played(BlendedRewards(), 60, design=MISLEADS)
    assert found[-1]["blend_weight"] == 0
    assert float(chances(learner)[0]) > 0.9
    misled, kept = played(BlendedRewards(rate=0), 60, design=MISLEADS)
    assert kept[-1]["blend_weight"] == 1
    assert float(chances(misled)[1]) > 0.9


def test_a_component_that_helps_gains_weight() -> None:
    _, found = played(BlendedRewards(), 20, design=HELPS)
    assert found[-1]["blend_weight"] > 1.5
    assert found[-1]["blend_gain"] > 0


def test_the_gain_is_the_derivative_of_the_primary_return_after_the_step() -> None:
    """dJ(θ - lr·(g_p + φ·g_k))/dφ, by central differences of J itself."""
    part = BlendedRewards()

    def after(weight: float) -> Learner:
        learner = learner_of(part)
        learner.context.store["weight/design"] = weight  # type: ignore[union-attr, attr-defined]
        list(part(OneStep(learner), every_outcome(learner, accuracy=PRIMARY, design=MISLEADS)))  # type: ignore[arg-type]
        return learner

    def returns(learner: Learner) -> float:
        return float(chances(learner) @ torch.tensor(PRIMARY, dtype=torch.float64))

    learner = after(0.7)
    stored_p = learner.context.store["gradient/design"]  # type: ignore[union-attr, attr-defined]
    _, slopes = part.slopes(learner, every_outcome(learner, accuracy=PRIMARY, design=MISLEADS))  # type: ignore[arg-type]
    numeric = (returns(after(0.7 + 1e-5)) - returns(after(0.7 - 1e-5))) / 2e-5
    assert 0.5 * float(slopes["accuracy"] @ stored_p) == pytest.approx(numeric, rel=1e-5)
    gains = part.learn(dict(learner.context.store), slopes["accuracy"])  # type: ignore[union-attr, attr-defined]
    assert gains["design"] == pytest.approx(cosine(slopes["accuracy"], stored_p))
    assert gains["design"] < 0


def test_at_rate_0_a_step_is_that_of_the_sum_of_components() -> None:
    learner, _ = played(BlendedRewards(rate=0), 1, design=MISLEADS, other=HELPS)
    plain = learner_of(BlendedRewards())
    batch = every_outcome(plain, accuracy=PRIMARY, design=MISLEADS, other=HELPS)
    plain.take(batch.replace(advantage_bt=DecoupledComponents(scale="none")(batch)))
    torch.testing.assert_close(flat(learner.policy.parameters()), flat(plain.policy.parameters()))


def test_the_scale_of_a_component_does_not_change_how_fast_its_weight_moves() -> None:
    """The second cosine is that of the gradients at the same weights only in the first step: lr is 0."""
    gains = []
    for scale in (1.0, 100.0):
        part, learner = BlendedRewards(), learner_of(BlendedRewards(), lr=0.0)
        for _ in range(2):
            batch = every_outcome(learner, accuracy=PRIMARY, design=[scale * x for x in MISLEADS])
            found = list(part(OneStep(learner), batch))  # type: ignore[arg-type]
        gains.append(found[0]["blend_gain"])
    assert gains[0] == pytest.approx(gains[1], abs=1e-12)


def test_counts_are_no_components_and_a_lone_primary_is_plain_policy_gradient() -> None:
    learner, found = played(BlendedRewards(), 2, **{"#cost": MISLEADS})
    assert all("blend_weight" not in each for each in found)
    assert set(learner.context.store) == set()  # type: ignore[union-attr, attr-defined]


def test_a_vector_of_zeros_agrees_with_nothing() -> None:
    assert cosine(torch.zeros(3), torch.ones(3)) == 0
    assert cosine(torch.tensor([1.0, 0.0]), torch.tensor([-2.0, 0.0])) == -1


def test_a_reward_without_the_primary_component_is_refused() -> None:
    part, learner = BlendedRewards(primary="liked"), learner_of(BlendedRewards())
    with pytest.raises(InputError, match="liked"):
        list(part(OneStep(learner), every_outcome(learner, accuracy=PRIMARY)))  # type: ignore[arg-type]


def test_what_it_cannot_work_with_is_refused() -> None:
    part = BlendedRewards()
    assert "Set batch.minibatches" in part.refuse(RunFacts(updates_per_rollout=2))[0]
    assert "run.async_steps" in part.refuse(RunFacts(async_steps=1))[0]
    assert part.refuse(RunFacts()) == []
    assert BlendedRewards(rate=0).idle(RunFacts())
    assert not part.idle(RunFacts())


RUN: dict[str, Any] = {
    "task": {"name": "words", "longest": 4, "variety": 2},
    "method": {"name": "barfi", "primary": "liked"},
    "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16}},
    "warmup": {"steps": 5},
    "steps": 4,
    "batch": {"prompts": 2, "group_size": 4},
    "optim": {"lr": 0.01, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 4},
}


def test_a_run_logs_its_weights_and_resumes_to_the_bit(tmp_path: Any) -> None:
    def run(name: str, **changes: Any) -> Any:
        where = {"run": {"folder": str(tmp_path / name), "checkpoint_every": 2}}
        return train(parse_config(RUN | where | changes)).folder

    whole, cut = run("whole"), run("cut", steps=2)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "train"]
    assert steps[0]["blend_weight"] == 1
    assert steps[-1]["blend_weight"] != 1
    assert {"reward/liked", "reward/variety"} <= set(steps[0])
    train(parse_config(RUN), folder=cut, resume=True, changes=["steps=4"])
    one, other = (load_file(each / "model" / "model.safetensors") for each in (whole, cut))
    assert not [key for key, x in one.items() if not torch.equal(x, other[key])]


def test_the_entry_takes_its_settings() -> None:
    part = grouprl.method("barfi", primary="liked", rate=0.5, lowest=-1.0).update
    assert part == BlendedRewards(primary="liked", rate=0.5, lowest=-1.0)
