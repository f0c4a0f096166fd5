"""The task `preferences`: what its judges prefer, held against the reward that is known to be true."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.records.judgements import BETWEEN, END
from grouprl.tasks import load_task
from grouprl.tasks.builtin.single_turn.preferences import (
    WANTED,
    alphabet_kind,
    first_letter,
    liked_letters,
    mean_rating,
    own_letter,
    share_of,
)
from grouprl.testing import check_stored_rows
from grouprl.training.loop import train

PAIRS = 600


def task_of(**options: Any) -> Any:
    return load_task({"name": "preferences", **options})


def judged(task: Any, count: int = PAIRS) -> list[dict[str, Any]]:
    return [task.example("train", index).columns for index in range(count)]


def truth(row: dict[str, Any], word: str) -> float:
    """The true reward, counted by hand."""
    return sum(letter in row["wanted"] for letter in word) / len(word)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "labels"},
        {"form": "lists", "noise": 0.2},
        {"form": "ratings", "noise": 0.2},
        {"judge": "cyclic"},
        {"judge": "alphabet", "noise": 0.2},
        {"annotators": 3, "noise": 0.2},
        {"annotators": 2, "context": 2, "noise": 0.2},
    ],
)
def test_it_has_stored_rows(options: Any) -> None:
    check_stored_rows(task_of(**options))


def test_without_noise_labels_agree_with_the_truth() -> None:
    for row in judged(task_of()):
        assert truth(row, row["chosen"]) > truth(row, row["rejected"])
    for row in judged(task_of(form="labels")):
        assert row["label"] == (truth(row, row["completion"]) >= 0.5)


@pytest.mark.parametrize("form", ["pairs", "labels"])
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_noise_turns_its_share_of_the_labels(form: str, noise: float) -> None:
    """Within four standard deviations of a binomial; the words are the same as without noise."""
    plain, noisy = judged(task_of(form=form)), judged(task_of(form=form, noise=noise))
    if form == "pairs":
        flips = [one["chosen"] == other["rejected"] for one, other in zip(plain, noisy, strict=True)]
        assert flips == [row["turned"] for row in noisy]
        assert all(
            {a["chosen"], a["rejected"]} == {b["chosen"], b["rejected"]} for a, b in zip(plain, noisy, strict=True)
        )
    else:
        flips = [one["label"] != other["label"] for one, other in zip(plain, noisy, strict=True)]
    spread = math.sqrt(PAIRS * noise * (1 - noise))
    assert abs(sum(flips) - PAIRS * noise) < 4 * spread


def stored(task: Any, count: int = PAIRS) -> list[tuple[dict[str, Any], Any]]:
    """The columns and the stored rows of prompts."""
    examples = [task.example("train", index) for index in range(count)]
    return [(example.columns, task.stored_rows(example)) for example in examples]


@pytest.mark.parametrize("uneven", [0.0, 0.6, 1.0])
def test_uneven_prompts_have_words_of_one_label(uneven: float) -> None:
    """Labels stay true; of the share `uneven` the prompt's first letter tells them."""
    task = task_of(form="labels", uneven=uneven)
    found = [task.example("train", index).columns for index in range(2000)]
    assert all((liked_letters(c["completion"], wanted=c["wanted"], annotators=1) >= 0.5) == c["label"] for c in found)
    liked = [c["label"] for c in found if c["wanted"][0] in "abcd"], [c["label"] for c in found if c["wanted"][0] > "d"]
    gap = float(np.mean(liked[0]) - np.mean(liked[1]))
    assert abs(gap - uneven) < 0.06
    if uneven == 1:
        assert gap == 1


def test_a_list_has_the_true_reward_of_each_word() -> None:
    for columns, rows in stored(task_of(form="lists", words=5)):
        assert len(rows) == 5
        assert [row.reward for row in rows] == [truth(columns, row.completion) for row in rows]
        best = max(row.reward for row in rows)
        assert [row.correct for row in rows] == [row.reward == best for row in rows]
        assert min(row.reward for row in rows) < best


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_noise_puts_its_share_of_lists_in_the_opposite_order(noise: float) -> None:
    """The words and the span of scores stay; of two words that is a pair turned round."""
    plain, noisy = (stored(task_of(form="lists", noise=each)) for each in (0.0, noise))
    for (_, clean), (columns, rows) in zip(plain, noisy, strict=True):
        true = [row.reward for row in clean]
        turned = [min(true) + max(true) - each for each in true]
        assert [row.completion for row in rows] == [row.completion for row in clean]
        assert [row.reward for row in rows] == (turned if columns["turned"] else true)
    flips = sum(columns["turned"] for columns, _ in noisy)
    assert abs(flips - PAIRS * noise) < 4 * math.sqrt(PAIRS * noise * (1 - noise))


def test_scores_of_lists_know_length_bias_and_annotators() -> None:
    for columns, rows in stored(task_of(form="lists", length_bias=0.25), 50):
        assert [row.reward for row in rows] == [
            truth(columns, row.completion) + len(row.completion) / 4 for row in rows
        ]
    for columns, rows in stored(task_of(form="lists", annotators=3), 50):
        own = columns["wanted"][columns["annotator"]]
        assert [row.reward for row in rows] == [share_of(row.completion, own) for row in rows]


