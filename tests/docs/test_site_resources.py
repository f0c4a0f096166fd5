"""A built site is read without network: nothing of it is loaded from another host."""

from __future__ import annotations

from pathlib import Path

import pytest

import site_resources

HOST = "//elsewhere.example/a"


@pytest.mark.parametrize(
    "element",
    [
        f'<script src="https:{HOST}"></script>',
        f'<link id="light" rel="stylesheet" href="https:{HOST}">',
        f"<link rel=preload href={HOST}>",
        f'<img alt="" src="{HOST}">',
        f'<img alt="" srcset="small.png 1x, https:{HOST} 2x">',
        f'<iframe src="http:{HOST}"></iframe>',
        f"<style>@import 'https:{HOST}';</style>",
        f'<p style="background: url(https:{HOST})">x</p>',
    ],
)
def test_what_a_page_loads_from_another_host_is_told(element: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text(f"<html><body>{element}</body></html>", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"loads from other hosts:\n\S*elsewhere.example/a: 1 pages, such as sub"):
        site_resources.main(tmp_path)


def test_a_style_sheet_may_not_load_from_another_host(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<link rel="stylesheet" href="own.css">', encoding="utf-8")
    (tmp_path / "own.css").write_text(f"@font-face {{src: url('https:{HOST}')}}", encoding="utf-8")
    assert site_resources.external(tmp_path) == {f"https:{HOST}": ["own.css"]}


def test_links_that_are_followed_and_own_files_are_none(tmp_path: Path) -> None:
    page = f'<link rel="canonical" href="https:{HOST}"><a href="https:{HOST}">x</a><img alt="" src="../own.png">'
    script = (
        f'<script src="own.js"></script><script>const where = "https:{HOST}"</script><code>url(https:{HOST})</code>'
    )
    (tmp_path / "index.html").write_text(page + script, encoding="utf-8")
    assert site_resources.external(tmp_path) == {}


def test_an_empty_folder_is_no_checked_site(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no page"):
        site_resources.main(tmp_path)
