"""Short runs of entries of the catalogue on several ranks, each metric beside that of one process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

import kills_catalogue
import rank_runs
from grouprl.policy.kinds import policy_kind
from grouprl.records.characters import PRINTABLE

NEAR = 1e-9
"""Largest difference of a metric, relative to 1 + the number, that is told as none."""
CASES = (
    *("grpo", "dapo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_pp", "remax", "opo", "ppo", "raft", "gvpo", "nft"),
    *("clip_cov", "kl_cov", "llds", "dppo", "cpgd", "gmpo", "sapo", "vespo", "minirl", "m2po", "intellect2", "hicra"),
    *("online_dpo", "dpo", "simpo", "orpo", "kto", "bco", "ipo", "cpo", "tr_dpo", "aot", "mpo", "rspo", "dpo_ties"),
    *("xpo", "nash_md", "nash_mp", "hypo", "vapo", "vc_ppo", "harpg"),
)
"""Entries whose advantages, losses, gates, references and judges differ most."""


def write_config(name: str, home: Path) -> Path:
    """Write the configuration of three steps of an entry, on a model that computes in float64 throughout."""
    home.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = kills_catalogue.with_teacher(name, home)
    config["steps"], config["model"] = 3, {**_kept(config), "name": _model(config, home), "dtype": "float64"}
    config["run"] = {"checkpoint_every": 10, "threads": 1, "rank_timeout": 120, "check_model": False}
    path = home / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _model(config: dict[str, Any], home: Path) -> str:
    """The entry's own policy if it has one; else the language model of all entries."""
    name = config["model"].get("name", "tiny")
    if policy_kind(name) is not None:
        return name
    model = home.parent / "gpt2"
    if not model.is_dir():
        rank_runs.save_model(model, alphabet=PRINTABLE)
    return str(model)


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model that are not about the tiny one."""
    return {key: value for key, value in config["model"].items() if key not in ("name", "tiny")}


def differing(one: Path, other: Path) -> dict[str, tuple[object, object]]:
    """The metrics that differ between two runs, by name, phase and step."""
    pairs = list(zip(rank_runs.metrics(one), rank_runs.metrics(other), strict=True))
    names = {name for rows in pairs for row in rows for name in row}
    return {
        f"{name}, {mine['phase']} {mine['step']}": (mine.get(name), theirs.get(name))
        for mine, theirs in pairs
        for name in sorted(names)
        if not alike(mine.get(name), theirs.get(name))
    }


def alike(mine: object, theirs: object) -> bool:
    """Whether two values of a metric are the same, but for the order of sums."""
    if not isinstance(mine, float) or not isinstance(theirs, float) or not math.isfinite(mine):
        return mine == theirs or (mine != mine and theirs != theirs)
    return abs(mine - theirs) <= NEAR * (1 + abs(mine))


def apart(name: str, folder: Path, ranks: int) -> dict[str, Any]:
    """Run an entry in one process and on ranks; how far apart the weights end, and which metrics differ."""
    home = folder / name.replace("@", "_")
    config = write_config(name, home)
    for count in (1, ranks):
        rank_runs.train_on(count, config, home / f"r{count}", "-q")
    one, other = home / "r1", home / f"r{ranks}"
    return {"weights": rank_runs.apart(one, other)["weights"], "metrics": differing(one, other)}