def test_words_are_rated_for_their_letters_and_for_being_short() -> None:
    for columns, rows in stored(task_of(form="ratings", words=2, longest=4)):
        assert len(rows) == 2
        for row in rows:
            brief = {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25}[len(row.completion)]
            assert row.components == {"liked": truth(columns, row.completion), "brief": brief}
            assert row.reward == (truth(columns, row.completion) + brief) / 2
            assert row.reward == mean_rating(row.completion, wanted=columns["wanted"], longest=columns["longest"])
    assert mean_rating("", wanted="abc", longest=4) == 0.0


def test_noise_turns_each_rating_by_itself() -> None:
    plain, noisy = (stored(task_of(form="ratings", noise=noise)) for noise in (0.0, 0.3))
    turned = []
    for (_, clean), (_, rows) in zip(plain, noisy, strict=True):
        assert [row.completion for row in rows] == [row.completion for row in clean]
        for one, other in zip(clean, rows, strict=True):
            for name, true in one.components.items():
                assert other.components[name] in (true, 1 - true)
                turned += [other.components[name] == 1 - true] if true != 0.5 else []
    assert abs(np.mean(turned) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(turned))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"words": 3}, "Words says how many a list has"),
        ({"words": 3, "form": "labels"}, "Words says how many a list has"),
        ({"uneven": 0.5}, "set form to labels"),
        ({"form": "lists", "judge": "cyclic"}, "compares first letters only"),
        ({"form": "ratings", "annotators": 2}, "Ratings are of one annotator"),
        ({"form": "ratings", "length_bias": 0.1}, "Ratings are of one annotator"),
        ({"form": "lists", "annotators": 2, "context": 2}, "form to pairs"),
    ],
)
def test_what_lists_and_ratings_cannot_have_is_refused(options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        task_of(**options)


@pytest.mark.parametrize(
    ("task", "method", "measure"),
    [
        ({"form": "lists", "words": 3}, "exo_rw", "eval/reward"),
        ({"form": "lists", "words": 3}, "nca_rewards", "eval/reward"),
        (
            {"form": "ratings", "words": 3},
            {"name": "attribute_regression", "attributes": ["liked", "brief"]},
            "eval/pair_accuracy",
        ),
    ],
)
def test_lists_and_ratings_are_trained_on(task: Any, method: Any, measure: str, tmp_path: Path) -> None:
    config = {
        "task": {"name": "preferences", **task},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "warmup": {"steps": 0},
        "method": method,
        "steps": 1,
        "batch": {"prompts": 4, "group_size": 3},
        "eval": {"every": 0, "final_prompts": 4},
        "run": {"threads": 1},
    }
    if measure == "eval/pair_accuracy":
        config.pop("warmup")
    train(parse_config(config), folder=tmp_path / "run", console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert next(row for row in rows if row["phase"] == "train" and "loss" in row)["grad_norm"] > 0
    assert 0 <= [row for row in rows if row["phase"] == "eval"][-1][measure] <= 1


def test_a_length_bias_makes_winners_longer_and_worse() -> None:
    def gaps(bias: float) -> tuple[float, float]:
        rows = judged(task_of(length_bias=bias))
        longer = np.mean([len(row["chosen"]) - len(row["rejected"]) for row in rows])
        better = np.mean([truth(row, row["chosen"]) - truth(row, row["rejected"]) for row in rows])
        return float(longer), float(better)

    (none, right), (some, less), (much, least) = (gaps(bias) for bias in (0.0, 0.1, 1.0))
    assert abs(none) < 0.3
    assert some > none + 0.5
    assert much > some + 0.5
    assert right > less > least


def test_the_cyclic_judge_has_no_winner() -> None:
    """Every kind of word loses to another kind, by the judge and in the data; the true reward of all is the same."""
    task = task_of(judge="cyclic")
    wins = np.zeros((WANTED, WANTED), dtype=int)
    for row in judged(task):
        wanted = row["wanted"]
        wins[wanted.index(row["chosen"][0]), wanted.index(row["rejected"][0])] += 1
    beats = wins > 0
    assert (beats == np.roll(np.eye(WANTED, dtype=bool), 1, axis=1)).all()  # 0 beats 1, 1 beats 2, 2 beats 0
    assert not beats.all(axis=1).any()
    assert all(not np.delete(beats[kind], kind).all() for kind in range(WANTED)), "a kind that beats all others"
    assert task.prefers("abc", 0, "a", "b") is True
    assert task.prefers("abc", 0, "a", "c") is False
    assert task.prefers("abc", 0, "ah", "ab") is None
    totals = {sum(first_letter(word, wanted="abc").values()) for word in ("ah", "b", "cc")}
    assert totals == {0.5}
    assert sum(first_letter("h", wanted="abc").values()) == 0.0


def test_the_alphabet_has_a_circle_of_its_own_whatever_the_prompt() -> None:
    """a, d win against b, e, these against c, f, those against a, d: the best order is right on two of three."""
    task = task_of(judge="alphabet", longest=1)
    kinds = {letter: number % WANTED for number, letter in enumerate("abcdef")}
    pairs = [(kinds[row["chosen"]], kinds[row["rejected"]]) for row in judged(task)]
    assert set(pairs) == {(0, 1), (1, 2), (2, 0)}
    orders = ([pair in {(a, b), (b, c), (a, c)} for pair in pairs] for a, b, c in permutations(range(WANTED)))
    assert 0.6 < max(map(np.mean, orders)) < 0.75
    assert task.prefers("hgb", 0, "d", "b") is True
    assert task.prefers("hgb", 0, "a", "d") is None
    assert alphabet_kind("eh") == {"kind_0": 0.0, "kind_1": 0.5, "kind_2": 0.0}
    assert sum(alphabet_kind("").values()) == sum(alphabet_kind("g").values()) == 0.0


def test_annotators_differ() -> None:
    """Each prefers by its own letter: two annotators often disagree on a pair, and one never does with itself."""
    task, rows = task_of(annotators=3), judged(task_of(annotators=3))
    assert {row["annotator"] for row in rows} == {0, 1, 2}
    for row in rows:
        own = row["wanted"][row["annotator"]]
        assert share_of(row["chosen"], own) > share_of(row["rejected"], own)
    other = [task.prefers(row["wanted"], (row["annotator"] + 1) % 3, row["chosen"], row["rejected"]) for row in rows]
    assert 0.2 < np.mean([each is False for each in other]) < 0.8


def test_tastes_add_up_to_the_true_reward() -> None:
    tastes: Any = liked_letters("aabh", wanted="abc", annotators=3)
    assert tastes == {"annotator_0": 0.5, "annotator_1": 0.25, "annotator_2": 0.0}
    assert liked_letters("aabh", wanted="abc", annotators=1) == 0.75
    assert liked_letters("", wanted="abc", annotators=1) == 0.0


def test_what_a_cyclic_judge_cannot_have_is_refused() -> None:
    with pytest.raises(InputError, match="compares first letters only"):
        task_of(judge="cyclic", length_bias=0.5)
    with pytest.raises(InputError, match="compares first letters only"):
        task_of(judge="alphabet", annotators=2)


def test_an_evaluation_samples_and_scores_by_the_truth(tmp_path: Path) -> None:
    """Trained on pairs and evaluated by what is sampled, which no pair need have: the true reward grows."""
    config = {
        "task": {"name": "preferences", "longest": 4},
        "model": {"name": "tiny", "tiny": {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}},
        "warmup": {"steps": 100, "batch": 32, "lr": 1e-2},
        "method": "dpo",
        "steps": 40,
        "batch": {"prompts": 32, "group_size": 2},
        "optim": {"lr": 1e-2, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 32, "samples": 4, "k": [1]},
        "run": {"threads": 1},
    }
    train(parse_config(config), folder=tmp_path / "run", console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["eval/reward"] for row in rows if row["phase"] == "eval"]
    assert rewards[-1] > rewards[0] + 0.08
    assert 0.0 < rewards[0] < 1.0


def test_judgements_before_a_prompt_are_those_of_its_annotator() -> None:
    task = task_of(annotators=3, context=4)
    for index in range(100):
        example = task.example("train", index)
        *records, own = example.prompt.split(END)
        annotator = example.columns["annotator"]
        assert own == f"{example.columns['wanted']}>"
        assert len(records) == 4
        for prompt, better, worse in (record.split(BETWEEN) for record in records):
            assert share_of(better, prompt[annotator]) > share_of(worse, prompt[annotator])
        assert task.content(example.prompt) == own
        assert task.reward is own_letter
        assert share_of(task.solve(example), own[annotator]) == 1


def test_noise_turns_judgements_as_well() -> None:
    task = task_of(annotators=2, context=8, noise=0.3)
    wrong = []
    for index in range(100):
        example = task.example("train", index)
        for record in example.prompt.split(END)[:-1]:
            prompt, better, worse = record.split(BETWEEN)
            letter = prompt[example.columns["annotator"]]
            wrong.append(share_of(better, letter) < share_of(worse, letter))
    assert abs(sum(wrong) / len(wrong) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(wrong))


@pytest.mark.parametrize("options", [{}, {"annotators": 2, "apart": True}, {"annotators": 2, "form": "labels"}])
def test_judgements_tell_nothing_where_annotators_are_known_or_one(options: Any) -> None:
    with pytest.raises(InputError, match="Context has judgements tell annotators apart"):
        task_of(context=2, **options)


def test_margins_say_how_much_shorter_the_winner_is() -> None:
    task = load_task({"name": "preferences", "margins": True, "longest": 4})
    for index in range(20):
        won, lost = task.stored_rows(task.example("train", index))
        wanted = (len(lost.completion) - len(won.completion)) / 4
        assert won.components == lost.components == {"margin": wanted}
    plain = load_task("preferences")
    assert not plain.stored_rows(plain.example("train", 0))[0].components
    with pytest.raises(InputError, match="Margins are for pairs"):
        load_task({"name": "preferences", "margins": True, "form": "labels"})
