"""The application in which runs are looked at: its questions by a test client, its page in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from grouprl.core.errors import InputError, MissingExtra, RunError
from grouprl.envs.builtin.chromium import NAMES
from grouprl.view.app.answers import QUESTIONS
from grouprl.view.app.exported_page import export_page, stored_data
from grouprl.view.app.row_table import COLUMNS
from grouprl.view.app.row_tokens import stored_rows
from grouprl.view.app.server import listening, make_view, serve_view
from grouprl.view.app.shown_runs import RunLibrary
from grouprl.view.report import write_report
from grouprl.view.run_list import run_line
from grouprl.view.runfiles import read_run
from viewed_runs import EVIL, rows_of, run_folder, stored_row

CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or "GROUPRL_BROWSER" not in os.environ, reason="make browser runs it where there is a Chromium"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    run_folder(place / "a")
    run_folder(place / "b", rate=0.01, finished=False)
    return place


@pytest.fixture(scope="module")
def client(place: Path) -> TestClient:
    return TestClient(make_view(RunLibrary([place])), base_url="http://127.0.0.1")


def asked(client: TestClient, path: str, status: int = 200) -> dict:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def places(client: TestClient, query: str) -> list[tuple[int, int]]:
    return [(row["step"], row["place"]) for row in asked(client, f"/api/rows?run=a&{query}")["rows"]]


def test_runs_are_listed_with_their_state(client):
    found = {run["name"]: run for run in asked(client, "/api/runs")["runs"]}
    assert (found["a"]["state"], found["b"]["state"]) == ("finished", "stopped")
    assert (found["a"]["method"], found["a"]["steps"], found["a"]["of_steps"]) == ("grpo", 2, 2)


def test_every_question_is_listed_and_says_what_it_is(client):
    listed = {each["path"]: each for each in asked(client, "/api")["questions"]}
    assert set(listed) == {f"/api/{name}" for name in QUESTIONS}
    assert all(each["is"].endswith(".") for each in listed.values())


def test_curves_lie_over_each_other_with_the_glossary_line(client):
    (curve,) = asked(client, "/api/curves?metric=reward_mean")["curves"]
    assert [(s["run"], s["x"], s["y"]) for s in curve["series"]] == [(run, [1, 2], [0.1, 0.2]) for run in "ab"]
    assert curve["unit"] == "reward"
    assert "mean reward" in curve["words"].lower()
    assert curve["figure"].count("<polyline") == 2
    (held_out,) = asked(client, "/api/curves?metric=eval/greedy&phase=eval&run=a")["curves"]
    assert (held_out["series"][0]["low"], held_out["series"][0]["high"]) == ([0.4], [0.6])


def test_a_metric_that_the_glossary_lacks_is_shown_without_a_meaning(client):
    listed = {each["metric"]: each for each in asked(client, "/api/metrics?run=a")["metrics"]}
    assert listed["own"]["words"] == ""
    assert listed["reward_mean"]["words"]
    assert list(listed).index("reward_mean") < list(listed).index("own")


def test_metrics_that_tell_most_come_first_and_constant_ones_last(tmp_path):
    rows = [{"step": n, "phase": "train", "reward_errors": 0, "loss": 1.0 / n, "pair_margin": 0.1 * n} for n in (1, 2)]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.yaml").write_text("task: pairs\n")
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    listed = asked(view, "/api/metrics?run=a")["metrics"]
    assert [(each["metric"], each["varies"]) for each in listed] == [
        ("pair_margin", True),
        ("loss", True),
        ("reward_errors", False),
    ]


def test_settings_say_what_differs(client):
    rows = {row["setting"]: row for row in asked(client, "/api/settings?run=a&run=b")["settings"]}
    assert rows["optim.lr"] == {"setting": "optim.lr", "values": ["0.001", "0.01"], "same": False}
    assert rows["method.name"]["same"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [(step, place) for step in (1, 2) for place in range(5)]),
        ("step=2&group=1", [(2, 0), (2, 1), (2, 2)]),
        ("step=1&sort=-reward", [(1, 0), (1, 3), (1, 4), (1, 1), (1, 2)]),
        ("step=1&sort=reward", [(1, 1), (1, 4), (1, 3), (1, 0), (1, 2)]),
        ("step=1&reward_min=0.25&reward_max=0.75", [(1, 3), (1, 4)]),
        ("step=1&length_max=3", [(1, 0), (1, 3), (1, 4)]),
        ("step=1&ended=cut off", [(1, 1)]),
        ("step=1&ended=turn limit&agent=boss", [(1, 4)]),
        ("step=1&text=THREE", [(1, 1)]),
        ("step=1&text=2%2B2", [(1, 3), (1, 4)]),
        ("step=1&text=th.ee", []),
        ("step=1&correct=true", [(1, 0)]),
        ("step=1&used=false", [(1, 2)]),
        ("step=1&status=error", [(1, 2)]),
        ("prompt_id=q/2&sample=1", [(1, 4), (2, 4)]),
        ("offset=8&limit=5", [(2, 3), (2, 4)]),
    ],
)
def test_rows_are_filtered_sorted_and_paged(client, place, query, found):
    assert places(client, query) == found


def test_numbers_of_a_row_are_over_its_trained_tokens(client):
    row = asked(client, "/api/rows?run=a&step=1&sample=0&group=1")["rows"][0]
    assert (row["length"], row["entropy"], row["logp"], row["advantage"]) == (2, 0.25, -0.5, 1.0)
    pulls = [each["pull"] for each in asked(client, "/api/rows?run=a&step=1")["rows"]]
    assert pulls == pytest.approx([1 / 8, 5 / 8, 0, 1 / 8, 1 / 8])  # |A| 1 and 1/2 over 1, 5, 0, 2 and 2 tokens


def test_groups_of_a_step_are_listed_by_what_they_pull(client):
    found = asked(client, "/api/groups?run=a")
    assert (found["step"], found["steps"]) == (2, [1, 2])
    first, second = found["groups"]
    assert (first["group"], first["prompt_id"], first["place_count"], first["pull_sum"]) == (1, "q/1", 3, 0.75)
    assert (second["group"], second["reward_mean"], second["reward_min"], second["reward_max"]) == (2, 0.5, 0.25, 0.75)
    assert "Stored are steps 1-2" in asked(client, "/api/groups?run=a&step=9", 400)["error"]["message"]


def test_a_group_has_its_tokens_and_turns(client):
    found = asked(client, "/api/group?run=a&step=1&group=1")
    assert [row["place"] for row in found["rows"]] == [0, 1, 2]
    assert (found["previous"], found["next"]) == (None, 2)
    assert found["columns"] == ["behavior_logp", "entropy", "advantage", "mask"]
    assert found["rows"][0]["tokens"] == [["2", -0.5, 0.25, 1.0, 1.0], ["⟨end⟩", -9.0, 7.0, 1.0, 0.0]]
    (turn,) = asked(client, "/api/group?run=a&step=1&group=2")["rows"][0]["turns"]
    assert (turn["action"], turn["seen"], turn["reward"]) == ("go", "a wall", 0.5)


def test_findings_lead_to_rows(client):
    (found,) = asked(client, "/api/findings?run=a")["findings"]
    assert [(row["step"], row["prompt"], row["sample"]) for row in found["rows"]] == [(2, "q/1", 1)]
    assert places(client, "step=2&prompt_id=q/1&sample=1") == [(2, 1)]
    assert asked(client, "/api/findings?run=b") == {
        "findings": [],
        "examined": False,
        "remedy": "The health report is written from the first step on. Of older runs: grouprl doctor RUN",
    }


def watched_rows() -> list[dict]:
    """A group whose updates were recorded: two tokens each, one held back by the clip; and a team's episode."""
    seen = {"weight": [0.25, 0.25, None], "gradient": 1.25, "caller": None}
    held = {"ratio": [1.0, 1.5, None], "push": [0.25, 0.0, None], **seen}
    pulled = {"ratio": [1.0, 0.9, None], "push": [-0.25, -0.225, None], "weight": [0.25, 0.25, None], "gradient": -0.25}
    team = [("boss", -1, 0), ("helper", 0, 1), ("helper", 0, 2), ("checker", 2, 3)]
    return [
        stored_row(1, 1, 0, "ab", 1.0, **held),
        stored_row(1, 1, 1, "cd", 0.0, **pulled),
        *(
            stored_row(1, 2 + row, 0, name, 0.5, prompt_id="team/0", agent=name, caller=caller, row=row)
            for name, caller, row in team
        ),
    ]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run_folder(tmp_path_factory.mktemp("watched") / "w", steps=1)
    pq.write_table(pa.Table.from_pylist(watched_rows()), folder / "rollouts" / "step-000001.parquet")
    return folder


