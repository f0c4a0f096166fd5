"""A comparison from its design to its result: tuning, budgets, what is kept, and one real run that is cut off."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from grouprl.cli.laboratory.compare import fitting
from grouprl.core.errors import InputError, RunError
from grouprl.experiments import trial_main
from grouprl.experiments.arms import arms_of, methods_of
from grouprl.experiments.budget import Budget
from grouprl.experiments.calling import _teller, designed
from grouprl.experiments.compare import run_comparison, source_of
from grouprl.experiments.design import TUNING_SEED, Comparison, Trial, start_trial, trial
from grouprl.experiments.page import html
from grouprl.experiments.preview import preview
from grouprl.experiments.run_outcome import RunOutcome, area, outcome_of
from grouprl.experiments.schedule import Store
from grouprl.experiments.tables import listings
from grouprl.experiments.trial_main import OUTCOME, RUN, make_run, write_spec
from grouprl.experiments.writing import write_result
from grouprl.protocols.run_events import RunListener, StepEnded

SMALL = ("steps=8", "batch.prompts=2", "batch.group_size=2", "eval.prompts=4", "eval.final_prompts=4")
WORTH = {"grpo": 0.1, "dr_grpo": 0.3, "gspo": 0.5}


def design(methods: str = "grpo,dr_grpo", **given) -> Comparison:
    sources = (source_of("addition", SMALL),)
    arms = tuple(arms_of(methods_of(methods), {}))
    return Comparison(
        given.pop("sources", sources), arms, **{"seeds": 3, "tune": {"optim.lr": ("1e-3", "1e-2")}, **given}
    )


class PretendedStore(Store):
    """A store whose runs take no time: arms differ by `WORTH`, and the rate 0.01 is worth 0.2 more."""

    made: list[Trial]
    spread = 0.001
    """By how much differences from grpo vary over seeds."""

    def outcomes(self, trials: Sequence[Trial], tell) -> dict[str, RunOutcome]:
        for each in self.missing(trials):
            self.made.append(each)
            folder = each.folder(self.folder)
            folder.mkdir(parents=True)
            (folder / OUTCOME).write_text(json.dumps(self.pretend(each).as_json()), encoding="utf-8")
        return {each.key: self.known(each) for each in trials}

    def pretend(self, each: Trial) -> RunOutcome:
        name = each.settings["method"]
        high = WORTH.get(name if isinstance(name, str) else "", 0.0) + 0.01 * (each.seed % 3)
        high += self.spread * (each.seed % 3 - 1) * (name != "grpo")
        high += 0.2 * (each.settings["optim"]["lr"] == 0.01)
        measures = {"eval/pass@1": (0.0, high), "eval/length_mean": (5.0, 5.0), "eval/graded": (0.0, 0.0)}
        costs = {"tokens": 40.0, "trained": 40.0, "steps": 8.0, "seconds": 1.0}
        return RunOutcome((0.0, 160.0), measures, costs, {"entropy": 0.5})


def pretended(folder: Path) -> PretendedStore:
    store = PretendedStore(folder, 1)
    object.__setattr__(store, "made", [])
    return store


def compared(what: Comparison, store: Store):
    return run_comparison(what, store, lambda *_: None, lambda _: None)


def test_each_arm_runs_at_its_own_best_rate_on_seeds_it_was_not_tuned_on(tmp_path: Path) -> None:
    store = pretended(tmp_path)
    result = compared(design(), store)
    assert {each.arm: each.chosen for each in result.tuned} == {
        "grpo": ("optim.lr=1e-2",),
        "dr_grpo": ("optim.lr=1e-2",),
    }
    last = [each for each in store.made if each.seed < TUNING_SEED and each.settings["steps"]]
    assert {each.settings["optim"]["lr"] for each in last} == {0.01}
    assert sorted(each.seed for each in last) == [0, 0, 1, 1, 2, 2]
    assert {each.settings["warmup"]["steps"] for each in last} == {0}


def test_the_budget_is_the_configured_steps_at_the_length_of_the_start(tmp_path: Path) -> None:
    """8 steps of 4 completions of 5 tokens."""
    result = compared(design(), pretended(tmp_path))
    assert result.amounts == {"addition": 160.0}
    assert result.unit == "tokens sampled"


@pytest.mark.parametrize(("seeds", "verdict"), [(2, "not shown"), (6, "not shown"), (7, "better")])
def test_equal_differences_are_judged_by_their_signs(tmp_path: Path, seeds: int, verdict: str) -> None:
    """Two rows are corrected for: 2 · 2^(1-6) is above 0.05, 2 · 2^(1-7) below."""
    store = pretended(tmp_path)
    object.__setattr__(store, "spread", 0.0)
    result = compared(design(seeds=seeds), store)
    final, _ = result.differences
    assert (final.p, final.p_holm, final.verdict) == (2.0 ** (1 - seeds), 2 * 2.0 ** (1 - seeds), verdict)
    said = [note for note in result.notes if "the same on all" in note]
    assert said[0].startswith(f"The final difference of dr_grpo is the same on all {seeds} seeds")
    assert "From 7 seeds on this shows it, corrected for 2 rows" in said[0]


def test_differences_with_spread_have_a_t_test(tmp_path: Path) -> None:
    assert not [note for note in compared(design(), pretended(tmp_path)).notes if "the same on all" in note]


def test_the_result(tmp_path: Path) -> None:
    result = compared(design(), pretended(tmp_path))
    final, height = result.differences
    assert (final.arm, final.against, final.score, final.verdict) == ("dr_grpo", "grpo", "final", "better")
    assert final.mean == pytest.approx(0.2)
    assert final.improvement.value == 1.0
    assert height.mean == pytest.approx(0.1)  # curves rise straight from 0
    assert result.verdict() == "dr_grpo better than grpo (eval/pass@1 at the end, 3 seeds)."
    assert any("all their steps" in note for note in result.notes)  # 40 of 160 tokens


def test_a_result_prints_its_verdict_and_what_weakens_it(tmp_path: Path) -> None:
    result = compared(design(), pretended(tmp_path))
    first, *rest = repr(result).splitlines()
    assert first == result.verdict()
    assert rest == [f"note: {each}" for each in result.notes]


def test_where_less_is_better_the_lowest_is_chosen_and_called_better(tmp_path: Path) -> None:
    result = compared(design(measure="eval/pass@1", lower_is_better=True), pretended(tmp_path))
    assert {each.chosen for each in result.tuned} == {("optim.lr=1e-3",)}
    final, height = result.differences
    assert (final.verdict, height.verdict) == ("worse", "worse")
    assert final.mean == pytest.approx(0.2)  # numbers keep the sign of the measure
    assert final.improvement.value == 0.0
    assert result.verdict() == "dr_grpo worse than grpo (eval/pass@1 at the end, less is better, 3 seeds)."
    assert [row[0] for row in listings(result)[0].rows] == ["grpo", "dr_grpo"]
    least, most = (next(each.y for each in result.profiles if each.arm == arm) for arm in ("grpo", "dr_grpo"))
    assert least[0] == 0.0
    assert least[-1] == 1.0
    assert all(a >= b for a, b in zip(least, most, strict=True))
    assert least != most
    page = html(result, "grouprl compare")
    assert "share of runs below a level" in page
    assert "further left wins" in page


def test_less_is_better_only_of_a_measure_that_is_named() -> None:
    with pytest.raises(InputError, match="--lower-is-better without --measure"):
        design(lower_is_better=True)


def test_where_more_is_better_the_highest_stands_first(tmp_path: Path) -> None:
    result = compared(design(), pretended(tmp_path))
    assert [row[0] for row in listings(result)[0].rows] == ["dr_grpo", "grpo"]
    assert "share of runs above a level" in html(result, "grouprl compare")


class Divergent(PretendedStore):
    """A store in which the higher rate, and any run of `nowhere`, ends with a measure that is no number."""

    nowhere = ""

    def outcomes(self, trials: Sequence[Trial], tell) -> dict[str, RunOutcome]:
        found = super().outcomes(trials, tell)
        lost = [
            each.key
            for each in trials
            if each.settings["optim"]["lr"] == 0.01 or (self.nowhere and self.nowhere in each.words)
        ]
        nothing = {"eval/pass@1": (0.0, math.nan)}
        return found | {key: replace(found[key], measures={**found[key].measures, **nothing}) for key in lost}


def test_a_measure_that_is_no_number_is_never_the_best_and_is_not_compared(tmp_path: Path) -> None:
    store = Divergent(tmp_path, 1)
    object.__setattr__(store, "made", [])
    result = compared(design(), store)
    assert {each.chosen for each in result.tuned} == {("optim.lr=1e-3",)}
    assert all("failed at optim.lr=1e-2" in " ".join(each.notes()) for each in result.tuned)
    object.__setattr__(store, "nowhere", "dr_grpo")
    with pytest.raises(RunError, match=r"eval/pass@1 of the run .*dr_grpo.* is not a number in 1 of its 2 evaluations"):
        compared(design(tune={}), store)


def test_a_measure_that_a_run_lacks_is_named() -> None:
    with pytest.raises(InputError, match="no measure 'eval/metric/useful'"):
        RunOutcome((0.0,), {"eval/pass@1": (0.25,)}, {}, {}).final("eval/metric/useful")


@pytest.mark.parametrize(
    ("asked", "measures", "said"),
    [
        (None, {}, "eval/pass@1 0.250"),
        ("eval/reward", {}, "eval/reward 0.750"),
        (None, {"eval/graded": (1.0,)}, "eval/reward 0.750"),
        (None, {"eval/returns": (1.0,)}, "eval/reward 0.750"),
        (None, {"eval/pair_accuracy": (0.5,)}, "eval/pair_accuracy 0.500"),
        ("eval/metric/absent", {}, "no eval/metric/absent"),
    ],
)
def test_progress_shows_the_measure_that_is_compared(asked: str | None, measures: dict, said: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    known = {"eval/pass@1": (0.25,), "eval/reward": (0.75,), **measures}
    begun = start_trial(design().sources[0])
    _teller(1, console, asked)(begun, RunOutcome((0.0,), known, {"seconds": 1.0}, {}), True)
    assert f": {said} (kept)" in console.file.getvalue()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("run.threads=2", "run.threads"),
        ("run.trackers=tensorboard", "run.trackers"),
        ("run.rollouts_every=1", "run.rollouts_every"),
        ("run={threads: 2}", "run.threads"),
        ("seed=3", "seed"),
    ],
)
def test_a_setting_of_all_runs_that_none_would_have_is_refused(change: str, key: str) -> None:
    with pytest.raises(InputError, match=f"{key} is overridden"):
        designed("addition", "grpo,dr_grpo", changes=[change])


def test_what_a_source_sets_and_no_run_has_is_told(tmp_path: Path) -> None:
    sources = (source_of("addition", (*SMALL, "run.threads=3", "run.trackers=tensorboard")),)
    told = str(preview(replace(design(), sources=sources), Store(tmp_path, 2)))
    assert 'note on addition: run.threads = 3, run.trackers = ["tensorboard"] is not used' in told
    assert "is not used" not in str(preview(design(), Store(tmp_path, 2)))


def test_a_further_method_makes_only_what_is_missing(tmp_path: Path) -> None:
    compared(design(), pretended(tmp_path))
    store = pretended(tmp_path)
    again = compared(design(), store)
    assert store.made == []
    assert again.as_json() == compared(design(), pretended(tmp_path)).as_json()
    more = compared(design("grpo,dr_grpo,gspo"), store)
    assert {each.settings["method"] for each in store.made} == {"gspo"}
    assert len(store.made) == 2 * 2 + 3
    assert len(more.arms) == 3


def test_runs_of_the_same_contents_are_kept_whatever_they_are_called(tmp_path: Path) -> None:
    """A recipe under another name, and a rate that is tuned or the recipe's own, are the same runs."""
    compared(design(tune={"optim.lr": ("5e-4", "1e-6")}), pretended(tmp_path))  # the recipe's own is the best
    store = pretended(tmp_path)
    named = replace(design().sources[0], name="sums")
    result = compared(design(sources=(named,), tune={}), store)
    assert store.made == []
    assert {each.folder.partition("-")[0] for each in result.runs} == {"addition"}


