"""What each method promises, from its paper: limits, identities, biases removed; by hand or by plain formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from grouprl.algorithms.part import RunFacts
from small import f64, gradient, near, small

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0]), min_size=3, max_size=6).filter(lambda r: len(set(r)) > 1)
GROUP_RELATIVE = [
    "grpo",
    "dr_grpo",
    "lite_ppo",
    "gspo",
    "cispo",
    "dispo",
    "gmpo",
    "sapo",
    "minirl",
    "rloo",
    "opo",
    "gpg",
]


def advantages(name: str, batch: grouprl.Batch, **options) -> torch.Tensor:
    return grouprl.method(name, **options).prepare(batch).advantage_bt[:, 0]


def several(rewards, **fields) -> grouprl.Batch:
    """One group whose completions have 3, 2, 1, 3, 2 … tokens, and everything any of these methods needs."""
    lengths = [3 - i % 3 for i in range(len(rewards))]
    old_bt = torch.full((len(rewards), 3), -1.0, dtype=torch.float64)
    return small(rewards, lengths, old_bt=old_bt, behavior_bt=old_bt, max_length=6, **fields)


# --- rewards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@settings(max_examples=15, deadline=None)
@given(rewards=REWARDS, shift=st.floats(-3, 3))
def test_a_constant_added_to_all_rewards_changes_nothing(name, rewards, shift):
    near(advantages(name, several([r + shift for r in rewards])), advantages(name, several(rewards)), 1e-9)


@pytest.mark.parametrize("name", ["grpo", "lite_ppo", "gspo", "cispo"])
@settings(max_examples=15, deadline=None)
@given(rewards=REWARDS, factor=st.floats(0.5, 20))
def test_normalised_advantages_do_not_change_with_the_unit_of_reward(name, rewards, factor):
    scaled = advantages(name, several([r * factor for r in rewards]), eps=0.0)
    near(scaled, advantages(name, several(rewards), eps=0.0), 1e-9)


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_a_group_without_spread_teaches_nothing(name):
    batch = several([0.1] * 4)
    assert not gradient(grouprl.method(name), batch, batch.old_bt).any()


@pytest.mark.parametrize("name", ["grpo", "rloo", "dr_grpo", "gpg"])
def test_advantages_of_a_group_sum_to_zero(name):
    near(advantages(name, several([3.0, 0.0, 1.0, 0.5])).sum(), 0.0, 1e-9)


def test_the_length_weighted_baseline_makes_tokens_sum_to_zero():
    batch = several([3.0, 0.0, 1.0])
    near(grouprl.method("opo").prepare(batch).advantage_bt.sum(), 0.0)


@settings(max_examples=20, deadline=None)
@given(rewards=REWARDS)
def test_leave_one_out_is_the_mean_form_times_g_over_g_less_one(rewards):
    g = len(rewards)
    near(advantages("rloo", several(rewards)), g / (g - 1) * advantages("dr_grpo", several(rewards)))


def test_lite_ppo_divides_by_the_spread_of_raw_rewards_and_reinforce_pp_baseline_of_centred_ones():
    """One mixed and one solved prompt."""
    batch = small([1, 0, 1, 1], groups=[0, 0, 1, 1])
    near(advantages("lite_ppo", batch, eps=0.0)[0], 0.5 / 0.5)
    near(advantages("reinforce_pp_baseline", batch, eps=0.0)[0], 0.5 / 0.125**0.5)


def test_scalerl_gives_the_batch_unit_spread():
    batch = small([1, -1, 1, -1, -1, 1, 1], groups=[0, 0, 1, 1, 1, 2, 2])
    near(advantages("scalerl", batch, eps=0.0)[:5].std(), 1.0)


def test_reinforce_pp_whitens_over_tokens():
    ready = grouprl.method("reinforce_pp", eps=0.0).prepare(several([3.0, 0.0, 1.0, 0.5]))
    token_n = ready.advantage_bt[ready.mask_bt]
    near(token_n.mean(), 0.0)
    near(token_n.var(unbiased=False), 1.0)


# --- length ---------------------------------------------------------------------------------------------------------


def test_length_bias():
    """A wrong completion of 3 tokens and one of 1: GRPO pushes each token of the long one less, Dr. GRPO does not."""
    batch = small([1.0, 0.0, 0.0], [1, 1, 3], max_length=4)
    short, long = (gradient(grouprl.method("grpo"), batch, batch.old_bt)[i, 0] for i in (1, 2))
    near(short, 3 * long)
    short, long = (gradient(grouprl.method("dr_grpo"), batch, batch.old_bt)[i, 0] for i in (1, 2))
    near(short, long)


def test_dr_grpo_is_the_token_sum_over_b_times_lmax():
    batch = small([1.0, 0.0, 0.5], [2, 1, 3], max_length=7)
    expected = -(batch.reward_b - 0.5)[:, None] * batch.mask_bt / (3 * 7)
    near(gradient(grouprl.method("dr_grpo"), batch, batch.old_bt), expected)
    near(gradient(grouprl.method("dr_grpo", length=14), batch, batch.old_bt), expected / 2)


# --- ratios ---------------------------------------------------------------------------------------------------------


def test_far_tokens_lose_their_gradient_in_grpo_and_keep_it_in_cispo():
    batch = several([1.0, 0.0])
    logp_bt = batch.old_bt + f64([[1.0], [-1.0]])
    assert not gradient(grouprl.method("grpo"), batch, logp_bt).any()
    assert (gradient(grouprl.method("cispo"), batch, logp_bt) != 0)[batch.mask_bt].all()


def test_scalerl_weighs_at_most_the_cap():
    batch = small([1.0, -1.0], behavior_bt=[[-1.0], [-1.0]])
    at, beyond = (gradient(grouprl.method("scalerl"), batch, batch.old_bt + r) for r in (0.0, 3.0))
    near(beyond, 5.0 * at)


def test_gspo_clips_whole_completions():
    """One token up, one down: the mean ratio is inside, though both tokens are far outside."""
    batch = small([1.0, 0.0], [2, 2])
    grad_bt = gradient(grouprl.method("gspo"), batch, batch.old_bt + f64([[0.5, -0.5], [0.01, 0.0]]))
    assert (grad_bt[0] != 0).all()
    assert (grad_bt[1] != 0).all()
    outside = gradient(grouprl.method("gspo"), batch, batch.old_bt + f64([[0.5, -0.4], [-0.01, 0.0]]))
    assert not outside.any()


def test_gspo_token_takes_advantages_that_differ_within_a_completion():
    from grouprl.algorithms.advantage.advantage import Given

    batch = small([0.0], [2]).replace(advantage_bt=f64([[1.0, -3.0]]))
    same = [grouprl.method(n).with_parts(advantage=Given()) for n in ("gspo", "gspo_token")]
    logp_bt = batch.old_bt + f64([[1e-4, 2e-4]])
    whole, token = (gradient(m, batch, logp_bt) for m in same)
    weight = torch.tensor(1.5e-4, dtype=torch.float64).exp() / 2
    near(whole, [[weight, weight]])
    near(token, [[-weight, 3 * weight]])


def test_minirl_and_the_gradient_of_whole_completions_agree_at_the_sampler():
    """At π = behavior the token objective has the gradient of -A·π(y)/π_behavior(y), the sequence's own objective."""
    batch = several([1.0, 0.0, 0.5])
    ours = gradient(grouprl.method("minirl"), batch, batch.old_bt)
    logp_bt = batch.old_bt.clone().requires_grad_()
    ratio_b = torch.where(batch.mask_bt, logp_bt - batch.behavior_bt, 0).sum(1).exp()
    value = -(ratio_b * (batch.reward_b - 0.5)).mean()
    near(ours, torch.autograd.grad(value, logp_bt)[0])


