"""A short run of every entry of the catalogue, killed and resumed: what it is of, and that it has gradients at all.

Entries for completions sampled ahead run without that here: test_async_resume kills runs that sample ahead.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

import kills
import toy_envs

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))  # which has a `kills` and a `soak`, too

from claims import NOT_RUN, OF_TEAMS, OF_TURNS
from grouprl import methods
from grouprl.algorithms.part import RunFacts
from grouprl.config.run import parse_config
from grouprl.orchestrator.resolve import resolve
from grouprl.policy import load_policy
from grouprl.training.loop import train

EXACT = (
    *("judging", "backward", "optimiser step", "before memory", "after memory", "rollout", "scoring", "episodes"),
    *("rollouts written", "after a metrics line", "half a metrics line", "state of a checkpoint", "checkpoint ends"),
)
"""Points inside of training, at one of which the run of an entry is killed; the others need no gradient."""
SPECIAL: dict[str, dict[str, Any]] = {
    "archer": {"critic_steps": 5, "critic_batch": 8, "actions": 12, "warmup": 1, "baseline": True},
    "dapo": {"max_rounds": 3},
    "dots": {"reference": 4},
    "dvpo": {"pretraining_steps": 4},
    "remix": {"reincarnation": 3},
    "hi_agent": {"every": 0, "judge_weight": 0.0},
    "intellect2": {"entropy_coef": 0.0},
    "gtpo_trajectory": {"entropy_limit": None},
    "g_ra": {"threshold": None},
    "ssp": {"solver_start": 1},
    "text2grad": {"feedback": "grouprl.envs.builtin.key_door:critique"},
    "r3l": {"form": "compact"},
    "retroformer": {"form": "compact"},
    "search_r2": {"form": "compact", "process": 0.0},
    "cpmobius": {"exam": 6, "completions": 2, "low": 0.0, "high": 1.0, "falls": 1, "falls_from": 0},
}
"""Settings under which five tiny steps have gradients at all."""
LEARNT = {"steps": 150, "batch": 16, "warmup_steps": 2, "lr": 1e-2}
KEYS = {"name": "keys", "size": 3}
STORED = {
    "task": {"name": "preferences"},
    "warmup": {"steps": 0},
    "batch": {"prompts": 8, "group_size": 2, "minibatches": 2},
}
OF_THREE = STORED | {"batch": {"prompts": 8, "group_size": 3, "minibatches": 2}}
ROWS = Path(__file__).parent / "stored_rows"
OWN: dict[str, dict[str, Any]] = {
    "step_grpo": {"task": "steps"},
    "echo": {"task": KEYS},
    "text2grad": {"task": KEYS},
    **{name: {"task": KEYS, "warmup": LEARNT} for name in ("r3l", "search_r2", "retroformer")},
    "igpo": {"task": {"name": "guess", "numbers": 3}},
    "hi_agent": {"task": {"name": "subgoals", "goals": 1, "pages": 1, "attempts": 2}, "warmup": LEARNT},
    "ssp": {"task": {"name": "propose", "largest": 9, "attempts": 3}, "warmup": LEARNT},
    "bradley_terry": STORED,
    "barfi": {
        "task": {"name": "words", "longest": 3, "variety": 2},
        "method": {"name": "barfi", "primary": "liked"},
        "batch": {"minibatches": 1},
    },
    "vpl": STORED | {"task": {"name": "preferences", "annotators": 2, "longest": 2, "context": 2}},
    "adpo": STORED | {"data": {"prompts": 24}, "method": {"name": "adpo", "among": 8, "size": 16}},
    "mah_dpo": STORED
    | {
        "task": {"name": "preferences", "annotators": 2, "apart": True},
        "model": {
            "name": "tiny",
            "agents": "heads",
            "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32},
        },
    },
    "hypo": STORED,
    "relative_po": STORED,
    "sr_dpo": STORED,
    "srpo_robust": STORED,
    "reward_regression": STORED,
    "gpm": STORED,
    "exo_rw": STORED,
    "nca_rewards": STORED,
    "infonca": STORED,
    "attribute_regression": {
        "task": {"name": f"pairs:{ROWS / 'ratings.jsonl'}", "ratings": ["helpfulness", "correctness"]},
        "warmup": {"steps": 0},
        "batch": {"prompts": 8, "group_size": 1, "minibatches": 2},
    },
    **{
        name: {
            "task": {"name": "control:CartPole-v1", "horizon": 8},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "warmup": {"steps": 0},
        }
        for name in ("ppo_control", "fixpo", "props")
    },
    **{
        name: {
            "task": {"name": "env:grouprl.envs.builtin.squads:ColorGrid", "turns": 12, "config": {"rounds": 4}},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "warmup": {"steps": 0},
        }
        for name in ("ippo", "dec_dpo")
    },
    "ami": {
        "task": {"name": "env:grouprl.envs.builtin.jury:InfiltratedJury", "turns": 18, "config": {"rounds": 2}},
        "model": {"name": "saboteur", "settings": {"members": 5, "hidden": [8]}},
        "method": {"name": "ami", "members": 5},
        "warmup": {"steps": 0},
    },
    "mra": {
        "task": {
            "name": "env:grouprl.envs.builtin.meeting:MeetingPlaces",
            "turns": 10,
            "config": {"strategies": 2},
        },
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "warmup": {"steps": 0},
    },
    "mapo_lso": {
        "task": {"name": "env:grouprl.envs.builtin.squads:Crossing", "turns": 60, "config": {"team": True}},
        "model": {"name": "latent_team", "settings": {"width": 8}},
        "warmup": {"steps": 0},
    },
    "gmah": {
        "task": {"name": "env:grouprl.envs.builtin.hauling:Hauling", "turns": 6},
        "model": {"name": "team_values", "settings": {"hidden": [8], "width": 4}},
        "method": {"name": "gmah", "follow": 2, "rollouts": 2, "explore_steps": 4},
        "warmup": {"steps": 0},
    },
    "rlap": {
        "task": {"name": "env:grouprl.envs.builtin.sub_tasks:Homes", "turns": 3, "config": {"count": 3}},
        "model": {"name": "choice_values", "settings": {"hidden": [8]}},
        "method": {"name": "rlap", "follow": 2, "capacity": 8, "explore_steps": 4},
        "warmup": {"steps": 0},
    },
    **{
        name: {
            "task": {"name": "construct:knapsack", "count": 6, "strategies": 2},
            "model": {"name": "pointer", "settings": {"width": 8, "layers": 1, "heads": 2}},
            "method": {"name": name, "strategies": 2},
            "warmup": {"steps": 0},
        }
        for name in ("poppy", "compass")
    },
    **{
        name: {
            "task": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "warmup": {"steps": 0},
        }
        for name in ("tb", "db", "subtb")
    },
    **{
        name: {
            "task": {
                "name": f"trajectories:{ROWS / 'walks.jsonl'}",
                "of": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
            },
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "batch": {"prompts": 8, "group_size": 1, "minibatches": 2},
            "warmup": {"steps": 0},
        }
        for name in ("weighted_bc", "f_dvl", "odice")
    },
    "mo_dt": {
        "task": {
            "name": f"trajectories:{ROWS / 'walks.jsonl'}",
            "of": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
            "target": 1.0,
        },
        "model": {"name": "decision_transformer", "settings": {"window": 2, "width": 8}},
        "batch": {"prompts": 8, "group_size": 1, "minibatches": 2},
        "warmup": {"steps": 0},
    },
    "oppo": {
        "task": {
            "name": f"trajectories:{ROWS / 'walk_pairs.jsonl'}",
            "of": {"name": "env:grouprl.envs.construction.hypergrid:HyperGrid", "config": {"side": 3}},
        },
        "model": {"name": "hindsight", "settings": {"window": 2, "width": 8, "dims": 2}},
        "batch": {"prompts": 4, "group_size": 2, "minibatches": 2},
        "warmup": {"steps": 0},
    },
    "subpo": {
        "task": {"name": "env:grouprl.envs.construction.coverage:CoverageWalk", "turns": 10},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "warmup": {"steps": 0},
    },
    **{
        name: {
            "task": {
                "name": "env:grouprl.envs.construction.inventory:Inventory",
                "turns": 4,
                "own_luck": True,
                "config": {"periods": 4},
                "grid": {"penalty": [1.0, 4.0, 9.0]},
            },
            "data": {"prompts": 3},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "method": {"name": name, "episodes": 4},
            "warmup": {"steps": 0},
        }
        for name in ("iwocs", "drpg")
    },
    "ppo_ad": {
        "task": {"name": "env:grouprl.envs.construction.workshop:Workshop", "turns": 20},
        "model": {"name": "achievements", "settings": {"hidden": [8]}},
        "method": {"name": "ppo_ad", "every": 2, "passes": 1},
        "warmup": {"steps": 0},
    },
    "pdppo": {
        "task": {"name": "env:grouprl.envs.construction.inventory:Inventory", "turns": 4, "config": {"periods": 4}},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "pdppo", "after": "grouprl.envs.construction.inventory:after_order"},
        "warmup": {"steps": 0},
    },
    "hnpg": {
        "task": {"name": "env:grouprl.envs.construction.combination_lock:CombinationLock", "turns": 10},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "hnpg", "stored": "grouprl.envs.construction.combination_lock:expert_episodes", "sweeps": 2},
        "warmup": {"steps": 0},
    },
    "groove": {
        "task": {"name": "env:grouprl.envs.construction.walled_grid:WalledGrid", "turns": 8, "config": {"steps": 8}},
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "data": {"prompts": 12},
        "warmup": {"steps": 0},
    },
    "counterpol": {
        "task": "env:grouprl.envs.construction.arms:Arms",
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "counterpol", "target": 0.8, "every": 2},
        "warmup": {"steps": 0},
    },
    "constrained_grpo": {
        "task": "env:grouprl.envs.construction.arms:Arms",
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "warmup": {"steps": 0},
    },
    "tpo": OF_THREE | {"task": f"pairs:{ROWS / 'triples.jsonl'}"},
    "tpo@trl": OF_THREE | {"task": f"pairs:{ROWS / 'triples.jsonl'}"},
    "modpo": STORED | {"task": f"pairs:{ROWS / 'margins.jsonl'}"},
    "process_reward": OF_THREE | {"task": f"step_labels:{ROWS / 'steps.jsonl'}"},
    "cpmobius": {
        "task": {"name": "propose", "largest": 9, "attempts": 3, "free": True},
        "warmup": LEARNT,
        "batch": {"prompts": 6, "group_size": 1},
    },
}
"""Entries that need a task of their own, and the warm-up in which it is learnt a little."""
TAUGHT = ("minillm",)
"""Entries that learn from a teacher, a model of other layers than theirs."""
ON_TURNS = (*OF_TURNS, "hi_agent")
THINKING = ("hbpo", "brpo")
"""Entries that budget thoughts, which must be long enough to have several budgets."""


def names() -> list[str]:
    """Every entry, those of single completions first, dialects last."""
    return sorted(methods(), key=lambda name: (bool(methods()[name].dialect_of), name in NOT_RUN))


def settings(name: str) -> dict[str, Any]:
    """The configuration of the run of an entry: a coin as reward, so that every group has something to tell."""
    method = methods()[name].build()
    base = methods()[name].dialect_of or name
    config = kills.settings("ppo") | {
        "method": {"name": name, **SPECIAL.get(name, {})},
        "steps": 4,
        "warmup": {"steps": 12, "batch": 16, "warmup_steps": 2, "lr": 1e-2},
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 1 if method.on_policy else 2},
        "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
        "run": {"checkpoint_every": 1, "keep": 2, "threads": 1},
        "reward": {"function": f"{__file__}:coin", "workers": 0},
    }
    if name in OWN:
        return config | {"data": {}, "reward": {}} | OWN[name]
    if base in ON_TURNS:
        return config | {"task": f"{toy_envs.__file__}:AskTask", "data": {}, "reward": {}}
    if base in OF_TEAMS:
        warmup = config["warmup"] | {"steps": 120, "batch": 64, "lr": 3e-3}
        return config | {"task": {"name": "team", "terms": 2}, "data": {}, "reward": {}, "warmup": warmup}
    if name in THINKING or any(part.refuse(RunFacts(forms=0, examples=12)) for part in method.parts()):
        return config | {"task": {"name": "ponder", "length": 2, "dots": 6, "budgeted": 0.0}}
    return config


def coin(completion: str) -> dict[str, float]:
    """A reward that depends on nothing but the text, so that half of the completions of any policy are right."""
    right = float(zlib.crc32(completion.encode()) & 1)
    return {"reward": right, "correct": right}


def with_teacher(name: str, home: Path) -> dict[str, Any]:
    """The configuration of an entry's run; a teacher of other layers, if it has one, is in `home`."""
    chosen = settings(name)
    if name not in TAUGHT:
        return chosen
    folder = home / "teacher"
    load_policy("tiny", alphabet=resolve(parse_config(chosen)).alphabet, layers=1, hidden=8, heads=2).save(folder)
    return chosen | {"model": chosen["model"] | {"reference": str(folder)}}


