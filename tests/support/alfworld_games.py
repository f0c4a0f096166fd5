"""Small games in the format of ALFWorld's data, with its own domain and grammar: a thing is to be put somewhere."""

import json
from pathlib import Path

PLACES = ("desk", "shelf", "drawer")
THINGS = ("apple", "book", "key")


def write_games(root, counts=None):
    """Write so many games per split, each in a folder of its own; return the root."""
    for split, count in (counts or {"train": 4, "valid_seen": 2, "valid_unseen": 2}).items():
        for number in range(count):
            shift = {"train": 0, "valid_seen": 1, "valid_unseen": 2}[split]
            thing, goal = THINGS[(number + shift) % 3], PLACES[(number // 3 + number + shift) % 3]
            folder = Path(root) / "json_2.1.1" / split / f"pick_and_place_simple-{thing}-{goal}" / f"trial_{number}"
            folder.mkdir(parents=True)
            (folder / "game.tw-pddl").write_text(json.dumps(game(thing, goal)))
            (folder / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_simple"}))
    return Path(root)


def game(thing, goal, solvable=True):
    """Return a game: of three places, only the drawer has to be opened; things lie anywhere else than they belong."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    grammar = Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", f"put some {thing} on {goal}")
    walkthrough = ["look"]
    return {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": grammar,
        "pddl_problem": problem(thing, goal),
        "solvable": solvable,
        "walkthrough": walkthrough,
    }


def problem(thing, goal):
    """Return the problem in PDDL."""
    where = {each: f"{each}_bar_{number}" for number, each in enumerate((*PLACES, *THINGS))}
    start = {each: PLACES[(PLACES.index(goal) + 1 + number) % 3] for number, each in enumerate(THINGS)}
    start[thing] = PLACES[(PLACES.index(goal) + 1) % 3]
    facts = ["(atLocation agent1 loc_bar_9)", "(= (total-cost) 0)"]
    for place in PLACES:
        facts += [
            f"(receptacleAtLocation {where[place]} loc_bar_{place})",
            f"(receptacleType {where[place]} {place}Type)",
        ]
        facts += [f"(canContain {place}Type {each}Type)" for each in THINGS]
    facts.append(f"(openable {where['drawer']})")
    for each in THINGS:
        facts += [f"(objectType {where[each]} {each}Type)", f"(pickupable {where[each]})"]
        facts += [
            f"(inReceptacle {where[each]} {where[start[each]]})",
            f"(objectAtLocation {where[each]} loc_bar_{start[each]})",
        ]
    listed = "\n".join(facts)
    places, things = " ".join(where[each] for each in PLACES), " ".join(where[each] for each in THINGS)
    locations = " ".join(f"loc_bar_{each}" for each in (*PLACES, "9"))
    return f"""(define (problem small)
(:domain alfred)
(:objects agent1 - agent {places} - receptacle {things} - object {locations} - location
{" ".join(f"{each}Type" for each in PLACES)} - rtype {" ".join(f"{each}Type" for each in THINGS)} - otype)
(:init {listed})
(:goal (exists (?r - receptacle ?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o {thing}Type) (receptacleType ?r {goal}Type))))
(:metric minimize (total-cost))
)"""
