"""The datasets of the reasoning-gym library, and a guard around their scorers, which are not trusted.

Many of the library's scorers raise on odd texts, some reward texts that are not answers, one never ends, and several
run the answer as Python. So each answer is scored in a separate process (`grouprl.rewards.verifier_calls`), which ends
a scorer that runs text, except for the datasets of `RUN_AS_TEXT`, whose answers must first match a grammar. The full
score is believed only for the library's own answer, the same number or, if a question has several right answers, a
text of their form (`FORMS`).
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from grouprl.core.errors import InputError, MissingExtra, suggest
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.rewards.by_task.puzzles import uses_and_reaches
from grouprl.rewards.by_task.structured import strict_json
from grouprl.rewards.catalogue.builtin import ANSWER_TAG
from grouprl.rewards.verifier_calls import Apart, Spoiled

if TYPE_CHECKING:
    from reasoning_gym.coaching import BaseCurriculum
    from reasoning_gym.dataset import ProceduralDataset

BLOCK = 1000
"""Number of entries in a block of a dataset: some generators prepare all their entries, so a stream comes in blocks."""
GENERATION_SECONDS = 20.0
"""Limit of the processor time for generating an entry, in seconds."""
FULL = 0.99
LONGEST = 20_000
"""Largest number of characters of an answer; a longer one scores 0."""
SLACK = 200
"""Number of characters by which an answer may exceed four times the length of the library's own."""

# The alternatives begin differently and match greedily, so that no text makes a grammar backtrack for long.
ALGEBRA = r"(?:[0-9]+(?:\.[0-9]+)?(?![0-9.])|[-+*/() ]|(?:sin|cos|tan|exp|log|sqrt|pi|[a-zCE])(?![a-zA-Z0-9]))+"
ARITHMETIC = r"(?:[-+/() 0-9]|\*(?! *\*))+"
RUN_AS_TEXT = {
    "bitwise_arithmetic": r"-?0x[0-9a-fA-F]{1,100}",
    "countdown": ARITHMETIC,
    "puzzle24": ARITHMETIC,
    "simple_integration": ALGEBRA,
    "intermediate_integration": ALGEBRA,
    "polynomial_multiplication": ALGEBRA,
    "number_sorting": r"[-\[\]0-9.,'\" ]+",
}
"""Grammars, without names, of the answers that may reach a scorer that runs text as a program, by dataset."""

GRID = r"[0-9\s]+"
JSON = "json"
COMPLEX = r"[-+0-9. ij*()]+"
ROWS_OF_JSON = dict.fromkeys(
    ("boxnet", "game_of_life", "graph_color", "group_anagrams", "jugs", "palindrome_partitioning"), JSON
)
FORMS = {
    **RUN_AS_TEXT,
    **ROWS_OF_JSON,
    **dict.fromkeys(("kakurasu", "mini_sudoku", "sudoku", "survo", "arc_agi", "rearc"), GRID),
    "pool_matrix": r"[0-9.\s]+",
    "n_queens": r"[_Q\s]+",
    "futoshiki": r"[0-9\s<>∧∨_]+",
    "advanced_geometry": r"[-+0-9., ()°]+",
    "complex_arithmetic": COMPLEX,
    "polynomial_equations": r"[-+0-9., ]+",
    "calendar_arithmetic": r"[A-Za-z0-9, \-]{1,40}",
    "cryptarithm": r"[A-Z]=[0-9](?:,\s*[A-Z]=[0-9])*",
    "knight_swap": r"No|impossible|\[(?:\"[wB],[A-Z][0-9]+,[A-Z][0-9]+\"(?:,\s*)?)*\]",
    "knights_knaves": r"(?:and\s+)?\w+ is an? \w+(?:[,.]?\s+(?:and\s+)?\w+ is an? \w+)*\.?",
    "palindrome_generation": r"[a-zA-Z]{1,200}",
    "path_star": r"[0-9 ]+",
    "prime_factorization": r"[0-9]+(?:\s*×\s*[0-9]+)*",
    "quantum_lock": r"[A-Z](?:\s*→\s*[A-Z])*",
    "rubiks_cube": r"[UDLRFBMESxyzudlrfbw2' ]{1,400}",
    "rush_hour": r"[A-Z][+-][0-9]+(?:\s+[A-Z][+-][0-9]+)*",
    "shortest_path": r"(?:infeasible|(?:up|down|left|right)(?:\s+(?:up|down|left|right))*)",
    "sokoban": r"[UDLR]{1,400}",
    "tower_of_hanoi": r"(?:Move disk [0-9]+ from Peg [0-9]+ to Peg [0-9]+(?:\n|\Z))+",
    "word_ladder": r"[A-Za-z]+(?:,[A-Za-z]+)*",
}
"""Forms of an answer, by dataset, if a question has several right ones or the library allows small differences."""


def same_numbers(text: str, own: str) -> bool:
    """Return whether two lists hold the same numbers in the same order."""
    try:
        ours, theirs = ([Fraction(each) for each in re.findall(r"[-+]?[0-9.]+", part)] for part in (text, own))
    except ValueError:
        return False
    return ours == theirs