def test_what_a_run_depends_on_is_in_its_name() -> None:
    """Its seed, rate, budget and start; not its folder, nor where the start is."""
    source, arm = design().sources[0], design().arms[0]
    begun = start_trial(source)
    made = [trial(source, arm, 0, Budget("steps", 4), (begun, Path(f"/tmp/{where}"))) for where in "ab"]
    assert made[0].key == made[1].key
    other = [
        trial(source, arm, 1, Budget("steps", 4), (begun, Path("/tmp/a"))),
        trial(source, arm, 0, Budget("steps", 5), (begun, Path("/tmp/a"))),
        trial(source, arm, 0, Budget("steps", 4), (begun, Path("/tmp/a")), ("optim.lr=1e-9",)),
        trial(source, arm, 0, Budget("steps", 4), (replace(begun, key="another"), Path("/tmp/a"))),
    ]
    assert len({made[0].key, *(each.key for each in other)}) == 5


def test_the_contents_of_a_model_are_in_the_name_of_its_runs(tmp_path: Path) -> None:
    """Weights that are written anew are another model, whatever their folder is called."""
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    source = source_of("addition", (*SMALL, "warmup.steps=0", f"model.reference={weights.parent}"))
    keys = [start_trial(source).key]
    weights.write_bytes(b"two")
    keys.append(start_trial(source).key)
    source = source_of(
        "addition", (*SMALL, "warmup.steps=0", f"model.reference={{initial: 0.5, {weights.parent}: 0.5}}")
    )
    keys.append(start_trial(source).key)
    weights.write_bytes(b"one")
    keys.append(start_trial(source).key)
    assert len(set(keys)) == 4


