"""Definitions of topics and consumer groups that differ between broker groups, and their alignment.

This name server's routes name the topics that differ, and the leaders have their definitions. So a
comparison costs requests for differences only. Consumer groups are in no route, and are read in
pages. Each answer and each change has a limit of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from raftmq.remoting.definitions import (
    THERE,
    Bean,
    Has,
    Step,
    aligned_group,
    aligned_topic,
    is_own,
    message_type,
    shown,
)
from raftmq.remoting.names import is_brokers_own
from raftmq.remoting.topic_attributes import NORMAL
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.paging import LIMIT_DEFAULT, LIMIT_MAX, Cursor, Limit, decode_cursor, encode_cursor
from raftmq.web.problem import ApiProblem, conflict, invalid, not_found, unavailable
from raftmq.web.schema import Input

from . import merging
from .broker_fanout import Leaders, acting_for, problem_of, relayed
from .broker_http import NodeSilent
from .changes import reply_of
from .cluster import ClusterView, Item
from .inputs import OfName, OfTopic, OptionalName
from .merging import GroupResult
from .scaling import OfCluster, is_draining, is_registered
from .seen import Items, Object, TopicSeen
from .tracing import name_of
from .views import ChangedInGroups, DefinitionPage

DETAILS_MAX = 500  # requests for definitions of topics per answer
PAGES_MAX = 5  # of consumer groups, per answer
NAMES_PER_TURN = 2_000
TOPICS, GROUPS = "/api/v1/topics", "/api/v1/subscription-groups"
# Fields of our answers that are no settings of a consumer group.
NO_SETTINGS = ("name", "version")


class DefinitionsQuery(Input, frozen=True):
    """`cluster` is needed if there are several. `like` is the broker group whose settings of
    consumer groups an alignment would copy."""

    cluster: OptionalName = ""
    like: OptionalName = ""
    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor = ""


class AlignBody(Input, frozen=True):
    """`like` is the broker group with the settings to copy, if groups differ."""

    like: OptionalName = ""


class Definitions:
    """The handlers; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders

    def operations(self) -> list[Operation]:
        change: dict[str, Any] = {
            "role": Role.ADMIN, "query": OfCluster, "answer": ChangedInGroups, "also": (207,),
            "problems": (400, 404, 409, 502, 503, 504),
        }  # fmt: skip
        return [
            Operation("GET", "/api/v1/definitions", "listDifferentDefinitions",
                      "Topics and consumer groups that differ between broker groups.",
                      self.differing, query=DefinitionsQuery, answer=DefinitionPage,
                      problems=(400, 503)),
            Operation("POST", "/api/v1/topics/{topic}/align", "alignTopic",
                      "Give every broker group the topic, with the most queues of any.",
                      self.align_topic, parameters=OfTopic, **change),
            Operation("POST", "/api/v1/subscription-groups/{name}/align",
                      "alignSubscriptionGroup", "Give every broker group the consumer group.",
                      self.align_group, parameters=OfName, body=AlignBody, **change),
        ]  # fmt: skip

    async def differing(self, call: Call) -> Item:
        query: DefinitionsQuery = call.query
        names = await self._names(query.cluster)
        if query.like and query.like not in names:
            raise invalid([("like", f"is no broker group of the comparison: {', '.join(names)}")])
        kind, after = _position(query.cursor)
        rows: list[Item] = []
        errors: list[dict[str, str]] = []
        following = ""
        if kind == "topic":
            rows, following = await self._topics(names, after, query.limit)
            if not following:
                kind, after = "group", ""
        if kind == "group" and len(rows) < query.limit:
            more, following, errors = await self._groups(names, after, query)
            rows += more
        elif kind == "group":
            following = "group:"
        return {
            "items": rows,
            "next": encode_cursor(following) if following else None,
            "groups": names,
            "errors": errors,
        }

    async def _names(self, cluster: str) -> list[str]:
        """Return the broker groups to compare. Raises ApiProblem (400, 404, 503)."""
        report = await self._cluster.refresh()
        groups = [group for group in report["groups"] if is_registered(group)]
        clusters = sorted({group["cluster"] for group in groups})
        if not cluster and len(clusters) > 1:
            raise invalid([("cluster", f"which cluster? Known: {', '.join(clusters)}")])
        if cluster and cluster not in clusters:
            raise not_found(f"no cluster {cluster!r} is known to this name server")
        chosen = [group for group in groups if cluster in ("", group["cluster"])]
        if without := [group["name"] for group in chosen if not group["leaderAddress"]]:
            raise unavailable(f"nobody leads {', '.join(without)} at the moment")
        return [group["name"] for group in chosen if not is_draining(group)]

    # --- topics

    async def _topics(self, names: Sequence[str], after: str, limit: int) -> tuple[list[Item], str]:
        """Return the topics that differ, and the position to continue at, "" at the end."""
        known = self._cluster.known()
        reserved = {item.group for item in known} | {item.cluster for item in known}
        different = []
        for number, topic in enumerate(list(self._cluster.table.topics()), 1):
            if topic > after and self._differs(topic, names) and not is_own(topic, reserved):
                different.append(topic)
            if number % NAMES_PER_TURN == 0:
                await asyncio.sleep(0)
        different.sort()
        chosen = different[: min(limit, max(1, DETAILS_MAX // max(1, len(names))))]
        steps = await asyncio.gather(*(self._topic_step(topic, names) for topic in chosen))
        rows = [_row(step, has) for step, has in steps if step.outcome != THERE]
        return rows, f"topic:{chosen[-1]}" if len(chosen) < len(different) else ""

    def _differs(self, topic: str, names: Sequence[str]) -> bool:
        by_group = self._cluster.table.queues(topic) or {}
        there = [by_group[name] for name in names if name in by_group]
        alike = {data._replace(message_type=data.message_type or NORMAL) for data in there}
        return bool(there) and (len(there) < len(names) or len(alike) > 1)

    async def _topic_step(self, topic: str, names: Sequence[str]) -> tuple[Step, Has]:
        try:
            has, _ = await self._read(f"{TOPICS}/{quote(topic, '')}", names, TopicSeen)
        except ApiProblem as problem:
            return Step("topic", topic, "", problem.detail), {}
        if not any(has.values()):  # deleted meanwhile
            return Step("topic", topic, THERE), has
        return aligned_topic(topic, has, with_ordered=False), has

    async def align_topic(self, call: Call) -> Reply:
        topic = call.parameters.topic
        names = await self._names(call.query.cluster)
        path = f"{TOPICS}/{quote(topic, '')}"
        has, versions = await self._read(path, names, TopicSeen)
        if not any(has.values()):
            raise not_found(f"no group has topic {topic!r}")
        step = aligned_topic(topic, has, with_ordered=False)
        bodies = {
            name: _topic_body(bean, new=has[name] is None) for name, bean in step.puts.items()
        }
        return await self._put(call, step, path, bodies, versions)

    # --- consumer groups

    async def _groups(
        self, names: Sequence[str], after: str, query: DefinitionsQuery
    ) -> tuple[list[Item], str, list[dict[str, str]]]:
        """Return the consumer groups that differ, the position to continue at, and errors."""
        rows: list[Item] = []
        for _ in range(PAGES_MAX):
            requested = {"limit": str(LIMIT_MAX)} | (
                {"cursor": encode_cursor(after)} if after else {}
            )
            pages, errors = await self._leaders.views(GROUPS, requested, kind=Items)
            if errors := [error for error in errors if error["group"] in names]:
                return rows, "", errors
            read = {name: page for name, page in pages.items() if name in names}
            merged, following = merging.page_of(read, name_of, LIMIT_MAX)
            for name, items in merged:
                if is_brokers_own(name):
                    continue
                beans = {group: _group_bean(item) for group, item in items}
                has = {group: beans.get(group) for group in names}
                step = aligned_group(name, has, query.like)
                if step.outcome != THERE:
                    rows.append(_row(step, has))
                after = name
                if len(rows) >= query.limit:
                    return rows, f"group:{after}", []
            if following is None:
                return rows, "", []
            after = following
        return rows, f"group:{after}", []

    async def align_group(self, call: Call) -> Reply:
        name, like = call.parameters.name, call.body.like
        names = await self._names(call.query.cluster)
        if like and like not in names:
            raise invalid([("like", f"is no broker group of the comparison: {', '.join(names)}")])
        path = f"{GROUPS}/{quote(name, '')}"
        has, versions = await self._read(path, names, Object)
        if not any(has.values()):
            raise not_found(f"no group has consumer group {name!r}")
        step = aligned_group(name, has, like)
        return await self._put(call, step, path, dict(step.puts), versions)

    # --- both

    async def _read(
        self, path: str, names: Sequence[str], kind: Any
    ) -> tuple[dict[str, Bean | None], dict[str, str]]:
        """Return a definition by broker group, None where it is missing, and its versions. Raises
        ApiProblem if a leader does not answer."""

        async def one(name: str) -> tuple[Bean | None, str]:
            try:
                answer = await self._leaders.ask(name, "GET", path)
                if answer.ok:
                    value = answer.json(kind)
                    bean = _topic_bean(value) if kind is TopicSeen else _group_bean(value)
                    return bean, answer.version
            except NodeSilent as silent:
                raise problem_of(f"the leader of {name}", silent) from silent
            if answer.status != 404:
                raise relayed(answer, name)
            return None, ""

        results = await asyncio.gather(*(one(name) for name in names))
        beans = {name: bean for name, (bean, _) in zip(names, results, strict=True)}
        return beans, {name: version for name, (_, version) in zip(names, results, strict=True)}

    async def _put(
        self, call: Call, step: Step, path: str, bodies: Mapping[str, Any], versions: Item
    ) -> Reply:
        """Carry out a step, only where the definition is still as it was read."""
        if not bodies and step.outcome != THERE:
            raise conflict(step.why)

        async def one(name: str) -> GroupResult:
            version = versions[name]
            condition = {"If-Match": f'"{version}"'} if version else {"If-None-Match": "*"}
            headers = {name: {**condition, **acting_for(call)}}
            (result,) = await self._leaders.change(headers, "PUT", path, bodies[name])
            return result

        return reply_of(await asyncio.gather(*(one(name) for name in bodies)))


def _position(cursor: str) -> tuple[Literal["topic", "group"], str]:
    """Return the kind and the name after which a page begins. Raises ApiProblem."""
    kind, _, name = (decode_cursor(cursor) if cursor else "topic:").partition(":")
    if kind == "topic":
        return "topic", name
    if kind == "group":
        return "group", name
    raise invalid([("cursor", "is none of these pages")])


def _row(step: Step, has: Has) -> Item:
    described = shown(step.kind, has) if has else {}
    return {
        "kind": step.kind, "name": step.name, "has": described, "outcome": step.outcome,
        "why": step.why,
    }  # fmt: skip


def _topic_bean(view: Item) -> Bean:
    return {
        "readQueueNums": view["readQueueNums"],
        "writeQueueNums": view["writeQueueNums"],
        "perm": view["perm"],
        "order": view.get("order", False),
        "topicFilterType": view.get("filterType", "SINGLE_TAG"),
        "topicSysFlag": view.get("sysFlag", 0),
        "attributes": view.get("attributes") or {},
    }


def _topic_body(bean: Bean, *, new: bool) -> Item:
    """Return a broker's body for a topic. An existing topic keeps its type of messages."""
    body = {
        "readQueueNums": bean["readQueueNums"],
        "writeQueueNums": bean["writeQueueNums"],
        "perm": bean["perm"],
        "order": bean["order"],
        "filterType": bean["topicFilterType"],
        "sysFlag": bean["topicSysFlag"],
    }
    return body | ({"messageType": message_type(bean)} if new else {})


def _group_bean(view: Item) -> Bean:
    return {key: value for key, value in view.items() if key not in NO_SETTINGS}
