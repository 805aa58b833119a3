"""The page /docs: the API's reference, rendered from its document, with requests to try.

The files are in `reference/`; the renderer is vendored there (package-lock.json, tools/vendor.sh),
so nothing is loaded from elsewhere. It writes styles of its own, which this page's policy allows;
scripts are the server's own alone.
"""

from __future__ import annotations

from importlib import resources

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
# path → (file, media type, encoding)
FILES = {
    "/docs": ("index.html", "text/html", None),
    "/docs/page.js": ("page.js", "text/javascript", None),
    "/docs/style.css": ("style.css", "text/css", None),
    "/docs/rapidoc.js": ("rapidoc.js.gz", "text/javascript", "gzip"),
}


def content_of(name: str) -> bytes:
    """Return the content of one of the files."""
    return resources.files("raftmq.web").joinpath("reference", name).read_bytes()
