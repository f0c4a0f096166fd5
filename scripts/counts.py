"""The numbers of the README about the catalogue and its recorded runs, counted from the cards and the records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from grouprl.methods import CATALOGUE
from learn_report import CONTROL, TAUGHT, learned

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
    found = Counter(claim["verdict"] for claim in claims)
    return (
        f"- **{len(methods)} methods, {len(CATALOGUE) - len(methods)} dialects** of them in other libraries. Formulas "
        f"and defaults of {checked['verified']} are verified, of {checked['partly']} partly; of "
        f"{checked['abstract-only']} only the abstract could be read. Each card says which.\n"
        f"- **{good} of {len(runs)} recorded toy runs learned**; [which did not](docs/learning.md) is listed.\n"
        f"- **{len(claims)} claims of papers tried at toy size**: {found['shown']} shown, {found['leaning']} leaning, "
        f"{found['not shown']} not shown, {found['opposite']} [the other way](docs/effects.md).\n"
    )


def with_counts(text: str) -> str:
    """Return a page with the counts between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{counted()}{END}{rest.partition(END)[2]}"