def warm(home: Path) -> None:
    """Have this process import all that a run imports, and let runs be forks of it: most of a short run is imports."""
    train(parse_config(settings("ppo")), folder=home / "warm", console=Console(quiet=True))
    kills.FORKS = multiprocessing.get_context("fork")


def tried(name: str, home: Path, seed: int, count: int = 1) -> dict[str, Any]:
    """Run an entry whole, and once killed `count` times inside of training; what came of it."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / "run.yaml"
    config.write_text(yaml.safe_dump(with_teacher(name, home)))
    arrived = home / "arrivals.json"
    kills.finish(kills.launch(config, home / "whole", count=arrived), home / "whole")
    arrivals = [(point, (phase, step)) for point, (phase, step) in json.loads(arrived.read_text())]
    rng = random.Random(f"{seed}/{name}")
    came, folders = kills.run_killed(config, home, moments(arrivals, rng, count))
    steps = gradients(home / "whole")
    return {
        "method": name,
        "kills": [f"{moment.point}, step {moment.place[1]}" for moment in came],
        "steps_with_gradient": sum(norm > 0 for norm in steps),
        "steps": len(steps),
        "optimizer_tensors": kills.count_tensors(home / "whole"),
        "different": kills.differences(home, folders),
    }


def moments(arrivals: list[tuple[str, kills.Place]], rng: random.Random, count: int) -> list[kills.Moment]:
    """Sample moments after the first step of training, when the optimiser has a state that can be lost."""
    train = kills.PHASES.index("train")
    met = [(point, place) for point, place in arrivals if point in EXACT and place[0] == train and place[1] >= 1]
    chosen = sorted(rng.sample(range(len(met)), min(count, len(met))))
    return [kills.Moment(*met[number]) for number in chosen]


def gradients(folder: Path) -> list[float]:
    """Return the gradient norm of every step of training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line.get("grad_norm", 0.0) for line in lines if line["phase"] == "train"]
