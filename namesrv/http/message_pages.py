"""Pages of the messages of several groups, merged by the time at which they were stored.

The cursor of such a page has a mark for each group: the CommitLog offset where its own next page
goes on, or END.
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

END = -1  # in a cursor: this group has no more messages


async def pages_of(
    leaders: Leaders,
    groups: Sequence[str],
    path: str,
    selected: Mapping[str, str],
    marks: Mapping[str, int],
    name: str,
) -> tuple[dict[str, Item], list[dict[str, str]]]:
    """Ask the groups' leaders for their pages; the query's field `name` says where to go on. Return
    (group → page, [{group, error}]); a group that answers 404, or is at its end, is in neither."""

    async def one(group: str) -> tuple[str, Item | None, str]:
        mark = marks.get(group)
        if mark == END:
            return group, None, ""
        requested = selected if mark is None else {**selected, name: str(mark)}
        try:
            answer = await leaders.ask(group, "GET", path, query=requested)
            if answer.ok:
                return group, answer.json(Messages), ""
            return group, None, "" if answer.status == 404 else answer.words()
        except NodeSilent as silent:
            return group, None, silent.words

    answers = await asyncio.gather(*(one(group) for group in groups))
    pages = {group: page for group, page, _ in answers if page is not None}
    return pages, [{"group": group, "error": error} for group, _, error in answers if error]


def marks_of(cursor: str, name: str) -> dict[str, int]:
    """Decode a cursor, which the query's field `name` gave. Raises ApiProblem."""
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
    """Merge the groups' pages: (the newest `limit` messages, the cursor to go on with). A group
    goes on before the last of its messages that is shown; if all are, where its own page ended."""
    shown = sorted(_items_of(pages), key=_time_of, reverse=True)[:limit]
    return shown, _cursor(pages, marks, shown, 0, errors)


def merged_oldest(
    pages: Mapping[str, Item],
    marks: Mapping[str, int],
    limit: int,
    errors: Sequence[Mapping[str, str]] = (),
) -> tuple[list[Item], str | None]:
    """Merge the groups' pages: (the oldest `limit` messages, the cursor to go on with). A group
    goes on behind the last of its messages that is shown. One whose page has a `next` may have more
    from behind it, so no later message of another group is shown."""
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
    """Return the cursor to go on with; a group of which not all is shown goes on `behind` bytes
    after the begin of its last message that is. One that failed goes on where it was."""
    left = dict(marks)
    for group, page in pages.items():
        mine = [item for item in shown if item["group"] == group]
        if len(mine) == len(page["items"]):
            left[group] = END if page.get("next") is None else int(page["next"])
        elif mine:
            left[group] = int(mine[-1].get("commitLogOffset") or 0) + behind
    all_shown = all(left.get(group) == END for group in pages)
    return None if all_shown and not errors else encode_cursor(orjson.dumps(left).decode())
