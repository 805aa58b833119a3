"""The cluster API's changes, which the leaders of one or more groups make.

The brokers validate the bodies; here a body is any JSON object. The answer to a change of several
groups is 200 with a result per group (`results`), 207 after a partial success, and a problem with
the same `results` if all groups failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.ops.versions import ANY, Condition
from raftmq.web.operation import Call, Handler, Operation, Reply, Role
from raftmq.web.problem import ApiProblem, invalid, not_found
from raftmq.web.resources.consumers import ResetBody
from raftmq.web.resources.messages import Sendable
from raftmq.web.resources.node import (
    MemberBody,
    MemberProgressView,
    PreferredBody,
    PreferredView,
    TransferBody,
    TransferView,
)
from raftmq.web.resources.topics import SubscriptionGroupBody, TopicChange
from raftmq.web.schema import Input

from ..routes import PERM_WRITE
from . import tracing
from .broker_fanout import Leaders, acting_for
from .cluster import ClusterView
from .inputs import (
    CONSUMERS,
    PREFERRED,
    PREFERRED_PATH,
    SUBSCRIPTION,
    TOPIC,
    GroupName,
    OfGroup,
    OfMessage,
    OfName,
    OfTopic,
    OneGroup,
    OptionalName,
    filled,
)
from .merging import GroupResult, outcome_of, split_version
from .views import ChangedInGroups, GroupNamed, SentToGroup

Body = dict[str, Any]
RESET, PAUSE, RESUME = (f"{CONSUMERS}/{deed}" for deed in ("reset", "pause", "resume"))


class OfDeletion(Input, frozen=True):
    """`offsets` also deletes the group's committed offsets. `group` selects a broker group."""

    group: OptionalName = ""
    offsets: bool = False


class OfMember(Input, frozen=True):
    group: GroupName
    member: GroupName


class OfBroker(Input, frozen=True):
    group: GroupName
    address: GroupName


class Everywhere:
    """Makes a change in all groups, in a resource's groups, or in a selected group."""

    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders

    def at(self, path: str) -> Handler:
        """Return the handler of a change at `path`."""

        async def handle(call: Call) -> Reply:
            return await self.change(call, path)

        return handle

    async def change(self, call: Call, path: str, having: Sequence[str] = ()) -> Reply:
        """Make the change in the groups `having`, or in all groups if it is empty. Raises
        ApiProblem if no group made it."""
        only = call.query.group
        if only:
            self._leaders.check_group(only)
        groups = [only] if only else sorted(having) or sorted(self._cluster.leaders())
        if not groups:
            raise not_found("no broker group is registered here")
        by = acting_for(call)
        headers = {
            group: {**stated, **by} for group, stated in conditions(call.condition, groups).items()
        }
        results = await self._leaders.change(
            headers, call.request.method, filled(path, call), call.body, _queried(call)
        )
        return reply_of(results)


