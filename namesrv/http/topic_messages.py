"""Newest messages of a topic over all groups, and resending of dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from raftmq.web.operation import Call, Operation, Role
from raftmq.web.paging import Cursor
from raftmq.web.problem import ApiProblem
from raftmq.web.resources.messages import ResendBody, SearchText
from raftmq.web.schema import Input, Listing, TimeMs

from . import tracing
from .broker_fanout import Leaders, acting_for, is_unknown
from .broker_http import NodeSilent
from .cluster import ClusterView, Item
from .inputs import MessageLimit, OfTopic, OptionalName, filled, query_of
from .merging import FAILED, UNKNOWN, with_group
from .message_pages import marks_of, merged_newest, pages_of
from .reads import none_has
from .seen import Items
from .views import NewestOfGroups, ResentByGroup

TOPIC_MESSAGES = "/topics/{topic}/messages"
RESEND = "/api/v1/messages/resend"


class NewestQuery(Input, frozen=True):
    """The newest messages of all queues and groups. `tag` and `key` match exactly; `property` is a
    name, or name=value; `text` is a part of the body. `before` is `next` of the previous page;
    `sinceMs` excludes messages that were stored earlier."""

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
                      self.resend, role=Role.OPERATOR, body=ResendBody,
                      answer=Listing[ResentByGroup]),
        ]  # fmt: skip

    async def newest(self, call: Call) -> Item:
        query: NewestQuery = call.query
        marks = marks_of(query.before, "before")
        path = filled(TOPIC_MESSAGES, call)
        names = self._leaders.names(query.group)
        requested = query_of(
            limit=query.limit,
            sinceMs=query.since_ms or None,
            tag=query.tag,
            key=query.key,
            property=query.property,
            text=query.text,
        )
        pages, errors = await pages_of(self._leaders, names, path, requested, marks, "before")
        if not pages and not (marks and not errors):
            raise none_has("topic", errors)
        items, following = merged_newest(pages, marks, query.limit, errors)
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
                text = "no group is known to have stored it"
                unplaced.append({"messageId": message_id, "outcome": FAILED, "error": text})

        async def one(group: str, ids: Sequence[str]) -> list[Item]:
            try:
                body = {"messageIds": ids}
                answer = await self._leaders.ask(
                    group, "POST", RESEND, body=body, headers=acting_for(call)
                )
                if answer.ok:
                    return list(answer.json(Items)["items"])
            except (NodeSilent, ApiProblem) as error:
                sent = isinstance(error, NodeSilent) and error.sent
                return _all_of(ids, UNKNOWN if sent else FAILED, str(error))
            return _all_of(ids, UNKNOWN if is_unknown(answer) else FAILED, answer.reason())

        result = await asyncio.gather(*(one(group, ids) for group, ids in by_group.items()))
        items = [
            item
            for group, each in zip(by_group, result, strict=True)
            for item in with_group(group, each)
        ]
        return {"items": items + unplaced, "next": None}


def _all_of(ids: Sequence[str], outcome: str, error: str) -> list[Any]:
    return [{"messageId": item, "outcome": outcome, "error": error} for item in ids]
