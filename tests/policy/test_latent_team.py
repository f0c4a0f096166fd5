"""A team in its latent space: what is foreseen by hand, who is left out, whose gradient it is, and who may see what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.outputs import AHEAD_ERROR, FORESEEN_REWARD, LATENT_ERROR, MASKED_ERROR, VALUE
from grouprl.policy import ArrayInputs, Build, LatentTeam
from grouprl.policy.vectors.latent_team import FORESEEN
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.testing import check_policy

AGENTS, FEATURES, ACTIONS = 3, 2, 2
SPACES = Spaces(
    DictSpace(
        {
            "own": Box((FEATURES,)),
            "agent": Discrete(AGENTS),
            "team": Box((AGENTS, FEATURES)),
            "there": Box((AGENTS,)),
            "done": Box((AGENTS, ACTIONS)),
        }
    ),
    Discrete(ACTIONS),
)
Team = tuple[np.ndarray, np.ndarray, np.ndarray]


def policy_of(**settings: Any) -> LatentTeam:
    build = Build(SPACES, values=settings.pop("values", False), dtype=settings.pop("dtype", torch.float64))
    return LatentTeam(build, **{"width": 4, "ahead": 2, **settings})


def team_of(seed: int, rounds: int = 4) -> Team:
    """Draw what agents see [T,K,F], what they do [T,K], and who acts [T,K]: the last one comes in the second round."""
    luck = np.random.default_rng(seed)
    there = np.ones((rounds, AGENTS), bool)
    there[:1, 2] = False
    return luck.normal(size=(rounds, AGENTS, FEATURES)), luck.integers(0, ACTIONS, (rounds, AGENTS)), there


def rows_of(team: Team, agents: tuple[int, ...] = (0, 1, 2)) -> ArrayInputs:
    """Return the rows of agents, as the environment would make them."""
    seen, acted, there = team
    done = np.zeros((*acted.shape, ACTIONS), np.float32)
    done[1:] = np.eye(ACTIONS)[acted[:-1]] * there[:-1, :, None]
    shown = np.where(there[..., None], seen, 0).astype(np.float64)
    whole = {"team": shown, "there": there.astype(np.float32), "done": done}
    rows, actions = [], []
    for agent in agents:
        at = np.flatnonzero(there[:, agent])
        own = {"own": seen[at, agent], "agent": np.full(len(at), agent)}
        rows.append({**own, **{name: x[at] for name, x in whole.items()}})
        actions.append(acted[at, agent])
    return ArrayInputs.of(rows, actions, seed_b=list(range(len(agents))))


def module_of(policy: LatentTeam, *names: str) -> nn.Module:
    return policy.module.get_submodule(".".join(names))


def moved_follower(policy: LatentTeam) -> LatentTeam:
    """Move the follower away from the encoder, so that targets are not the policy's own latents."""
    luck = torch.Generator().manual_seed(5)
    for buffer in module_of(policy, "follower").buffers():
        buffer += 0.3 * torch.randn(buffer.shape, generator=luck).to(buffer)
    return policy


def test_it_conforms() -> None:
    check_policy(policy_of(values=True, hidden=[8]), rows_of(team_of(0)), values=True)


def test_heads_that_foresee_zero_err_by_squares_of_what_comes() -> None:
    policy, team = moved_follower(policy_of()), team_of(1)
    for parameter in module_of(policy, "foresight").parameters():
        nn.init.zeros_(parameter)
    inputs = rows_of(team)
    found = policy.evaluate(inputs, FORESEEN)
    number = torch.eye(AGENTS, dtype=torch.float64)
    own = torch.from_numpy(team[0])
    target_tkw = module_of(policy, "follower")(torch.cat([own, number.expand(len(own), -1, -1)], -1))
    coming_tk, seen_tk = target_tkw.square().mean(-1), own.square().mean(-1)
    zero = torch.zeros(1, dtype=torch.float64)
    for agent in (0, 1):
        torch.testing.assert_close(found[LATENT_ERROR][agent], torch.cat([coming_tk[1:, agent], zero]))
        torch.testing.assert_close(found[MASKED_ERROR][agent], seen_tk[:, agent])
        torch.testing.assert_close(found[AHEAD_ERROR][agent], torch.tensor([2.0, 2.0, 2.0, 0.0], dtype=torch.float64))
    torch.testing.assert_close(found[LATENT_ERROR][2, :3], torch.cat([coming_tk[2:, 2], zero]))
    assert not found[FORESEEN_REWARD].any()
    assert all(float(x[2, 3]) == 0 for x in found.values())


