"""The list of papers: what stands for each is really there, and every surface says the same."""

from __future__ import annotations

import difflib
import importlib.util
import json
import shlex
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import load_config, recipe_names
from grouprl.methods import CATALOGUE
from grouprl.methods.compose import compose
from grouprl.papers import (
    SCOPES,
    STATUSES,
    Listing,
    counts,
    listing,
    listings,
    named,
    search,
    standing,
    training,
    training_command,
)
from grouprl.papers.status import plain
from grouprl.plan.plan import plan

ROOT = Path(__file__).parents[2]


def call(*arguments, code=0):
    result = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["papers", *arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result.stdout if code == 0 else result.stderr


# --- the data -------------------------------------------------------------------------------------------------------


def test_the_list_is_complete_and_its_columns_hold_known_values():
    assert [paper.number for paper in listings()] == list(range(1, 358))
    assert len({plain(paper.title) for paper in listings()}) == 357
    assert Counter(p.scope for p in listings()) == {"core": 175, "recipe": 66, "adjacent": 65, "outside": 51}
    assert {p.scope for p in listings()} == set(SCOPES)
    assert {p.confidence for p in listings()} == {"verified", "partly", "abstract-only"}
    assert all(p.title and p.method and p.summary for p in listings())


def test_every_name_in_the_list_exists():
    named = {name for paper in listings() for name in paper.entries}
    assert named - CATALOGUE.keys() == set()
    assert {name for paper in listings() for name in paper.recipes} - set(recipe_names()) == set()


def test_what_is_left_out_is_only_said_of_what_is_there():
    assert [
        p.number for p in listings() if p.note and standing(p).status not in ("entry", "recipe", "part", "command")
    ] == []


def test_names_are_not_written_twice():
    by_card = {name: {plain(p.title) for p in entry.card.papers} for name, entry in CATALOGUE.items()}
    doubled = [(p.number, name) for p in listings() for name in p.entries if plain(p.title) in by_card[name]]
    assert doubled == [], "the card's title matches already: leave the name out of papers.csv"


def test_no_card_misses_its_paper_by_a_slip_in_the_title():
    titles = {plain(p.title): p for p in listings()}
    missed = [
        (name, paper.title, titles[near].number)
        for name, entry in CATALOGUE.items()
        for paper in entry.card.papers
        if plain(paper.title) not in titles
        for near in difflib.get_close_matches(plain(paper.title), titles, n=1, cutoff=0.85)
        if name not in standing(titles[near]).entries + standing(titles[near]).dialects
    ]
    assert missed == [], "write the title as in papers.csv, or the entry's name in its column 'entries'"


# --- what stands for a paper ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "entries"),
    [
        (118, ("grpo",)),
        (161, ("ppo_control", "ppo")),
        (162, ("raft", "raft_pp", "reinforce_rej")),
        (227, ("rloo",)),
        (53, ("dispo",)),
    ],
)
def test_entries_are_found_by_the_title_on_their_card(number, entries):
    found = standing(listing(number))
    assert (found.status, found.names[: len(entries)]) == ("entry", entries)
    assert not any("@" in name for name in found.entries)


def test_dialects_of_an_entry_stand_beside_it():
    assert {"grpo@trl", "grpo@verl", "grpo@nemo_rl"} <= set(standing(listing(118)).dialects)


def test_the_status_follows_from_what_is_there():
    def status(scope="core", **names):
        return standing(Listing(0, "No card has this title", "method", scope, "m", "verified", "s", **names)).status

    assert status() == status("recipe") == "planned"
    assert (status("adjacent"), status("outside")) == ("adjacent", "outside")
    assert status(settings=("batch.group_size=8",)) == "part"
    assert status(settings=("batch.group_size=8",), recipes=("addition",)) == "recipe"
    assert status("outside", entries=("grpo",), recipes=("addition",)) == "entry"


