"""Every method of the catalogue learns: three softmax tokens, each with one right choice of five."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from batches import COMPONENTS
from grouprl import Batch, Method
from grouprl.core.edges import Edges

TARGET = torch.tensor([1, 3, 2])
SETTINGS = {
    "cpmobius": {"coach_entropy": 0.0},
    "vapo": {"length_alpha": 5.0},
    "dapo_direct": {"lam": 0.95},
    "copg": {"beta": 0.05},
    "plaid": {"lowest": 1.0},
    "discopop": {"tau": 1.0},
    "gtpo_trajectory": {"entropy_limit": None},
    "egsw": {"kl_coef": 0.0},
    "hpt": {"entropy_coef": 0.0},
    "g_ra": {"threshold": None},
    "hi_agent": {"every": 0},
    "intuitor": {"external": 1.0},
    "intellect2": {"entropy_coef": 0.0},
    **{name: {"entropy_coef": 0.0} for name in ("ippo", "ami", "fixpo", "mra")},
    "mapo_lso": {"entropy_coef": 0.0, "dynamics": 0.0, "prediction": 0.0},
    "remix": {"entropy_coef": 0.0},
    "text2grad": {"kl_coef": 0.0},
    "ufo": {"entropy_coef": 0.0},
    "pppo": {"prefix_start": 1.0, "prefix_limit": 1.0},
    "nash_md": {"beta": 0.002},
    "nash_mp": {"beta": 0.002},
    "egpo": {"beta": 0.01},
    "dno": {"beta": 0.05},
    "exo_rw": {"beta_r": 0.05},
    "f_dpg": {"beta": 0.05},
    "counterpol": {"target": 1.0, "coef": 0.0},
}
"""DiscoPOP's loss rises with the difference where policy and reference agree: with its own τ it learns the opposite.
Completions of three tokens: with VAPO's own 0.05 its λ is 0, as that of dapo_direct, and a critic of
positions alone teaches nothing. CoPG's optimum is the tilt of the uniform reference by exp(R/β), and the KL of EGSW,
whose weights make the policy term small, keeps it near the reference. Optima of Nash-MD, Nash-MP, EGPO, DNO, f-DPG
and EXO-rw are tilts, too: their own β leave half of the chance or more to wrong tokens.
GTPO's 0.7 nats is below the entropy this policy starts from: nothing would ever train. Of three tokens PPPO's 35 % are
one. G-RA has no outcome beside the one turn here. Intuitor knows no correct completions by itself. SFT and OTR imitate,
they need demonstrations; MiniLLM follows a teacher and no reward (tests/training/test_teacher.py). DVPO reads no
reward, only what its value model learnt before.
The losses of reward models train scores, not log-probs (tests/training/test_reward_run.py, test_process_reward.py).
Flow networks take the reward as log R at no other scale, and sample in proportion to R: the optimum of two is in
`TILTS`; the others have a flow for each state, and the critic here knows positions only
(tests/algorithms/test_flow_balance.py). COUNTERPOL seeks the return it is told, here the highest. GMAH and RLAP fit
values, which no policy here acts by
(tests/algorithms/test_followed_values.py, test_ordered_sub_tasks.py)."""
STORED = ("weighted_bc", "f_dvl", "odice", "mo_dt", "oppo")
"""Methods for stored trajectories, which clone and do not explore (tests/tasks/test_trajectories.py and
test_return_to_go.py, tests/methods/test_oppo.py)."""
FLOWS = ("vargrad", "tb", "db", "subtb")
SCORED = ("bradley_terry", "reward_regression", "attribute_regression", "process_reward", "gpm", "vpl")
OTHERS = ("sft", "minillm", *STORED, "gmah", "rlap", "otr", "dvpo", *SCORED, *FLOWS)
TILTS = {"vargrad": 1.0, "tb": 1.0, "f_dpg": 1.0, "dno": 0.1, "exo_rw": 1.0}
"""Methods whose optimum is the uniform reference tilted by exp(R/β), and their own β."""
NAMES = [n for n in grouprl.methods() if "@" not in n and n not in OTHERS]


def rollout(logits: torch.Tensor, value_t: torch.Tensor, generator: torch.Generator) -> tuple[Batch, torch.Tensor]:
    """Eight groups of eight completions of three tokens; the reward is the share of right tokens."""
    logp = logits.log_softmax(-1)
    token_bt = torch.stack([torch.multinomial(p.exp(), 64, replacement=True, generator=generator) for p in logp], 1)
    logp_bt = logp[torch.arange(3), token_bt]
    greedy = (logp.argmax(-1) == TARGET).double().mean()
    batch = Batch(
        mask_bt=torch.ones(64, 3, dtype=torch.bool),
        group_b=torch.arange(64) // 8,
        reward_b=(token_bt == TARGET).double().mean(1),
        old_bt=logp_bt,
        behavior_bt=logp_bt,
        ref_bt=torch.full_like(logp_bt, -math.log(5)),
        entropy_bt=-(logp.exp() * logp).sum(-1).expand(64, 3),
        token_bt=token_bt,
        turn_bt=torch.zeros(64, 3, dtype=torch.int64),
        greedy_reward_b=greedy.expand(64),
        value_bt=value_t.expand(64, 3),
        truncated_b=torch.zeros(64, dtype=torch.bool),
        max_length=5,
    )
    return batch, token_bt


def with_extras(batch: Batch, logits: torch.Tensor, token_bt: torch.Tensor, step: int, steps: int) -> Batch:
    """What only some methods ask for: equal completions, statistics of the policy, the run's clock.

    There is one prompt, so that a completion behind another prompt is a sample as any, and the opponent is the policy.
    """
    position, sample_b = torch.arange(3), (token_bt * torch.tensor([25, 5, 1])).sum(1)
    tempered = {f"logp@{t:g}": (logits / t).log_softmax(-1)[position, token_bt] for t in (0.8, 1.2)}
    certainty_bt = (logits.logsumexp(-1) - logits.mean(-1)).expand(64, 3)
    collision_bt = logits.softmax(-1).square().sum(-1).expand(64, 3)
    entropy = float(-(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean())
    gap_btv = torch.nn.functional.one_hot(token_bt, 5) - logits.softmax(-1)
    right_tv = gap_btv[batch.reward_b > 0.5].sum(0)
    right_bt = token_bt == TARGET
    same = dict.fromkeys(("variant", "budget", "plan", "cut"), torch.zeros_like(sample_b))
    row_b = torch.arange(64) % 8
    score_b = (batch.need("old_bt", "the test") - batch.need("ref_bt", "the test")).sum(1)
    known = (
        "visits",
        "mean",
        "std",
        "baseline",
        "advantage",
        "fewest_calls",
        "v",
        "multiplier",
        "root_weight",
        "kl_weight",
    )
    return batch.replace(
        keys={
            "answer": sample_b,
            "form": token_bt[:, 0],
            "own": torch.ones_like(sample_b),
            "episode": batch.group_b,
            "review": torch.arange(64),
            "opponent": (row_b >= 4).long(),
            "mismatched": (row_b == 7).long(),
            "measure": (row_b == 0).long(),
            "twin": torch.zeros_like(sample_b),
            "shown": torch.zeros_like(sample_b),
            **same,
        },
        agent_b=torch.zeros(64, dtype=torch.int64),
        marks={
            "plan": batch.mask_bt & (position < 1),
            "thought": batch.mask_bt & (position < 2),
            "good": right_bt,
            "poor": ~right_bt,
            "said": torch.zeros_like(batch.mask_bt),
        },
        rewards={
            "continuations": 8 * batch.reward_b,
            **dict.fromkeys(("#density", "#cost", "margin"), torch.zeros_like(batch.reward_b)),
            **dict.fromkeys(COMPONENTS, batch.reward_b),
        },
        turn_reward_bs=batch.reward_b[:, None],
        state_bs=torch.zeros(64, 1, dtype=torch.int64),
        valid_bs=torch.ones(64, 1, dtype=torch.bool),
        stats={
            "expert": batch.ref_bt,
            "post_value": batch.need("value_bt", "the test"),
            "missed": torch.zeros_like(batch.need("value_bt", "the test")),
            "decoded": torch.full_like(batch.ref_bt, -math.log(2)),
            "certainty": certainty_bt,
            "answer": batch.ref_bt,
            "duration": torch.ones_like(batch.ref_bt),
            "collision": collision_bt,
            "progress": batch.broadcast(batch.reward_b),
            "influence": (gap_btv * right_tv).sum(-1),
            **tempered,
        },
        past={
            "q": batch.reward_b,
            "score_mean": score_b.mean().expand(64),
            "reward_mean": batch.reward_b.mean().expand(64),
            "reward_std": batch.reward_b.std().expand(64),
            "group_weight": torch.ones_like(batch.reward_b),
            **{name: torch.zeros(64, dtype=torch.float64) for name in known},
        },
        step=step,
        steps=steps,
        edges={"similar": Edges(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, dtype=torch.float64))},
        last_entropy=entropy,
        refs={"iterates": batch.need("ref_bt", "the test")},
    )


def chance_of_the_target(method: Method, steps: int = 40) -> float:
    generator = torch.Generator().manual_seed(0)
    logits, value_t = (torch.zeros(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (3,)))
    optimizer = torch.optim.Adam([logits, value_t], lr=0.2)
    for step in range(steps):
        batch, token_bt = rollout(logits.detach(), value_t.detach(), generator)
        if {"correct_b", "token_bt"} & set(method.needs()):
            batch = batch.replace(correct_b=batch.reward_b > 0.5)
        batch = with_extras(batch, logits.detach(), token_bt, step, steps)
        ready = method.prepare(batch)
        for _ in range(1 if method.on_policy else 2):
            logp_bt = logits.log_softmax(-1)[torch.arange(3), token_bt]
            loss = method.loss(logp_bt, ready).value
            if method.critic is not None:
                loss = loss + method.value_loss(value_t.expand(64, 3), ready).value
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(logits.detach().softmax(-1)[torch.arange(3), TARGET].mean())


@pytest.mark.parametrize("name", NAMES)
def test_learns(name):
    assert chance_of_the_target(grouprl.method(name, **SETTINGS.get(name, {}))) > 0.9


@pytest.mark.parametrize("name", TILTS)
def test_the_optimum_is_the_tilt_of_the_reference(name):
    right = math.exp(1 / 3 / TILTS[name])
    assert chance_of_the_target(grouprl.method(name)) == pytest.approx(right / (right + 4), abs=0.01)
