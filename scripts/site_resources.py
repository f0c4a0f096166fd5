"""Say which pages of a built site load something from another host: `python scripts/site_resources.py FOLDER`.

Links that a reader follows are none of it; scripts, style sheets, fonts, pictures and frames are.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

ELSEWHERE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
IN_STYLES = re.compile(
    r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^"')\s]+)""",
    re.IGNORECASE,
)
ADDRESSES = ("src", "srcset", "poster", "data")
FOLLOWED = {"alternate", "author", "canonical", "help", "license", "me", "next", "prev", "search"}
"""Relations of a <link> that load nothing."""


class _Resources(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the addresses of a tag."""
        given = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        names = [name for name in ADDRESSES if name in given]
        if tag == "link" and not set(given.get("rel", "").lower().split()) <= FOLLOWED:
            names.append("href")
        values = [part for name in names for part in given.get(name, "").split(",")]
        self.found += [value.split()[0] for value in values if ELSEWHERE.match(value)]
        self.found += IN_STYLES.findall(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        """Take the addresses of a style sheet in the page."""
        if self.in_style:
            self.found += IN_STYLES.findall(data)


def resources(page: Path) -> list[str]:
    """Return the addresses on other hosts that a page or a style sheet loads, each once."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".css":
        return sorted(set(IN_STYLES.findall(text)))
    reader = _Resources()
    reader.feed(text)
    return sorted(set(reader.found))


def external(site: Path) -> dict[str, list[str]]:
    """Return the pages that load something from each address on another host.

    Raises:
        SystemExit: the folder holds no page, so that nothing would be checked.
    """
    pages = sorted(path for path in site.rglob("*") if path.suffix in (".html", ".css"))
    if not any(path.suffix == ".html" for path in pages):
        raise SystemExit(f"{site} holds no page: build the site first")
    found: dict[str, list[str]] = {}
    for page in pages:
        for address in resources(page):
            found.setdefault(address, []).append(str(page.relative_to(site)))
    return found


def main(site: Path) -> None:
    """Check a built site.

    Raises:
        SystemExit: something is loaded from another host.
    """
    found = external(site)
    said = [f"{address}: {len(pages)} pages, such as {pages[0]}" for address, pages in found.items()]
    if said:
        raise SystemExit("\n".join([f"{site} loads from other hosts:", *said]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
