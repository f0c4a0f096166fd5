"""Policies over every kind of space: conformance, masks, contexts, noise, chains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from grouprl.core.errors import InputError
from grouprl.envs import ArrayObservation
from grouprl.envs.array_spaces import counts
from grouprl.policy import ArrayInputs, ArrayPolicy, Build, Mlp, MultiCategorical, Seen, noise
from grouprl.policy.vectors.array_distributions import PlainCategorical, drawn, masked
from grouprl.protocols import Box, DictSpace, Discrete, Image, MultiDiscrete, Request, Space, Spaces
from grouprl.rollout.engines import local_engine
from grouprl.testing import check_inputs, check_policy, check_sampler

LENGTHS = (4, 1, 3)
OBSERVATIONS: dict[str, Space] = {
    "box": Box((3,), -1.0, (1.0, 2.0, 3.0)),
    "array": Box((2, 3)),
    "whole numbers": Box((3,), -5, 5, "int64"),
    "discrete": Discrete(5),
    "multi-discrete": MultiDiscrete((2, 4)),
    "image": Image(4, 3, 2),
    "dict": DictSpace({"at": Discrete(3), "speed": Box((2,)), "camera": Image(2, 2, 1)}),
}
ACTIONS: dict[str, Any] = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete((3, 2)),
    "box": Box((2,), -1.0, 1.0),
}
MAP = DictSpace({"map": Box((2, 2)), "kind": Discrete(3)})


def value_of(space: Space, luck: np.random.Generator, *size: int) -> Any:
    if isinstance(space, DictSpace):
        return {name: value_of(inner, luck, *size) for name, inner in space.spaces.items()}
    if isinstance(space, Discrete | MultiDiscrete):
        return luck.integers(0, np.array(counts(space)), (*size, len(counts(space)))).reshape((*size, *space.shape))
    if isinstance(space, Image):
        return luck.integers(0, 256, (*size, *space.shape)).astype(np.uint8)
    return luck.uniform(-1, 1, (*size, *space.shape)).astype(space.dtype)


def rows_in(spaces: Spaces, *, legal: bool = False) -> ArrayInputs:
    luck = np.random.default_rng(0)
    masks, actions = [], [value_of(spaces.action, luck, n) for n in LENGTHS]
    for done in actions if legal else ():
        sizes = counts(spaces.action)  # type: ignore[arg-type]
        mask = luck.random((len(done), sum(sizes))) < 0.4
        for number, start in enumerate(np.cumsum((0, *sizes[:-1]))):
            mask[np.arange(len(done)), start + done.reshape(len(done), -1)[:, number]] = True
        masks.append(mask)
    return ArrayInputs.of(
        [value_of(spaces.observation, luck, n) for n in LENGTHS],
        actions,
        context_b=[value_of(spaces.context, luck) for _ in LENGTHS],
        legal_bta=masks or None,
        final_b=[value_of(spaces.observation, luck) for _ in LENGTHS],
        seed_b=[2**64 - 1, 2**63, 5],
    )


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_perceptron_conforms_in_every_space(observation: str, action: str) -> None:
    spaces = Spaces(OBSERVATIONS[observation], ACTIONS[action], MAP if observation != "box" else DictSpace())
    inputs = rows_in(spaces, legal=action != "box" and observation != "array")
    policy = Mlp(Build(spaces, values=True, dtype=torch.float64), hidden=[8])
    check_policy(policy, inputs, values=True)
    check_inputs(inputs.finals())  # type: ignore[arg-type]
    luck = np.random.default_rng(1)
    requests = [
        Request(ArrayObservation(value_of(spaces.observation, luck), None, value_of(spaces.context, luck)), 1, seed)
        for seed in range(12)
    ]

    def logp(requested: Any, samples: Any) -> np.ndarray:
        rows = ArrayInputs.of(
            [stacked([r.prompt.values]) for r in requested],
            [list(x) for x in samples.actions],
            context_b=[r.prompt.context for r in requested],
        )
        return policy.logp(rows).numpy()

    check_sampler(local_engine(policy), requests, logp=logp, pieces=False)


def stacked(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: np.stack([value[name] for value in values]) for name in values[0]}
    return np.stack(values)


@pytest.mark.parametrize("action", [Box((2, 2)), Box((2,), 0, 3, "int64")], ids=["matrices", "whole numbers"])
def test_actions_that_a_perceptron_has_no_distribution_for_are_refused(action: Box) -> None:
    with pytest.raises(InputError, match="Its actions must be numbers, or vectors of real numbers"):
        Mlp(Build(Spaces(Box((2,)), action)))


def test_a_policy_says_which_spaces_it_takes() -> None:
    build = Build(Spaces(Image(2, 2), Discrete(2)))
    assert build.need_spaces("mine", observations=(Box, Image)) is build.spaces
    with pytest.raises(InputError, match=r"The policy mine reads Box or Discrete"):
        build.need_spaces("mine", observations=(Box, Discrete))
    with pytest.raises(InputError, match=r"The policy mine acts with MultiDiscrete"):
        build.need_spaces("mine", actions=(MultiDiscrete,))


def test_pictures_and_dicts_are_no_actions() -> None:
    for space in (Image(2, 2), DictSpace({"a": Discrete(2)})):
        with pytest.raises(InputError, match="MultiDiscrete or a Box"):
            Spaces(Box((2,)), space)  # type: ignore[arg-type]


def test_bounds_of_a_box_belong_to_its_numbers() -> None:
    with pytest.raises(InputError, match="low has 2 numbers"):
        Box((3,), low=(0.0, 1.0))


def test_several_categorical_numbers_are_independent() -> None:
    one, two = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.0, -1.0]])
    joint = MultiCategorical([one, two])
    log_one, log_two = one.log_softmax(-1)[0], two.log_softmax(-1)[0]
    for a in range(2):
        for b in range(3):
            assert joint.log_prob(torch.tensor([[a, b]])).item() == pytest.approx((log_one[a] + log_two[b]).item())
    entropy = -(log_one.exp() * log_one).sum() - (log_two.exp() * log_two).sum()
    assert joint.entropy().item() == pytest.approx(entropy.item(), abs=1e-6)
    many = MultiCategorical([one.expand(4000, -1), two.expand(4000, -1)])
    found = drawn(many, range(4000), greedy=False).double()
    share = torch.stack([found[:, 0].mean(), (found[:, 1] == 0).double().mean()])
    assert torch.allclose(share, torch.stack([log_one[1].exp(), log_two[0].exp()]).double(), atol=0.03)
    assert np.corrcoef(found.T)[0, 1] == pytest.approx(0.0, abs=0.06)
    assert drawn(joint, [0], greedy=True).tolist() == [[1, 0]]


def test_masked_actions_have_probability_0_and_the_rest_add_up_to_1() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    found = masked(Categorical(logits=logits), torch.tensor([[True, False, True]]))
    assert isinstance(found, Categorical)
    assert found.probs[0, 1] == 0
    assert found.probs.sum().item() == pytest.approx(1.0)
    # by hand: softmax over logits 1 and 3
    p = 1 / (1 + np.exp(-2.0))
    assert found.log_prob(torch.tensor([2])).item() == pytest.approx(np.log(p))
    assert found.entropy().item() == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
    (slope,) = torch.autograd.grad(found.log_prob(torch.tensor([2])) + found.entropy(), logits)
    assert torch.isfinite(slope).all()
    assert slope[0, 1] == 0
    many = Categorical(logits=torch.zeros(3000, 4))
    legal = torch.tensor([False, True, True, False]).expand(3000, -1)
    assert set(drawn(masked(many, legal), range(3000), greedy=False).tolist()) == {1, 2}
    with pytest.raises(InputError, match="Only categorical actions can be masked"):
        masked(Independent(Normal(torch.zeros(1, 2), torch.ones(1, 2)), 1), legal[:1])


@pytest.mark.parametrize("action", [Discrete(4), MultiDiscrete((3, 2))], ids=["discrete", "multi-discrete"])
def test_samples_and_their_scores_are_of_the_same_masked_distribution(action: Any) -> None:
    spaces = Spaces(Box((3,)), action)
    policy = Mlp(Build(spaces, seed=2), hidden=[8])
    luck = np.random.default_rng(0)
    legal = np.array([True, False, True, False] if isinstance(action, Discrete) else [False, True, True, True, False])
    requests = [
        Request(ArrayObservation(luck.standard_normal(3).astype(np.float32), legal), 1, seed) for seed in range(200)
    ]
    samples = local_engine(policy).sample(requests)
    actions = np.array([x for (x,) in samples.actions]).reshape(200, -1)
    if isinstance(action, Discrete):
        assert set(actions[:, 0]) == {0, 2}
    else:
        assert {tuple(action) for action in actions} == {(1, 0), (2, 0)}
    rows = ArrayInputs.of(
        [r.prompt.values[None] for r in requests], [list(x) for x in samples.actions], legal_bta=[legal[None]] * 200
    )
    assert torch.allclose(policy.logp(rows), torch.from_numpy(samples.logp_bt), atol=1e-6)
    free = policy.logp(replace(rows, legal_bta=None))
    assert (policy.logp(rows) > free).all()  # the legal actions share the probability of the others


def test_what_belongs_to_rows_follows_them() -> None:
    spaces = Spaces(OBSERVATIONS["dict"], Discrete(4), MAP)
    inputs = rows_in(spaces, legal=True)
    part = inputs.rows([2, 1])
    assert part.width == 3
    assert part.seed_b.tolist() == [5, -(2**63)]  # type: ignore[union-attr]
    assert torch.equal(part.context_b["map"], inputs.context_b["map"][[2, 1]])
    assert torch.equal(part.final_b["camera"], inputs.final_b["camera"][[2, 1]])  # type: ignore[index]
    both = part.joined([inputs.rows([0]), replace(inputs.rows([1]), legal_bta=None)])
    policy = Mlp(Build(spaces, values=True, dtype=torch.float64), hidden=[8])
    whole, again = (policy.evaluate(x, ("log_prob", "value")) for x in (inputs, both))
    for name, there in whole.items():
        assert torch.allclose(again[name][:3, :3], there[[2, 1, 0], :3], atol=1e-12)
    assert both.legal_bta[3, 0].all()  # type: ignore[index]  # no mask: everything is legal
    with pytest.raises(InputError, match="seed_b is None in some rows"):
        inputs.joined([replace(inputs, seed_b=None)])
    with pytest.raises(InputError, match="arrays are named"):
        inputs.joined([replace(inputs, context_b={})])


class Dropping(ArrayPolicy):
    """Reads a random half of its observation: its likelihood is one of the noise, too."""

    def __init__(self, build: Build) -> None:
        super().__init__(build, nn.ModuleDict({"logits": nn.Linear(6, 3)}))

    def distribution(self, seen: Seen, temperature: float) -> Categorical:
        kept = (noise(seen, 6) < 0.5).to(seen.observation)
        return Categorical(logits=self.module["logits"](seen.observation * kept) / temperature)


def test_a_row_is_scored_with_the_noise_that_it_was_sampled_with() -> None:
    spaces = Spaces(Box((6,)), Discrete(3))
    torch.manual_seed(0)
    policy = Dropping(Build(spaces))
    luck = np.random.default_rng(0)
    seen = luck.standard_normal((5, 2, 6)).astype(np.float32)
    seeds = [7, 2**64 - 1, 0, 2**63, 11]
    taken = [
        local_engine(policy).sample([Request(x[t], 1, (s + t) % 2**64) for x, s in zip(seen, seeds, strict=True)])
        for t in (0, 1)
    ]
    actions = [[one[0], two[0]] for one, two in zip(taken[0].actions, taken[1].actions, strict=True)]
    inputs = ArrayInputs.of(list(seen), actions, seed_b=seeds)
    sampled = torch.from_numpy(np.concatenate([x.logp_bt for x in taken], 1))
    old = policy.logp(inputs)
    assert torch.allclose(old, sampled, atol=1e-6)
    assert torch.equal(policy.logp(inputs), old)  # bit by bit
    assert torch.equal(policy.reference().logp(inputs), old)
    assert not torch.allclose(policy.logp(replace(inputs, seed_b=inputs.seed_b + 100)), old, atol=1e-3)
    check_policy(policy, inputs)
    with pytest.raises(InputError, match="the rows have no seeds"):
        policy.logp(replace(inputs, seed_b=None))


def test_noise_is_not_what_actions_are_sampled_by() -> None:
    seen = Seen(torch.zeros(1, 1), {}, torch.zeros(1, dtype=torch.int64), seed_n=torch.tensor([3]))
    assert noise(seen, 4).shape == (1, 4)
    assert noise(seen, 1).item() != np.random.default_rng(3).random()


def test_a_policy_without_dynamics_takes_no_chains() -> None:
    with pytest.raises(InputError, match="Mlp has no dynamics"):
        Mlp(Build(Spaces(Box((2,)), Discrete(2), chain=3)))
    policy = Mlp(Build(Spaces(Box((2,)), Discrete(2))))
    with pytest.raises(InputError, match="budget=3"):
        local_engine(policy).sample([Request(np.zeros(2, dtype=np.float32), 3)])


def test_rows_of_one_length_are_scored_as_beside_a_longer_row() -> None:
    spaces = Spaces(Box((3,)), Discrete(3))
    policy = Mlp(Build(seed=0, spaces=spaces, values=True, dtype=torch.float64), hidden=(4,))
    luck = np.random.default_rng(1)
    observations = [luck.normal(size=(length, 3)) for length in (2, 2, 3)]
    actions = [luck.integers(3, size=length) for length in (2, 2, 3)]
    names = ("log_prob", "entropy", "value")
    full, mixed = (ArrayInputs.of(observations[:n], actions[:n], seed_b=range(n)) for n in (2, 3))
    assert full.full
    assert not mixed.full
    for name, found_bt in policy.evaluate(full, names).items():
        torch.testing.assert_close(found_bt, policy.evaluate(mixed, names)[name][:2, :2], rtol=0, atol=1e-12)


def test_a_copy_keeps_its_own_type_of_weights() -> None:
    policy = Mlp(Build(Spaces(Box((2,)), Discrete(2))))
    assert policy.dtype == torch.float32
    other = policy.copied()
    policy.module.double()
    assert (policy.dtype, other.dtype, other.score_dtype) == (torch.float64, torch.float32, torch.float32)
    assert other.device == policy.device


def test_a_choice_is_torchs_categorical_bit_by_bit_in_values_and_gradients() -> None:
    number_n = torch.tensor([0, 2, 1, 2])
    logits_na = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * 5
    found = []
    for kind in (PlainCategorical, lambda x: Categorical(logits=x, validate_args=False)):
        leaf_na = logits_na.clone().requires_grad_()
        each = kind(leaf_na)
        logp_n, entropy_n = each.log_prob(number_n), each.entropy()
        (logp_n * torch.tensor([1.0, -2.0, 0.5, 3.0]) - entropy_n).sum().backward()
        found.append(torch.cat([logp_n.detach(), entropy_n.detach(), leaf_na.grad.flatten()]))
    assert torch.equal(*found)
