"""Pagination of lists: `?limit=1..1000&cursor=` → `{"items": […], "next": cursor | null}`.

A cursor is the key of the last item returned, so the next page continues after it, whatever was
added or removed. It is opaque to callers (base64url of the key). Pure.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from .problem import invalid
from .schema import Input

LIMIT_MAX = 1_000
LIMIT_DEFAULT = 100
CURSOR_LENGTH_MAX = 1_024

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="How many items at most.")]
Cursor = Annotated[
    str,
    Meta(
        max_length=CURSOR_LENGTH_MAX,
        pattern="^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2,3})?$",
        description="`next` of the page before.",
    ),
]

T = TypeVar("T")


class PageQuery(Input, frozen=True):
    """Query parameters of a list."""

    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor = ""


def page(
    items: Iterable[T], key: Callable[[T], str], view: Callable[[T], Any], query: PageQuery
) -> dict[str, Any]:
    """Return a page of `items`, by their keys. Raises ApiProblem for an invalid cursor."""
    after = decode_cursor(query.cursor) if query.cursor else None
    behind = (item for item in items if after is None or key(item) > after)
    chosen = heapq.nsmallest(query.limit + 1, behind, key=key)
    more = len(chosen) > query.limit
    shown = chosen[: query.limit]
    following = encode_cursor(key(shown[-1])) if more else None
    return {"items": [view(item) for item in shown], "next": following}


def page_of_sorted(
    names: Sequence[str], fits: Callable[[str], bool], view: Callable[[str], Any], query: PageQuery
) -> dict[str, Any]:
    """Return the page of matching sorted `names`, without reading names before the page. Raises
    ApiProblem for an invalid cursor."""
    start = bisect_right(names, decode_cursor(query.cursor)) if query.cursor else 0
    behind = (names[at] for at in range(start, len(names)))
    return page(islice(filter(fits, behind), query.limit + 1), str, view, query)


def encode_cursor(key: str) -> str:
    """Return the cursor of the page behind the item with that key."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Decode a cursor. Raises ApiProblem."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8", "replace")
    except (binascii.Error, UnicodeError) as error:
        raise invalid([("cursor", "is none that this API gave")]) from error