def test_only_what_is_implemented_has_names_and_commands():
    for each in search():
        implemented = each.status in ("entry", "recipe", "part", "command")
        assert bool(each.names) == implemented == bool(each.commands()), each.paper.number
        assert each.status == "entry" or not any("grouprl plan" in c for c in each.commands()), each.paper.number


def test_every_train_command_is_one_that_plan_accepts():
    for each in search():
        for command in each.commands():
            words = shlex.split(command)
            if words[1] == "train":
                found = plan(load_config(words[2], words[4::2]))
                assert found.refusals == (), command
                given = [change.partition("=")[0] for change in each.paper.settings]
                assert [note for note in found.idle if note.startswith(tuple(given))] == []


def test_commands_name_the_entry_and_what_else_it_needs():
    assert standing(listing(118)).commands() == [
        "grouprl methods show grpo",
        "grouprl train addition --set method=grpo",
    ]
    assert standing(listing(227)).commands()[1].endswith("--set method=rloo --set batch.minibatches=1")
    assert standing(listing(313)).commands() == ["grouprl train addition --set batch.group_size=512"]


def test_what_the_recipe_cannot_train_is_planned_instead():
    long = "sampling.max_new_tokens=5000"
    paper = Listing(0, "No card has this title", "method", "core", "m", "verified", "s", ("ppo",), settings=(long,))
    assert standing(paper).commands()[1] == f"grouprl plan addition --set method=ppo --set {long}"


# --- commands of entries --------------------------------------------------------------------------------------------

CUTS = 8


@pytest.mark.parametrize("part", range(CUTS))
def test_every_entry_of_the_catalogue_has_a_command_that_trains_it(part):
    for name in sorted(CATALOGUE)[part::CUTS]:
        command = training_command(name)
        words = shlex.split(command)
        assert words[:2] == ["grouprl", "train"], command
        if "&&" not in words:
            config = load_config(words[2], words[4::2])
            assert plan(config).refusals == (), command
            assert compose(config.method).base == name, command


def test_a_command_that_needs_another_s_work_says_it_first_and_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = training_command("minillm").split(" && ")
    assert first == "grouprl train addition --folder runs/teacher"
    short = ["steps=0", "warmup.steps=1", "eval.final_prompts=1", "model.tiny.layers=1"]
    assert CliRunner().invoke(app, [*first.split()[1:], *sets(short)]).exit_code == 0
    words = second.split()
    assert plan(load_config(words[2], words[4::2])).refusals == ()


def sets(changes):
    return [word for change in changes for word in ("--set", change)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kto", "addition --set method=kto"),
        ("gpm", "reward_model --set method=gpm"),
        ("bradley_terry", "reward_model"),
        ("modpo", "addition --set method=modpo --set task=preferences --set task.margins=true"),
    ],
)
def test_a_card_ends_in_the_command_that_trains_it(name, words):
    shown = CliRunner().invoke(app, ["methods", "show", name])
    assert shown.exit_code == 0
    assert shown.output.rstrip().splitlines()[-1].startswith(f"  grouprl train {words}")
    data = json.loads(CliRunner().invoke(app, ["methods", "show", name, "--json"]).output)
    assert data["command"].startswith(f"grouprl train {words}")


@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo", "intellect2"])
def test_what_a_paper_adds_to_an_entry_stays_away_from_the_command_of_one_that_needs_nothing(name):
    assert training_command(name) == f"grouprl train addition --set method={name}"


def test_a_task_that_is_set_is_not_set_twice():
    found = [training_command(name) for name in CATALOGUE]
    assert [each for each in found if each.count("--set task=") > 1] == []


def test_what_no_recipe_trains_is_planned(monkeypatch):
    monkeypatch.setattr(training, "_outcome", lambda recipe, changes: (True, False))
    assert training.command_of_entry("ipo") == "grouprl plan addition --set method=ipo"


def test_settings_that_stand_for_a_paper_do_what_it_proposes():
    (clip,) = [s for s in listing(171).settings if s.startswith("method.")]
    assert compose(load_config("addition", [clip]).method).method.objective.dual_clip == 4


# --- search and surfaces --------------------------------------------------------------------------------------------