# --- rejection ------------------------------------------------------------------------------------------------------


def test_raft_is_sft_on_the_right_completions():
    """Up to the denominator, which counts all tokens."""
    batch = several([1.0, 0.0, 1.0, 0.0], groups=[0, 0, 1, 1])
    right = batch.rows(batch.reward_b > 0)
    ours = gradient(grouprl.method("raft"), batch, batch.old_bt)[batch.reward_b > 0]
    theirs = gradient(grouprl.method("sft"), right, right.old_bt)
    near(ours * batch.mask_bt.sum(), theirs * right.mask_bt.sum())


def test_reinforce_rej_needs_signed_rewards_to_unlearn():
    zero_one, signed = several([1.0, 0.0]), several([1.0, -1.0])
    assert not gradient(grouprl.method("reinforce_rej"), zero_one, zero_one.old_bt)[1].any()
    assert (gradient(grouprl.method("reinforce_rej"), signed, signed.old_bt)[1] > 0).any()


def test_with_zero_one_rewards_reinforce_rej_is_raft_pp_on_mixed_groups_bit_for_bit():
    batch = several([1.0, 0.0, 1.0, 0.0, 0.0], groups=[0, 0, 1, 1, 1])
    logp_bt = batch.old_bt + f64([[0.1, -0.4, 0.5]])
    assert torch.equal(*(gradient(grouprl.method(n), batch, logp_bt) for n in ("reinforce_rej", "raft_pp")))


