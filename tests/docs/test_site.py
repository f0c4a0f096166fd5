"""The site's navigation holds every page, the reference every public name, and what is cited is what is released."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import foreign_tables
import grouprl
import reference
import release_check
from grouprl.core.foreign.trl import TRL

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
MADE = {"methods/README.md", "methods/papers.md", *(f"reference/{name}" for name in reference.contents())}
"""Pages that `make docs` writes, and that git ignores."""


def leaves(nav: object) -> Iterator[str]:
    """Yield the pages of a navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:  # type: ignore[attr-defined]
            yield from leaves(each)


def test_the_navigation_holds_every_page_once() -> None:
    pages = sorted(leaves(SITE["nav"]))
    written = {path.name for path in DOCS.glob("*.md")} | {"extend/README.md"} | set(notebooks())
    assert pages == sorted(written | MADE)


def notebooks() -> list[str]:
    """Return the pages that executed notebooks become."""
    return [f"notebooks/{path.stem}.md" for path in (DOCS / "notebooks").glob("*.ipynb")]


def test_no_page_links_beyond_the_site() -> None:
    """A file outside docs is no page of the site: mkdocs ends at such a link, Zensical leaves it broken."""
    beyond = [
        f"{page.relative_to(DOCS)}: {link}"
        for page in sorted(DOCS.rglob("*.md"))
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)\s#]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / link).resolve().is_relative_to(DOCS)
    ]
    assert beyond == []


def test_the_reference_holds_every_public_name() -> None:
    named = [name for _, _, names in reference.contents().values() for name in names]
    assert {name.removeprefix("grouprl.") for name in named} >= {*grouprl.__all__} - {"__version__"}
    assert len(set(named)) == len(named)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute)


def test_what_is_called_is_documented_by_the_function_behind_it() -> None:
    page = reference.pages()["running.md"]
    assert "::: grouprl.plan._Planning.__call__" in page
    assert "::: grouprl.plan\n" not in page
    assert "::: grouprl.train\n" in page


def test_what_is_cited_is_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == grouprl.__version__ == release_check.version()
    assert (cited["cff-version"], cited["license"], cited["type"]) == ("1.2.0", "Apache-2.0", "software")
    newest = re.search(r"^## .*?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == grouprl.__version__


def test_tables_of_keys_hold_every_key_and_keep_the_rest() -> None:
    page = foreign_tables.with_tables("before\n<!-- keys: TRL -->\nold\n<!-- /keys -->\nafter\n")
    assert page.startswith("before\n<!-- keys: TRL -->\n| there | here |\n")
    assert page.endswith("<!-- /keys -->\nafter\n")
    assert "\nold\n" not in page
    assert all(f"| `{key}` |" in page for key in TRL)
    assert foreign_tables.with_tables(page) == page
    assert "| `fp16` | `model.dtype: float16` |" in page
    assert "| `epsilon` | `method.clip_low`, `method.clip_high` |" in page


WHEEL = ["grouprl/__init__.py", "grouprl/py.typed", "grouprl/listings/parts.json", "grouprl/recipes/addition.yaml"]
WHEEL += ["grouprl/view/app/page.html", "grouprl-1.dist-info/METADATA"]


@pytest.mark.parametrize("missing", WHEEL)
def test_a_wheel_that_lacks_a_file_is_told(missing: str) -> None:
    assert release_check.wheel_complaints(WHEEL, "1") == []
    assert len(release_check.wheel_complaints([name for name in WHEEL if name != missing], "1")) == 1


def test_archives_with_foreign_files_are_told() -> None:
    assert release_check.wheel_complaints([*WHEEL, "tests/test_x.py"], "1") == ["the wheel holds tests/test_x.py"]
    sdist = [f"grouprl-1/{each}{'x' * each.endswith('/')}" for each in release_check.IN_SDIST]
    assert release_check.sdist_complaints(sdist, "1") == []
    assert len(release_check.sdist_complaints(sdist[1:], "1")) == 1
    assert len(release_check.sdist_complaints([*sdist, "grouprl-1/.venv/x", "grouprl-1/runs/x"], "1")) == 2
