"""Hooks of mkdocs for the navigation and for diagrams.

A page without an entry in the `nav` of mkdocs.yml is listed under "More". A page with diagrams
loads docs/javascripts/mermaid.tiny.js (MIT; npm's @mermaid-js/tiny 11.17.2, unchanged); otherwise
the theme would load Mermaid from the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

MERMAID = "javascripts/mermaid.tiny.js"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs before it reads the pages."""
    if config.nav is not None:
        docs = Path(config.docs_dir)
        pages = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
        left = [page for page in pages if page not in set(named(config.nav))]
        if left:
            config.nav.append({"More": left})
    return config


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Called by mkdocs with each page's HTML; returns the HTML to write."""
    if 'class="mermaid"' not in output:
        return output
    script = f'<script src="{get_relative_url(MERMAID, page.url)}"></script></head>'
    return output.replace("</head>", script, 1)


def named(nav: Any) -> Iterator[str]:
    """Return all pages of a navigation, which has texts, nested lists, and mappings of titles."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from named(part)
