"""Everything that stands behind a protocol is held against it; what breaks a rule is caught."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import grouprl.protocols
import grouprl.testing
from denoising import Chain, Denoising, WholeDenoising
from grouprl.core.errors import InputError
from grouprl.envs import Step
from grouprl.policy import ArrayInputs, CausalPolicy, Mlp, Tokens, build_tiny
from grouprl.policy.kinds import Build
from grouprl.policy.lora import add_lora
from grouprl.policy.teams.team_policy import TeamPolicy
from grouprl.protocols import Box, Discrete, Request, Spaces
from grouprl.rollout.engines import local_engine
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.tasks import Example, load_task
from grouprl.testing import (
    check_environment,
    check_inputs,
    check_policy,
    check_prompt_source,
    check_sampler,
    check_stored_rows,
    check_sync,
    check_task,
)

POLE = Spaces(Box((4,)), Discrete(2))
TOKENS = Tokens.of([[3, 4], [3, 4], [5], [6, 7, 8]], [[4, 5, 6], [7], [8, 4], [5, 5, 5, 3]])


def tiny(**options: Any) -> CausalPolicy:
    model, tokenizer = build_tiny("0123456789", hidden=16, layers=1, heads=2, intermediate=16)
    return CausalPolicy(model, tokenizer, **options)


def arrays(size: int, actions: list[Any]) -> ArrayInputs:
    luck = np.random.default_rng(0)
    return ArrayInputs.of([luck.standard_normal((len(row), size)) for row in actions], actions)


@pytest.mark.parametrize("engine", ["lean", "transformers"])
@pytest.mark.parametrize("values", [False, True])
def test_the_local_engines_conform(engine: str, values: bool) -> None:
    check_policy(tiny(engine=engine, value_head=values), TOKENS, values=values)
    check_policy(tiny(engine=engine, value_head=values, token_budget=5), TOKENS, values=values)


def test_adapters_and_teams_conform() -> None:
    model, tokenizer = build_tiny("0123456789", hidden=16, layers=1, heads=2, intermediate=16)
    check_policy(CausalPolicy(add_lora(model, {"r": 2}, 0), tokenizer), TOKENS)
    check_policy(TeamPolicy({"one": tiny(), "other": tiny()}), TOKENS.of_agents([0, 1, 1, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("positions", [1, 5, 1000])
def test_perceptrons_conform(values: bool, dtype: torch.dtype, positions: int) -> None:
    build = Build(POLE, values=values, dtype=dtype, positions=positions, temperature=1.3)
    check_policy(Mlp(build, hidden=[8]), arrays(4, [[0, 1, 1], [1], [0, 0]]), values=values)
    build = Build(Spaces(Box((2,)), Box((3,))), values=values, dtype=dtype, positions=positions)
    check_policy(Mlp(build, hidden=[8]), arrays(2, [np.ones((n, 3)) * n for n in (2, 4, 1)]), values=values)


def test_a_policy_of_a_user_conforms() -> None:
    check_policy(Chain(Build(Denoising.spaces)), arrays(3, [np.zeros((n, 2)) for n in (4, 4, 2)]))


class Padded(Mlp):
    """Leaves numbers beyond a row's length."""

    def _masked(self, inputs: Any, names: Any) -> dict[str, Tensor]:
        return {name: x + 1e-3 for name, x in super()._masked(inputs, names).items()}


class Coupled(Mlp):
    """Lets a row's log-probs depend on its neighbours."""

    def score(self, inputs: Any, names: Any) -> Any:
        found = super().score(inputs, names)
        return found | {"log_prob": found["log_prob"] + 0.01 * len(inputs)} if "log_prob" in found else found


class Halved(Mlp):
    """Gives half of the gradient."""

    def backward(self, inputs: Any, cotangents: Any, /) -> None:
        super().backward(inputs, {name: x / 2 for name, x in cotangents.items()})


class Sharing(Mlp):
    """Its copies share its weights."""

    def copied(self, **settings: Any) -> Any:
        other = super().copied(**settings)
        if settings.get("trainable", True):
            other.module = self.module
        return other


class Forgetful(Mlp):
    """Leaves a parameter out of its state."""

    def trainable_state(self) -> dict[str, Tensor]:
        state = super().trainable_state()
        state.popitem()
        return state

    def load_trainable_state(self, state: Any) -> None:
        super().load_trainable_state({**super().trainable_state(), **state})