def test_tokens_have_what_the_update_saw_of_them(watched, client):
    own = TestClient(make_view(RunLibrary([watched])), base_url="http://127.0.0.1")
    found = asked(own, "/api/group?run=w&step=1&group=1")
    columns = ["behavior_logp", "entropy", "advantage", "ratio", "weight", "push", "held", "mask"]
    assert found["columns"] == columns
    held = found["rows"][0]["tokens"][1]
    assert dict(zip(columns, held[1:], strict=True)) | {} == {
        "behavior_logp": -0.5, "entropy": 0.25, "advantage": 1.0, "ratio": 1.5, "weight": 0.25, "push": 0.0,
        "held": 1.0, "mask": 1.0,
    }  # fmt: skip
    assert [token[7] for token in found["rows"][1]["tokens"]] == [0.0, 0.0, None]
    assert [row["gradient"] for row in found["rows"]] == [1.25, -0.25]
    groups = {each["group"]: each["gradient_sum"] for each in asked(own, "/api/groups?run=w")["groups"]}
    assert groups == {1: 1.0, 2: None, 3: None, 4: None, 5: None}
    assert [row["sample"] for row in asked(own, "/api/rows?run=w&gradient_max=0")["rows"]] == [1]
    assert {each["gradient_sum"] for each in asked(client, "/api/groups?run=a")["groups"]} == {None}


