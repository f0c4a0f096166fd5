"""Policies that play rock, paper, scissors by the catalogue's own losses: docs/games.json, docs/games.png, docs/games.md.

    python scripts/games.py            play, and write all three
    python scripts/games.py --report   write picture and table from docs/games.json

A policy is three logits, a completion one action. Each step samples 64 actions, verdicts are coin flips with the game's
chances. Every method runs at its own best rate, chosen on other seeds; steps are plain gradient steps.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import grouprl
from grouprl import Batch, Edges
from grouprl.algorithms.references import Iterates
from grouprl.evaluation.matrix_game import duality_gap, regularised_nash

TOP = Path(__file__).resolve().parents[1]
GAME = torch.tensor([[0.5, 0.95, 0.05], [0.05, 0.5, 0.95], [0.95, 0.05, 0.5]], dtype=torch.float64)
REF = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64).log_softmax(0)
START = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)
BETA, STEPS, ROWS, EVERY = 0.02, 300, 64, 10
LAST = STEPS // 3
"""Steps at the end over which the gap is averaged."""
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SWEEP, SEEDS = (100,), (1, 2, 3, 4, 5)
T_95 = 2.776
"""Half-width of a 95 % interval of five values, in standard errors."""


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


class Player:
    """Three logits in training by a method, with the names that an update asks for."""

    def __init__(self, play: Play, rate: float, seed: int) -> None:
        self.play, self.rate, self.generator = play, rate, torch.Generator().manual_seed(seed)
        self.logit_k = torch.nn.Parameter(START.clone())
        self.optimizer = torch.optim.SGD([self.logit_k], lr=rate)
        self.policy, self.memory, self.iterate_k = self, dict[str, Any](), START.log_softmax(0)
        self.context = SimpleNamespace(step=0, steps=STEPS, state_of=lambda part: self.memory)
        rules = [rule for rule in play.method.references().values() if isinstance(rule, Iterates)]
        self.follows = rules[0] if rules else None
        self.stored = self.compared(REF, torch.arange(ROWS) // play.size) if play.offline else None

    def trainable_state(self) -> dict[str, Tensor]:
        return {"logit_k": self.logit_k.detach()}

    def load_trainable_state(self, state: dict[str, Tensor]) -> None:
        self.logit_k.data.copy_(state["logit_k"])

    def steps(self, prepared: Batch) -> list[Batch]:
        return [self.play.method.compute_loss_weights(prepared)]

    def take(self, step: Batch) -> dict[str, float]:
        self.optimizer.zero_grad()
        logp_bt = self.logit_k.log_softmax(0)[step.need("token_bt", "play")[:, 0]][:, None]
        value = self.play.method.loss(logp_bt, step).value
        if value.requires_grad:
            value.backward()
            self.optimizer.step()
        return {"loss": float(value.detach())}

    def turn(self, number: int) -> None:
        """Make one step."""
        self.context.step = number
        now_k = self.logit_k.detach().log_softmax(0)
        batch = self.stored if self.stored is not None else self.compared(now_k, torch.arange(ROWS) // self.play.size)
        action_b = batch.need("token_bt", "play")[:, 0]
        refs = {"iterates": self.iterate_k[action_b][:, None]}
        batch = batch.replace(ref_bt=REF[action_b][:, None], refs=refs, old_bt=now_k[action_b][:, None])
        if self.follows is not None and number % self.follows.every == 0:
            self.iterate_k = torch.lerp(self.iterate_k, now_k, self.follows.share).log_softmax(0)
        prepared = self.play.method.compute_advantages(batch)
        update = self.play.method.update
        for step in self.steps(prepared) if update is None else ():
            self.take(step)
        for _ in () if update is None else update(self, prepared):
            pass

    def compared(self, now_k: Tensor, group_b: Tensor) -> Batch:
        """Sample actions, and compare every two of a group once."""
        action_b = torch.multinomial(now_k.exp(), ROWS, True, generator=self.generator)
        opponents = [part for part in self.play.method.augment if part.name == "opponents"]
        keys = {}
        if opponents:
            rival_k = ((1 - opponents[0].initial) * now_k + opponents[0].initial * REF).softmax(0)
            rival_b = torch.multinomial(rival_k, ROWS, True, generator=self.generator)
            keys["opponent"] = torch.arange(ROWS) % 2
            action_b = torch.where(keys["opponent"] == 1, rival_b, action_b)
        first_bb = torch.arange(ROWS)[:, None] < torch.arange(ROWS)
        index_e2 = ((group_b[:, None] == group_b) & first_bb).nonzero()
        chance_e = GAME[action_b[index_e2[:, 0]], action_b[index_e2[:, 1]]]
        won_e = (torch.rand(len(chance_e), generator=self.generator, dtype=torch.float64) < chance_e).double()
        reward_b = torch.zeros(ROWS, dtype=torch.float64)
        if self.play.size == 2:
            reward_b[index_e2[:, 0]], reward_b[index_e2[:, 1]] = won_e, 1 - won_e
        return Batch(
            mask_bt=torch.ones(ROWS, 1, dtype=torch.bool),
            group_b=group_b,
            reward_b=reward_b,
            token_bt=action_b[:, None],
            keys=keys,
            edges={"preferred": Edges(index_e2, won_e)},
            step=self.context.step,
            steps=STEPS,
        )


def gaps(play: Play, rate: float, seed: int) -> list[float]:
    """Play; return the duality gap of the policy before each step and at the end; infinite once it is no policy."""
    player, found = Player(play, rate, seed), []
    for number in range(STEPS + 1):
        policy_k = player.logit_k.detach().softmax(0)
        if not bool(policy_k.isfinite().all()):
            return [*found, *[1.0] * (STEPS + 1 - len(found))]
        found.append(duality_gap(GAME, policy_k))
        if number < STEPS:
            player.turn(number)
    return found


def record(name: str) -> dict[str, Any]:
    """Return a method's best rate on the sweep's seeds, and its gaps at it on others."""
    play = PLAYS[name]
    swept = {rate: fmean(fmean(gaps(play, rate, seed)[-LAST:]) for seed in SWEEP) for rate in RATES}
    rate = min(swept, key=lambda each: swept[each])
    curves = [gaps(play, rate, seed) for seed in SEEDS]
    last = [fmean(curve[-LAST:]) for curve in curves]
    mean_curve = [round(fmean(values), 4) for values in zip(*curves, strict=True)]
    print(f"{name}: rate {rate:g}, gap {fmean(last):.3f}", flush=True)
    return {"words": play.words, "rate": rate, "sweep": swept, "last": last, "curve": mean_curve[::5]}


def nash_gap() -> float:
    """Return the duality gap of the regularised Nash policy, which the methods with β aim at."""
    return duality_gap(GAME, regularised_nash(GAME, REF.exp(), BETA))


def table(found: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = ["| method | learns from | rate | duality gap at the end |", "|---|---|---|---|"]
    for name, own in found["methods"].items():
        half = T_95 * stdev(own["last"]) / math.sqrt(len(own["last"]))
        lines.append(f"| {name} | {own['words']} | {own['rate']:g} | {fmean(own['last']):.3f} ± {half:.3f} |")
    start, ref = duality_gap(GAME, START.softmax(0)), duality_gap(GAME, REF.exp())
    lines += ["", f"At the start the gap is {start:.3f}, of the reference {ref:.3f}, of the regularised Nash policy "]
    return "\n".join([*lines[:-1], f"{lines[-1]}{found['nash']:.3f}."])


def picture(found: dict[str, Any], path: Path) -> None:
    """Draw the gap by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for number, (name, own) in enumerate(found["methods"].items()):
        axes.plot(range(0, STEPS + 1, 5), own["curve"], label=name, color=f"C{number}", lw=1.4)
    axes.axhline(found["nash"], color="black", lw=0.8, ls=":", label="regularised Nash policy")
    axes.set(xlabel="step", ylabel="duality gap, mean of five seeds", xlim=(0, STEPS), ylim=(0, 1))
    axes.legend(fontsize=7, ncol=2, loc="upper right")
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
        facts = {
            "beta": BETA,
            "steps": STEPS,
            "actions": ROWS,
            "seeds": SEEDS,
            "sweep_seeds": SWEEP,
            "nash": nash_gap(),
        }
        path.write_text(json.dumps({**facts, "methods": {name: record(name) for name in PLAYS}}, indent=1) + "\n")
    write(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
