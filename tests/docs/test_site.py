"""The site of docs/ builds strictly, and neither building nor reading it fetches anything."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from shutil import copy

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = {  # element → the attribute by which a browser loads something without being asked
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; return its directory, or fail with its warnings."""
    directory = tmp_path_factory.mktemp("site")
    built = build(ROOT, "--site-dir", str(directory))
    assert built.returncode == 0, built.stderr
    return directory


def build(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # Not with --quiet: warnings that are not shown are not counted as errors either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *options]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


class Loads(HTMLParser):
    """Collects what a page has the browser load; links to click are none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get(FETCHED.get(tag, ""))
        if target:
            self.found.append(target)


def test_makefile_builds_the_site_as_this_test_does() -> None:
    assert "mkdocs build --strict\n" in (ROOT / "Makefile").read_text()


def test_site_has_every_page(site: Path) -> None:
    pages = {p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")}
    built = {p.with_name("index.html" if p.stem == "README" else f"{p.stem}.html") for p in pages}
    assert all((site / page).is_file() for page in built)
    assert len(pages) > 30


def test_site_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages, sheets = [*site.rglob("*.html")], [*site.rglob("*.css")]
    assert pages and sheets
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.found, page
        assert not [t for t in loads.found if re.match(r"(https?:)?//", t)], page
    for sheet in sheets:
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_site_pages_with_diagrams_load_mermaid_from_the_site(site: Path) -> None:
    script = "javascripts/mermaid.tiny.js"
    assert (
        (site / script)
        .read_text()
        .endswith('globalThis.__esbuild_esm_mermaid_nm["mermaid"].default;\n')
    )
    assert f'<script src="{script}"></script>' in (site / "architecture.html").read_text()
    assert script not in (site / "index.html").read_text()


def test_site_search_finds_the_pages(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    assert "Divergence from Raft and Apache" in index
    assert "runbooks/replace-node.html" in index


def built_elsewhere(directory: Path, nav: str = "") -> subprocess.CompletedProcess[str]:
    """The build of another `docs`, with our settings."""
    config = (ROOT / "mkdocs.yml").read_text()
    (directory / "mkdocs.yml").write_text(config[: config.index("nav:\n  -")] + nav)
    (directory / "tools").mkdir()
    copy(ROOT / "tools" / "site_pages.py", directory / "tools")
    return build(directory)


def test_site_search_finds_a_page_outside_the_navigation(tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    for page in ("index", "named", "deep/new"):
        (tmp_path / "docs" / f"{page}.md").write_text(f"# The page {page}\n")
    built = built_elsewhere(tmp_path, "nav:\n  - index.md\n  - Named: [named.md]\n")
    assert built.returncode == 0, built.stderr
    front = (tmp_path / "build" / "docs" / "index.html").read_text()
    assert "More" in front
    assert 'href="deep/new.html"' in front


def test_site_build_fails_on_broken_links(tmp_path: Path) -> None:
    broken = ("[page](nowhere.md)", "[place](index.md#nothing-like-that)", "![picture](no.png)")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n" + "\n\n".join(broken))
    built = built_elsewhere(tmp_path)
    assert built.returncode == 1
    assert all(gone in built.stderr for gone in ("nowhere.md", "nothing-like-that", "no.png"))
    assert "3 warnings in strict mode" in built.stdout + built.stderr