def test_calls_of_an_episode_say_who_called_whom(watched):
    own = TestClient(make_view(RunLibrary([watched])), base_url="http://127.0.0.1")
    found = asked(own, "/api/calls?run=w&step=1&prompt_id=team/0&sample=0")["rows"]
    assert [(row["agent"], row["caller"]) for row in found] == [
        ("boss", None),
        ("helper", 0),
        ("helper", 0),
        ("checker", 2),
    ]
    assert asked(own, "/api/group?run=w&step=1&group=2")["rows"][0]["calls"]
    assert not asked(own, "/api/group?run=w&step=1&group=1")["rows"][0]["calls"]
    assert "not stored" in asked(own, "/api/calls?run=w&step=1&prompt_id=x&sample=0", 400)["error"]["message"]
    assert set(stored_data(RunLibrary([watched]), 100)["calls"]["w"]) == {"1/0/team/0"}


def test_a_method_has_its_card(client):
    assert "clip" in asked(client, "/api/method?run=b")["card"]["formula"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("rows", "run is missing"),
        ("rows?run=c", "there is no run 'c'"),
        ("rows?run=a&setp=1", "Did you mean 'step'"),
        ("rows?run=a&step=one", "It must be a whole number"),
        ("rows?run=a&reward_min=nan", "It must be a finite number"),
        ("rows?run=a&limit=100000", "1 to 1000 rows"),
        ("rows?run=a&sort=rewards", "Did you mean 'reward'"),
        ("rows?run=a&correct=1", "It must be true or false"),
        ("rows?run=a&run=b", "run is given 2 times"),
        ("curves", "metric is missing"),
        ("curves?metric=x&phase=test", "It must be one of train"),
        ("group?run=a&step=1", "step or group is missing"),
        ("group?run=a&step=1&group=7", "group 7 of step 1 is not stored"),
        (f"rows?run=a&step={'9' * 30}", "whole number of at most 18 digits"),
        (f"rows?run=a&offset={'9' * 5000}", "whole number of at most 18 digits"),
        (f"group?run=a&step=1&group=-{'9' * 30}", "whole number of at most 18 digits"),
        (f"calls?run=a&prompt_id=p&step={'9' * 18}&sample=0", "is not stored"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(client, query, words):
    assert words in asked(client, f"/api/{query}", 400)["error"]["message"]


def test_what_is_not_there_is_said(client):
    assert "There is no GET /api/nope" in asked(client, "/api/nope", 404)["error"]["message"]


def test_a_run_is_followed_while_it_trains(tmp_path):
    folder = run_folder(tmp_path / "live", steps=1, finished=False)
    client = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    assert asked(client, "/api/rows?run=live")["total"] == 5
    pq.write_table(pa.Table.from_pylist(rows_of(2)), folder / "rollouts" / "step-000002.parquet")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"phase": "train", "step": 2, "reward_mean": 0.9}) + "\n")
    assert asked(client, "/api/rows?run=live")["total"] == 10
    assert asked(client, "/api/curves?run=live&metric=reward_mean")["curves"][0]["series"][0]["y"] == [0.1, 0.9]
    run_folder(tmp_path / "second")
    assert [run["name"] for run in asked(client, "/api/runs")["runs"]] == ["live", "second"]


