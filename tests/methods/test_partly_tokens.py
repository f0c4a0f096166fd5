"""Rules of methods whose papers could be checked in part: credit, weights and losses of single tokens.

Expected numbers are computed here from the written facts, in plain Python.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import grouprl
from facts import centred, ppo, slope, standardised, still
from small import f64, near, ragged, small

# --- 30 HICRA ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.5])
def test_hicra_raises_planning_tokens_by_a_share_of_the_advantages_size(alpha: float) -> None:
    """A + α|A| on planning tokens: (1 + α)A where A > 0, (1 - α)A where A < 0; A = R - mean."""
    plan = torch.tensor([[True, False], [False, True], [True, True]])
    batch = small([1.0, 0.0, 0.5], [2, 2, 2]).replace(marks={"plan": plan})
    ready = grouprl.method("hicra", alpha=alpha).prepare(batch)
    rows = zip(centred([1.0, 0.0, 0.5]), plan.tolist(), strict=True)
    near(ready.advantage_bt, [[a + alpha * abs(a) * p for p in row] for a, row in rows])


def test_hicra_has_the_ports_rule_too() -> None:
    """Only A > 0 and longer than the group's mean; tokens that plan or are among the most uncertain; A(1 + α)."""
    entropy = [[0.1, 0.9, 0.2, 0.3], [0.5, 0.6, 0.1, 0.0], [0.9, 0.0, 0.0, 0.0]]
    plan = torch.tensor([[True, False, False, False], [True] * 4, [True] * 4])
    batch = small([1.0, 0.0, 1.0], [4, 4, 1], entropy_bt=entropy).replace(marks={"plan": plan})
    ready = grouprl.method("hicra", rule="verl").prepare(batch)
    a, b, c = centred([1.0, 0.0, 1.0])
    near(ready.advantage_bt, ragged([[1.2 * a, 1.2 * a, a, a], [b] * 4, [c]]))


# --- 62 THR, NTHR -----------------------------------------------------------------------------------------------------

SCORES = [[4.0, 2.0, -5.0], [9.0, 1.0], [3.1, -6.0], [7.0, 0.2]]
RIGHT = [True, True, False, False]


def least_mean(beta: float = 1.0) -> float:
    """τ = β · min over right completions of their mean score."""
    return beta * min(statistics.fmean(row) for row, right in zip(SCORES, RIGHT, strict=True) if right)


@pytest.mark.parametrize("p", [0.1, 0.0, -0.1])
@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_thr_keeps_what_matters_and_tilts_it_by_its_sign(p: float, beta: float) -> None:
    """A' = 1[|THR| > τ](1 + sign(THR)·p)A, THR = s on right completions and -s on wrong ones."""
    batch = small([1, 1, 0, 0], [3, 2, 2, 2]).replace(
        correct_b=torch.tensor(RIGHT), stats={"influence": ragged(SCORES)}
    )
    expected = []
    for a, row, right in zip(standardised([1, 1, 0, 0]), SCORES, RIGHT, strict=True):
        thr = [s if right else -s for s in row]
        expected.append([(abs(x) > least_mean(beta)) * (1 + p * math.copysign(1, x)) * a for x in thr])
    near(grouprl.method("thr", p=p, beta=beta).prepare(batch).advantage_bt, ragged(expected))


@pytest.mark.parametrize("right", [1, 2, 3])
def test_nthr_spares_wrong_tokens_that_carry_right_ones(right: int) -> None:
    """η = 2|½ - p| on tokens of wrong completions with s > τ; everything else as in GRPO."""
    flags = [i < right for i in range(4)]
    rewards = [float(f) for f in flags]
    batch = small(rewards, [3, 2, 2, 2]).replace(correct_b=torch.tensor(flags), stats={"influence": ragged(SCORES)})
    tau = min(statistics.fmean(row) for row, f in zip(SCORES, flags, strict=True) if f)
    eta = 2 * abs(0.5 - right / 4)
    rows = zip(standardised(rewards), SCORES, flags, strict=True)
    expected = [[a * (eta if not f and s > tau else 1) for s in row] for a, row, f in rows]
    near(grouprl.method("nthr").prepare(batch).advantage_bt, ragged(expected))


# --- optimal token baseline -------------------------------------------------------------------------------------------


def test_otb_weighs_the_baseline_of_each_position_by_squared_gradient_norms_so_far() -> None:
    """W_t = Σ_{s≤t}(1 - 2π_s + Σ_a π_s(a)²); B_t = Σ R W_t/(Σ W_t + 1e-8); beyond the second longest: no baseline."""
    rewards, lengths = [1.0, 0.0, 0.6], [3, 2, 1]
    probs = [[0.5, 0.9, 0.2], [0.3, 0.6], [0.8]]
    collisions = [[0.4, 0.85, 0.3], [0.35, 0.5], [0.7]]
    batch = small(rewards, lengths, old_bt=[[math.log(p) for p in row] for row in probs])
    batch = batch.replace(stats={"collision": ragged(collisions)})
    energy = [[1 - 2 * p + c for p, c in zip(*rows, strict=True)] for rows in zip(probs, collisions, strict=True)]
    path = [[sum(row[: t + 1]) for t in range(len(row))] for row in energy]
    expected = []
    for r, n in zip(rewards, lengths, strict=True):
        row = []
        for t in range(n):
            there = [i for i in range(3) if lengths[i] > t]
            total = sum(path[i][t] for i in there)
            base = sum(rewards[i] * path[i][t] for i in there) / (total + 1e-8) if len(there) > 1 else 0.0
            row.append(r - base)
        expected.append(row)
    near(grouprl.method("otb").prepare(batch).advantage_bt, ragged(expected))


