"""A hook of mkdocs: a page that mkdocs.yml's `nav` does not name stands under "More".

So whoever writes a page need not know of the navigation, and nobody misses the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs before it looks at the pages."""
    if config.nav is not None:
        docs = Path(config.docs_dir)
        pages = sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))
        left = [page for page in pages if page not in set(named(config.nav))]
        if left:
            config.nav.append({"More": left})
    return config


def named(nav: Any) -> Iterator[str]:
    """Every page in a navigation: texts, lists of such, and mappings of titles to such."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav:
        yield from named(part)