def test_damaged_records_are_left_out(tmp_path):
    """A damaged line may hold any number: a step beyond all counting, one that is no number, values beyond floats."""
    folder = run_folder(tmp_path / "damaged")
    with (folder / "metrics.jsonl").open("a") as file:
        for step in (10**15, '"x"', "{}", "true", -1, "1" + "0" * 400):
            file.write(f'{{"phase": "train", "step": {step}, "reward_mean": 5}}\n')
        file.write('{"phase": "train", "step": 3, "reward_mean": 1' + "0" * 400 + "}\n")
    client = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    (curve,) = asked(client, "/api/curves?metric=reward_mean")["curves"]
    assert curve["series"][0]["x"] == [1, 2, 10**15, 3]
    assert curve["series"][0]["y"][-1] is None
    assert "999,999,999,999,996 of the steps before step" in asked(client, "/api/run?run=damaged")["missing"][0]
    assert len(asked(client, "/api/runs")["runs"]) == 1


def test_a_health_report_of_another_version_is_told(tmp_path):
    folder = run_folder(tmp_path / "newer")
    (folder / "health.json").write_text('[{"name": "x", "of_a_later_version": 1}]')
    client = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    found = asked(client, "/api/findings?run=newer")
    assert (found["examined"], found["findings"]) == (False, [])
    assert "another version" in found["remedy"]


@pytest.mark.parametrize("text", ["a: &x\n  b: *x\n", "a: " + "[" * 5000 + "]" * 5000, "a: [1"])
def test_settings_within_themselves_or_broken_are_none(tmp_path, text):
    (run_folder(tmp_path / "odd") / "config.yaml").write_text(text)
    client = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    assert asked(client, "/api/settings?run=odd")["settings"] == []


def test_nothing_is_written_to_a_folder(tmp_path):
    folder = run_folder(tmp_path / "kept")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for path in (folder, folder / "rollouts"):
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    client = TestClient(make_view(RunLibrary([folder])), base_url="http://127.0.0.1")
    for question in ("runs", "run?run=kept", "rows?run=kept", "findings?run=kept", "group?run=kept&step=1&group=1"):
        asked(client, f"/api/{question}")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_damaged_step_leaves_the_others(tmp_path):
    folder = run_folder(tmp_path / "hurt")
    (folder / "rollouts" / "step-000001.parquet").write_bytes(b"PAR1 no")
    client = TestClient(make_view(RunLibrary([folder])), base_url="http://127.0.0.1")
    assert {row["step"] for row in asked(client, "/api/rows?run=hurt")["rows"]} == {2}