def test_an_alarm_of_a_compared_run_is_told(tmp_path: Path) -> None:
    """A reward that fails on many completions leaves them out: the scores say nothing of it."""

    class Alarming(PretendedStore):
        def pretend(self, each: Trial) -> RunOutcome:
            alarms = {"reward_errors": "9 completions could not be scored."} if each.seed in (1, 2) else {}
            return replace(super().pretend(each), alarms=alarms if each.settings["method"] == "grpo" else {})

    store = Alarming(tmp_path, 1)
    object.__setattr__(store, "made", [])
    told = [note for note in compared(design(), store).notes if note.startswith("Alarm")]
    assert len(told) == 1
    assert "Alarm reward_errors in runs: 2 of grpo on addition. One says: 9 completions could not be scored" in told[0]


def test_only_alarms_of_the_findings_are_in_an_outcome() -> None:
    findings = [{"code": name, "severity": name, "text": f"an {name}"} for name in ("alarm", "note")]
    assert outcome_of([], "steps", findings=findings).alarms == {"alarm": "an alarm"}


def test_without_tuning_the_result_says_so(tmp_path: Path) -> None:
    result = compared(design(tune={}), pretended(tmp_path))
    assert result.tuned == ()
    assert any("--no-tune" in note for note in result.notes)


def test_a_failed_run_is_no_result_and_a_failed_rate_is_not_chosen(tmp_path: Path) -> None:
    class Failing(PretendedStore):
        rate = 0.01

        def pretend(self, each: Trial) -> RunOutcome:
            bad = each.settings["optim"]["lr"] == self.rate and each.settings["steps"]
            return replace(super().pretend(each), error="the loss is nan" if bad else "")

    store = Failing(tmp_path, 1)
    object.__setattr__(store, "made", [])
    result = compared(design(), store)
    assert {each.chosen for each in result.tuned} == {("optim.lr=1e-3",)}
    assert any("failed at optim.lr=1e-2" in note for note in result.notes)
    Failing.rate = 5e-4  # that of the recipe
    with pytest.raises(RunError, match="loss is nan"):
        compared(design(tune={}), replace_store(store, tmp_path / "other"))


