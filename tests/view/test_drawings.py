"""Solutions in words and in pictures: what a reader of a run without text sees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import grouprl
from grouprl.envs.construction import PROBLEMS
from grouprl.envs.construction.words import choices, sentence
from grouprl.tasks import load_task
from grouprl.view.drawings import picture

SQUARE = {"place": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])}


def test_a_tour_in_words_has_its_way_home_its_length_and_its_gap() -> None:
    problem = PROBLEMS["tsp"](4)
    building = problem.begin(SQUARE, np.random.default_rng(0))
    first = building.chosen[0]
    for step in (2, 1, 3):  # across the square: 2 + 2·√2, where the best is 4
        building.take((first + step) % 4)
    said = sentence(problem, SQUARE | {"best": np.array([4.0])}, building)
    order = "-".join(str((first + step) % 4) for step in (0, 2, 1, 3, 0))
    assert said == f"tour {order}, length 4.828, best 4, gap 20.7 %"
    assert choices(f"> 2\n> 1\n{said}") == [(first + step) % 4 for step in (0, 2, 1, 3, 0)]
    assert sentence(problem, SQUARE, building) == f"tour {order}, length 4.828", "no gap where the best is not known"
    assert choices("> 2\n> 1") == []


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_ends_with_a_sentence_and_shows_no_numbers_before(name: str) -> None:
    task = load_task({"name": f"construct:{name}", "count": 4, "gap": True})
    world, luck = task.environment(), np.random.default_rng(0)
    shown, over = world.reset(task.example("eval", 0), 0), False
    while not over:
        assert shown.text == ""
        step = world.step(int(luck.choice(np.flatnonzero(shown.legal))))
        shown, over = step.observation, step.terminated
    assert re.fullmatch(r"[^\d]*(1, 2 …: )?[\d-]+, \w+ [\d.]+, best [\d.]+, gap -?[\d.]+ %", shown.text), shown.text


def test_a_picture_has_a_dot_per_place_and_a_line_through_the_choices() -> None:
    svg = picture({"dots": [[0, 0], [2, 0], [2, 1]], "line": [0, 2, 1, 0], "marked": [0]})
    assert svg.count("<circle") == 3
    assert svg.count('class="marked"') == 1
    assert 'points="8.0,152.0 152.0,80.0 152.0,152.0 8.0,152.0"' in svg
    assert picture({"dots": [[1, 1]], "line": [0]}).count("<circle") == 1


@pytest.mark.parametrize("damaged", [None, "", {}, {"dots": [["a", 1]]}, {"dots": [[0, 0]], "line": [3]}, {"dots": 3}])
def test_a_damaged_drawing_is_left_out(damaged: object) -> None:
    assert picture(damaged) == ""


def test_the_page_of_tours_has_words_and_pictures_before_and_after(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    grouprl.train(
        {
            "task": {"name": "construct:tsp", "count": 4, "gap": True},
            "model": {"name": "pointer", "settings": {"width": 8, "layers": 1, "heads": 2}},
            "method": {"base": "reinforce", "baseline": "group"},
            "steps": 1,
            "batch": {"prompts": 2, "group_size": 2},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(folder), "threads": 1},
        }
    )
    rows = json.loads((folder / "samples.json").read_text())
    found = choices(rows[0]["after"])
    assert rows[0]["after_drawing"]["line"] == found
    assert (len(found), found[0]) == (5, found[-1])
    page = (folder / "report.html").read_text()
    assert page.count('<svg class="drawing"') == 2 * len(rows)
    assert "nodes" not in page.split('id="completions"')[1].split("</section>")[0]