def test_a_step_cut_off_anywhere_hides_neither_findings_nor_other_steps(tmp_path):
    """Files of a run whose disk is full, or that is copied while it is written, end at any byte."""
    folder = run_folder(tmp_path / "cut")
    path = folder / "rollouts" / "step-000002.parquet"
    whole = path.read_bytes()
    client = TestClient(make_view(RunLibrary([folder])), base_url="http://127.0.0.1")
    sound = asked(client, "/api/findings?run=cut")["findings"]
    assert {row["step"] for row in sound[0]["rows"]} == {2}
    for kept in (0, 3, 4, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:kept])
        assert {row["step"] for row in asked(client, "/api/findings?run=cut")["findings"][0]["rows"]} == {1}
        assert {row["step"] for row in asked(client, "/api/rows?run=cut")["rows"]} == {1}
        assert client.get("/api/group?run=cut&step=2&group=1").status_code == 400


def test_bytes_that_are_no_text_are_a_damaged_step(tmp_path):
    folder = run_folder(tmp_path / "bytes")
    path = folder / "rollouts" / "step-000002.parquet"
    rows = pq.read_table(path)
    wrong = pa.array([b"\xbd\xff"] * len(rows), pa.binary()).view(pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("completion"), "completion", wrong), path)
    client = TestClient(make_view(RunLibrary([folder])), base_url="http://127.0.0.1")
    assert {row["step"] for row in asked(client, "/api/rows?run=bytes")["rows"]} == {1}
    assert client.get("/api/group?run=bytes&step=2&group=1").status_code == 400
    with pytest.raises(InputError, match="step 2 cannot be read"):
        stored_rows(folder, 2, [0])


@pytest.mark.parametrize("change", [{"severity": "fatal"}, {"first_step": "one"}, {"last_step": None}, {"code": 7}])
def test_a_health_report_with_values_of_another_kind_is_told(tmp_path, change):
    folder = run_folder(tmp_path / "odd")
    (row,) = json.loads((folder / "health.json").read_text())
    (folder / "health.json").write_text(json.dumps([row | change]))
    client = TestClient(make_view(RunLibrary([tmp_path])), base_url="http://127.0.0.1")
    assert "another version" in asked(client, "/api/findings?run=odd")["remedy"]


def test_a_run_that_is_removed_between_two_looks_has_an_age(tmp_path):
    data = read_run(run_folder(tmp_path / "gone"), rollouts=False)
    shutil.rmtree(tmp_path / "gone")
    assert run_line(tmp_path / "gone", data).name == "gone"


def test_rows_that_store_less_have_empty_columns(tmp_path):
    folder = run_folder(tmp_path / "old", steps=1)
    old = [{"step": 1, "group": 0, "prompt": "p", "completion": "c", "completion_ids": [1, 2], "reward": 0.5}]
    pq.write_table(pa.Table.from_pylist(old), folder / "rollouts" / "step-000001.parquet")
    (row,) = RunLibrary([folder]).rows("old").to_pylist()
    known = {"step": 1, "place": 0, "group": 0, "prompt": "p", "completion": "c", "reward": 0.5, "length": 2}
    assert row == dict.fromkeys(COLUMNS.names) | known | {"ended": "ended"}


def test_names_that_occur_twice_tell_their_parents(tmp_path):
    for parent in ("x", "y"):
        run_folder(tmp_path / parent / "same")
    assert set(RunLibrary([tmp_path / "x", tmp_path / "y"]).folders()) == {"x/same", "y/same"}


