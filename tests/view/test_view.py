"""The report of a run, made from synthetic run folders."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grouprl.core.errors import InputError
from grouprl.view import sections
from grouprl.view.charts import POINTS, Series, chart, downsample, number, ticks
from grouprl.view.report import write_report
from grouprl.view.runfiles import read_records, read_run
from grouprl.view.tokens import token_texts

EVIL = "<script>alert('owned')</script><img src=x onerror=alert(1)>\"'&"
VOID = {"meta", "input", "br", "img", "line", "circle"}


class Tree(HTMLParser):
    """Checks that tags are balanced and collects attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in {"meta", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag


def parsed(path: Path) -> Tree:
    tree = Tree()
    tree.feed(path.read_text("utf-8"))
    assert tree.open == []
    return tree


def training_record(step: int, rng: random.Random, steps: int) -> dict:
    p = min(1.0, 1 - 0.56 * math.exp(-3 * step / steps) + rng.gauss(0, 0.02))
    right, wrong = max(0.0, p - 0.5), max(0.0, 0.2 - p / 4)
    return {
        "phase": "train",
        "step": step,
        "seconds": 30 + step * 0.3,
        "reward_mean": p,
        "pass@1": p,
        "length_mean": 8 + 3 * p,
        "length_max": 16,
        "truncated_fraction": 0.1 * (1 - p),
        "entropy": 0.5 * (1.02 - p),
        "kl_old": 0.004 + 0.001 * rng.random(),
        "clip_fraction": 0.02,
        "clip_fraction_high": 0.015,
        "clip_fraction_low": 0.005,
        "policy_loss": -0.001,
        "loss": -0.001,
        "grad_norm": 0.8 + 0.2 * rng.random() + (30 if step == steps // 2 else 0),
        "lr": 1e-3 * (1 - step / steps),
        "groups_zero_variance": right + wrong,
        "groups_all_right": right,
        "groups_all_wrong": wrong,
        "tokens": 5000,
        "tokens_per_second": 5234 + rng.gauss(0, 200),
        "seconds_rollout": 0.2,
        "seconds_update": 0.1,
        "logp_gap_mean": 1e-7,
        "logp_gap_max": 1e-6,
        "memory_mb": 412.0,
    }


def evaluation_record(step: int, greedy: float, sampled: float) -> dict:
    return {
        "phase": "eval",
        "step": step,
        "seconds": 30 + step * 0.3,
        "eval/greedy": greedy,
        "eval/greedy_low": greedy - 0.03,
        "eval/greedy_high": min(1, greedy + 0.03),
        "eval/pass@1": sampled,
        "eval/pass@1_low": sampled - 0.02,
        "eval/pass@1_high": min(1, sampled + 0.02),
        "eval/length_mean": 7 + 4 * greedy,
        "eval/prompts": 1024,
    }


def rollout_rows(step: int, completions: int = 8) -> list[dict]:
    rng = random.Random(step)
    rows = []
    for group in range(6):
        for i in range(completions):
            text = ("7+5=12, 4+2+1=7: 72" if i % 2 else "62") if group else "62"
            n = len(text) + 1
            right = bool(i % 2 and group)
            rows.append(
                {
                    "step": step,
                    "group": group,
                    "prompt_id": f"q{group}",
                    "prompt": "47+25=",
                    "completion": text,
                    "prompt_ids": [1, 2],
                    "completion_ids": list(range(n)),
                    "mask": [True] * n,
                    "behavior_logp": [-rng.expovariate(2) for _ in range(n)],
                    "entropy": [rng.random() for _ in range(n)],
                    "reward": float(right),
                    "correct": right,
                    "truncated": False,
                    "advantage": [0.9 if right else -0.9] * n if group else None,
                }
            )
    return rows


def make_run(folder: Path, steps: int = 140, evil: str = "") -> Path:
    rng = random.Random(0)
    (folder / "rollouts").mkdir(parents=True)
    records = [
        {"phase": "warmup", "step": i + 1, "seconds": 0.4 * i, "loss": 3 * math.exp(-i / 20) + 0.4, "lr": 3e-3}
        for i in range(60)
    ]
    records.append(evaluation_record(0, 0.301, 0.442))
    for step in range(1, steps + 1):
        records.append(training_record(step, rng, steps))
        if step % 20 == 0 and step < steps:
            share = 1 - 0.6 * math.exp(-3 * step / steps)
            records.append(evaluation_record(step, share, share - 0.03))
    records.append(evaluation_record(steps, 0.994, 0.972))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    (folder / "config.yaml").write_text(f"task: addition\nmethod:\n  name: dapo\nsteps: {steps}\n# {evil}\n", "utf-8")
    samples = [
        {
            "question": f"{a}+{b}={evil}",
            "before": f"{a + b - 10}",
            "after": f"work: {a + b}{evil}",
            "before_reward": 0.0,
            "after_reward": 1.0,
            "before_correct": False,
            "after_correct": True,
        }
        for a, b in ((47, 25), (38, 14), (90, 12))
    ]
    (folder / "samples.json").write_text(json.dumps(samples), "utf-8")
    objective = [
        {
            "part": "relative",
            "kind": "advantage",
            "words": "judge against the group " + evil,
            "formula": "A = (r - mean)/std",
        },
        {"part": "clipped", "kind": "objective", "words": "PPO clip", "formula": "-min(ρ·A, clip(ρ, 0.8, 1.28)·A)"},
    ]
    summary = {
        "task": "addition",
        "model": "tiny",
        "method": "dapo",
        "title": "Decoupled clip " + evil,
        "formula": "J = …",
        "objective": objective,
        "seed": 0,
        "steps": steps,
        "finished": True,
        "parameters": 156160,
        "seconds": 96.4,
        "before": evaluation_record(0, 0.301, 0.442),
        "after": evaluation_record(steps, 0.994, 0.972),
        "versions": {"torch": "2.13.0", "grouprl": "0.1.0", evil: "1"},
    }
    (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    findings = [
        {
            "code": "dead_groups",
            "severity": "warning",
            "text": "62 % of the groups are dead. " + evil,
            "remedy": "Harder prompts.",
            "first_step": 90,
            "last_step": 140,
            "persists": True,
        },
        {
            "code": "grad_spike",
            "severity": "alarm",
            "text": "The gradient norm jumped to 30.",
            "remedy": "Lower the rate.",
            "first_step": 70,
            "last_step": 70,
            "persists": False,
        },
    ]
    (folder / "health.json").write_text(json.dumps(findings), "utf-8")
    rows = rollout_rows(steps)
    rows[0]["completion"] = rows[9]["prompt"] = evil or rows[0]["completion"]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rollouts" / f"step-{steps:06d}.parquet")
    return folder


def test_report_is_balanced_html_with_the_numbers(tmp_path):
    path = write_report(make_run(tmp_path / "run"))
    assert path == tmp_path / "run" / "report.html"
    tree, text = parsed(path), path.read_text("utf-8")
    assert "0.301</span> → <b>0.994</b>" in text
    assert "[0.271, 0.331] → [0.964, 1.000]" in text
    assert "0.442</span> → <b>0.972</b>" in text
    assert "On 1024 held-out prompts" in text
    assert tree.tags.count("svg") == 2 + 12 + 4  # success twice, the standard ones with data, four further
    assert "62 % of the groups are dead." in text
    assert "since step 90" in text
    assert "step 70" in text
    assert "clip(ρ, 0.8, 1.28)" in text
    assert "2.13.0" in text
    assert "Some files are missing from the folder" not in text
    assert not list((tmp_path / "run").glob(".report*"))


def test_report_loads_nothing_from_outside(tmp_path):
    path = write_report(make_run(tmp_path / "run"))
    text = path.read_text("utf-8")
    assert not re.search(r"https?://", text)
    assert "url(" not in text
    assert "default-src 'none'" in text
    for tag, name, value in parsed(path).attributes:
        assert name not in ("src", "srcset", "action"), (tag, name)
        assert name != "href" or value.startswith("#"), value


def test_what_users_and_models_wrote_cannot_become_markup(tmp_path):
    path = write_report(make_run(tmp_path / "run", evil=EVIL))
    tree, text = parsed(path), path.read_text("utf-8")
    assert tree.tags.count("script") == 1  # the page's own
    assert "img" not in tree.tags
    assert not [a for a in tree.attributes if a[1].startswith("on")]
    assert text.count("&lt;script&gt;alert(") >= 8  # config, samples, objective, title, versions, finding, rollouts
    assert "<script>alert" not in text


def test_the_policy_of_the_page_names_its_script(tmp_path):
    from base64 import b64encode
    from hashlib import sha256

    text = write_report(make_run(tmp_path / "run")).read_text("utf-8")
    script = re.search(r"<script>(.*?)</script>", text, re.S).group(1)
    assert f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}" in text


@pytest.mark.parametrize(
    "gone", ["config.yaml", "metrics.jsonl", "summary.json", "samples.json", "health.json", "rollouts"]
)
def test_a_missing_file_is_named(tmp_path, gone):
    run = make_run(tmp_path / "run")
    for path in [run / gone] if (run / gone).is_file() else list((run / gone).iterdir()):
        path.unlink()
    text = write_report(run).read_text("utf-8")
    parsed(run / "report.html")
    assert "Some files are missing from the folder" in text
    assert gone in text


@pytest.mark.parametrize("damaged", ["metrics.jsonl", "summary.json", "samples.json", "health.json"])
@pytest.mark.parametrize("content", ["{not json}\n{}\n", "[1, 2]", "\x00\xff"])
def test_a_damaged_file_is_named_and_never_fatal(tmp_path, damaged, content):
    run = make_run(tmp_path / "run")
    (run / damaged).write_text(content, "latin-1")
    write_report(run)
    parsed(run / "report.html")


def test_a_damaged_rollout_file_falls_back_to_the_one_before(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "rollouts" / "step-000999.parquet").write_bytes(b"PAR1 cut off")
    data = read_run(run)
    assert data.rollout_file == "step-000140.parquet"
    assert "step-000999.parquet could not be read" in " ".join(data.missing)


def test_a_run_that_has_just_begun_gives_a_page_and_what_is_no_run_an_error(tmp_path):
    (tmp_path / "config.yaml").write_text("task: addition\n")
    parsed(write_report(tmp_path))
    (tmp_path / "photos").mkdir()
    with pytest.raises(InputError, match="photos holds no run"):
        write_report(tmp_path / "photos")
    assert not list((tmp_path / "photos").iterdir())
    with pytest.raises(InputError, match="no run folder"):
        write_report(tmp_path / "nowhere")


def test_a_last_line_that_is_cut_off_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "rew')
    assert [r["step"] for r in read_records(path)] == [1, 2]
    path.write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    assert [r["step"] for r in read_records(path)] == [1, 3]


def test_an_interrupted_run_says_so_and_does_not_repeat_before_as_after(tmp_path):
    run = make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"after": None, "finished": False}))
    records = [r for r in read_records(run / "metrics.jsonl") if r["phase"] != "eval" or r["step"] == 0]
    (run / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    text = write_report(run).read_text("utf-8")
    assert "was interrupted" in text
    assert "not evaluated again" in text
    assert "0.301</span> → " not in text


def test_an_interrupted_run_says_what_it_is_compared_by_and_misses_nothing(tmp_path):
    run = make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"after": None, "finished": False}))
    (run / "samples.json").unlink()  # it is written when a run ends
    text = write_report(run).read_text("utf-8")
    later = [r for r in read_records(run / "metrics.jsonl") if r["phase"] == "eval"][-1]
    assert "Some files are missing from the folder" not in text
    assert f"evaluation after step {later['step']}." in text
    assert "So far: " in text


