"""What studies of preference methods compare: tasks with a known truth, arms, and the rates that are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from learn import Settings, merged
from preference_files import LENGTH, RATED_PAIRS, STEPS, write_steps

RUN: Settings = {"checkpoint_every": 10**6, "rollouts_every": 0}
PAIRS: Settings = {
    "task": {"name": "preferences", "noise": 0.1},
    "model": {"name": "tiny", "tiny": {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}},
    "warmup": {"steps": 150, "batch": 32},
    "method": "dpo",
    "steps": 60,
    "batch": {"prompts": 16, "group_size": 2},
    "optim": {"lr": 1e-3},
    "eval": {"every": 0, "final_prompts": 128, "samples": 4},
    "run": RUN,
}
LOSSES = (
    *("dpo", "cdpo", "f_dpo", "aot", "rdpo", "bmc", "ld_dpo", "h_dpo", "dpo_ties", "sppo", "slic", "exo"),
    *("apo_down", "discopop", "wpo", "alphapo", "ipo", "nca", "mpo", "simpo", "relative_po", "apo_zero", "cpo", "orpo"),
)
PAIRED: Settings = merged(PAIRS, {"steps": 120, "batch": {"prompts": 32}, "eval": {"samples": 8}})
SHOWN = ">>"
"""Words of methods that show a completion behind them, of letters that the toy's models know."""
LONGER = (
    *("dpo", "aot_unpaired", "kto", "bco", "hypo", "cdpo", "rdpo", "f_dpo", "aot", "bmc", "ld_dpo", "h_dpo"),
    *("dpo_ties", "sppo", "slic", "exo", "simpo", "alphapo", "wpo", "apo_down", "discopop"),
)
OF_PAIRS: dict[str, Settings] = {
    "dpo": {"method": "dpo"},
    "tr_dpo": {"method": {"name": "tr_dpo", "every": 30}},
    "sr_dpo": {"method": {"name": "sr_dpo", "prefix": SHOWN}},
    "srpo_robust": {"method": {"name": "srpo_robust", "revise": SHOWN}},
    "adpo": {"method": "adpo", "data": {"prompts": 4096}},
    **{name: {"method": name} for name in LONGER},
}
"""Methods of stored pairs; the reference of TR-DPO is exchanged three times, and ADPO chooses 3,840 of 4,096 pairs."""
USERS: Settings = {
    "task": {"name": "preferences", "annotators": 3, "longest": 1},
    "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}},
    "method": "bradley_terry",
    "steps": 500,
    "batch": {"prompts": 16, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 256},
    "run": RUN,
}
CIRCLES: Settings = {
    "task": {"name": "preferences", "judge": "cyclic", "noise": 0.1},
    "model": USERS["model"],
    "method": "bradley_terry",
    "steps": 300,
    "batch": {"prompts": 16, "group_size": 2},
    "eval": {"every": 0, "final_prompts": 512},
    "run": RUN,
}
CIRCLE: Settings = merged(
    CIRCLES,
    {
        "task": {"judge": "alphabet", "noise": 0.0, "longest": 1},
        "steps": 150,
        "eval": {"final_prompts": 256},
    },
)
LISTS: Settings = merged(PAIRS, {"task": {"form": "lists", "words": 4}, "batch": {"prompts": 8, "group_size": 4}})
RATED: Settings = {
    "task": {"name": "preferences", "form": "ratings", "words": 4, "noise": 0.1},
    "model": USERS["model"],
    "method": "bradley_terry",
    "steps": 300,
    "batch": {"prompts": 8, "group_size": 4},
    "eval": {"every": 0, "final_prompts": 512},
    "run": RUN,
}
HELPED: Settings = {
    "task": {"name": "words", "longest": 4, "variety": 2},
    "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64}},
    "warmup": {"steps": 60, "batch": 32},
    "method": {"name": "barfi", "primary": "liked"},
    "steps": 120,
    "batch": {"prompts": 16, "group_size": 8},
    "eval": {"every": 0, "final_prompts": 128, "samples": 4},
    "run": RUN,
}
SAMPLED: Settings = merged(HELPED, {"method": "online_dpo", "steps": 60})
ONLINE = (
    *("online_dpo", "grpo", "xpo", "vpo", "inpo", "egpo", "nash_md", "nash_mp", "online_sppo", "rspo", "gpo"),
    *("writing_zero", "dno", "dno_prct", "rs_dpo", "crpg", "codpo", "crraft", "dpa", "f_dpg", "plaid"),
)
OF_SAMPLES: dict[str, Settings] = {
    **{name: {"method": name} for name in ONLINE},
    **{name: {"method": {"name": name, "every": 20}} for name in ("iterative_dpo", "accelerated_dpo")},
}
"""Methods that compare completions of the policy; two of them in three rounds."""