def test_a_place_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no run in"):
        RunLibrary([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        RunLibrary([tmp_path / "gone"])


def test_a_token_lets_in_by_address_cookie_or_header(place):
    app = make_view(RunLibrary([place]), "secret")
    client = TestClient(app, base_url="http://127.0.0.1")
    for path in ("/", "/api/runs", "/?token=wrong", "/api/runs?token=secre"):
        asked(client, path, 401)
    asked(client, "/api/runs?token=secret")
    assert client.get("/api/runs", headers={"authorization": "Bearer secret"}).status_code == 200
    entered = client.get("/?token=secret", follow_redirects=False)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert "HttpOnly" in entered.headers["set-cookie"]
    asked(client, "/api/runs")  # the client keeps the cookie


def test_two_servers_of_a_machine_keep_their_tokens_apart(place):
    """A browser sends the cookies of one server to the other, whose port is another."""
    first, second = (
        TestClient(make_view(RunLibrary([place]), secret), base_url=f"http://127.0.0.1:{port}")
        for secret, port in (("one", 7001), ("two", 7002))
    )
    first.get("/?token=one")
    second.get("/?token=two")
    both = {**first.cookies, **second.cookies}
    for client in (first, second):
        client.cookies.clear()
        client.cookies.update(both)
        asked(client, "/api/runs")


def test_foreign_pages_and_names_are_kept_out(place):
    app = make_view(RunLibrary([place]), hosts=("lab.example",))
    assert TestClient(app, base_url="http://lab.example").get("/api/runs").status_code == 200
    assert TestClient(app, base_url="http://evil.example").get("/api/runs").status_code == 403
    here = TestClient(app, base_url="http://127.0.0.1")
    assert here.get("/api/runs", headers={"origin": "http://evil.example"}).status_code == 403
    assert here.post("/api/runs").status_code == 405


def test_without_starlette_the_remedy_is_said(place, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "starlette.applications", None)
    with pytest.raises(MissingExtra, match=r"grouprl\[serve\]"):
        make_view(RunLibrary([place]))


def test_a_port_that_is_taken_is_named():
    with listening("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(RunError, match=f"127.0.0.1:{port} cannot be listened on"):
            listening("127.0.0.1", port)


def test_an_exported_page_holds_the_newest_whole_steps(place, tmp_path):
    data = stored_data(RunLibrary([place]), 7)
    assert {row["step"] for row in data["rows"]["a"]} == {2}
    assert data["left_out"] == {"a": 5, "b": 5}
    assert set(data["groups"]["a"]) == {"2/1", "2/2"}
    path = tmp_path / "page.html"
    assert export_page(RunLibrary([place]), path, 1000) == 0
    text = path.read_text()
    assert EVIL not in text
    assert "connect-src" not in text
    assert not any(outside in text for outside in (' src="', "@import", "url("))
    with pytest.raises(InputError, match="the file of a page"):
        export_page(RunLibrary([place]), tmp_path, 10)


def test_a_hundred_thousand_rows_are_answered_at_once(tmp_path):
    folder = run_folder(tmp_path / "large", steps=1)
    rows = [stored_row(1, n // 8, n % 8, f"word {n}", float(n % 3)) for n in range(1000)]
    table = pa.concat_tables([pa.Table.from_pylist(rows)] * 10)
    for step in range(1, 11):
        pq.write_table(table, folder / "rollouts" / f"step-{step:06d}.parquet")
    client = TestClient(make_view(RunLibrary([folder])), base_url="http://127.0.0.1")
    assert asked(client, "/api/rows?run=large")["of"] == 100_000
    answer = client.get("/api/rows?run=large&text=word%20777&sort=-reward&limit=20")
    assert answer.json()["total"] == 100
    assert answer.elapsed.total_seconds() < 1.0  # without the index it takes several


# ---- in a browser


def rendered(url: str, seconds: int = 5) -> str:
    """The page as Chromium shows it, after its questions are answered."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command.append(f"--virtual-time-budget={seconds * 1000}")
    return subprocess.run([*command, url], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def exported(place: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "runs.html"
    export_page(RunLibrary([place]), path, 1000)
    return path.as_uri()


@pytest.fixture(scope="module")
def served(place: Path) -> str:
    opened = listening("127.0.0.1", 0)
    app = make_view(RunLibrary([place]))
    threading.Thread(target=serve_view, args=(app, opened), daemon=True).start()
    return f"http://127.0.0.1:{opened.getsockname()[1]}/"


@needs_chromium
@pytest.mark.parametrize("source", ["served", "exported"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("", ["finished", "stopped"]),
        ("#/curves?run=a&run=b", ["reward_mean", "<polyline"]),
        ("#/rows?run=a&step=1&sort=-reward&reward_min=0.25", ["1–3 of 3 that fit, of 10", "✓"]),
        (
            "#/group?run=a&step=1&group=1&colour=entropy&row=1",
            ["step 1, group 1", "rgba(var(--ent), 0.550)", "#1 · reward 0"],
        ),
        ("#/groups?run=a&step=2", ["2 of 2 groups have different rewards", "75.0 %", "q/2"]),
        ("#/findings?run=a", ["Many rows are cut off.", "step 2, q/1 #1"]),
        ("#/settings", ["optim.lr", "0.001", "0.01"]),
        ("#/method?run=a", ["Papers", "arXiv:"]),
        ("#/rows?run=a&sort=nonsense", []),
    ],
)
def test_every_address_shows_what_it_names(source, address, words, request):
    shown = rendered(request.getfixturevalue(source) + address)
    assert [each for each in words if each not in shown] == []
    assert "owned" not in shown.split("<title>")[1].split("</title>")[0]


@pytest.fixture(scope="module")
def served_watched(watched: Path) -> str:
    opened = listening("127.0.0.1", 0)
    threading.Thread(target=serve_view, args=(make_view(RunLibrary([watched])), opened), daemon=True).start()
    return f"http://127.0.0.1:{opened.getsockname()[1]}/"


@pytest.fixture(scope="module")
def exported_watched(watched: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("watched-page") / "runs.html"
    export_page(RunLibrary([watched]), path, 1000)
    return path.as_uri()


@needs_chromium
@pytest.mark.parametrize("source", ["served_watched", "exported_watched"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "#/group?step=1&group=1&colour=clip",
            ["held back: no gradient", "rgba(var(--odd), 0.550)", "gradient 125.0 %"],
        ),
        ("#/group?step=1&group=1&colour=moved", ["less likely than when sampled", "rgba(var(--up), 0.550)"]),
        ("#/group?step=1&group=1&colour=push", ["made more likely", "rgba(var(--down), 0.550)"]),
        ("#/group?step=1&group=2", ["calls of the episode"]),
        ("#/groups?step=1", ["true share", "100.0 %"]),
        ("#/rows?step=1", ["share of the step's gradient", "-25.0 %"]),
        (
            "#/calls?step=1&prompt_id=team/0&sample=0",
            ["checker · row 3", "called by row 2", 'class="call"', "reward 0.5 · 5 tokens"],
        ),
    ],
)
def test_what_updates_saw_and_calls_are_shown(source, address, words, request):
    shown = rendered(request.getfixturevalue(source) + address)
    assert [each for each in words if each not in shown] == []


@needs_chromium
def test_a_run_that_kept_nothing_of_its_updates_says_so(served):
    assert "run.record_updates: tokens" in rendered(f"{served}#/group?run=a&step=1&group=1")
    assert "run.record_updates: gradients" in rendered(f"{served}#/groups?run=a&step=1")


@needs_chromium
@pytest.mark.parametrize("address", ["#/rows?run=a&run=gone", "#/group?run=gone&step=1&group=1"])
@pytest.mark.parametrize("source", ["served", "exported"])
def test_an_address_of_a_run_that_is_gone_shows_no_other_run(source, address, request):
    shown = rendered(request.getfixturevalue(source) + address)
    assert "There is no run gone here" in shown
    assert "<tbody><tr" not in shown.split('id="view"')[1].split('id="said"')[0]


class Growing(RunLibrary):
    """Runs of which one has taken a further step whenever they are looked at."""

    def folders(self) -> dict[str, Path]:
        found = super().folders()
        for folder in found.values():
            path = folder / "metrics.jsonl"
            path.write_text(path.read_text() + json.dumps({"phase": "train", "step": len(path.read_text())}) + "\n")
        return found


@needs_chromium
def test_a_page_says_that_its_runs_have_gone_on(tmp_path, place):
    """A list of rows is not drawn anew under the eyes of its reader; the list of runs is."""
    opened = listening("127.0.0.1", 0)
    app = make_view(Growing([run_folder(tmp_path / "grows", finished=False)]))
    threading.Thread(target=serve_view, args=(app, opened), daemon=True).start()
    said = "The runs have gone on: reload to see the newest."
    url = f"http://127.0.0.1:{opened.getsockname()[1]}/"
    assert f">{said}<" in rendered(f"{url}#/rows", 7)  # one look after the first
    assert f">{said}<" not in rendered(f"{url}#/runs", 7)
    opened = listening("127.0.0.1", 0)
    threading.Thread(target=serve_view, args=(make_view(RunLibrary([place])), opened), daemon=True).start()
    assert f">{said}<" not in rendered(f"http://127.0.0.1:{opened.getsockname()[1]}/#/rows", 7)


# ---- a reward model and its pairs


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stored pairs, whose attributes agree in the first alone; the model has the second one wrong."""
    place = tmp_path_factory.mktemp("scored")
    folder = run_folder(place / "model", steps=1)
    scores = {1: (0.5, -0.25), 2: (-1.0, 1.0), 3: (0.125, 0.0)}
    each = [(group, sample, pair[sample]) for group, pair in scores.items() for sample in (0, 1)]
    zero = {"behavior_logp": [0.0] * 3, "entropy": [0.0] * 3, "source": "demonstration"}
    rows = [stored_row(1, group, sample, "ab", 1.0 - sample, score=score, **zero) for group, sample, score in each]
    named = pa.array([[("kind", score * 2), ("short", 0.5)] for *_, score in each], pa.map_(pa.string(), pa.float64()))
    table = pa.Table.from_pylist(rows).append_column("scores", named)
    pq.write_table(table, folder / "rollouts" / "step-000001.parquet")
    return place


def test_pairs_of_a_reward_model_begin_with_those_that_it_has_wrong(scored):
    client = TestClient(make_view(RunLibrary([scored])), base_url="http://127.0.0.1")
    found = asked(client, "/api/groups?run=model&step=1")["groups"]
    assert [(each["group"], each["margin"]) for each in found] == [(2, -2.0), (3, 0.125), (1, 0.75)]
    group = asked(client, "/api/group?run=model&step=1&group=2")
    assert group["pair"] == {"log_ratio": None, "score": -2.0, "scores": {"kind": -4.0, "short": 0.0}, "right": False}
    assert [row["scores"] for row in group["rows"]] == [{"kind": -2.0, "short": 0.5}, {"kind": 2.0, "short": 0.5}]
    assert group["columns"] == ["advantage", "mask"]
    assert asked(client, "/api/rows?run=model&score_min=0.1&sort=-score")["total"] == 3
    policy = TestClient(make_view(RunLibrary([run_folder(scored.parent / "policy")])), base_url="http://127.0.0.1")
    assert {each["margin"] for each in asked(policy, "/api/groups?run=policy")["groups"]} == {None}
    assert asked(policy, "/api/group?run=policy&step=1&group=1")["pair"] is None


def test_the_report_tells_scores_and_margin_of_a_pair(scored):
    text = write_report(scored / "model").read_text("utf-8")
    assert "a pair, the better completion first: margin of scores -2, the model has it wrong" in text
    assert "score -1 · kind -2 · short 0.5" in text


@needs_chromium
@pytest.mark.parametrize("exports", [False, True])
def test_a_browser_shows_scores_margins_and_which_pairs_are_right(scored, exports, tmp_path):
    if exports:
        export_page(RunLibrary([scored]), tmp_path / "page.html", 100)
        base = (tmp_path / "page.html").as_uri()
    else:
        opened = listening("127.0.0.1", 0)
        threading.Thread(target=serve_view, args=(make_view(RunLibrary([scored])), opened), daemon=True).start()
        base = f"http://127.0.0.1:{opened.getsockname()[1]}/"

    def shown(address: str) -> str:
        """What the page shows, without its script, which has the same words."""
        return rendered(base + address).split('id="view"')[1].split("</main>")[0]

    pair = shown("#/group?step=1&group=2")
    wrong = ["margin of scores -2 (kind -4, short 0)", "the model has it wrong", "score -1 · kind -2 · short 0.5"]
    assert [each for each in [*wrong, "<b>chosen </b>", "<b>rejected </b>"] if each not in pair] == []
    assert "record_updates" not in pair
    assert "✗ wrong" not in pair
    listed = shown("#/groups?step=1")
    assert "The model has 2 of 3 pairs right" in listed
    assert listed.count('verdict wrong">✗') == 1
    assert "0.125" in shown("#/rows?step=1&sort=score")