def test_the_page_says_on_how_many_prompts_each_number_was_measured():
    assert sections._held_out({"eval/prompts": 64}, {"eval/prompts": 32}).startswith("On 64 (before) and 32 (after)")
    assert sections._held_out({"eval/prompts": 64}, {"eval/prompts": 64}).startswith("On 64 held-out")
    assert sections._held_out({"eval/prompts": 64}, {}).startswith("On 64 held-out")
    assert sections._held_out({}, {}) == ""


def test_the_page_of_a_long_run_stays_small(tmp_path):
    run = make_run(tmp_path / "run", steps=20_000)
    rows = rollout_rows(20_000, completions=64)
    for row in rows:
        row["completion"], row["completion_ids"] = "x" * 5000, [1] * 5000
        row["behavior_logp"] = row["entropy"] = [-0.5] * 5000
        row["mask"] = [True] * 5000
    pq.write_table(pa.Table.from_pylist(rows[:80]), run / "rollouts" / "step-020000.parquet")
    text = write_report(run).read_text("utf-8")
    assert len(text.encode()) < 2_000_000
    assert "4760 tokens left out" in text
    for packed in re.findall(r'data-curves="([^"]*)"', text):
        for series in json.loads(packed.replace("&quot;", '"'))["series"]:
            assert len(series["x"]) == len(series["y"]) <= POINTS