OWN_RULES: dict[str, Callable[[str, JsonMapping], bool]] = {
    "number_sorting": lambda text, entry: same_numbers(text, str(entry["answer"])),
    "puzzle24": lambda text, entry: uses_and_reaches(text, entry["metadata"]["numbers"], 24),
}
"""Further conditions of a full score, by dataset: the library accepts any four numbers as those of the question, and
sorted numbers that are off by 1.
"""
WHOLE = ("game_of_life",)
"""Datasets without parts of a score: the library counts equal cells, most of which are empty in any two answers."""
REFUSED = {
    "composite": "it mixes datasets, and each has its own guard. Name one of its datasets",
    "propositional_logic": "its scorer accepts any consequence as an answer: a copied premise, or P ∨ ¬P. "
    "Choose another dataset",
}
"""Datasets that cannot be guarded, and why."""

SIGNS = " .,;:!?*_'\"`$"
"""Characters that may surround an answer without changing it."""
JUNK = ("", "x", "nan", "-", "[[[]]]", "{}", "True False", "9" * 5000, "\0")
"""Texts that answer no question of any dataset: a score above 0 for one of them is wrong."""


@dataclass(frozen=True)
class LibraryScore:
    """The guarded scorer of a reasoning-gym dataset; it scores the text in the last answer tag within 0..1.

    It is sent to another process as `recipe` (name, level, config, seed), because some datasets cannot be pickled.
    """

    recipe: tuple[str, int | None, Mapping[str, object], int]

    def __reduce__(self) -> tuple[object, ...]:
        return LibraryScore, (self.recipe,)

    def __call__(self, completion: str, entry: Mapping[str, object]) -> float:
        """Score one answer to the problem that `entry` describes; 0 if the scorer raises or does not end."""
        tagged = ANSWER_TAG.findall(completion)
        text = (tagged[-1] if tagged else completion).strip()
        if not may_be_scored(self.recipe[0], text, entry):
            return 0.0
        apart = Apart("grouprl.rewards.catalogue.library:scorer", self.recipe[0] in RUN_AS_TEXT, self.recipe)
        found = apart(text, dict(entry))
        return 0.0 if isinstance(found, Spoiled) else believed(self.recipe[0], text, entry, found)


def scorer(
    name: str, level: int | None, config: Mapping[str, object], seed: int
) -> Callable[[str, JsonMapping], float]:
    """Return the library's own scorer; runs in the separate process."""
    dataset = dataset_maker(name, level, config)(seed)
    return lambda text, entry: float(dataset.score_answer(text, entry=entry))


def entry_maker(name: str, level: int | None, config: Mapping[str, object], seed: int) -> Callable[[int], str]:
    """Return the function from a position to its pickled entry, as text; runs in the separate process."""
    dataset = dataset_maker(name, level, config)(seed)
    with contextlib.suppress(Exception):  # the caller that asks for an entry reports that it cannot be made
        dataset[0]  # forks then share what the library caches with its first entry

    def entry(position: int) -> str:
        random.seed(f"{seed}/{position}")  # for datasets that sample from the global generators of Python or numpy
        np.random.seed((seed + position) % 2**32)
        return base64.b64encode(zlib.compress(pickle.dumps(dataset[position]))).decode("ascii")

    return entry


class Entries:
    """The entries of a dataset, which depend only on its seed and their position.

    Some datasets iterate over sets of texts or sample from a global generator, so that they differ between processes
    (observed in version 0.1.25: codeio, intermediate_integration, isomorphic_strings, knight_swap, list_functions,
    polynomial_multiplication, ransom_note, word_ladder). So all entries are made in a separate process with a fixed
    hash seed, each in a fork with its own generators.
    """

    def __init__(self, name: str, level: int | None, config: Mapping[str, object], seed: int) -> None:
        self.name = name
        recipe = (name, level, config, seed)
        self._make = Apart("grouprl.rewards.catalogue.library:entry_maker", True, recipe, GENERATION_SECONDS)

    def __getitem__(self, position: int) -> JsonObject:
        """Return the entry at a position.

        Raises:
            InputError: if the library cannot generate it.
            RunError: if no process can be started.
            Crowded: if the process gets too little processor time.
        """
        found = self._make(position)
        if isinstance(found, Spoiled):
            raise InputError(
                f"reasoning-gym's '{self.name}' cannot sample a prompt", found.why, "Change its level or config"
            )
        packed = zlib.decompress(base64.b64decode(cast(str, found)))
        entry: JsonObject = pickle.loads(packed)  # safe: it comes from this package's own process
        return entry


def may_be_scored(name: str, text: str, entry: Mapping[str, object]) -> bool:
    """Return whether a text may reach the library's scorer: not empty, copied or too long, and of a safe grammar."""
    own = entry["answer"]
    longest = 4 * len(own) + SLACK if isinstance(own, str) else LONGEST
    copied = _plain(str(entry["question"])) in _plain(text)
    if not text or len(text) > longest or "\0" in text or copied:
        return False
    if text != own and name in RUN_AS_TEXT and not re.fullmatch(RUN_AS_TEXT[name], text):
        return False
    return FORMS.get(name) != JSON or _is_json(text)