class Losing(Mlp):
    """Leaves a row out of its passes."""

    def passes(self, inputs: Any, rows: Any) -> list[list[int]]:
        return super().passes(inputs, list(rows)[:1] if len(list(rows)) == 2 else rows)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Padded, "exactly 0"),
        (Coupled, "that row alone"),
        (Halved, "gradient of sum"),
        (Sharing, "when a copy moves|when the model moves"),
        (Forgetful, "parameters' names"),
        (Losing, "exactly one pass"),
    ],
)
def test_what_breaks_a_rule_is_caught(kind: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_policy(kind(Build(POLE), hidden=[8]), arrays(4, [[0, 1, 1], [1], [0, 0]]))


def test_inputs_with_gaps_are_caught() -> None:
    class Gaps(ArrayInputs):
        def present_bt(self) -> Tensor:
            return super().present_bt().flip(1)

    whole = arrays(4, [[0, 1, 1], [1], [0, 0]])
    with pytest.raises(AssertionError, match="without gaps"):
        check_inputs(Gaps(whole.observation_bt, whole.action_bt, whole.length_b))


def test_environments_of_text_and_of_vectors_conform() -> None:
    guess = load_task("guess")
    check_environment(guess.environment, guess.example("train", 0), ["3", "4", "5"])
    check_environment(Denoising, Example("q", ""), [np.ones(2)] * 4, spaces=Denoising.spaces)
    pytest.importorskip("gymnasium")
    for name, action in (("CartPole-v1", 1), ("Pendulum-v1", np.array([0.5]))):
        task = load_task(f"control:{name}")
        check_environment(task.environment, task.example("train", 0), [action] * 12, spaces=task.spaces)


class Chancy(Denoising):
    """Samples chance from outside its seed."""

    luck = np.random.default_rng(0)

    def reset(self, example: Any, seed: int) -> np.ndarray:
        return super().reset(example, int(self.luck.integers(2**31)))


class Endless(Denoising):
    """Ends and is cut off at the same time."""

    def step(self, action: Any) -> Step:
        step = super().step(action)
        return Step(step.observation, step.reward, terminated=True, truncated=True)


@pytest.mark.parametrize(("kind", "said"), [(Chancy, "comes from the seed"), (Endless, "not both")])
def test_environments_that_break_a_rule_are_caught(kind: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_environment(kind, Example("q", ""), [np.ones(2)] * 4, spaces=Denoising.spaces)


def test_tasks_and_sources_conform(tmp_path: Path) -> None:
    lines = [{"prompt": f"{n}?", "chosen": "a" * (n % 3 + 1), "rejected": "b"} for n in range(20)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pairs = load_task(f"pairs:{tmp_path / 'pairs.jsonl'}")
    check_stored_rows(pairs)
    for task in (load_task("addition"), load_task("guess"), pairs):
        check_task(task)
        check_prompt_source(lambda task=task: PromptStream(task, 3))


def test_the_sampler_of_vectors_conforms() -> None:
    luck = np.random.default_rng(0)
    for spaces in (POLE, Spaces(Box((4,)), Box((2,)))):
        policy = Mlp(Build(spaces, temperature=1.2), hidden=[8])
        sampler = local_engine(policy)
        requests = [Request(luck.standard_normal(4).astype(np.float32), 1, seed, 1.2) for seed in range(40)]

        def logp(requested: Any, samples: Any, policy: Mlp = policy) -> np.ndarray:
            rows = ArrayInputs.of([[r.prompt] for r in requested], [list(x) for x in samples.actions])
            return policy.logp(rows).numpy()

        check_sampler(sampler, requests, logp=logp, pieces=False)
        check_sync(sampler, policy, sample=lambda sampler=sampler, requests=requests: sampler.sample(requests))


def test_the_sampler_of_chains_conforms() -> None:
    luck = np.random.default_rng(0)
    policy = Chain(Build(WholeDenoising.spaces))
    prompts = [np.append(luck.standard_normal(2), 0.0).astype(np.float32) for _ in range(12)]
    requests = [Request(prompt, 4 - seed % 2, seed) for seed, prompt in enumerate(prompts)]

    def logp(requested: Any, samples: Any) -> np.ndarray:
        rows = [np.stack([state.values for state in states]) for states in samples.states]
        return policy.logp(ArrayInputs.of(rows, [np.stack(x) for x in samples.actions])).numpy()

    check_sampler(local_engine(policy), requests, logp=logp, pieces=False)


def test_actions_are_sampled_from_the_distribution_that_is_scored() -> None:
    policy = Mlp(Build(POLE, seed=3), hidden=[8])
    with torch.no_grad():
        policy.module["mean"][-1].bias.copy_(torch.tensor([0.0, 1.0]))
    seen = np.ones(4, dtype=np.float32)
    sample = local_engine(policy).sample([Request(seen, 1, seed) for seed in range(4000)])
    share = np.mean([action for (action,) in sample.actions])
    (p_one,) = policy.logp(ArrayInputs.of([[seen]], [[1]])).exp()[0].tolist()
    assert abs(share - p_one) < 4 * np.sqrt(p_one * (1 - p_one) / 4000)
    greedy = local_engine(policy).sample([Request(seen, 1, 0, greedy=True)])
    assert greedy.actions == ((1,),)

    gaussian = Mlp(Build(Spaces(Box((4,)), Box((1,))), temperature=2.0), hidden=[8], log_std=-1.0)
    sampled = np.array(
        [a[0] for (a,) in local_engine(gaussian).sample([Request(seen, 1, seed, 2.0) for seed in range(4000)]).actions]
    )
    (mean,) = local_engine(gaussian).sample([Request(seen, 1, 0, 2.0, greedy=True)]).actions[0][0].tolist()
    assert sampled.mean() == pytest.approx(mean, abs=4 * 2 * np.exp(-1) / np.sqrt(4000))
    assert sampled.std() == pytest.approx(2 * np.exp(-1), rel=0.05)


@pytest.mark.parametrize("setting", [{"top_k": 2}, {"top_p": 0.5}, {"stop_texts": ("x",)}, {"sampled": 1}])
def test_settings_of_text_are_refused_by_the_sampler_of_vectors(setting: Any) -> None:
    sampler = local_engine(Mlp(Build(POLE), hidden=[8]))
    with pytest.raises(InputError, match=next(iter(setting))):
        sampler.sample([Request(np.zeros(4, dtype=np.float32), 1, **setting)])


def test_every_check_is_on_a_page_with_its_protocol() -> None:
    lines = (Path(__file__).parents[2] / "docs/policies.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith("| `") and "check_" in line.split("|")[2]]
    named = [name for _, tests in rows for name in re.findall(r"`(check_\w+)`", tests)]
    assert sorted(named) == sorted(grouprl.testing.__all__)
    for first, _ in rows:
        for name in re.findall(r"`(\w+)`", first):
            assert hasattr(grouprl.protocols, name), name
