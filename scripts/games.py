"""Policies that play rock, paper, scissors by the catalogue's own losses; what docs/games.md shows.

    python scripts/games.py            play, and write all three
    python scripts/games.py --report   write picture and table from docs/games.json

A policy is three logits, a completion one action. Each step samples 64 actions, verdicts are coin flips with the game's
chances. Every method runs at its own best rate, chosen on another seed; steps are plain gradient steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import grouprl
from grouprl import Batch, Edges
from grouprl.algorithms.references import Iterates
from grouprl.evaluation.matrix_game import duality_gap, regularised_nash
from grouprl.evaluation.pass_at_k import mean_interval

TOP = Path(__file__).resolve().parents[1]
GAME = torch.tensor([[0.5, 0.95, 0.05], [0.05, 0.5, 0.95], [0.95, 0.05, 0.5]], dtype=torch.float64)
REF = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64).log_softmax(0)
START = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
BETA, STEPS, ROWS, EVERY = 0.02, 240, 64, 10
LAST = STEPS // 3
"""Steps at the end over which the gap is averaged."""
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SWEEP, SEED, COPIES = 100, 1, 5


class Play:
    """A method, and how its actions are grouped: pairs with a winner, or eight with their comparisons."""

    def __init__(self, words: str, size: int = 8, *, offline: bool = False, **method: Any) -> None:
        self.words, self.size, self.offline = words, size, offline
        self.method = grouprl.compose(method).method


def judged(name: str, **settings: Any) -> dict[str, Any]:
    return {"base": name, "by": "judge", **settings}


PLAYS = {
    "dpo, stored pairs": Play("pairs of the reference's actions", 2, offline=True, base="dpo", beta=BETA),
    "ipo, stored pairs": Play("pairs of the reference's actions", 2, offline=True, base="ipo", beta=BETA),
    "online_dpo": Play("pairs of its own actions", 2, base="online_dpo", beta=BETA),
    "iterative_dpo": Play("pairs, last round's policy as reference", 2, base="iterative_dpo", beta=1.0, every=EVERY),
    "online_sppo": Play("own comparisons, last round's policy", **judged("online_sppo", beta=1.0, every=EVERY)),
    "online IPO": Play("egpo that does not look ahead", **judged("egpo", beta=BETA), update=None),
    "nash_md": Play("opponents between policy and reference", **judged("nash_md", beta=BETA, mixture=0.125)),
    "nash_mp": Play("a trust region around a slow target", **judged("nash_mp", beta=BETA, step=0.05, share=0.05)),
    "inpo": Play("pairs, mixed reference", 2, base="inpo", eta=1.0, share=BETA, every=EVERY),
    "egpo": Play("steps that look ahead", **judged("egpo", beta=BETA)),
}


class Players:
    """Policies of three logits in training by one method, each at its own rate and with its own actions."""

    def __init__(self, play: Play, rates: Sequence[float], seed: int) -> None:
        self.play, self.lanes, self.generator = play, len(rates), torch.Generator().manual_seed(seed)
        self.rate_l = torch.tensor(rates, dtype=torch.float64)
        self.logit_lk = torch.nn.Parameter(START.repeat(self.lanes, 1))
        self.optimizer = torch.optim.SGD([self.logit_lk], lr=1.0)
        self.policy, self.memory = self, dict[str, Any]()
        self.iterate_lk = START.log_softmax(0).repeat(self.lanes, 1)
        self.context = SimpleNamespace(step=0, steps=STEPS, state_of=lambda part: self.memory)
        rules = [rule for rule in play.method.references().values() if isinstance(rule, Iterates)]
        self.follows = rules[0] if rules else None
        self.lane_b = torch.arange(self.lanes).repeat_interleave(ROWS)
        self.stored = self.compared(REF.repeat(self.lanes, 1)) if play.offline else None

    def trainable_state(self) -> dict[str, Tensor]:
        return {"logit_lk": self.logit_lk.detach()}

    def load_trainable_state(self, state: dict[str, Tensor]) -> None:
        self.logit_lk.data.copy_(state["logit_lk"])

    def steps(self, prepared: Batch) -> list[Batch]:
        return [self.play.method.compute_loss_weights(prepared)]

    def take(self, step: Batch) -> dict[str, float]:
        """Take a gradient step; the loss is a mean over all policies, so that each one's gradient is scaled back."""
        self.optimizer.zero_grad()
        logp_bt = self.of_actions(self.logit_lk.log_softmax(1), step.need("token_bt", "play")[:, 0])
        self.play.method.loss(logp_bt, step).value.backward()
        self.logit_lk.grad = self.logit_lk.grad * self.lanes * self.rate_l[:, None]
        self.optimizer.step()
        return {}

    def of_actions(self, logp_lk: Tensor, action_b: Tensor) -> Tensor:
        """Return [B,1] the log-prob of each action under its own policy."""
        return logp_lk[self.lane_b, action_b][:, None]

    def turn(self, number: int) -> None:
        """Make one step."""
        self.context.step = number
        now_lk = self.logit_lk.detach().log_softmax(1)
        batch = self.stored if self.stored is not None else self.compared(now_lk)
        action_b = batch.need("token_bt", "play")[:, 0]
        refs = {"iterates": self.of_actions(self.iterate_lk, action_b)}
        batch = batch.replace(ref_bt=REF[action_b][:, None], refs=refs)
        if self.follows is not None and number % self.follows.every == 0:
            self.iterate_lk = torch.lerp(self.iterate_lk, now_lk, self.follows.share).log_softmax(1)
        prepared = self.play.method.compute_advantages(batch)
        update = self.play.method.update
        for step in self.steps(prepared) if update is None else ():
            self.take(step)
        for _ in () if update is None else update(self, prepared):
            pass

    def compared(self, now_lk: Tensor) -> Batch:
        """Sample actions, and compare every two of a group once."""
        action_b = torch.multinomial(now_lk.exp(), ROWS, True, generator=self.generator).flatten()
        group_b = torch.arange(len(action_b)) // self.play.size
        opponents = [part for part in self.play.method.augment if part.name == "opponents"]
        keys = {}
        if opponents:
            rival_lk = ((1 - opponents[0].initial) * now_lk + opponents[0].initial * REF).softmax(1)
            rival_b = torch.multinomial(rival_lk, ROWS, True, generator=self.generator).flatten()
            keys["opponent"] = torch.arange(len(action_b)) % 2
            action_b = torch.where(keys["opponent"] == 1, rival_b, action_b)
        own = torch.tensor(list(combinations(range(self.play.size), 2)))
        index_e2 = (own + torch.arange(0, len(action_b), self.play.size)[:, None, None]).view(-1, 2)
        chance_e = GAME[action_b[index_e2[:, 0]], action_b[index_e2[:, 1]]]
        won_e = (torch.rand(len(chance_e), generator=self.generator, dtype=torch.float64) < chance_e).double()
        reward_b = torch.zeros(len(action_b), dtype=torch.float64)
        if self.play.size == 2:
            reward_b[index_e2[:, 0]], reward_b[index_e2[:, 1]] = won_e, 1 - won_e
        return Batch(
            mask_bt=torch.ones(len(action_b), 1, dtype=torch.bool),
            group_b=group_b,
            reward_b=reward_b,
            token_bt=action_b[:, None],
            keys=keys,
            edges={"preferred": Edges(index_e2, won_e)},
            step=self.context.step,
            steps=STEPS,
        )