def believed(name: str, text: str, entry: Mapping[str, object], found: object) -> float:
    """Return the library's score if it can be believed, else 0."""
    if not isinstance(found, float) or not 0 <= found <= 1:
        return 0.0
    own = str(entry["answer"])
    if _plain(text) == _plain(own) or _same_number(text, own):
        return found
    if found >= FULL and name in OWN_RULES and not OWN_RULES[name](text, entry):
        return 0.0
    if found < FULL:
        return 0.0 if hedged(text, own) or name in WHOLE else found
    form = FORMS.get(name, "(?!)")
    return found if form == JSON or re.fullmatch(form, text) else 0.0


def hedged(text: str, own: str) -> bool:
    """Return whether a text is the library's answer with further words around it, for which scorers pay a part."""
    bare = [_plain(each).strip(SIGNS) for each in (text, own)]
    return bool(bare[1]) and bare[1] in bare[0] and bare[0] != bare[1]


def problems(
    name: str, score: Callable[[str, JsonMapping], float], entries: Sequence[Mapping[str, object]]
) -> list[str]:
    """Describe the faults of a scorer: texts that it wrongly rewards, and the library's own answers that it refuses."""
    found = []
    for entry in entries:
        own = entry["answer"]
        if isinstance(own, str) and score(own, entry) < FULL:
            found.append(f"its own answer {own[:60]!r} is worth {score(own, entry):g}")
        for text in (*JUNK, str(entry["question"])):
            if text != own and (paid := score(text, entry)) > 0.5:
                found.append(f"{text[:60]!r} is worth {paid:g}")
    return found


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _same_number(text: str, own: str) -> bool:
    """Return whether two texts are numbers that agree to 6 digits; integers must be equal."""
    values = [_number(each) for each in (text, own)]
    if None in values:
        return False
    ours, theirs = values
    assert ours is not None
    assert theirs is not None
    return ours == theirs or (theirs.denominator > 1 and abs(ours - theirs) <= Fraction(1, 10**6) * abs(theirs))


def _number(text: str) -> Fraction | None:
    plain = text.strip().replace(",", "").lstrip("$").rstrip(".")
    if len(plain) > 100 or not re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?|[-+]?[0-9]+/[0-9]+", plain):
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def _is_json(text: str) -> bool:
    """Return whether a text is a JSON list or object without deep nesting or numbers that are not finite."""
    try:
        found = strict_json(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list | dict) and max(text.count("["), text.count("{")) <= 2000


def dataset_maker(name: str, level: int | None, config: Mapping[str, object]) -> Callable[[int], ProceduralDataset]:
    """Return a function from a seed to a dataset of `BLOCK` entries.

    Raises:
        MissingExtra: without the library.
        InputError: if it has no such dataset, level or field.
    """
    try:
        from reasoning_gym.factory import CURRICULA, DATASETS
    except ImportError as error:
        raise MissingExtra("reasoning-gym", "envs", f"The task 'reasoning_gym:{name}'") from error
    if name in REFUSED:
        why, _, remedy = REFUSED[name].partition(". ")
        raise InputError(f"reasoning-gym's '{name}' is refused", why, f"{remedy}.")
    if name not in DATASETS:
        raise InputError(f"reasoning-gym has no dataset '{name}'", remedy=_nearest(name, DATASETS))
    for field in config:
        known = [known for known in DATASETS[name][1].__dataclass_fields__ if known not in ("seed", "size")]
        if field not in known:
            raise InputError(
                f"The configuration of reasoning-gym's '{name}' has no '{field}'", remedy=suggest(field, known)
            )
    if level is not None and name not in CURRICULA:
        raise InputError(f"reasoning-gym's '{name}' has no curriculum, so no level {level}", remedy="Use 'config'.")
    fields = {**(_curriculum_fields(CURRICULA[name](), name, level) if level is not None else {}), **config}
    dataset_class, config_class = DATASETS[name]

    def make(seed: int) -> ProceduralDataset:
        try:
            return dataset_class(config_class(**{**fields, "seed": seed, "size": BLOCK}))
        except (AssertionError, ValueError, TypeError) as error:
            chosen = f"level {level} and " if level is not None else ""
            raise InputError(
                f"reasoning-gym's '{name}' refuses {chosen}config {dict(config)}", str(error), "Change these values"
            ) from error

    return make


def _curriculum_fields(curriculum: BaseCurriculum, name: str, level: int) -> dict[str, object]:
    """Return the configuration fields that a curriculum level sets."""
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values())
    if level > highest:
        raise InputError(
            f"The level of reasoning-gym's '{name}' is {level}", f"its levels are 1..{highest}", "Choose one of them"
        )
    curriculum.set_global_level(level - 1)
    return {**vars(curriculum.generate_configuration())}


def _nearest(name: str, known: Mapping[str, object]) -> str:
    remedy = suggest(name, known)
    return (
        remedy
        if remedy.startswith("Did you mean")
        else f"It has {len(known)}, among them {', '.join(sorted(known)[:8])}."
    )