# --- 55 PPPO ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "trained"), [(20, 3), (7, 1), (6, 0)])
def test_pppo_trains_a_prefix_and_divides_by_all_tokens(length: int, trained: int) -> None:
    """floor(0.15·|o|) tokens; the denominator keeps all; R = right continuations + own outcome, group-normalised."""
    batch = small([1, 0], [length, 20], step=0, steps=100).replace(
        correct_b=torch.tensor([True, False]), rewards={"continuations": f64([6, 1])}
    )
    _, grad_bt, ready = slope(grouprl.method("pppo"), batch, still(batch))
    a, b = standardised([7, 1])
    near(ready.advantage_bt[:, 0], [a, b])
    whole = length + 20
    near(grad_bt, ragged([[-a / whole] * trained + [0.0] * (length - trained), [-b / whole] * 3 + [0.0] * 17]))


@pytest.mark.parametrize("ratio", [0.75, 1.0, 1.25, 1.3])
def test_pppo_clips_at_02_and_028_and_grows_its_prefix_to_035(ratio: float) -> None:
    batch = small([1, 0], [20, 20], step=99, steps=100).replace(
        correct_b=torch.tensor([True, False]), rewards={"continuations": f64([0, 0])}
    )
    _, grad_bt, _ = slope(grouprl.method("pppo"), batch, [[math.log(ratio)] * 20] * 2)
    assert (grad_bt[:, 7:] == 0).all()
    near(grad_bt[:, 6], [ppo(a, ratio, 0.8, 1.28) / 40 for a in standardised([1, 0])])


# --- 149 S-GRPO, T-SPMO -----------------------------------------------------------------------------------------------


def test_s_grpo_memory_trains_the_head_a_share_of_the_rest_and_at_most_its_limit() -> None:
    """First c tokens always, later ones with probability q, at most k; the mean is over the kept ones."""
    generator = torch.Generator().manual_seed(0)
    lengths = [400] * 40
    old_bt = (-torch.rand(40, 400, generator=generator)).tolist()
    batch = small([1.0, 0.0] * 20, lengths, old_bt=old_bt)
    method = grouprl.method("s_grpo_memory", head=50, keep=0.5, limit=None)
    _, grad_bt, _ = slope(method, batch, still(batch))
    keep_bt = grad_bt != 0
    assert keep_bt[:, :50].all()
    assert float(keep_bt[:, 50:].double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(40 * 350))
    adv = standardised([1.0, 0.0] * 20)
    near(grad_bt.sum(1), [-a / 40 for a in adv])
    limited = slope(grouprl.method("s_grpo_memory"), batch, still(batch))[1] != 0
    assert limited.sum(1).tolist() == [100] * 40


def test_t_spmo_credits_branching_tokens_once() -> None:
    """A(v|u) = mean R through u, v minus mean R through u and another token; mean over distinct (u, v) of A·π."""
    tokens, rewards = [[5, 1, 7], [5, 1, 8], [5, 2], [5, 1, 7]], [1.0, 0.0, 0.5, 0.0]
    batch = small(rewards, [3, 3, 2, 3]).replace(token_bt=ragged(tokens).long())
    batch = batch.replace(old_bt=ragged([[-0.1 * (i + t + 1) for t in range(3)] for i in range(4)]))
    places = [(tuple(row[:t]), row[t], r) for row, r in zip(tokens, rewards, strict=True) for t in range(len(row))]
    nodes = {(u, v) for u, v, _ in places}

    def credit(u: tuple[int, ...], v: int) -> float:
        through = [r for a, b, r in places if (a, b) == (u, v)]
        others = [r for a, b, r in places if a == u and b != v]
        return statistics.fmean(through) - statistics.fmean(others) if others else 0.0

    _, grad_bt, _ = slope(grouprl.method("t_spmo"), batch, still(batch))
    branching = {node for node in nodes if credit(*node) != 0}
    for i, row in enumerate(tokens):
        for t, v in enumerate(row):
            u = tuple(row[:t])
            sharing = sum((a, b) == (u, v) for a, b, _ in places)
            size = float(grad_bt[i, t]) / math.exp(float(batch.old_bt[i, t]))
            expected = -credit(u, v) / sharing
            assert size * len(nodes) == pytest.approx(expected), (u, v)
    assert branching == {((5,), 1), ((5,), 2), ((5, 1), 7), ((5, 1), 8)}