class Changes:
    """The handlers of the changes; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders, everywhere: Everywhere) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._everywhere = everywhere

    def operations(self) -> list[Operation]:
        def op(
            method: str, path: str, name: str, summary: str, handler: Any, role: Role, **more: Any
        ) -> Operation:
            body = None if method == "DELETE" else Body
            more = {"body": body, "problems": (404, 502, 503, 504)} | more
            return Operation(method, f"/api/v1{path}", name, summary, handler, role, **more)

        operator, admin = Role.OPERATOR, Role.ADMIN
        of_group = {"parameters": OfGroup}
        all_groups = {
            "query": OneGroup,
            "problems": (404, 502, 503, 504),
            "answer": ChangedInGroups,
            "also": (207,),
        }
        named = all_groups | {"parameters": OfName}
        topic = all_groups | {"parameters": OfTopic, "conditional": True}
        subscription = named | {"conditional": True}
        return [
            op("POST", "/groups/{group}/transfer", "transferLeadership",
               "Hand leadership over; {target?}.", self.relay("/node/transfer"), operator,
               **of_group,
               answer=TransferView, body_schema=TransferBody),
            op("PUT", PREFERRED, "putPreferredLeader", "Have this voter lead whenever it can; "
               "{name}.", self.relay(PREFERRED_PATH), operator, conditional=True, **of_group,
               answer=PreferredView, body_schema=PreferredBody),
            op("DELETE", PREFERRED, "deletePreferredLeader", "Leave leadership where elections "
               "put it.", self.relay(PREFERRED_PATH), operator, conditional=True, **of_group,
               answer=GroupNamed),
            op("POST", "/groups/{group}/members", "addMember", "Add a learner; "
               "{id, address, force?}.",
               self.relay("/members"), admin, **of_group,
               answer=MemberProgressView, body_schema=MemberBody),
            op("POST", "/groups/{group}/members/{member}/promote", "promoteMember",
               "Make a learner a voter.", self.relay("/members/{member}/promote"), admin,
               parameters=OfMember, body=None,
               answer=MemberProgressView),
            op("DELETE", "/groups/{group}/members/{member}", "removeMember",
               "Take a member out.", self.relay("/members/{member}"), admin, parameters=OfMember,
               answer=GroupNamed),
            op("PUT", TOPIC, "putTopic", "Make or change a topic in every group, or "
               "in one.", self._everywhere.at(TOPIC), admin, **topic,
               body_schema=TopicChange),
            op("DELETE", TOPIC, "deleteTopic", "Delete a topic in every group.",
               self.delete_topic, admin, **topic),
            op("POST", f"{TOPIC}/empty", "emptyTopic",
               "Delete a topic's messages in every group, with its groups' offsets.",
               self.empty_topic, admin, **all_groups | {"parameters": OfTopic, "body": None}),
            op("PUT", SUBSCRIPTION, "putSubscriptionGroup",
               "Make or change a subscription group.", self._everywhere.at(SUBSCRIPTION), admin,
               **subscription,
               body_schema=SubscriptionGroupBody),
            op("DELETE", SUBSCRIPTION, "deleteSubscriptionGroup",
               "Delete a subscription group.", self._everywhere.at(SUBSCRIPTION), admin,
               **subscription | {"query": OfDeletion}),
            op("POST", RESET, "resetOffsets",
               "Set a consumer group's offsets of a topic; {topic, queueIds?, to}.",
               self.reset, operator, **named,
               body_schema=ResetBody),
            op("POST", PAUSE, "pauseConsumers", "Stop giving messages to a consumer group.",
               self._everywhere.at(PAUSE), operator, **named | {"body": None}),
            op("POST", RESUME, "resumeConsumers", "Give messages to a consumer group again.",
               self._everywhere.at(RESUME), operator, **named | {"body": None}),
            op("POST", "/messages", "sendMessage", "Send one message.", self.send, operator,
               query=OneGroup,
               answer=SentToGroup, body_schema=Sendable),
            op("POST", "/messages/{messageId}/resend", "resendMessage",
               "Give a dead message to its consumer group again.", self.resend, operator,
               parameters=OfMessage, body=None,
               answer=SentToGroup),
            op("DELETE", "/brokers/{group}/{address}", "forgetBroker",
               "Forget a broker that is gone.", self.forget, operator, parameters=OfBroker,
               status=204),
        ]  # fmt: skip

    def relay(self, path: str) -> Handler:
        """Return the handler that forwards a change to the group's leader at `path`."""

        async def handle(call: Call) -> Reply:
            group, sent = call.parameters.group, call.request.headers
            headers = {h: sent[h] for h in ("If-Match", "If-None-Match") if h in sent}
            headers |= acting_for(call)
            value, version = await self._leaders.relay(
                group, call.request.method, filled(path, call), body=call.body, headers=headers
            )
            return Reply(value or {"group": group}, status=200, version=version or None)

        return handle

    async def delete_topic(self, call: Call) -> Reply:
        having = self._cluster.groups_with(call.parameters.topic)
        return await self._everywhere.change(call, TOPIC, having)

    async def empty_topic(self, call: Call) -> Reply:
        having = self._cluster.groups_with(call.parameters.topic)
        return await self._everywhere.change(call, f"{TOPIC}/empty", having)

    async def reset(self, call: Call) -> Reply:
        topic = call.body.get("topic")
        if not isinstance(topic, str) or not topic:
            raise invalid([("topic", "which topic's offsets?")])
        having = self._cluster.groups_with(topic)
        return await self._everywhere.change(call, RESET, having)

    async def send(self, call: Call) -> Any:
        group, topic = call.query.group, call.body.get("topic")
        if not group:
            by_group = self._cluster.table.queues(topic) if isinstance(topic, str) else None
            writable = [g for g, data in (by_group or {}).items() if data.perm & PERM_WRITE]
            if not writable:
                raise not_found(f"no group takes messages of topic {topic!r}")
            group = sorted(writable)[0]
        value, _ = await self._leaders.relay(
            group, "POST", "/api/v1/messages", body=call.body, headers=acting_for(call)
        )
        return {"group": group, **value}

    async def resend(self, call: Call) -> Any:
        message_id = call.parameters.message_id
        group = self._cluster.group_of(tracing.store_host(message_id))
        if not group:
            raise not_found("no group is known to have stored this message")
        path = f"/api/v1/messages/{message_id}/resend"
        value, _ = await self._leaders.relay(group, "POST", path, headers=acting_for(call))
        return {"group": group, **value}

    async def forget(self, call: Call) -> None:
        if not self._cluster.forget(call.parameters.group, call.parameters.address):
            raise not_found("no broker of this address is remembered as gone")


def _queried(call: Call) -> dict[str, str] | None:
    names = {"offsets": "offsets", "last_administrator": "lastAdministrator"}
    reported = {key: "true" for name, key in names.items() if getattr(call.query, name, False)}
    return reported or None


def conditions(condition: Condition, groups: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return headers by group for a condition on a joined version (merging.joined_version). The
    version lists the groups that have the resource; in all further groups it must not exist."""
    if condition.absent:
        return {group: {"If-None-Match": "*"} for group in groups}
    if ANY in condition.versions:
        return {group: {"If-Match": "*"} for group in groups}
    if not condition.versions:
        return {group: {} for group in groups}
    result: dict[str, dict[str, str]] = {}
    parts = [split_version(version) for version in condition.versions]
    for group in groups:
        tags = [part[group] for part in parts if group in part]
        if not tags and any(parts):
            result[group] = {"If-None-Match": "*"}
        else:
            shown = tags or condition.versions
            result[group] = {"If-Match": ", ".join(f'"{tag}"' for tag in shown)}
    return result


def reply_of(results: Sequence[GroupResult]) -> Reply:
    """Return the reply for these results. Raises ApiProblem if no group made the change."""
    status = outcome_of(results)
    fields = [result.as_fields() for result in results]
    if status < 400:
        return Reply({"results": fields}, status=status)
    reported = "; ".join(f"{result.group}: {result.error}" for result in results)
    code = {504: "OUTCOME_UNKNOWN", 412: "VERSION_MISMATCH"}.get(status, "CHANGE_FAILED")
    raise ApiProblem(
        status, code, f"done in no group for certain. {reported}", more={"results": fields}
    )
