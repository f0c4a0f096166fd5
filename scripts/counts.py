"""The numbers of the README about the catalogue and its recorded runs, counted from the cards and the records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from effects_report import newest
from examples import EXAMPLES
from grouprl.config.run import recipe_names
from grouprl.methods import CATALOGUE
from held_out import rose
from learn_report import CONTROL, TAUGHT, learned
from shown import of_methods, of_recipes

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- counts, by scripts/generate_docs.py -->", "<!-- /counts -->"


def counted() -> str:
    """Return what is checked and what the records say, failures included."""
    methods = [entry for entry in CATALOGUE.values() if not entry.dialect_of]
    checked = Counter(entry.card.confidence for entry in CATALOGUE.values())
    runs = json.loads((DOCS / "learning.json").read_text(encoding="utf-8"))["runs"]
    runs = [run for run in runs if run["method"] not in (CONTROL, TAUGHT)]
    good = sum(map(learned, runs))
    claims = json.loads((DOCS / "effects.json").read_text(encoding="utf-8"))
    found = Counter(newest(claim)["verdict"] for claim in claims)
    own = sum("own_rates" in claim for claim in claims)
    larger = sum("larger" in row for row in claims)
    real = json.loads((DOCS / "real.json").read_text(encoding="utf-8"))
    gained = sum(any(rose(run, measure) for measure in ("pass@1", "reward")) for run in real)
    examples = json.loads((DOCS / "examples.json").read_text(encoding="utf-8"))
    taught = sum(rose(each, each["measure"]) for each in examples)
    recipes = [each for each in of_recipes().values() if each["seeds"]]
    sure = sum(each["gained"] == each["seeds"] for each in recipes)
    ran = sum(shown["verdict"] != "no record" for name, shown in of_methods().items() if "@" not in name)
    return (
        f"- **Over {tens(len(methods))} methods, {tens(len(CATALOGUE) - len(methods))} dialects** of them in other "
        f"libraries. Formulas and defaults of over {tens(checked['verified'])} are verified, of the others partly, "
        "of a few by their abstract alone. Each card says which.\n"
        f"- **{good} of {len(runs)} recorded toy runs learned**; [which did not](docs/learning.md) is listed. Over "
        f"{tens(ran)} methods have a recorded run; `grouprl methods` says which learned, a card says it first.\n"
        f"- **{len(claims)} claims of papers tried at toy size**, {own} with each method at its own learning rate: "
        f"{found['shown']} shown, {found['leaning']} leaning, {found['not shown']} not shown, {found['opposite']} "
        f"[the other way](docs/effects.md); {larger} with a larger toy, too.\n"
        f"- **{taught} of {len(examples)} recorded examples** of these pages learned; {len(EXAMPLES) - len(examples)} "
        f"are [run, but not shown to learn](docs/examples.md). {len(recipes)} of {len(recipe_names())} "
        f"[recipes](docs/recipes.md) are recorded, {sure} of them with a sure gain in every seed.\n"
        f"- **{gained} of {len(real)} recorded runs of a pretrained model** of 135 million parameters gained "
        "significantly, held-out completions sampled ([which](docs/real.md)).\n"
    )


def tens(number: int) -> int:
    """Return a number rounded down to tens, so that a new method leaves the page as it is."""
    return number // 10 * 10


def with_counts(text: str) -> str:
    """Return a page with the counts between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{counted()}{END}{rest.partition(END)[2]}"
