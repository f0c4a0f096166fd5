"""Episodes of arrays as they are played: masks, contexts, bounds, chains, final observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from denoising import Chain, Denoising, WholeDenoising
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation, Step
from grouprl.envs.environment_pool import HereStage
from grouprl.envs.environment_pool_choice import open_stage
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, Discrete, Request, Spaces
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import Start
from grouprl.rollout.episodes import Episodes
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks import Example, load_task
from grouprl.testing import check_environment, check_inputs, check_policy
from grouprl.training.logprobs import with_final_values
from tours import CITIES, Pointer, Tour, WholeTour


def starts(count: int) -> list[Start]:
    """Two episodes for each prompt, whose maps are the same."""
    return [Start(Example(f"q{i // 2}", "", {"seed": i // 2}), i, action_seed=1000 * i) for i in range(count)]


def played(policy: Any, kind: Any, *, count: int = 6, turns: int = CITIES, greedy: bool = False) -> Episodes:
    engine = local_engine(policy)
    return play_arrays(engine, kind, starts(count), spaces=kind.spaces, max_turns=turns, greedy=greedy)


def test_a_tour_is_built_from_a_map_that_is_shown_once() -> None:
    policy = Pointer(Build(Tour.spaces, values=True))
    episodes = played(policy, Tour)
    inputs = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    assert episodes.ended == ("terminated",) * 6
    assert inputs.context_b["city"].shape == (6, CITIES, 2)  # once for each row, not for each of its steps
    assert torch.equal(inputs.context_b["city"][0], inputs.context_b["city"][1])
    assert not torch.equal(inputs.context_b["city"][0], inputs.context_b["city"][2])
    assert inputs.legal_bta is not None
    assert inputs.legal_bta.sum(-1).tolist() == [[6, 5, 4, 3, 2, 1]] * 6
    for order in inputs.action_bt.tolist():
        assert sorted(order) == list(range(CITIES))
    assert len({tuple(order) for order in inputs.action_bt.tolist()}) > 1
    before = policy.maps_read
    logp_bt = policy.logp(inputs)
    assert policy.maps_read - before == 6  # one map for each row, however long the row is
    assert torch.allclose(logp_bt, episodes.rollout.logp_bt, atol=1e-6)
    assert torch.equal(logp_bt[:, -1], torch.zeros(6))  # the last city is the only one
    check_inputs(inputs)
    check_policy(policy, inputs, values=True)
    check_environment(Tour, starts(1)[0].example, [2, 0, 1, 5, 4, 3], spaces=Tour.spaces)
    check_environment(WholeTour, starts(1)[0].example, [[2, 0, 1, 5, 4, 3]], spaces=WholeTour.spaces)


def test_rows_are_scored_alike_however_they_are_cut() -> None:
    spaces = Tour.spaces
    whole = Pointer(Build(spaces, dtype=torch.float64))
    inputs = played(whole, Tour).rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    pieces = Pointer(Build(spaces, dtype=torch.float64, positions=CITIES))
    expected = whole.logp(inputs)
    assert torch.allclose(pieces.logp(inputs), expected, atol=1e-12)
    apart = [inputs.rows([row]) for row in (3, 1, 5)]
    assert torch.allclose(whole.logp(apart[0].joined(apart[1:])), expected[[3, 1, 5]], atol=1e-12)


@pytest.mark.parametrize("greedy", [False, True])
def test_a_chain_in_one_request_is_the_chain_step_by_step(greedy: bool) -> None:
    for one, whole, policy in (
        (Tour, WholeTour, Pointer(Build(WholeTour.spaces))),
        (Denoising, WholeDenoising, Chain(Build(WholeDenoising.spaces))),
    ):
        steps, chain = played(policy, one, greedy=greedy), played(policy, whole, turns=1, greedy=greedy)
        assert [len(record.turns) for record in chain.records] == [1] * 6
        assert chain.ended == steps.ended == ("terminated",) * 6
        assert chain.outcomes == steps.outcomes
        ones, wholes = steps.rollout.inputs, chain.rollout.inputs
        assert isinstance(ones, ArrayInputs)
        assert isinstance(wholes, ArrayInputs)
        assert torch.equal(ones.action_bt, wholes.action_bt)
        assert torch.equal(steps.rollout.logp_bt, chain.rollout.logp_bt)
        again = policy.logp(wholes)
        assert torch.equal(again, policy.logp(ones))
        assert torch.allclose(again, chain.rollout.logp_bt, atol=1e-5)


class Counted(HereStage):
    """Counts the calls that episodes make."""

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.steps = 0

    def send(self, method: str, calls: Any) -> None:
        self.steps += len(calls) if method == "step" else 0
        super().send(method, calls)


def test_the_environment_is_called_once_for_a_chain() -> None:
    policy, stage = Chain(Build(WholeDenoising.spaces)), Counted(WholeDenoising)
    play_arrays(local_engine(policy), WholeDenoising, starts(3), spaces=WholeDenoising.spaces, max_turns=1, stage=stage)
    assert stage.steps == 3


def test_a_chain_ends_by_itself_or_is_truncated_by_its_budget() -> None:
    sampler = local_engine(Chain(Build(WholeDenoising.spaces)))
    prompt = np.array([0.3, -0.2, 0.0], dtype=np.float32)
    short, exact, long = sampler.sample([Request(prompt, budget, 5) for budget in (2, 4, 9)]).actions
    found = sampler.sample([Request(prompt, budget, 5) for budget in (2, 4, 9)])
    assert found.truncated_b.tolist() == [True, False, False]
    assert (len(short), len(exact), len(long)) == (2, 4, 4)
    assert np.array_equal(np.stack(exact), np.stack(long))
    assert np.allclose(np.stack(short), np.stack(exact)[:2])
    assert found.states is not None
    first, second = found.states[1][:2]
    assert isinstance(first, ArrayObservation)
    assert np.array_equal(first.values, prompt)  # type: ignore[arg-type]
    assert np.allclose(second.values, [*exact[0], 0.25])  # type: ignore[attr-defined]


def test_states_belong_to_actions() -> None:
    whole = local_engine(Chain(Build(WholeDenoising.spaces))).sample([Request(np.zeros(3, dtype=np.float32), 4)])
    with pytest.raises(InputError, match="Every action needs the state before it"):
        replace(whole, states=((),))


class Pushed:
    """Shows how far it was pushed, and by what; ends by a limit, or where the prompt says so at an end."""

    spaces = Spaces(Box((2,)), Box((1,), -0.5, 0.25))

    def reset(self, example: Any, seed: int) -> Any:
        self.place, self.time, self.ends = 0.0, 0, example.columns["seed"] == 1
        return [0.0, 0.0]

    def step(self, action: Any) -> Step:
        self.place += float(action[0])
        self.time += 1
        over = self.time == 3
        return Step([self.place, float(action[0])], 0.0, over and self.ends, over and not self.ends)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def test_the_environment_is_told_of_actions_within_their_bounds() -> None:
    policy = Mlp(Build(Pushed.spaces), hidden=[4], log_std=1.0)
    inputs = played(policy, Pushed, turns=9).rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    done, told = inputs.action_bt[:, :-1, 0], inputs.observation_bt[:, 1:, 1]  # type: ignore[call-overload, index]
    assert (done.abs() > 0.5).any()  # a row keeps what was sampled
    assert torch.equal(told, done.clamp(-0.5, 0.25))


def test_values_of_final_observations_reach_the_batch_where_a_limit_cut_the_row() -> None:
    policy = Mlp(Build(Pushed.spaces, values=True), hidden=[4])
    episodes = played(policy, Pushed, turns=9)
    inputs = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    assert episodes.rollout.truncated_b.tolist() == [True, True, False, False, True, True]
    final_bd = inputs.final_b
    assert isinstance(final_bd, torch.Tensor)
    assert torch.allclose(final_bd[:, 0], inputs.action_bt.clamp(-0.5, 0.25).sum((1, 2)), atol=1e-6)
    batch = Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.tensor([0, 0, 1, 1, 2, 2]),
        reward_b=torch.zeros(6),
        truncated_b=episodes.rollout.truncated_b,
    )
    found = with_final_values(policy, batch, inputs).final_value_b
    assert found is not None
    assert policy.critic is not None
    expected = policy.critic(final_bd)[:, 0].detach()
    assert torch.allclose(found, torch.where(episodes.rollout.truncated_b, expected, 0.0), atol=1e-6)
    limited = played(policy, Pushed, turns=2)  # a limit of turns is a limit, too
    assert limited.rollout.truncated_b.all()


def test_an_environment_that_is_asked_for_more_than_it_has_shown_fails_in_words() -> None:
    class Bare(Tour):
        def reset(self, example: Any, seed: int) -> ArrayObservation:
            return replace(super().reset(example, seed), context={})

    episodes = played(Pointer(Build(Tour.spaces)), Bare, count=2)
    assert episodes.ended == ("error", "error")
    assert "the space has the names ['city']" in str(episodes.verdicts[0])
    inputs = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    assert inputs.context_b["city"].shape == (2, CITIES, 2)


def test_arrays_travel_from_workers_number_by_number() -> None:
    task = load_task({"name": f"env:{Tour.__module__}:WholeTour", "turns": 1})
    policy = Pointer(Build(task.spaces))
    here = played(policy, WholeTour, turns=1)
    stage, _ = open_stage(task, 1)
    try:
        away = play_arrays(
            local_engine(policy), task.environment, starts(6), spaces=WholeTour.spaces, max_turns=1, stage=stage
        )
    finally:
        stage.close()
    assert away.outcomes == here.outcomes
    for name in ("action_bt", "seed_b", "legal_bta"):
        assert torch.equal(getattr(away.rollout.inputs, name), getattr(here.rollout.inputs, name))


def test_a_chain_has_an_action() -> None:
    with pytest.raises(InputError, match="chain=0"):
        Spaces(Box((1,)), Discrete(2), chain=0)