# --- 117 EGSW, 21 FunRL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (0.0, 1.0), (0.5, 2.0), (1.0, 1e6)])
def test_egsw_weighs_by_a_softmax_over_the_group_at_each_step(alpha: float, temperature: float) -> None:
    """w = softmax over the completions that have a token t of (A + αH_t)/P; times the GRPO term; KL not weighted."""
    entropy = [[0.5, 1.0, 0.1], [0.2, 2.0], [1.5]]
    batch = small([1, 0, 0], [3, 2, 1], entropy_bt=entropy, ref_bt=[[-1.0] * 3] * 3)
    method = grouprl.method("egsw", alpha=alpha, temperature=temperature, kl_coef=0.0)
    _, grad_bt, _ = slope(method, batch, still(batch))
    adv = standardised([1, 0, 0])
    for t in range(3):
        there = [i for i in range(3) if len(entropy[i]) > t]
        mass = [math.exp((adv[i] + alpha * entropy[i][t]) / temperature) for i in there]
        for i, m in zip(there, mass, strict=True):
            assert float(grad_bt[i, t]) == pytest.approx(-m / sum(mass) * adv[i] / len(entropy[i]) / 3)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 3.0])
def test_funrl_explores_in_the_thought_alone(alpha: float) -> None:
    """A + min(αH, |A|/2) on thought tokens, A on the call: the bonus never turns the sign."""
    entropy = [[0.1, 3.0, 2.0], [0.2, 5.0, 2.0]]
    thought = [[True, True, False], [True, True, False]]
    batch = small([1, 0], [3, 3], entropy_bt=entropy).replace(marks={"thought": torch.tensor(thought)})
    rows = zip(standardised([1, 0]), entropy, thought, strict=True)
    expected = [[a + min(alpha * h, abs(a) / 2) * y for h, y in zip(hs, ys, strict=True)] for a, hs, ys in rows]
    near(grouprl.method("funrl", alpha=alpha).prepare(batch).advantage_bt, expected)


# --- 351 OTR ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [-0.1, 0.0, -1.0])
@pytest.mark.parametrize("kappa", [1.0, 2.0])
def test_otr_is_the_expectation_of_sampling_one_token(beta: float, kappa: float) -> None:
    """-(p'(x) log π(x) + β Σ_{a≠x} p'(a) log π(a)); at κ = 1 its gradient is (1 - β)·π(x)∇log π(x)."""
    logit = f64([0.3, -1.0, 0.8, 0.1]).requires_grad_()
    logp = torch.log_softmax(logit, 0)
    p = torch.softmax(logit.detach() / kappa, 0)
    batch = small([1.0]).replace(old_bt=logp[:1].detach()[None], source_b=torch.tensor([2]))
    batch = batch.replace(stats={f"logp@{kappa:g}": p[:1].log()[None]})
    method = grouprl.method("otr", beta=beta, kappa=kappa)
    cross_bt = (p * logp).sum()[None, None]
    value = method.loss(logp[:1][None], method.prepare(batch), outputs={f"cross@{kappa:g}": cross_bt}).value
    expected = -(p[0] * logp[0] + beta * (p[1:] * logp[1:]).sum())
    (found,) = torch.autograd.grad(value, logit, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, logit, retain_graph=True)
    near(found, wanted)
    if kappa == 1:
        (score,) = torch.autograd.grad(logp[0], logit)
        near(found, -(1 - beta) * p[0] * score)


# --- ECHO, 249 RL^V ---------------------------------------------------------------------------------------------------


def test_echo_learns_what_the_environment_says_with_a_mean_of_its_own() -> None:
    """GRPO on the policy's tokens, + 0.1·cross-entropy over the N tokens of the environment."""
    mask = [[True, False, True], [True, False, False]]
    said = torch.tensor([[False, True, False], [False, True, True]])
    batch = small([1, 0], [3, 3], mask_bt=torch.tensor(mask)).replace(marks={"said": said})
    method = grouprl.method("echo")
    ready, leaf_bt = method.prepare(batch), batch.old_bt.clone().requires_grad_()
    (grad_bt,) = torch.autograd.grad(method.loss(leaf_bt, ready).value, leaf_bt)
    a, b = standardised([1, 0])
    near(grad_bt, [[-a / 2 / 2, -0.1 / 3, -a / 2 / 2], [-b / 2, -0.1 / 3, -0.1 / 3]])


@pytest.mark.parametrize("coef", [1.0, 0.3, 0.0])
def test_rl_v_learns_to_judge_its_completions(coef: float) -> None:
    """J_RL + λ·mean log π(z) over the verdicts; a verdict is no completion of the prompt."""
    batch = small([1, 0, 0, 0], [2, 1, 1, 1]).replace(source_b=torch.tensor([0, 0, 5, 5]))
    _, grad_bt, _ = slope(grouprl.method("rl_v", verify_coef=coef), batch, still(batch))
    a, b = standardised([1, 0])
    near(grad_bt, [[-a / 2 / 2] * 2, [-b / 2, 0], [-coef / 2, 0], [-coef / 2, 0]])