def test_a_thinned_curve_begins_and_ends_where_the_curve_does() -> None:
    """The legend states the last value: here neither the smallest nor the largest of its stretch."""
    y = [0.5, *([0.0, 1.0] * 5000), 0.25]
    thin = downsample(Series("a", range(len(y)), y))
    assert (thin.x[0], thin.y[0], thin.x[-1], thin.y[-1]) == (0, 0.5, len(y) - 1, 0.25)
    assert len(thin.y) <= POINTS
    assert list(thin.x) == sorted(set(thin.x))
    assert "<b>0.25</b>" in chart("A", "words", [Series("a", range(len(y)), y)])


def test_downsampling_keeps_ends_of_the_range_and_order():
    y = [0.0] * 10_000
    y[4321], y[9876] = 50.0, -7.0
    thin = downsample(Series("a", range(10_000), y))
    assert len(thin.y) <= POINTS
    assert max(thin.y) == 50.0
    assert min(thin.y) == -7.0
    assert thin.x[thin.y.index(50.0)] == 4321
    assert list(thin.x) == sorted(thin.x)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0, 0.8, [0, 0.2, 0.4, 0.6, 0.8]),
        (-3, 17, [0, 5, 10, 15]),
        (1, 140, [50, 100]),
        (2, 2, [2]),
        (0, 2e-7, [0, 5e-8, 1e-7, 1.5e-7, 2e-7]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0312345, "0.03123"), (5234, "5234"), (52341, "52.3k"), (2.5e6, "2.5M"), (1e-7, "1e-07")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_a_chart_maps_values_to_the_frame():
    svg = chart("t", "w", [Series("a", [0, 10], [0.0, 1.0])], floor_at=0.0)
    # 360 x 180 with margins 46, 10, 10, 24: x from 46 to 350, y = 0 at 156, y = 1 below the top by the padding
    assert 'points="46.0,156.0 350.0,18.3"' in svg