# --- gpg, remax, ppo --------------------------------------------------------------------------------------------------


def test_gpg_is_the_mean_over_valid_groups_alone():
    batch = small([1, 0, 1, 1, 0, 0], [2, 1, 1, 2, 1, 1], [0, 0, 1, 1, 2, 2])
    valid = batch.rows(torch.arange(6) < 2)
    ours, theirs = (gradient(grouprl.method("gpg"), b, b.old_bt) for b in (batch, valid))
    near(ours[:2], theirs)
    assert not ours[2:].any()


def test_remax_does_not_move_a_sure_policy():
    batch = several([1.0, 1.0], greedy_reward_b=[1.0, 1.0])
    assert not gradient(grouprl.method("remax"), batch, batch.old_bt).any()


def test_remax_is_constant_over_tokens_without_discount_and_kl():
    ready = grouprl.method("remax").prepare(several([1.0, 0.0, 1.0], greedy_reward_b=[0.5] * 3))
    near(ready.advantage_bt, f64([0.5, -0.5, 0.5])[:, None] * ready.mask_bt)


def test_ppo_without_critic_and_decay_is_reinforce():
    batch = several([1.0, 0.0, 2.0], groups=[0, 1, 2], value_bt=[[0.0] * 3] * 3)
    ppo = gradient(grouprl.method("ppo", lam=1.0, whiten=False), batch, batch.old_bt)
    near(ppo * batch.mask_bt.sum(), gradient(grouprl.method("reinforce"), batch, batch.old_bt) * 3)


def test_ppo_fits_returns_that_are_not_whitened():
    batch = several([1.0, 0.0, 2.0], groups=[0, 1, 2], value_bt=[[0.3] * 3] * 3)
    ready = grouprl.method("ppo", critic_lam=1.0).prepare(batch)
    near(ready.return_bt, batch.reward_b[:, None] * batch.mask_bt + 0.0)
    token_n = ready.advantage_bt[ready.mask_bt]
    near(token_n.mean(), 0.0)


# --- an unbiased gradient on a bandit -------------------------------------------------------------------------------

LOGITS, PAYOFF = f64([0.2, -0.5, 0.9]), f64([1.0, 0.0, 0.4])