def gaps(play: Play, rates: Sequence[float], seed: int) -> Tensor:
    """Play; return [L,S+1] the duality gaps of the policies before each step and at the end, 1 once they are none."""
    players, found = Players(play, rates, seed), []
    for number in range(STEPS + 1):
        policy_lk = players.logit_lk.detach().softmax(1)
        gap_l = 2 * ((policy_lk @ GAME.T).amax(1) - 0.5)
        found.append(torch.where(gap_l.isfinite(), gap_l, 1.0))
        if number < STEPS:
            players.turn(number)
    return torch.stack(found, 1)


def record(name: str) -> dict[str, Any]:
    """Return a method's best rate on the sweep's seed, and its gaps at it on another seed's policies."""
    play = PLAYS[name]
    swept = gaps(play, RATES, SWEEP)[:, -LAST:].mean(1).tolist()
    rate = RATES[min(range(len(RATES)), key=lambda i: swept[i])]
    gap_ls = gaps(play, [rate] * COPIES, SEED)
    last = gap_ls[:, -LAST:].mean(1).tolist()
    print(f"{name}: rate {rate:g}, gap {fmean(last):.3f}", flush=True)
    sweep = {f"{each:g}": round(gap, 4) for each, gap in zip(RATES, swept, strict=True)}
    curve = [round(x, 4) for x in gap_ls.mean(0)[::5].tolist()]
    return {"words": play.words, "rate": rate, "sweep": sweep, "last": last, "curve": curve}


def nash_gap() -> float:
    """Return the duality gap of the regularised Nash policy, which the methods with β aim at."""
    return duality_gap(GAME, regularised_nash(GAME, REF.exp(), BETA))


def table(found: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["| method | learns from | rate | duality gap at the end |", "|---|---|---|---|"]
    for name, own in found["methods"].items():
        gap, _, high = mean_interval(np.array(own["last"]))
        lines.append(f"| {name} | {own['words']} | {own['rate']:g} | {gap:.3f} ± {high - gap:.3f} |")
    start, ref = duality_gap(GAME, START.softmax(0)), duality_gap(GAME, REF.exp())
    lines += ["", f"At the start the gap is {start:.3f}, of the reference {ref:.3f}, of the regularised Nash policy "]
    return "\n".join([*lines[:-1], f"{lines[-1]}{found['nash']:.3f}."])


def picture(found: dict[str, Any], path: Path) -> None:
    """Draw the gap by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.2))
    for number, (name, own) in enumerate(found["methods"].items()):
        axes.plot(range(0, STEPS + 1, 5), own["curve"], label=name, color=f"C{number}", lw=1.4)
    axes.axhline(found["nash"], color="black", lw=0.8, ls=":", label="regularised Nash policy")
    axes.set(xlabel="step", ylabel="duality gap, mean of five policies", xlim=(0, STEPS), ylim=(0, 1))
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def write(found: dict[str, Any]) -> None:
    """Write the picture, and the table between its marks on the page."""
    picture(found, TOP / "docs/games.png")
    page = TOP / "docs/games.md"
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- table -->")
    after = rest.partition("<!-- end -->")[2]
    page.write_text(f"{before}<!-- table -->\n{table(found)}\n<!-- end -->{after}", encoding="utf-8")


def main() -> None:
    """Play, unless only the report is asked for."""
    path = TOP / "docs/games.json"
    if "--report" not in sys.argv:
        torch.set_num_threads(1)
        facts = {"beta": BETA, "steps": STEPS, "actions": ROWS, "seed": SEED, "sweep_seed": SWEEP}
        path.write_text(
            json.dumps({**facts, "nash": nash_gap(), "methods": {name: record(name) for name in PLAYS}}, indent=1)
            + "\n"
        )
    write(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