def test_every_run_that_failed_is_named_and_how_it_is_tried_again(tmp_path: Path) -> None:
    class Failing(PretendedStore):
        def pretend(self, each: Trial) -> RunOutcome:
            bad = each.settings["method"] == "dr_grpo" and each.settings["steps"]
            return replace(super().pretend(each), error="it is nan." if bad else "")

    store = Failing(tmp_path, 1)
    object.__setattr__(store, "made", [])
    with pytest.raises(RunError) as raised:
        compared(design(tune={}), store)
    *first, last = str(raised.value).split("\n")
    assert first == [f"the run addition · dr_grpo · s{seed} failed: it is nan." for seed in (0, 1)]
    assert "s2 failed: it is nan. A comparison without" in last
    assert last.count("addition-dr_grpo-s") == 3


def test_a_start_that_failed_is_told_as_such(tmp_path: Path) -> None:
    class Failing(PretendedStore):
        def pretend(self, each: Trial) -> RunOutcome:
            return RunOutcome((), {}, {}, {}, "the warm-up is nan")

    store = Failing(tmp_path, 1)
    object.__setattr__(store, "made", [])
    with pytest.raises(RunError, match="addition start failed: the warm-up is nan"):
        compared(design(), store)


class PretendedProcess:
    """A process that has ended at once, with or without an outcome."""

    returncode = 1

    def __init__(self, folder: Path, said: str) -> None:
        self.said = said
        if not said:
            (folder / OUTCOME).write_text(json.dumps(RunOutcome((), {}, {"seconds": 1.0}, {}).as_json()))

    def poll(self) -> int:
        return self.returncode

    def last_output(self, most: int) -> str:
        return self.said[-most:]

    def send_signal(self, number: int) -> None:
        """It has ended."""

    def end(self) -> None:
        """It has ended."""


