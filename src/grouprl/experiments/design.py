"""The design of a comparison: its arms and sources, and the runs that it needs, each named by what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from grouprl import __version__
from grouprl.config.own_code import own_code
from grouprl.config.paths import folder_name
from grouprl.config.run import Config, changed_data
from grouprl.core.errors import InputError
from grouprl.core.hashing import digest
from grouprl.core.json_types import JsonObject
from grouprl.experiments.arms import Arm, Values, combinations
from grouprl.experiments.budget import Budget
from grouprl.experiments.contents import model_contents
from grouprl.orchestrator.resolve import task_of

TUNING_SEED = 1_000_000
"""First seed of the runs that tune: no comparison reaches it, so no run by which values were chosen is compared."""
MOST_SEEDS = 1000
QUIET = ("run.threads=1", "run.check_model=false", "run.folder=null", "run.trackers=[]")
"""Settings of every run of a comparison: runs share the cores, and leave out what no comparison reads."""


@dataclass(frozen=True)
class Ground:
    """A task to compare on: a name, and every setting of its runs."""

    name: str
    settings: JsonObject

    def config(self, changes: Sequence[str] = ()) -> Config:
        """Return the configuration with changes `key=value`."""
        return changed_data(self.settings, changes)


def default_sweep(source: Ground) -> dict[str, Values]:
    """Return the sweep of the learning rate that is made if none is declared: the source's own, a third and thrice."""
    rate = source.config().optim.lr
    return {"optim.lr": tuple(f"{rate * factor:.2g}" for factor in (1 / 3, 1, 3))}


@dataclass(frozen=True)
class Comparison:
    """The arms that are compared, on which sources, by which rules."""

    sources: tuple[Ground, ...]
    arms: tuple[Arm, ...]
    seeds: int = 5
    budget: Budget = field(default_factory=Budget)
    tune: Mapping[str, Values] | None = field(default_factory=dict)
    """The values tried of each tuned setting; empty: nothing is tuned; None: rates around that of each source."""
    tune_seeds: int = 2
    measure: str | None = None
    """The measure of an evaluation that is compared; None: `eval/pass@1`, of graded rewards `eval/reward`."""
    against: str | None = None
    """The label of the arm that the others are compared with; None: the first."""
    lower_is_better: bool = False
    """Less of the measure is better, as of a length or an error."""
    rollouts_every: int = 0
    """Steps between those whose rollouts each run stores; 0: none are stored."""

    def __post_init__(self) -> None:
        """Refuse what cannot be compared.

        Raises:
            InputError: there are fewer than two arms or two seeds, no source, no arm `against`, or `lower_is_better` is
                given without a measure.
        """
        if len(self.arms) < 2:
            raise InputError(
                f"{len(self.arms)} arm", "a comparison needs at least two", "Name more --methods, or sweep with --over"
            )
        if not 2 <= self.seeds <= MOST_SEEDS or not 1 <= self.tune_seeds <= MOST_SEEDS:
            raise InputError(
                f"{self.seeds} seeds, {self.tune_seeds} for tuning",
                f"a comparison has 2 to {MOST_SEEDS} seeds, because an interval needs their spread; tuning at least 1",
            )
        if not self.sources:
            raise InputError("nothing is said to train on", remedy="Name a recipe, a task or a configuration file")
        if self.lower_is_better and self.measure is None:
            raise InputError(
                "--lower-is-better without --measure",
                "of the usual measures (accuracy, reward) higher is better",
                "Name a measure that should be low: --measure eval/length_mean",
            )
        self.reference  # noqa: B018  # it raises where there is no such arm

    @property
    def tunes(self) -> bool:
        """True where a setting is tuned for each arm."""
        return self.tune is None or bool(self.tune)

    @property
    def sign(self) -> int:
        """1, or -1 where less of the measure is better."""
        return -1 if self.lower_is_better else 1

    @property
    def reference(self) -> Arm:
        """The arm that the others are compared with."""
        found = [arm for arm in self.arms if self.against in (None, arm.label)]
        if not found:
            labels = ", ".join(arm.label for arm in self.arms)
            raise InputError(f"--against {self.against}", f"it must be one of the arms: {labels}")
        return found[0]

    def grid(self, source: Ground, arm: Arm) -> list[tuple[str, ...]]:
        """Return the combinations of tuned values that are tried for an arm; none where it sweeps what is tuned."""
        swept = {change.partition("=")[0] for change in arm.changes}
        tuned = default_sweep(source) if self.tune is None else self.tune
        tried = {key: values for key, values in tuned.items() if key not in swept}
        return combinations(tried) if tried else []


@dataclass(frozen=True)
class Trial:
    """One run: its purpose, and what it is to do. Runs of equal contents are one run."""

    words: str
    """What it is, for people."""
    settings: JsonObject
    budget: Budget
    key: str
    """A hash of everything that its result depends on."""
    seed: int = 0

    def folder(self, store: Path) -> Path:
        """Return where the run is, or will be."""
        return store / f"{folder_name(*self.words.replace(' · ', ' ').split())}-{self.key}"


def start_trial(source: Ground) -> Trial:
    """Return the run that all runs of a source start from: its warm-up, or its model as it is, evaluated once."""
    config = source.config((*QUIET, "run.rollouts_every=0", "steps=0"))
    if config.model.lora is not None and config.warmup.steps:
        raise InputError(
            "model.lora with warmup.steps",
            "runs that are compared start from one warmed-up model, and adapters are not a model of their own",
            "Set warmup.steps=0, or name a model that is warmed up already",
        )
    return _trial(f"{source.name} start", config, Budget("steps", 0), "")


def trial(
    source: Ground,
    arm: Arm,
    seed: int,
    budget: Budget,
    start: tuple[Trial, Path],
    tuned: Sequence[str] = (),
    rollouts_every: int = 0,
) -> Trial:
    """Return the run of an arm on a source with a seed; `start` is the run it starts from, and that one's model."""
    before, model = start
    warm = (f"model.name={json.dumps(str(model))}", "warmup.steps=0") if source.config().warmup.steps else ()
    steps = source.config(arm.changes).steps
    quiet = (*QUIET, f"run.rollouts_every={rollouts_every}")
    changes = (*arm.changes, *tuned, *quiet, *warm, *budget.settings(steps), f"seed={seed}")
    words = " · ".join([source.name, arm.label, *(each.replace("=", " ") for each in tuned), f"s{seed}"])
    return replace(_trial(words, source.config(changes), budget, before.key), seed=seed)


def _trial(words: str, config: Config, budget: Budget, start: str) -> Trial:
    settings = config.model_dump(mode="json")
    known = {**settings, "run": {**settings["run"], "folder": None}}
    if start and not config.warmup.steps:
        known["model"] = {**settings["model"], "name": start}  # its contents, not where they are
    held: list[object] = [known, asdict(budget), start, __version__, own_code(config), task_of(config).fingerprint()]
    if read := model_contents(known):
        held.append(read)
    return Trial(words, settings, budget, digest(held))
