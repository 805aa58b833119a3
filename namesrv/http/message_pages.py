"""Pages of messages of several groups, merged by store time.

A cursor has a mark per group, which is the CommitLog offset of the group's next page, or END.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import orjson

from raftmq.web.paging import decode_cursor, encode_cursor
from raftmq.web.problem import invalid
from raftmq.web.schema import INTEGER_MAX

from .broker_fanout import Leaders
from .broker_http import NodeSilent
from .cluster import Item
from .merging import with_group
from .seen import Messages

END = -1  # a cursor's mark of a finished group


async def pages_of(
    leaders: Leaders,
    groups: Sequence[str],
    path: str,
    selected: Mapping[str, str],
    marks: Mapping[str, int],
    name: str,
) -> tuple[dict[str, Item], list[dict[str, str]]]:
    """Request the groups' pages; the query's field `name` has the cursor. Return (group → page,
    [{group, error}]); groups that answer 404 or are finished are in neither."""

    async def one(group: str) -> tuple[str, Item | None, str]:
        mark = marks.get(group)
        if mark == END:
            return group, None, ""
        requested = selected if mark is None else {**selected, name: str(mark)}
        try:
            answer = await leaders.ask(group, "GET", path, query=requested)
            if answer.ok:
                return group, answer.json(Messages), ""
            return group, None, "" if answer.status == 404 else answer.reason()
        except NodeSilent as silent:
            return group, None, silent.reason

    answers = await asyncio.gather(*(one(group) for group in groups))
    pages = {group: page for group, page, _ in answers if page is not None}
    return pages, [{"group": group, "error": error} for group, _, error in answers if error]


def marks_of(cursor: str, name: str) -> dict[str, int]:
    """Decode a cursor from the query's field `name`. Raises ApiProblem."""
    if not cursor:
        return {}
    try:
        result = orjson.loads(decode_cursor(cursor))
    except orjson.JSONDecodeError:
        result = None
    if not isinstance(result, dict) or not all(type(mark) is int for mark in result.values()):
        raise invalid([(name, "is none that this API gave")])
    return result


def merged_newest(
    pages: Mapping[str, Item],
    marks: Mapping[str, int],
    limit: int,
    errors: Sequence[Mapping[str, str]] = (),
) -> tuple[list[Item], str | None]:
    """Return the newest `limit` messages of the groups' pages, and the next cursor. A group
    continues before its last shown message, or at its page's end if all are shown."""
    shown = sorted(_items_of(pages), key=_time_of, reverse=True)[:limit]
    return shown, _cursor(pages, marks, shown, 0, errors)


def merged_oldest(
    pages: Mapping[str, Item],
    marks: Mapping[str, int],
    limit: int,
    errors: Sequence[Mapping[str, str]] = (),
) -> tuple[list[Item], str | None]:
    """Return the oldest `limit` messages of the groups' pages, and the next cursor. A group
    continues after its last shown message. A page with `next` is incomplete behind its last
    message, so later messages of all groups are held back."""
    cut = [page["items"] for page in pages.values() if page.get("next") is not None]
    end = min((_time_of(items[-1]) for items in cut if items), default=INTEGER_MAX)
    result = [item for item in _items_of(pages) if _time_of(item) <= end]
    shown = sorted(result, key=_time_of)[:limit]
    return shown, _cursor(pages, marks, shown, 1, errors)


def _items_of(pages: Mapping[str, Item]) -> list[Item]:
    return [item for group, page in pages.items() for item in with_group(group, page["items"])]


def _time_of(item: Item) -> int:
    return int(item.get("storeTimestamp") or 0)


def _cursor(
    pages: Mapping[str, Item],
    marks: Mapping[str, int],
    shown: Sequence[Item],
    behind: int,
    errors: Sequence[Mapping[str, str]],
) -> str | None:
    """Return the next cursor. A partly shown group continues `behind` bytes after the start of its
    last shown message; a failed group keeps its mark."""
    left = dict(marks)
    for group, page in pages.items():
        mine = [item for item in shown if item["group"] == group]
        if len(mine) == len(page["items"]):
            left[group] = END if page.get("next") is None else int(page["next"])
        elif mine:
            left[group] = int(mine[-1].get("commitLogOffset") or 0) + behind
    all_shown = all(left.get(group) == END for group in pages)
    return None if all_shown and not errors else encode_cursor(orjson.dumps(left).decode())