def test_a_run_whose_process_fails_does_not_keep_the_others_from_being_made(tmp_path: Path) -> None:
    what = design("grpo,dr_grpo,gspo", tune={})
    source, begun = what.sources[0], start_trial(what.sources[0])
    trials = [trial(source, arm, 0, Budget("steps", 4), (begun, tmp_path)) for arm in what.arms]

    def start(folder: Path) -> PretendedProcess:
        ends = "line 1\ngrouprl.core.errors.InputError: no memory is left.\n"
        return PretendedProcess(folder, ends if "dr_grpo" in folder.name else "")

    store = Store(tmp_path, 1, start)
    said = r"^the run addition · dr_grpo · s0 ended by itself with exit code 1: no memory is left\. Its folder is"
    with pytest.raises(RunError, match=said):
        store.outcomes(trials, lambda *_: None)
    assert [each.words for each in store.missing(trials)] == ["addition · dr_grpo · s0"]


@pytest.mark.parametrize("begun", [True, False])
def test_own_code_that_fails_in_a_run_is_its_outcome(begun: bool, tmp_path: Path, monkeypatch) -> None:
    """What is refused before a step is made is no outcome: nothing of it was tried."""

    def train(*_: object, **__: object) -> None:
        error = InputError("losses are not finite")
        error.begun = begun
        raise error

    monkeypatch.setattr(trial_main, "train", train)
    made = start_trial(design().sources[0])
    write_spec(tmp_path, made.settings, made.budget)
    if not begun:
        with pytest.raises(InputError, match="not finite"):
            make_run(tmp_path)
    else:
        make_run(tmp_path)
    assert (tmp_path / OUTCOME).is_file() == begun


def replace_store(store: PretendedStore, folder: Path) -> PretendedStore:
    other = type(store)(folder, 1)
    object.__setattr__(other, "made", [])
    return other


def test_a_measure_that_no_run_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"eval/pass@1"):
        compared(design(measure="eval/pass1"), pretended(tmp_path))


def test_the_page_and_its_data_agree(tmp_path: Path) -> None:
    result = compared(design(), pretended(tmp_path / "store"))
    paths = write_result(result, tmp_path, "grouprl compare …")
    page, text = (tmp_path / name for name in ("index.html", "comparison.md"))
    assert "<script src" not in page.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8").count('class="band') >= 4  # two curves, two profiles
    assert result.verdict() in text.read_text(encoding="utf-8")
    data = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert data["differences"][0]["verdict"] == "better"
    assert len((tmp_path / "runs.csv").read_text(encoding="utf-8").splitlines()) == 1 + 6
    assert all(path.is_file() for path in paths)


def test_the_page_has_its_curves_on_narrow_screens_too(tmp_path: Path) -> None:
    """The style sheet hides a wide chart there, as the report has a narrow one beside it."""
    page = html(compared(design(), pretended(tmp_path)), "")
    wide, narrow = (page.count(f'<figure class="{kind}"') for kind in ("chart wide", "chart"))
    assert wide == narrow == page.count('<div class="only-narrow"><figure class="chart"') == 2  # one task, one profile