def test_search_wants_every_word_and_takes_a_number_alone():
    assert [s.paper.number for s in search("118")] == [118]
    assert [s.paper.number for s in search("LEAVE-ONE-OUT baseline over")] == [227]
    assert {s.status for s in search(status="entry")} == {"entry"}
    assert len(search(scope="core")) == 175
    assert search("no such words anywhere") == []


def test_counts_add_up():
    counted = counts(search())
    assert sum(counted.values()) == 357
    assert list(counted) == [status for status in STATUSES if status in counted]


def test_the_table_fits_and_ends_with_counts():
    text = call("--scope", "core")
    assert max(map(len, text.splitlines())) <= 80
    counted = ", ".join(f"{n} {status}" for status, n in counts(search(scope="core")).items())
    assert f"175 papers: {counted}" in text


def test_one_paper_with_its_commands():
    text = call("show", "118")
    assert max(map(len, text.splitlines())) <= 80
    for words in ("DeepSeekMath", "entry: grpo", "grpo@trl", "grouprl train addition --set method=grpo"):
        assert words in text


def test_what_is_not_there_says_so_and_why():
    number = next(s.paper.number for s in search(status="planned"))
    assert "not implemented yet" in call("show", str(number))
    text = " ".join(call("show", "193").split())
    assert "not implemented, a neighbouring field" in text
    assert "multi-agent" in text.lower()


def test_json_holds_everything():
    data = json.loads(call("--status", "part", "--json"))
    assert [row["number"] for row in data] == [s.paper.number for s in search(status="part")]
    assert json.loads(call("show", "118", "--json"))["entries"] == ["grpo"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "358"], "numbered 1 to 357"),
        (["show", "dapo"], "grouprl papers dapo"),
        (["--status", "entri"], "Did you mean 'entry'"),
        (["--scope", "cor"], "Did you mean 'core'"),
        (["zzzz"], "no paper matches 'zzzz'"),
        (["show", "1", "--scope", "core"], "Leave them out"),
    ],
)
def test_wrong_input_is_answered_with_a_remedy(arguments, words):
    assert words in " ".join(call(*arguments, code=2).split())


def test_help_fits_and_teaches_by_example():
    text = call("--help")
    assert max(map(len, text.splitlines())) <= 80
    assert "grouprl papers show 118" in text


def test_the_page_holds_the_whole_list():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.papers_page()
    assert all(f"\n| {paper.number} | **" in page for paper in listings())


# --- names of papers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("salsa", [271]), ("ICE_GRT", [202]), ("sr-ipo", [272]), ("crraft", [166]), ("CGPO (CRPG/CODPO/CRRAFT)", [166])],
)
def test_papers_are_found_by_the_names_of_their_methods(name, numbers):
    assert [each.paper.number for each in named(name)] == numbers


def test_no_paper_is_found_by_a_part_of_a_name_or_by_none():
    assert named("sal") == named("") == named("--") == []


def test_a_search_reads_a_name_of_the_catalogue_as_papers_write_it():
    assert [each.paper.number for each in search("ice_grt")] == [202]
    assert [each.paper.number for each in search("zo_ranksgd")] == [195]


def test_a_card_of_a_name_that_only_papers_have_says_what_implements_it():
    result = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, ["methods", "show", "salsa"])
    text = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.output
    assert "No entry of the catalogue is called 'salsa'" in text
    assert "grouprl methods show ppo" in text
    data = json.loads(CliRunner().invoke(app, ["methods", "show", "salsa", "--json"]).stdout)
    assert [each["number"] for each in data] == [271]


def test_names_of_entries_are_shown_as_entries():
    result = CliRunner().invoke(app, ["methods", "show", "simpo", "--json"])
    assert json.loads(result.stdout)["name"] == "simpo"


def test_an_unknown_method_leads_to_the_papers():
    result = CliRunner().invoke(app, ["methods", "show", "xyzzy"])
    assert result.exit_code == 2
    assert "grouprl papers xyzzy" in " ".join(result.output.split())
