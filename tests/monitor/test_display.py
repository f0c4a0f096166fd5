"""The display on a terminal, on a file, and the summaries."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from grouprl.core.finding import RunFinding
from grouprl.monitor.display import Display
from grouprl.monitor.screen import clock_text, plain, sample_line, shorten, spark, thousands
from grouprl.monitor.summary import side_by_side, summary_table
from grouprl.protocols.run_events import (
    EvaluationEnded,
    FindingChanged,
    PhaseBegan,
    Progress,
    RunEnded,
    Sample,
    StepEnded,
    UserMessage,
)

SAMPLES = [Sample("47+25=", "7+5=12, 4+2+1=7: 72", 1.0, True), Sample("3+9=", "13", 0.0, False)]
DEAD = RunFinding("dead_groups", "warning", "", "38 % of the groups are dead.", "Harder prompts.", 5, 7)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(step: int, **more) -> dict:
    return {
        "phase": "train",
        "step": step,
        "reward_mean": 0.5 + step / 1000,
        "pass@1": 0.5,
        "length_mean": 11.25,
        "length_max": 16,
        "truncated_fraction": 0.0,
        "entropy": 0.312,
        "kl_old": 0.0041,
        "clip_fraction": 0.021,
        "groups_zero_variance": 0.38,
        "groups_all_right": 0.31,
        "groups_all_wrong": 0.07,
        "tokens_per_second": 5234.0,
        "grad_norm": 0.8,
        **more,
    }


def stepped(step: int, samples: list[Sample] | None = None) -> StepEnded:
    return StepEnded("train", step, record(step), None if samples is None else tuple(samples))


def evaluated(step: int, **record: float) -> EvaluationEnded:
    return EvaluationEnded(step, "between", {"phase": "eval", "step": step, **record}, ())


def file_console() -> Console:
    return Console(file=StringIO(), width=80)


def terminal() -> Console:
    return Console(file=StringIO(), width=80, height=24, force_terminal=True, record=True, color_system="truecolor")


def lines_of(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


def test_a_console_that_is_no_terminal_is_not_live():
    console = file_console()
    with Display(console) as display:
        assert not display.live
        display.phase_begin(PhaseBegan("train", 10))
        display.step(stepped(1, SAMPLES))
    text = console.file.getvalue()
    assert "\x1b" not in text
    assert (
        "training 1/10  reward 0.501  pass@1 0.500  length 11.2  entropy 0.312  kl 0.004  clip 2.1%  dead 38%" in text
    )


def test_a_dumb_terminal_is_not_live(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not Display(Console(file=StringIO(), force_terminal=True)).live


def test_lines_are_few_but_the_last_step_and_evaluations_are_always_there():
    console, clock = file_console(), Clock()
    display = Display(console, clock=clock)
    display.phase_begin(PhaseBegan("train", 1000))
    for step in range(1, 1001):
        clock.now += 1.0
        display.step(stepped(step))
        if step == 333:
            display.evaluation(evaluated(333, **{"eval/greedy": 0.5, "eval/pass@1": 0.4}))
    lines = [line for line in lines_of(console) if line.startswith("training ")]
    assert 20 <= len(lines) <= 22
    assert lines[0].startswith("training 1/1000")
    assert lines[-1].startswith("training 1000/1000")
    assert "eval at step 333: greedy 0.500   pass@1 0.400" in lines_of(console)


def test_fast_steps_write_no_line_each():
    console, clock = file_console(), Clock()
    display = Display(console, clock=clock)
    display.phase_begin(PhaseBegan("train", 10))
    for step in range(1, 10):
        clock.now += 0.1
        display.step(stepped(step))
    assert len(lines_of(console)) == 2  # the heading and the first step


def test_a_finding_is_said_once_and_again_when_it_changes():
    console = file_console()
    display = Display(console)
    display.phase_begin(PhaseBegan("train", 100))
    for step in range(1, 30):
        worse = step > 20
        findings = [RunFinding("x", "alarm" if worse else "note", "", "Something.", "Do it.", 1, step)]
        display.step(stepped(step))
        for each in findings:
            display.finding(FindingChanged(each, "changed"))
    said = [line for line in lines_of(console) if "Something." in line]
    assert said == ["note (step 1): Something. Do it.", "alarm (step 21): Something. Do it."]


def test_what_is_printed_is_not_markup():
    console = file_console()
    display = Display(console)
    display.message(UserMessage("folder [red]runs[/red] [/]"))
    assert lines_of(console) == ["folder [red]runs[/red] [/]"]


def test_names_of_reward_components_are_not_markup():
    name = "eval/reward/a[/b] [red]c"
    text = shown(summary_table({name: 0.25, "eval/prompts": 4.0}, {name: 0.5, "eval/prompts": 4.0}))
    assert "a[/b] [red]c" in text


def test_the_live_screen_shows_everything_in_80_by_24():
    console, clock = terminal(), Clock()
    many = [
        DEAD,
        *(RunFinding(f"k{i}", "note", "", f"Finding number {i} " + "word " * 30, "r", 1, 9) for i in range(9)),
    ]
    display = Display(console, clock=clock)
    assert display.live
    display.phase_begin(PhaseBegan("train", 100))
    for step in range(1, 38):
        clock.now += 2.0
        display.step(stepped(step, SAMPLES * 5))
        for each in many:
            display.finding(FindingChanged(each, "changed"))
    display.evaluation(evaluated(20, **{"eval/greedy": 0.93, "eval/pass@1": 0.81}))
    picture = Console(file=StringIO(), width=80, height=24)
    picture.print(display._screen)
    text = picture.file.getvalue()
    lines = text.splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    for part in (
        "training 37/100",
        "1:14 elapsed",
        "2:06 left",
        "reward   0.537",
        "from 0.501",
        "greedy 0.930",
        "zero-var.   38 % (31 right, 7 wrong)",
    ):
        assert part in text, part
    for part in (
        "31 right, 7 wrong",
        "entropy     0.312",
        "5.23k",
        "0.0041",
        "✓  1.00  47+25= → 7+5=12",
        "✗  0.00  3+9= → 13",
    ):
        assert part in text, part
    assert "! 38 % of the groups are dead." in text
    assert "more, in the report" in text
    display.close()
    display.close()


def test_the_live_terminal_is_given_back_after_an_error():
    console = terminal()
    with pytest.raises(KeyboardInterrupt), Display(console) as display:
        display.phase_begin(PhaseBegan("train", 10))
        display.step(stepped(1, SAMPLES))
        raise KeyboardInterrupt
    assert console.file.getvalue().count("\x1b[?25h") >= 1  # the cursor is shown again
    assert " 1/10 " in console.file.getvalue()


def test_a_message_stands_above_the_live_screen():
    console = terminal()
    with Display(console) as display:
        display.phase_begin(PhaseBegan("train", 10))
        display.message(UserMessage("checkpoint written"))
    text = console.file.getvalue()
    assert text.index("checkpoint written") < text.rindex("training")


def test_an_evaluation_phase_moves_by_progress():
    console, clock = terminal(), Clock()
    display = Display(console, clock=clock)
    display.phase_begin(PhaseBegan("eval", 512))
    clock.now = 4.0
    display.progress(Progress(128, 512))
    picture = Console(file=StringIO(), width=80, height=24)
    picture.print(display._screen)
    assert "evaluation 128/512" in picture.file.getvalue()
    assert "0:12 left" in picture.file.getvalue()
    display.close()


def test_time_of_training_goes_on_after_an_evaluation_and_a_resume_counts_only_its_own_steps():
    clock = Clock()
    display = Display(file_console(), clock=clock)
    display.phase_begin(PhaseBegan("train", 100, 50))
    for step in range(51, 61):
        clock.now += 1.0
        display.step(stepped(step))
    assert display._screen.seconds_left() == pytest.approx(40.0)
    display.phase_begin(PhaseBegan("eval", 10))
    clock.now += 100
    display.phase_begin(PhaseBegan("train", 100, 60))
    assert display._screen.began == 0.0
    assert display._screen.seconds_left() is None  # no step of the new pace yet
    clock.now += 1.0
    display.step(stepped(61))
    assert display._screen.seconds_left() == pytest.approx(39.0)


def test_control_characters_of_a_model_never_reach_the_terminal():
    evil = Sample("a\x1b[2J\x07", "b\r\x9b31m\u202e\n[bold]c[/bold]", 1.0, True)
    line = sample_line(evil, 80)
    assert line.plain == "✓  1.00  a·[2J· → b··31m·⏎[bold]c[/bold]"
    console = file_console()
    console.print(line)
    assert "\x1b" not in console.file.getvalue()
    assert plain("a\tb\n") == "a b⏎"


@pytest.mark.parametrize("answer", ["x" * 500, "数" * 300, ""])
def test_a_sample_fits_its_line(answer):
    line = sample_line(Sample("prompt " * 30, answer, -1.5, False), 80)
    assert line.cell_len <= 80
    assert " → " in line.plain


def test_shortening_keeps_beginning_and_end():
    assert shorten("short", 10) == "short"
    text = shorten("the beginning and at last the result 42", 20)
    assert len(text) == 20
    assert text.startswith("the begin")
    assert text.endswith("42")


def test_sparklines():
    assert spark([0, 1], 10) == "▁█"
    assert spark([1, 1, 1], 10) == "▁▁▁"
    assert len(spark(list(range(1000)), 40)) == 40
    assert spark(list(range(1000)), 8) == "▁▂▃▄▅▆▇█"


def test_numbers():
    assert (clock_text(7), clock_text(725), clock_text(10931)) == ("0:07", "12:05", "3:02:11")
    assert (thousands(950), thousands(5234), thousands(1.34e6)) == ("950", "5.23k", "1.34M")


def shown(table, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_the_summary_compares_before_and_after():
    before = {
        "eval/greedy": 0.301,
        "eval/greedy_low": 0.27,
        "eval/greedy_high": 0.33,
        "eval/pass@1": 0.442,
        "eval/length_mean": 6.1,
    }
    after = {
        "eval/greedy": 0.994,
        "eval/greedy_low": 0.987,
        "eval/greedy_high": 0.997,
        "eval/pass@1": 0.972,
        "eval/length_mean": 11.1,
    }
    text = shown(summary_table(before, after | {"eval/prompts": 1024.0, "eval/pass@16": 1.0}))
    assert "0.301 [0.270, 0.330]   0.994 [0.987, 0.997]   +0.693" in text
    assert "1024 held-out prompts" in text
    assert "+5.0" in text
    rows = [line.split()[1] for line in text.splitlines() if "pass@" in line]
    assert rows == ["pass@1", "pass@1", "pass@16"]
    assert "—" in text  # there was no pass@16 before


def test_wide_numbers_leave_their_labels_room():
    """Returns have four digits and more; a terminal has 80 columns."""
    wide = {"eval/reward": -1103.347, "eval/reward_low": -1564.305, "eval/reward_high": -740.872}
    wide |= {"eval/greedy_reward": -123456.7, "eval/length_mean": 200.0, "eval/returns": 1.0}
    text = shown(summary_table(wide, wide | {"eval/reward": -1123.826}, actions=True))
    for part in (
        "mean reward",
        "greedy reward",
        "length (actions)",
        "-1103.3",
        "-1564.3",
        "-740.9",
        "-123456.7",
        "-20.479",
    ):
        assert part in text


def test_completions_side_by_side_are_of_the_same_prompts():
    before = [Sample("47+25=", "62", 0.0, False), Sample("gone", "x", 0.0, False)]
    after = [Sample("other", "y", 1.0, True), Sample("47+25=", "[b]72[/b]", 1.0, True)]
    text = shown(side_by_side(before, after))
    assert "✗ 62" in text
    assert "✓ [b]72[/b]" in text
    assert "elapsed" not in text
    assert "other" not in text


def test_a_prompt_that_is_there_twice_has_each_completion_beside_its_own():
    before = [Sample("1+1=", "3", 0.0, False), Sample("1+1=", "5", 0.0, False)]
    after = [Sample("1+1=", "first", 1.0, True), Sample("1+1=", "second", 1.0, True)]
    lines = shown(side_by_side(before, after)).splitlines()
    assert [line.split()[-1] for line in lines if line.strip().startswith("1+1")] == ["first", "second"]


def test_an_episode_without_text_is_one_line():
    before, after = ([Sample("CartPole-v1, seed 5", "> 1⏎0.02 0.18 " * 40, float(n), None)] for n in (9, 500))
    rows = [line for line in shown(side_by_side(before, after, actions=True), 200).splitlines() if "seed 5" in line]
    assert len(rows) == 1
    assert "9  > 1" in rows[0]
    assert "500  > 1" in rows[0]


def test_steps_on_stored_pairs_tell_loss_accuracy_and_margin():
    console = file_console()
    display = Display(console)
    display.phase_begin(PhaseBegan("train", 20, 0))
    told = {"loss": 0.687, "pair_accuracy": 0.625, "rewards/margins": 0.0187, "kl_old": 0.0, "tokens_per_second": 217.0}
    display.step(StepEnded("train", 1, {"phase": "train", "step": 1, **told}, None))
    assert "loss 0.687  accuracy 0.625  margin 0.0187  217 tok/s" in lines_of(console)[-1]
    text = shown(display._screen)
    assert re.search(r"loss +0\.687", text)
    assert re.search(r"accuracy +0\.625", text)
    assert re.search(r"margin +0\.0187", text)


def test_only_what_should_rise_is_coloured_as_better_or_worse():
    names = ("eval/greedy", "eval/pass@1", "eval/truncated", "eval/length_mean")
    table = summary_table(dict.fromkeys(names, 0.25), dict.fromkeys(names, 0.5) | {"eval/pass@1": 0.125})
    styles = [str(cell.style) for cell in table.columns[3].cells]
    assert styles == ["green", "red", "", ""]


def test_shares_of_correct_completions_are_not_shown_of_graded_rewards():
    console = file_console()
    with Display(console) as display:
        display.phase_begin(PhaseBegan("train", 10))
        display.evaluation(evaluated(0, **{"eval/graded": 1.0, "eval/reward": 0.25, "eval/pass@1": 0.0}))
        display.step(stepped(1, SAMPLES))
    text = console.file.getvalue()
    assert "eval at step 0: reward 0.250" in text
    assert "reward 0.501  length 11.2" in text
    assert "pass@1" not in text


def test_a_finding_that_no_longer_holds_leaves_the_screen():
    display = Display(file_console())
    display.finding(FindingChanged(DEAD, "new"))
    assert list(display._screen.held) == ["dead_groups"]
    display.finding(FindingChanged(replace(DEAD, persists=False), "over"))
    assert not display._screen.held


def test_the_end_says_what_was_gained_or_how_to_continue():
    before = EvaluationEnded(0, "before", {"eval/greedy": 0.3}, (Sample("47+25=", "62", 0.0, False),))
    after = EvaluationEnded(9, "after", {"eval/greedy": 0.9}, (Sample("47+25=", "72", 1.0, True),))
    console = file_console()
    done = RunEnded(Path("runs/x"), "train", 9, before, after, "Learned: a lot.", ("One prompt failed.",), Path("r"))
    Display(console).end(done)
    text = console.file.getvalue()
    places = [text.index(said) for said in ("+0.600", "✓ 72", "Learned: a lot.", "One prompt failed.", "Report: r")]
    assert places == sorted(places)
    console = file_console()
    Display(console).end(RunEnded(Path("runs/x"), "warmup", 4, report=Path("r")))
    said = "Interrupted in warmup after step 4; a checkpoint is written.\nContinue with: grouprl train runs/x --resume"
    assert said in console.file.getvalue()
    Display(console := file_console()).end(RunEnded(Path("runs/x"), "train", 4, error=ValueError("x")))
    assert console.file.getvalue() == ""  # whoever catches the error says what it is