def test_a_chart_leaves_out_what_is_not_finite_and_is_empty_without_data():
    assert chart("t", "w", [Series("a", [1, 2], [float("nan"), None])]) == ""
    svg = chart("t", "w", [Series("a", [1, 2, 3], [1.0, float("inf"), 3.0])])
    assert "inf" not in svg
    assert svg.count(",") >= 2
    assert chart("t", "w", [Series("one", [1], [1.0])]).count("<circle") == 1


def test_token_texts_come_from_the_tokenizer_of_the_run(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    row = {"completion": "ab", "completion_ids": [0, 1, 2]}
    assert token_texts(tmp_path)(row) == ["a", "b", "⟨end⟩"]  # one character each, and the end
    assert token_texts(tmp_path)({"completion": "abcdef", "completion_ids": [0, 1]}) is None
    tokenizer = Tokenizer(models.BPE({"Ġhello": 0, "Ã": 1, "©": 2, "Ġworld": 3}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    pieces = token_texts(tmp_path)({"completion": "?", "completion_ids": [0, 3, 1, 2]})
    assert pieces[:2] == [" hello", " world"]
    (tmp_path / "model" / "tokenizer.json").write_text("damaged")
    assert token_texts(tmp_path)(row) == ["a", "b", "⟨end⟩"]


def test_tokens_carry_numbers_and_colours(tmp_path):
    run = make_run(tmp_path / "run")
    text = write_report(run).read_text("utf-8")
    row = next(r for r in pq.read_table(run / "rollouts" / "step-000140.parquet").to_pylist() if r["correct"])
    values = f"{row['behavior_logp'][0]:.3g}|{row['entropy'][0]:.3g}|0.9|"
    assert re.search(rf'<span class="t up4[^"]*" data-v="{re.escape(values)}">7</span>', text)
    assert '<span class="t down4' in text


def pair_rows(groups: int = 2) -> list[dict]:
    """Pairs whose policy has moved by 2 x 0.5 nats towards the better word, and by 2 x -0.25 from the worse one."""
    return [
        {
            "group": group,
            "prompt": "a>",
            "completion": "b" if reward else "c",
            "completion_ids": [0, 1],
            "behavior_logp": [0.0, 0.0],
            "entropy": [0.0, 0.0],
            "mask": [True, True],
            "reward": reward,
            "correct": None,
            "truncated": False,
            "advantage": [reward, reward],
            "log_ratio": [0.5, 0.5] if reward else [-0.25, -0.25],
        }
        for group in range(groups)
        for reward in (0.0, 1.0)
    ]


def with_rollouts(folder: Path, rows: list[dict]) -> str:
    run = make_run(folder)
    pq.write_table(pa.Table.from_pylist(rows), run / "rollouts" / "step-000140.parquet")
    return write_report(run).read_text("utf-8")


def test_pairs_stand_side_by_side_with_their_margin_and_log_ratios(tmp_path):
    text = with_rollouts(tmp_path / "run", pair_rows())
    parsed(tmp_path / "run" / "report.html")
    assert "log π/π_ref +1 and -0.5, margin +1.5 nats" in text
    assert text.count('class="beside"') == 2
    better, worse = re.findall(r'<span class="t[^"]*(?:more|less)\d" data-v="[^"]*">[bc]</span>', text)[:2]
    assert "more4" in better
    assert better.endswith('|0.5">b</span>')
    assert "less2" in worse  # half as far as the strongest of the pair
    assert 'id="by-ratio" checked' in text


def test_a_loss_of_pairs_pushes_the_worse_completion_down_and_has_curves_of_its_own(tmp_path):
    """The worse one's stored advantage is its reward, 0; only a loss without pairs has no gradient there."""
    run = make_run(tmp_path / "run")
    pq.write_table(pa.Table.from_pylist(pair_rows()), run / "rollouts" / "step-000140.parquet")
    plain = write_report(run).read_text("utf-8")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    of_pairs = {"pair_margin": 0.5, "pair_accuracy": 0.75, "rewards/chosen": 0.1, "rewards/rejected": -0.1}
    lines = [line | of_pairs if line["phase"] == "train" else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write_report(run).read_text("utf-8")
    pushed = re.compile(r'<span class="t (up|down)\d[^"]*" data-v="[^"]*">[bc]</span>')
    assert [found[1] for found in pushed.finditer(plain)] == ["up"] * 2
    assert [found[1] for found in pushed.finditer(text)] == ["up", "down"] * 2
    assert (text.count("better, pushed up"), text.count("worse, pushed down")) == (2, 2)
    for title in ("Pairs ranked right (share)", "Margin of pairs", "Rewards of the loss"):
        assert (title in text, title in plain) == (True, False)


def test_groups_that_are_no_pairs_stay_below_each_other(tmp_path):
    tie = [row | {"reward": 1.0} for row in pair_rows(1)]
    three = [*pair_rows(1), pair_rows(1)[0]]
    for name, rows in (("tie", tie), ("three", three)):
        text = with_rollouts(tmp_path / name, rows)
        assert 'class="beside"' not in text
        assert 'id="by-advantage" checked' in text
        assert 'id="by-ratio"' in text  # the colours are there to choose


def test_pairs_without_a_reference_have_no_margin(tmp_path):
    text = with_rollouts(tmp_path / "run", [row | {"log_ratio": None} for row in pair_rows()])
    assert "a pair, the better completion first<" in text
    assert 'id="by-ratio"' not in text


def test_the_curve_as_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from grouprl.view.curve import save_curve_png

    path = save_curve_png(make_run(tmp_path / "run"), tmp_path / "docs" / "curve.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no training records"):
        save_curve_png(tmp_path / "empty", tmp_path / "x.png")


@pytest.mark.parametrize("largest", [0.0, 0.5])
def test_the_picture_of_costs_has_no_shares_of_rewards_of_1(tmp_path, monkeypatch, largest):
    figures = pytest.importorskip("matplotlib.figure")
    from grouprl.view.curve import save_curve_png

    made = []
    monkeypatch.setattr(figures, "Figure", lambda *a, make=figures.Figure, **k: made.append(make(*a, **k)) or made[-1])
    ends = {"eval/reward": -3.0, "eval/greedy": 0.0, "eval/pass@1": largest, "eval/graded": 1.0}
    records = [{"phase": "eval", "step": step, **ends} for step in (0, 2)]
    records += [{"phase": "train", "step": step, "reward_mean": -3.5, "pass@1": 0.0} for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "summary.json").write_text(json.dumps({"reward_is": "minus the length"}))
    save_curve_png(tmp_path, tmp_path / "curve.png")
    (axes,) = made[0].axes
    drawn = [line.get_label() for line in axes.lines if len(line.get_xdata())]
    assert ("greedy, held out" in drawn) is (largest > 0)
    assert (axes.get_ylabel() == "reward, minus the length") is (largest == 0)


def test_the_curve_says_what_to_install(tmp_path, monkeypatch):
    import sys

    from grouprl.core.errors import MissingExtra
    from grouprl.view.curve import save_curve_png

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[plot\]"):
        save_curve_png(tmp_path, tmp_path / "x.png")


@pytest.mark.parametrize(("after", "fine"), [(0.9, True), (0.05, False)])
def test_a_run_without_findings_is_called_fine_only_where_it_learned(tmp_path, after, fine):
    def evaluated(step, value):
        ends = {f"eval/pass@1{end}": value + by for end, by in (("", 0.0), ("_low", -0.05), ("_high", 0.05))}
        return {"phase": "eval", "step": step, **ends}

    records = [evaluated(0, 0.05), {"phase": "train", "step": 1, "reward_mean": 0.1}, evaluated(1, after)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    (tmp_path / "health.json").write_text("[]", "utf-8")
    page = write_report(tmp_path).read_text("utf-8")
    assert ("Nothing was found that needs attention" in page) is fine
    assert ("Nothing was found, but no gain is shown either" in page) is not fine


def test_a_report_offers_no_colours_of_what_was_never_measured(tmp_path):
    """Stored rows have no probability and no entropy: zeros stand in their place."""
    text = with_rollouts(tmp_path / "stored", [row | {"log_ratio": None} for row in pair_rows()])
    assert 'id="by-advantage" checked' in text
    assert 'id="by-probability"' not in text
    assert 'id="by-entropy"' not in text
    sampled = with_rollouts(tmp_path / "sampled", [row | {"behavior_logp": [0.0, -0.5]} for row in pair_rows()])
    assert 'id="by-probability"' in sampled


def test_the_main_chart_of_a_reward_model_is_of_its_pairs(tmp_path):
    run = make_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ranks = {"eval/pair_accuracy": 0.75, "eval/pair_accuracy_low": 0.7, "eval/pair_accuracy_high": 0.8}
    lines = [line | ranks if line["phase"] == "eval" else line for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write_report(run).read_text("utf-8")
    assert "Pairs ranked right" in text
    assert "Correct completions" not in text