def bandit(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(mean, second moment) of the gradient estimate over all groups of `size` completions of one token, exactly."""
    method = grouprl.method(name)
    logp = LOGITS.log_softmax(0)
    greedy = [float(PAYOFF[LOGITS.argmax()])] * size
    mean, square = torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for actions in torch.cartesian_prod(*[torch.arange(3)] * size).view(-1, size):
        logits = LOGITS.clone().requires_grad_()
        chosen_bt = logits.log_softmax(0)[actions][:, None]
        batch = small(PAYOFF[actions].tolist(), old_bt=chosen_bt.detach(), greedy_reward_b=greedy)
        value = method.loss(chosen_bt, method.prepare(batch)).value
        (grad,) = torch.autograd.grad(value, logits)
        p = logp[actions].sum().exp()
        mean, square = mean - p * grad, square + p * grad.square().sum()
    return mean, square


def truth() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad((logits.softmax(0) * PAYOFF).sum(), logits)[0]


@pytest.mark.parametrize("name", ["reinforce", "rloo", "remax"])
def test_unbiased_estimators_have_the_true_gradient_on_average(name):
    near(bandit(name, 3)[0], truth(), 1e-12)


def test_the_group_mean_shrinks_the_gradient_by_g_less_one_over_g():
    near(bandit("opo", 3)[0], 2 / 3 * truth(), 1e-12)


def test_baselines_lower_the_variance():
    plain, *others = (bandit(name, 4)[1] for name in ("reinforce", "rloo", "remax"))
    assert all(other < plain for other in others)


# --- what a plan needs to know --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reinforce", "rloo", "remax", "opo", "gpg"])
def test_methods_without_ratio_are_on_policy(name):
    assert grouprl.method(name).on_policy
    assert "old_bt" not in grouprl.method(name).needs()


def test_what_a_run_must_provide():
    assert grouprl.method("remax").greedy_baseline
    assert grouprl.method("dapo", max_rounds=4).refill.max_rounds == 4
    assert grouprl.method("dapo", dynamic_sampling=False).refill is None
    assert grouprl.method("ppo").critic is not None
    critics = {n for n, e in grouprl.methods().items() if "@" not in n and e.build().critic}
    completions = {
        "apa",
        "d_ppo",
        "dapo_direct",
        "dr_po",
        "mdpo",
        "ppo",
        "ppo_max",
        "rto",
        "text2grad",
        "trpo",
        "vapo",
        "vc_ppo",
    }
    turns = {
        "ami",
        "dec_dpo",
        "duration_aware",
        "fixpo",
        "ippo",
        "mapo_lso",
        "mra",
        "multi_turn_ppo",
        "pdppo",
        "ppo_ad",
        "ppo_control",
        "props",
        "spa_rl",
        "st_ppo",
        "turn_ppo",
        "ufo",
    }
    flows = {"tb", "db", "subtb"}
    stored = {"f_dvl", "odice"}
    assert critics == completions | turns | flows | stored


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp_baseline", "gspo", "raft", "reinforce_rej"])
def test_a_kl_loss_needs_a_reference_only_when_it_counts(name):
    assert "ref_bt" not in grouprl.method(name).needs()
    method = grouprl.method(name, kl_coef=0.01)
    assert "ref_bt" in method.needs()
    assert any("reference" in word for p in method.parts() for word in p.refuse(RunFacts(has_reference=False)))


@pytest.mark.parametrize("name", ["reinforce", "reinforce_pp", "rloo", "remax", "ppo"])
def test_kl_in_the_reward_lowers_the_advantage_of_what_the_reference_dislikes(name):
    """The reference finds the first completion less likely than the policy does."""
    batch = small([1.0, 1.0], ref_bt=[[-3.0], [-1.0]], value_bt=[[0.0], [0.0]], greedy_reward_b=[0.0, 0.0])
    adv = advantages(name, batch, kl_coef=0.1)
    assert adv[0] < adv[1]


@pytest.mark.parametrize(
    ("name", "options", "inert"),
    [
        ("grpo", {"kl_estimator": "k2"}, ["kl_estimator"]),
        ("grpo", {"kl_estimator": "k2", "kl_coef": 0.1}, []),
        ("dapo", {"dynamic_sampling": False, "max_rounds": 3}, ["max_rounds"]),
        ("dapo", {"max_rounds": 3, "clip_low": 0.2}, []),
        ("reinforce", {"kl_estimator": "k2", "baseline": "group"}, ["kl_estimator"]),
    ],
)
def test_settings_that_change_nothing_are_named(name, options, inert):
    assert grouprl.methods()[name].inert(options) == inert