@dataclass(frozen=True)
class Study:
    """Arms that are compared with the first one, the truth that they are held against, and how rates are tuned."""

    settings: Settings
    arms: Mapping[str, Settings]
    rates: tuple[float, ...]
    measure: str = "eval/reward"
    tuned_on: int = 1
    """Seeds on which each rate is tried."""
    seeds: int = 5
    prepare: Callable[[], None] = lambda: None
    """Writes the files that its runs read."""
    first: Mapping[str, Settings] = field(default_factory=dict)
    """Runs that are made before the others: an arm names one as its `model.reference`, and reads its model."""


def told(annotators: int) -> Settings:
    """Return the settings of pairs whose annotators, each with an own taste, are known."""
    return merged(PAIRS, {"task": {"annotators": annotators, "apart": True}, "steps": 120})


HEADS: dict[str, Settings] = {
    "dpo": {"method": "dpo", "model": {"agents": "shared"}},
    "mah_dpo": {"method": "mah_dpo", "model": {"agents": "heads"}},
    "mah_dpo, a model each": {"method": "mah_dpo", "model": {"agents": "separate"}},
}
JUDGED: Settings = {"task": {"context": 4}}
LABELS: Settings = merged(
    PAIRS,
    {
        "task": {"form": "labels", "uneven": 0.9},
        "data": {"prompts": 2048},
        "method": "bco",
        "batch": {"prompts": 32, "group_size": 1},
    },
)
MATCHED: dict[str, Settings] = {
    "bco": {"method": "bco"},
    "bco, encoder": {"method": {"name": "bco", "encoder": "policy"}},
}
LISTED: dict[str, Settings] = {
    **{name: {"method": name} for name in ("dpo", "nca", "exo_rw", "nca_rewards", "infonca")},
    "exo_rw, beta_r 0.1": {"method": {"name": "exo_rw", "beta_r": 0.1}},
    **{f"{name}, α 0.1": {"method": {"name": name, "alpha": 0.1}} for name in ("nca_rewards", "infonca")},
}
"""Losses of lists at their own settings, and with a tenth of the rewards' span as their temperature."""
SCORES: dict[str, Settings] = {
    "bradley_terry": {"method": "bradley_terry"},
    "attribute_regression": {"method": {"name": "attribute_regression", "attributes": ["liked", "brief"]}},
    "reward_regression": {"method": "reward_regression"},
}
GUIDES: dict[str, Settings] = {
    "dpo's model": {"method": "dpo", "optim": {"lr": 1e-3}},
    "simpo's model": {"method": "simpo", "optim": {"lr": 1e-3}},
}
"""First runs of Pre-DPO, on the same data from the same start."""
STUDENT: Settings = {
    "task": {"name": "reverse", "length": 6, "noise": 0.15},
    "model": {"name": "tiny", "tiny": {"layers": 2, "hidden": 64, "heads": 4, "intermediate": 128}},
    "warmup": {"steps": 500, "batch": 128},
    "method": "grpo",
    "steps": 60,
    "batch": {"prompts": 32, "group_size": 16, "minibatches": 2},
    "optim": {"lr": 1e-3, "warmup_steps": 5},
    "eval": {"every": 0, "final_prompts": 512, "samples": 4},
    "run": RUN,
}
TEACHER: Settings = {"model": {"tiny": {"hidden": 192, "intermediate": 384}}}
TAUGHT: dict[str, Settings] = {
    "grpo": {"method": "grpo"},
    **{
        label: {"method": {"name": "minillm", **given}, "model": {"reference": "teacher"}}
        for label, given in {
            "minillm": {},
            "minillm, teacher_share 0.2": {"teacher_share": 0.2},
            "minillm, sampled steps": {"single_step": "sampled"},
        }.items()
    },
}
"""A student that GRPO teaches by the task's reward, or MiniLLM by a larger model alone."""
STUDIES: dict[str, Study] = {
    "objectives": Study(told(2), HEADS, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "users": Study(
        USERS,
        {
            "bradley_terry": {"method": "bradley_terry"},
            "vpl": merged(JUDGED, {"method": "vpl", "model": {"users": {"latent": 16, "hidden": 64}}}),
        },
        (1e-3, 3e-3, 1e-2),
        "eval/pair_accuracy",
    ),
    "cycles": Study(
        CIRCLES,
        {name: {"method": name} for name in ("bradley_terry", "gpm")},
        (1e-3, 3e-3, 1e-2),
        "eval/pair_accuracy",
        tuned_on=2,
    ),
    "circle": Study(
        CIRCLE,
        {name: {"method": name} for name in ("bradley_terry", "gpm")},
        (3e-4, 1e-3, 3e-3),
        "eval/pair_accuracy",
        tuned_on=2,
    ),
    "components": Study(
        HELPED,
        {
            "plain sum": {"method": {"name": "barfi", "primary": "liked", "rate": 0.0}},
            "barfi": {"method": {"name": "barfi", "primary": "liked"}},
        },
        (3e-4, 1e-3, 3e-3),
        "eval/reward/liked",
    ),
    "lists": Study(LISTS, LISTED, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "uneven_labels": Study(LABELS, MATCHED, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "ratings": Study(RATED, SCORES, (1e-3, 3e-3, 1e-2), "eval/pair_accuracy", tuned_on=2),
    "losses": Study(PAIRS, {name: {"method": name} for name in LOSSES}, (3e-4, 1e-3, 3e-3)),
    "pairs": Study(PAIRED, OF_PAIRS, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "triples": Study(
        merged(PAIRED, {"task": {"form": "lists", "words": 3}, "batch": {"prompts": 16, "group_size": 3}}),
        {name: {"method": name} for name in ("dpo", "tpo")},
        (3e-4, 1e-3, 3e-3),
        tuned_on=2,
    ),
    "offline": Study(
        merged(LISTS, {"method": "sft", "steps": 120, "data": {"prompts": 1024}, "eval": {"samples": 8}}),
        {name: {"method": name} for name in ("dpo", "a_lol")},
        (3e-4, 1e-3, 3e-3),
        tuned_on=2,
    ),
    "annotators": Study(
        merged(PAIRED, {"task": {"annotators": 3}}),
        {"dpo": {"method": "dpo"}, "gr_dpo": {"method": {"name": "gr_dpo", "by": "annotator"}}},
        (3e-4, 1e-3, 3e-3),
        tuned_on=2,
    ),
    "margins": Study(
        PAIRED | {"task": {"name": RATED_PAIRS, "noise": 0.1}},
        {name: {"method": name} for name in ("dpo", "modpo")},
        (3e-4, 1e-3, 3e-3),
        tuned_on=2,
    ),
    "steps": Study(
        RATED | {"task": f"step_labels:{STEPS}", "batch": {"prompts": 16, "group_size": LENGTH}},
        {name: {"method": name} for name in ("bradley_terry", "process_reward")},
        (1e-3, 3e-3, 1e-2),
        "eval/pair_accuracy",
        tuned_on=2,
        prepare=write_steps,
    ),
    "sampled": Study(SAMPLED, OF_SAMPLES, (3e-4, 1e-3, 3e-3), tuned_on=2),
    "guided": Study(
        PAIRED,
        {
            "dpo": {"method": "dpo"},
            **{f"pre_dpo, {name}": {"method": "pre_dpo", "model": {"reference": name}} for name in GUIDES},
        },
        (3e-4, 1e-3, 3e-3),
        tuned_on=2,
        first=GUIDES,
    ),
    "teacher": Study(STUDENT, TAUGHT, (3e-4, 1e-3, 3e-3), "eval/pass@1", tuned_on=2, first={"teacher": TEACHER}),
}