def test_what_lies_ahead_is_the_mean_over_the_steps_that_the_row_has() -> None:
    """A step that keeps the latent and a predictor that keeps it: 2 - 2·cosine of latents, step by step."""
    policy, team = moved_follower(policy_of(ahead=2)), team_of(2)
    for name in ("step", "predictor"):
        cast("nn.ModuleDict", module_of(policy, "foresight"))[name] = Keeps(4)
    (mine_t,) = policy.evaluate(rows_of(team, (1,)), (AHEAD_ERROR,))[AHEAD_ERROR]
    read = torch.cat([torch.from_numpy(team[0][:, 1]), torch.eye(AGENTS, dtype=torch.float64)[[1] * 4]], -1)
    own_tw, next_tw = module_of(policy, "encoder")(read), module_of(policy, "follower")(read)

    def far(here: int, there: int) -> Tensor:
        return 2 - 2 * (own_tw[here] @ next_tw[there]) / (own_tw[here].norm() * next_tw[there].norm())

    expected = [(far(0, 1) + far(0, 2)) / 2, (far(1, 2) + far(1, 3)) / 2, far(2, 3), torch.zeros(())]
    torch.testing.assert_close(mine_t.tolist(), [float(x.detach()) for x in expected])


class Keeps(nn.Module):
    """The first numbers as they are."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x_nf: Tensor) -> Tensor:
        return x_nf[:, : self.count]


def test_gradients_are_those_of_finite_differences_and_targets_have_none() -> None:
    policy, inputs = moved_follower(policy_of(values=True)), rows_of(team_of(3))
    luck = torch.Generator().manual_seed(0)
    pulls = {
        name: torch.randn(len(inputs), inputs.width, generator=luck, dtype=torch.float64) for name in (*FORESEEN, VALUE)
    }
    policy.backward(inputs, pulls)
    slopes = {
        name: parameter.grad.clone() for name, parameter in policy.named_parameters() if parameter.grad is not None
    }

    def total() -> float:
        present_bt = inputs.present_bt()
        found = policy.evaluate(inputs, tuple(pulls))
        return sum(float((pull * found[name] * present_bt).sum()) for name, pull in pulls.items())

    def slope(weight: Tensor) -> float:
        flat, step = weight.detach().view(-1), 1e-5
        flat[1] += step
        above = total()
        flat[1] -= 2 * step
        below = total()
        flat[1] += step
        return (above - below) / (2 * step)

    for name, parameter in policy.named_parameters():
        if name in slopes and parameter.numel() > 1:
            assert slope(parameter) == pytest.approx(float(slopes[name].view(-1)[1]), abs=1e-7), name
    assert any(name.startswith("encoder.") and bool(x.any()) for name, x in slopes.items())
    assert not any(name.startswith("follower") for name, _ in policy.named_parameters())
    targets = dict(module_of(policy, "follower").named_buffers())
    assert all(buffer.grad is None and not buffer.requires_grad for buffer in targets.values())
    assert abs(slope(targets["0-weight"])) > 1e-3, "errors depend on the targets, but nobody descends along that"


@pytest.mark.parametrize("name", [*FORESEEN, VALUE])
def test_the_others_order_does_not_matter(name: str) -> None:
    """An encoder that does not read numbers of agents: rows with the others exchanged are judged alike."""
    policy, team = moved_follower(policy_of(values=True)), team_of(4)
    with torch.no_grad():
        cast("nn.Linear", module_of(policy, "encoder", "0")).weight[:, FEATURES:] = 0
    there = np.ones_like(team[2])
    turned = tuple(x[:, [0, 2, 1]] for x in (team[0], team[1], there))
    one, other = (policy.evaluate(rows_of(x, (0,)), (name,))[name] for x in ((*team[:2], there), cast("Team", turned)))
    torch.testing.assert_close(one, other)


def test_who_is_not_there_is_not_read() -> None:
    policy, team = policy_of(values=True), team_of(5)
    seen, acted, there = team
    loud = rows_of(team)
    shown = {name: x.clone() for name, x in cast("Mapping[str, Tensor]", loud.observation_bt).items()}
    shown["team"][:, 0, 2] = 100.0  # the third agent comes in the second round
    louder = ArrayInputs(shown, loud.action_bt, loud.length_b, seed_b=loud.seed_b)
    names = (*FORESEEN, VALUE, "log_prob")
    one, other = policy.evaluate(loud.rows([0, 1]), names), policy.evaluate(louder.rows([0, 1]), names)
    assert all(torch.equal(one[name], other[name]) for name in names)
    alone = rows_of((seen, acted, there & np.array([True, False, False])), (0,))
    assert not policy.evaluate(alone, (MASKED_ERROR,))[MASKED_ERROR].any()


def test_an_agent_that_sits_out_a_round_has_no_next_round_there() -> None:
    """It acts in the first, second and fourth round: what follows its second action is not shown."""
    policy, (seen, acted, there) = policy_of(), team_of(6)
    there = np.ones_like(there)
    there[2, 1] = False
    (latent_t,) = policy.evaluate(rows_of((seen, acted, there), (1,)), (LATENT_ERROR,))[LATENT_ERROR]
    (ahead_t,) = policy.evaluate(rows_of((seen, acted, there), (1,)), (AHEAD_ERROR,))[AHEAD_ERROR]
    assert [bool(x) for x in latent_t] == [bool(x) for x in ahead_t] == [True, False, False]


def test_actions_are_read_from_what_an_agent_sees_itself() -> None:
    policy, team = policy_of(values=True), team_of(7)
    changed = (team[0].copy(), team[1], team[2])
    changed[0][:, 1:] += 1
    one, other = (policy.evaluate(rows_of(x, (0,)), ("log_prob", VALUE)) for x in (team, changed))
    assert torch.equal(one["log_prob"], other["log_prob"])
    assert bool((one[VALUE] != other[VALUE]).all())


def test_foresight_does_not_depend_on_how_rows_are_divided() -> None:
    whole = rows_of(team_of(8))
    one, small = policy_of(values=True), policy_of(values=True)
    small.positions = 4
    names = (*FORESEEN, VALUE)
    together, apart = one.evaluate(whole, names), small.evaluate(whole, names)
    turned = one.evaluate(whole.rows([2, 0, 1]), names)
    for name in names:
        torch.testing.assert_close(together[name], apart[name], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(together[name][[2, 0, 1]], turned[name], rtol=1e-12, atol=1e-12)


def test_the_follower_moves_once_after_a_rollout_by_its_share() -> None:
    policy = policy_of(decay=0.75)
    before = module_of(policy, "follower").get_buffer("0-weight").clone()
    with torch.no_grad():
        for parameter in module_of(policy, "encoder").parameters():
            parameter += 1.0
    policy.renew()
    assert torch.equal(module_of(policy, "follower").get_buffer("0-weight"), before), "no rollout was made"
    policy.observe(rows_of(team_of(0)))
    kept = policy.trainable_state()
    for _ in range(2):
        policy.renew()
        torch.testing.assert_close(module_of(policy, "follower").get_buffer("0-weight"), before + 0.25)
    other = policy_of(decay=0.75)
    other.load_trainable_state(kept)
    other.renew()
    assert torch.equal(*(module_of(p, "follower").get_buffer("0-weight") for p in (policy, other)))


def linear_rows(count: int, seed: int) -> tuple[ArrayInputs, Tensor]:
    """Rows of a team whose observations follow o' = A·o + b_m·a + the mean of the others' o/4, and its rewards."""
    luck, turn = np.random.default_rng(seed), np.array([[0.6, -0.4], [0.4, 0.6]])
    parts, rewards = [], []
    for _ in range(count):
        seen = [luck.normal(size=(AGENTS, FEATURES))]
        acted = luck.integers(0, ACTIONS, (5, AGENTS))
        for each in acted[:-1]:
            others = (seen[-1].sum(0) - seen[-1]) / (AGENTS - 1)
            seen.append(seen[-1] @ turn.T + 0.5 * (each[:, None] - 0.5) + others / 4)
        parts.append(rows_of((np.stack(seen), acted, np.ones((5, AGENTS), bool))))
        rewards.append(torch.from_numpy(np.stack(seen)).sum(-1).T)
    return parts[0].joined(parts[1:]), torch.cat(rewards)


def test_where_dynamics_are_linear_errors_of_foresight_go_to_zero() -> None:
    policy = policy_of(width=8, ahead=2)
    policy.module["encoder"][1] = nn.Identity()  # type: ignore[index, operator]
    module_of(policy, "follower")._shape[0][1] = nn.Identity()  # type: ignore[union-attr, operator, index]
    inputs, reward_bt = linear_rows(32, 0)
    adam = torch.optim.Adam(policy.parameters(), 1e-2)

    def errors(of: ArrayInputs, paid_bt: Tensor, *, grad: bool = False) -> Tensor:
        found = policy.evaluate(of, FORESEEN, grad=grad)
        earned = (found[FORESEEN_REWARD] - paid_bt).square().mean()
        return torch.stack([found[LATENT_ERROR].mean(), earned, found[AHEAD_ERROR].mean()])

    new = linear_rows(16, 1)
    before = errors(*new)
    for _ in range(300):
        adam.zero_grad()
        errors(inputs, reward_bt, grad=True).sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
    after = errors(*new)
    assert bool((after[:2] < 0.03 * before[:2]).all()), (before, after)
    assert float(after[2]) < 0.3 * float(before[2]), "the others, who are not read here, have a part in what comes"


def test_what_it_cannot_work_with_is_refused() -> None:
    own = Spaces(DictSpace({"own": Box((2,)), "agent": Discrete(3)}), Discrete(2))
    with pytest.raises(InputError, match="learns from what the whole team sees"):
        LatentTeam(Build(own))
    for wrong in ({"width": 0}, {"ahead": 0}, {"decay": 1.5}):
        with pytest.raises(InputError, match="1 or more"):
            policy_of(**wrong)