def test_a_preview_counts_runs_and_refuses_what_cannot_work(tmp_path: Path) -> None:
    seen = preview(design(), Store(tmp_path, 2))
    assert seen.runs == 1 + 2 * (2 * 2 + 3)
    assert "11 runs" not in str(seen)
    with pytest.raises(InputError, match=r"'dr_grp' on addition.*dr_grpo"):
        preview(design("grpo,dr_grp"), Store(tmp_path, 2))
    assert list(tmp_path.iterdir()) == []


def test_arms_that_differ_in_writing_alone_are_refused(tmp_path: Path) -> None:
    """They would be one run, compared with itself."""
    arms = tuple(arms_of([], {"optim.lr": ("1e-4", "0.0001")}))
    with pytest.raises(InputError, match=r"'optim.lr 1e-4' and 'optim.lr 0.0001' have the same settings on addition"):
        preview(replace(design(), arms=arms), Store(tmp_path, 2))


@pytest.mark.parametrize(
    ("setting", "values", "budget"),
    [
        ("seed", ("3", "4"), "tokens"),
        ("steps", ("3", "4"), "steps"),
        ("task", ("addition", "recall"), "tokens"),
        ("eval.prompts", ("4", "8"), "tokens"),
        ("warmup.steps", ("900", "9"), "tokens"),
        ("model.name", ("tiny", "other"), "tokens"),
        ("model.tiny.hidden", ("64", "32"), "tokens"),
        ("optim.schedule", ("constant", "linear"), "tokens"),
        ("run.threads", ("1", "2"), "tokens"),
    ],
)
def test_no_arm_and_no_tuned_value_changes_what_all_runs_share(setting, values, budget, tmp_path: Path) -> None:
    """The change would be overridden, and a run compared with itself; or the arm would be measured in another way."""
    swept = replace(design(), arms=tuple(arms_of([], {setting: values})), budget=Budget(budget))
    for each in (swept, design(tune={setting: values}, budget=Budget(budget))):
        with pytest.raises(InputError, match=f"differs from the others in {setting.partition('.')[0]}"):
            preview(each, Store(tmp_path, 2))


def test_a_schedule_is_compared_where_the_last_step_is_known_and_a_size_where_nothing_is_warmed_up(tmp_path) -> None:
    for setting, values in {"optim.schedule": ("constant", "linear"), "model.tiny.hidden": ("64", "32")}.items():
        sources = (source_of("addition", (*SMALL, "warmup.steps=0")),)
        arms = tuple(arms_of([], {setting: values}))
        what = Comparison(sources, arms, budget=Budget("steps"), tune={})
        assert preview(what, Store(tmp_path, 2)).runs == 11
        notes = compared(what, pretended(tmp_path / setting)).notes
        assert any("not all of one size (model.tiny.hidden 32)" in note for note in notes) == ("tiny" in setting)


def test_an_arm_whose_change_has_no_effect_is_named(tmp_path: Path) -> None:
    """A sweep of a setting that nothing reads compares chance with chance."""
    source = source_of("addition", SMALL)
    arms = arms_of([], {"sampling.vllm.sleep": ("true", "false"), "optim.lr": ("1e-3", "2e-3")})
    seen = preview(Comparison((source,), tuple(arms), tune={}), Store(tmp_path, 1))
    told = [line for line in seen.lines if "has no effect" in line]
    assert told == [
        f"note on sampling.vllm.sleep {value} · optim.lr {rate}: sampling.vllm has no effect: sampling.engine is local"
        for value in ("true", "false")
        for rate in ("1e-3", "2e-3")
    ]


def test_a_warning_of_one_rate_that_is_tried_is_none(tmp_path: Path) -> None:
    """The sweep is made to find the rate: what too low a one does need not be said."""
    low, high = ("1e-7", "1e-6"), ("1e-7", "3e-3")
    told = [str(preview(design(tune={"optim.lr": rates}), Store(tmp_path, 2))) for rates in (low, high)]
    assert ["stand still" in each for each in told] == [True, False]


def test_every_combination_that_is_tried_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'rloo' on addition.*one update per rollout"):
        preview(design("rloo,dr_grpo", tune={"batch.minibatches": ("1", "2")}), Store(tmp_path, 2))


def test_a_profile_of_runs_that_reached_nothing_has_levels_of_a_measure(tmp_path: Path) -> None:
    result = compared(design(measure="eval/graded"), pretended(tmp_path))
    assert {(each.x[0], each.x[-1], *each.y) for each in result.profiles} == {(0.0, 1.0, *[0.0] * 41)}


