"""The newest messages of a topic over all groups, and dead letters of several groups sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from raftmq.namesrv.http import tracing
from raftmq.namesrv.http.cluster import ClusterView, Item
from raftmq.namesrv.http.groups import Leaders, acting_for, is_unknown
from raftmq.namesrv.http.inputs import MessageLimit, OfTopic, OptionalName, asked_of, filled
from raftmq.namesrv.http.merging import FAILED, UNKNOWN, with_group
from raftmq.namesrv.http.nodes import NodeSilent
from raftmq.namesrv.http.reads import none_has
from raftmq.namesrv.http.views import NewestOfGroups, ResentByGroups
from raftmq.web.operation import Call, Operation, Role
from raftmq.web.paging import Cursor, decode_cursor, encode_cursor
from raftmq.web.problem import ApiProblem, invalid
from raftmq.web.resources.messages import ResendBody, SearchText
from raftmq.web.schema import Input, TimeMs

TOPIC_MESSAGES = "/topics/{topic}/messages"
RESEND = "/api/v1/messages/resend"
END = -1  # in a cursor: this group has no older message


class NewestQuery(Input, frozen=True):
    """The newest of all queues and groups. `tag`, `key`: equal to it; `property`: a name, or
    name=value; `text`: a part of the body. `before`: `next` of the page before; `sinceMs`: none
    that was stored before that time."""

    limit: MessageLimit = 32
    before: Cursor = ""
    since_ms: TimeMs = 0
    tag: SearchText = ""
    key: SearchText = ""
    property: SearchText = ""
    text: SearchText = ""
    group: OptionalName = ""


class TopicMessages:
    """The handlers; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", f"/api/v1{TOPIC_MESSAGES}", "listTopicMessages",
                      "The newest messages of a topic over all its queues, perhaps filtered.",
                      self.newest, parameters=OfTopic, query=NewestQuery, answer=NewestOfGroups,
                      problems=(404, 503)),
            Operation("POST", RESEND, "resendMessages",
                      "Give several dead messages to their consumer groups again.",
                      self.resend, role=Role.OPERATOR, body=ResendBody, answer=ResentByGroups),
        ]  # fmt: skip

    async def newest(self, call: Call) -> Item:
        query: NewestQuery = call.query
        marks = marks_of(query.before)
        path = filled(TOPIC_MESSAGES, call)
        if query.group:
            self._leaders.check_group(query.group)
        names = [query.group] if query.group else list(self._cluster.leaders())
        wanted = asked_of(
            limit=query.limit,
            sinceMs=query.since_ms or None,
            tag=query.tag,
            key=query.key,
            property=query.property,
            text=query.text,
        )

        async def one(group: str) -> tuple[str, Item | None, str]:
            mark = marks.get(group)
            if mark == END:
                return group, None, ""
            asked = wanted if mark is None else {**wanted, "before": str(mark)}
            try:
                answer = await self._leaders.ask(group, "GET", path, query=asked)
                if answer.ok:
                    return group, answer.json(), ""
                return group, None, "" if answer.status == 404 else answer.words()
            except NodeSilent as silent:
                return group, None, silent.words

        answers = await asyncio.gather(*(one(name) for name in names))
        pages = {group: page for group, page, _ in answers if page is not None}
        errors = [{"group": group, "error": error} for group, _, error in answers if error]
        if not pages and not (marks and not errors):
            raise none_has("topic", errors)
        items, following = merged_newest(pages, marks, query.limit)
        return {
            "items": items,
            "next": following,
            "scanned": sum(int(page.get("scanned") or 0) for page in pages.values()),
            "errors": errors,
        }

    async def resend(self, call: Call) -> Item:
        by_group: dict[str, list[str]] = {}
        unplaced = []
        for message_id in call.body.message_ids:
            group = self._cluster.group_of(tracing.store_host(message_id))
            if group:
                by_group.setdefault(group, []).append(message_id)
            else:
                words = "no group is known to have stored it"
                unplaced.append({"messageId": message_id, "outcome": FAILED, "error": words})

        async def one(group: str, ids: Sequence[str]) -> list[Item]:
            try:
                body = {"messageIds": ids}
                answer = await self._leaders.ask(
                    group, "POST", RESEND, body=body, headers=acting_for(call)
                )
            except (NodeSilent, ApiProblem) as error:
                sent = isinstance(error, NodeSilent) and error.sent
                return _all_of(ids, UNKNOWN if sent else FAILED, str(error))
            if answer.ok:
                return list(answer.json()["items"])
            return _all_of(ids, UNKNOWN if is_unknown(answer) else FAILED, answer.words())

        found = await asyncio.gather(*(one(group, ids) for group, ids in by_group.items()))
        items = [
            item
            for group, each in zip(by_group, found, strict=True)
            for item in with_group(group, each)
        ]
        return {"items": items + unplaced, "next": None}


def marks_of(cursor: str) -> dict[str, int]:
    """Decode a cursor: group → the CommitLog offset before which to go on, or END. Raises
    ApiProblem."""
    if not cursor:
        return {}
    try:
        found = orjson.loads(decode_cursor(cursor))
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(type(mark) is int for mark in found.values()):
        raise invalid([("before", "is none that this API gave")])
    return found


def merged_newest(
    pages: Mapping[str, Item], marks: Mapping[str, int], limit: int
) -> tuple[list[Item], str | None]:
    """Merge the groups' pages: (the newest `limit` messages, the cursor to go on with). A group
    goes on before the last of its messages that is shown; if all are, where its own page ended."""
    everything = [
        item for group, page in pages.items() for item in with_group(group, page["items"])
    ]
    everything.sort(key=lambda item: int(item.get("storeTimestamp") or 0), reverse=True)
    shown = everything[:limit]
    left: dict[str, int] = {group: mark for group, mark in marks.items() if mark == END}
    for group, page in pages.items():
        mine = [item for item in shown if item["group"] == group]
        if len(mine) == len(page["items"]):
            left[group] = END if page.get("next") is None else int(page["next"])
        elif mine:
            left[group] = int(mine[-1]["commitLogOffset"])
        elif group in marks:
            left[group] = marks[group]
    all_shown = all(group in left and left[group] == END for group in pages)
    return shown, None if all_shown else encode_cursor(orjson.dumps(left).decode())


def _all_of(ids: Sequence[str], outcome: str, error: str) -> list[Any]:
    return [{"messageId": one, "outcome": outcome, "error": error} for one in ids]