@pytest.mark.parametrize(("amount", "told"), [(40.0, False), (38.0, False), (20.0, True)])
def test_a_run_that_spent_much_more_than_its_budget_is_named(tmp_path: Path, amount: float, told: bool) -> None:
    result = compared(design(budget=Budget("tokens", amount)), pretended(tmp_path))
    assert ("A run of grpo on addition spent 200% of the budget" in " ".join(result.notes)) is told


@pytest.mark.parametrize("width", [60, 80, 300])
def test_no_cell_is_cut_off_on_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    for found in listings(compared(design(), pretended(tmp_path)))[:2]:
        console = Console(file=io.StringIO(), width=width)
        tables = fitting([found.head, *found.rows], found.keys, found.title, console)
        for table in tables:
            console.print(table)
        shown = console.file.getvalue()
        assert all(cell in shown for row in (found.head, *found.rows) for cell in row)
        assert [shown.count(name) for name in found.head[1 : found.keys]] == [len(tables)] * (found.keys - 1)
        assert (len(tables) == 1) == (width == 300)


RECORDS = [
    {"phase": "eval", "step": 0, "eval/pass@1": 0.2, "eval/pass@1_low": 0.1, "eval/length_mean": 3.0},
    {"phase": "train", "step": 1, "tokens_sampled": 10.0, "groups_zero_variance": 1.0, "entropy": 2.0},
    {"phase": "train", "step": 2, "tokens_sampled": 30.0, "groups_zero_variance": 0.5, "entropy": 1.0},
    {"phase": "eval", "step": 2, "eval/pass@1": 0.5, "eval/length_mean": 3.0},
    {"phase": "eval", "step": 2, "eval/pass@1": 0.6, "eval/length_mean": 3.0},
]


def test_an_outcome_has_its_curve_over_what_was_spent() -> None:
    found = outcome_of(RECORDS, "tokens")
    assert found.x == (0.0, 40.0)
    assert found.measures["eval/pass@1"] == (0.2, 0.6)
    assert "eval/pass@1_low" not in found.measures
    assert found.curve("eval/pass@1", 20.0, 3).tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert area(found.curve("eval/pass@1", 40.0, 5)) == pytest.approx(0.4)
    assert found.health == {"groups_zero_variance": 0.75, "entropy": 1.5, "dead_groups": 0.75}
    assert RunOutcome.from_json(json.loads(json.dumps(found.as_json()))) == found


class CutOff(RunListener):
    """Interrupts a run from outside after its second step, as a kill between two checkpoints would."""

    def step(self, event: StepEnded) -> None:
        if event.phase == "train" and event.step == 2:
            raise KeyboardInterrupt


def test_a_run_that_is_cut_off_ends_as_one_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of("addition", (*SMALL, "warmup.steps=0", "eval.every=2", "run.checkpoint_every=1"))
    made = trial(source, design().arms[0], 0, Budget("tokens", 130.0), (start_trial(source), tmp_path))
    for name in ("whole", "cut"):
        write_spec(tmp_path / name, made.settings, made.budget)
    make_run(tmp_path / "whole")
    train = trial_main.train
    monkeypatch.setattr(
        trial_main, "train", lambda *a, callbacks=(), **k: train(*a, callbacks=[*callbacks, CutOff()], **k)
    )
    with pytest.raises(KeyboardInterrupt):
        make_run(tmp_path / "cut")
    assert not (tmp_path / "cut" / OUTCOME).exists()
    monkeypatch.setattr(trial_main, "train", train)
    make_run(tmp_path / "cut")
    whole, cut = (json.loads((tmp_path / name / OUTCOME).read_text(encoding="utf-8")) for name in ("whole", "cut"))
    for each in (whole, cut):
        del each["costs"]["seconds"]
    assert cut == whole
    health = json.loads((tmp_path / "whole" / RUN / "health.json").read_text(encoding="utf-8"))
    assert list(whole["alarms"]) == [each["code"] for each in health if each["severity"] == "alarm"]
    assert 130.0 <= whole["costs"]["tokens"] < 32 * 130.0
    assert whole["costs"]["steps"] < 32
    weights = [(tmp_path / name / RUN / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
