"""The table of connected producers and consumers, built from heartbeats and kept in memory.

Consumers send heartbeats to all brokers of a route, producers to leaders. So each broker reports
its own clients (38, 203, 204, 328), and a proof of leadership would not improve the answer. The
sender of a request (request-reply) is also registered by its connection, because Java producers
send their first heartbeat up to 30 s later.

A client is identified by (group, client id). Heartbeats (34) add and refresh it; 35, the end of the
connection and EXPIRY_MS without a heartbeat remove it. After a change of a consumer group all its
members get 40 and rebalance. A group above PROMPT_MEMBERS_MAX members collects the changes of
TELL_PAUSE_MS, since a thousand members that join singly would otherwise cause half a million
notifications. Limits: CLIENTS_MAX memberships, the budget of kept bytes, REQUESTERS_MAX requesters.

All consumers of a group need the same subscriptions. Differences are logged and listed by
`ConsumerGroup.differences`; `rejectInconsistentSubscriptions` rejects the later consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from raftmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.consistency import Difference, Wishes, differences, wishes
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.memory_limits import Allowance
from raftmq.remoting.names import NAME_LENGTH_MAX
from raftmq.store.properties import decode_properties

from .component import Service
from .consume.filters import Subscription, subscription_from_json
from .errors import Refused, busy
from .scheduler import IDLE_MS, Chore
from .tables.topics import DLQ_PREFIX, RETRY_PREFIX

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("raftmq.broker.clients")

CLIENTS_MAX = 50_000  # memberships of clients in groups
EXPIRY_MS = 120_000  # without a heartbeat; Apache's CHANNEL_EXPIRED_TIMEOUT
GROUPS_PER_HEARTBEAT_MAX = 1_000
REQUESTERS_MAX = 10_000
SUBSCRIPTIONS_PER_GROUP_MAX = 10_000
TAGS_PER_HEARTBEAT_MAX = 20_000  # .5 us each
EXPRESSIONS_CHARS_MAX = 1 << 18  # of a heartbeat's subscriptions together
GROUPS_PER_STEP = 50
PROMPT_MEMBERS_MAX = 32  # members of a group that is notified of each change
NOTIFY_PAUSE_MS = 50  # between two notifications of a larger group
WARN_PAUSE_MS = 600_000  # between two warnings about a group's subscriptions
MEMBERSHIPS_PER_CONNECTION_MAX = 2 * GROUPS_PER_HEARTBEAT_MAX  # a process has one client id


class ClientConnection(Protocol):
    """The used part of a connection."""

    @property
    def is_open(self) -> bool: ...

    peer_address: str

    def invoke_oneway(self, command: RemotingCommand) -> None: ...

    async def invoke(self, command: RemotingCommand, timeout_ms: float) -> RemotingCommand: ...


@dataclass(slots=True)
class Member:
    """A client in a group."""

    client_id: str
    connection: ClientConnection
    language: int
    version: int
    last_ms: int
    wishes: Wishes = frozenset()  # a consumer's; equal sets are shared

    def to_json(self) -> dict[str, Any]:
        language = LanguageCode(self.language).name
        return {
            "clientAddr": self.connection.peer_address,
            "clientId": self.client_id,
            "language": language,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A heartbeat's data about a consumer group."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, Subscription]

    @property
    def kept_bytes(self) -> int:
        return _kept_bytes(self.subscriptions)

    @property
    def wishes(self) -> Wishes:
        return wishes((topic, *_wish(one)) for topic, one in self.subscriptions.items())


class ConsumerGroup:
    """A consumer group with at least one member."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.members: dict[str, Member] = {}
        self.subscriptions: dict[str, Subscription] = {}
        # The members' non-empty subscription sets, each with its number of members and its bytes.
        self._wishes: dict[Wishes, list[int]] = {}
        self.warned_ms: int | None = None

    def update(self, data: ConsumerData) -> bool:
        """Apply a heartbeat; return True if a subscription changed."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        fresh = {
            name: self._newer(subscription) for name, subscription in data.subscriptions.items()
        }
        changed = fresh.keys() != self.subscriptions.keys() or any(
            _wish(fresh[topic]) != _wish(self.subscriptions[topic]) for topic in fresh
        )
        self.subscriptions = fresh
        return changed

    def _newer(self, subscription: Subscription) -> Subscription:
        known = self.subscriptions.get(subscription.topic)
        return subscription if known is None or subscription.version >= known.version else known

    def renew(self, subscriptions: list[Subscription]) -> bool:
        """Apply newer versions of existing subscriptions; return True if any changed."""
        changed = False
        for fresh in subscriptions:
            old = self.subscriptions.get(fresh.topic)
            if old is not None and fresh.version > old.version:
                self.subscriptions[fresh.topic] = fresh
                changed = changed or _wish(fresh) != _wish(old)
        return changed

    @property
    def kept_bytes(self) -> int:
        return _kept_bytes(self.subscriptions) + sum(kept for _, kept in self._wishes.values())

    def wish(self, member: Member, wishes: Wishes, kept_bytes: int) -> None:
        if member.wishes == wishes:
            return
        self.forget_wishes(member)
        member.wishes = next((one for one in self._wishes if one == wishes), wishes)
        if wishes:
            self._wishes.setdefault(member.wishes, [0, kept_bytes])[0] += 1

    def forget_wishes(self, member: Member) -> None:
        if member.wishes in self._wishes:
            self._wishes[member.wishes][0] -= 1
            if not self._wishes[member.wishes][0]:
                del self._wishes[member.wishes]
        member.wishes = frozenset()

    def knows(self, wishes: Wishes) -> bool:
        return not wishes or wishes in self._wishes

    def agrees(self, client_id: str, wishes: Wishes) -> bool:
        """Return whether all other members have these subscriptions."""
        member = self.members.get(client_id)
        own = None if member is None else member.wishes
        return not wishes or all(
            one == wishes or (one == own and count == 1) for one, (count, _) in self._wishes.items()
        )

    @property
    def is_consistent(self) -> bool:
        """True if all members have the same subscriptions."""
        return len(self._wishes) < 2

    def differences(self) -> dict[str, list[Difference]]:
        """Return, by client id, the subscriptions that differ from those of the majority."""
        if self.is_consistent:
            return {}
        return differences({name: member.wishes for name, member in self.members.items()})

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"

    def connection_json(self) -> dict[str, Any]:
        """Return Apache's ConsumerConnection bean (203)."""
        return {
            "connectionSet": [member.to_json() for member in self.members.values()],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {t: s.fields for t, s in self.subscriptions.items()},
        }


class ClientTable:
    """All groups and their members. `on_consumer_group(group)` is called for each consumer group of
    a heartbeat, because its configuration and retry topic may be missing."""

    def __init__(
        self,
        *,
        clients_max: int = CLIENTS_MAX,
        kept: Allowance,
        expiry_ms: int = EXPIRY_MS,
        notify_enabled: Callable[[str], bool],
        on_consumer_group: Callable[[str], None],
        may_replace: Callable[[object, object], bool] = lambda before, connection: True,
        must_agree: Callable[[], bool] = lambda: False,
    ) -> None:
        """`kept` is the shared budget of bytes kept for peers. `may_replace(before, connection)`
        returns whether the sender may replace or remove a client of the open connection `before`.
        `must_agree()` rejects consumers with subscriptions that differ from their group's."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[str, Member]] = {}
        self._clients_max = clients_max
        self._kept = kept
        self._expiry_ms = expiry_ms
        self._notify_enabled = notify_enabled
        self._on_consumer_group = on_consumer_group
        self._may_replace = may_replace
        self._must_agree = must_agree
        self._count = 0  # memberships
        self._just_notified: set[str] = set()  # large groups notified since the last pass
        self._untold: dict[str, None] = {}  # those that have changed again
        self._requesters: dict[str, ClientConnection] = {}  # client id → connection of its request
        self._requesters_by: dict[ClientConnection, set[str]] = {}
        self._producer_groups: dict[str, set[str]] = {}  # client id → its producer groups
        # connection → its memberships: (is consumer, group, client id)
        self._by_connection: dict[ClientConnection, set[tuple[bool, str, str]]] = {}

    @property
    def count(self) -> int:
        return self._count

    def service(self, clock_ms: Callable[[], int]) -> Service:
        expiry_ms = max(100, self._expiry_ms // 12)
        return Service(
            chores=[
                Chore("client_expiry", expiry_ms, lambda: self.expire(clock_ms())),
                Chore(
                    "notify_pending",
                    NOTIFY_PAUSE_MS,
                    self.notify_pending,
                    lambda: 0 if self._just_notified else IDLE_MS,
                ),
            ]
        )

    def heartbeat(
        self,
        connection: ClientConnection,
        body: dict[str, Any],
        language: int,
        version: int,
        now_ms: int,
    ) -> bool:
        """Apply HeartbeatData; return True if a group changed. Raises BodyError, Refused."""
        return finish(self.heartbeat_in_steps(connection, body, language, version, now_ms))

    def heartbeat_in_steps(
        self,
        connection: ClientConnection,
        body: dict[str, Any],
        language: int,
        version: int,
        now_ms: int,
    ) -> Steps[bool]:
        """Apply `heartbeat` in steps of GROUPS_PER_STEP groups."""
        client_id = _name(body, "clientID")
        producers, consumers = _groups(body, "producerDataSet"), _groups(body, "consumerDataSet")
        if len(producers) + len(consumers) > GROUPS_PER_HEARTBEAT_MAX:
            raise BodyError(f"a heartbeat of more than {GROUPS_PER_HEARTBEAT_MAX} groups")
        _check_texts(consumers)
        consumer_data = yield from _in_steps(consumers, _consumer_data)
        produced = [_name(fields, "groupName") for fields in producers]
        yield from _in_steps(
            consumer_data, lambda consumer: self._on_consumer_group(consumer.group)
        )

        def consumes(consumer: ConsumerData) -> bool:
            group = self.consumers.get(consumer.group) or ConsumerGroup(consumer.group)
            member = Member(client_id, connection, language, version, now_ms)
            changed = self._take_in(group, consumer, member)
            if changed:
                self._notify(group.name)
            return changed

        def produces(name: str) -> None:
            members = self.producers.get(name, {})
            self._join(
                members, False, name, Member(client_id, connection, language, version, now_ms)
            )
            self.producers[name] = members

        changes = yield from _in_steps(consumer_data, consumes)
        yield from _in_steps(produced, produces)
        return any(changes)

    def _take_in(self, group: ConsumerGroup, data: ConsumerData, member: Member) -> bool:
        """Add or refresh a consumer; return True if its group changed. Raises Refused."""
        wishes = data.wishes
        if self._must_agree() and not group.agrees(member.client_id, wishes):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"other consumers of group {group.name} have other subscriptions than"
                f" {member.client_id}",
                tag="INCONSISTENT_SUBSCRIPTIONS",
            )
        before, new_bytes = group.kept_bytes, data.kept_bytes
        more = max(0, new_bytes - _kept_bytes(group.subscriptions))
        more += 0 if group.knows(wishes) else new_bytes
        if not self._kept.take(more):
            raise busy("clients have told as much as is kept")
        try:
            joined = self._join(group.members, True, group.name, member)
        except Refused:
            self._kept.give_back(more)
            raise
        self.consumers[group.name] = group
        changed = group.update(data)
        group.wish(group.members[member.client_id], wishes, new_bytes)
        self._kept.give_back(before + more - group.kept_bytes)
        if not group.is_consistent:
            self._warn(group, member.last_ms)
        return joined or changed

    def _warn(self, group: ConsumerGroup, now_ms: int) -> None:
        """Log inconsistent subscriptions of a group, at most once per WARN_PAUSE_MS."""
        if group.warned_ms is not None and now_ms < group.warned_ms + WARN_PAUSE_MS:
            return
        group.warned_ms = now_ms
        differences = group.differences()
        client_id, (first, *_) = next(iter(differences.items()))
        log.warning(
            "subscriptions_inconsistent group=%s clients=%d client=%s topic=%s"
            " expression=%s others=%s",
            group.name, len(differences), client_id, first.topic, first.expression, first.others,
        )  # fmt: skip

    def _join(self, members: dict[str, Member], consumer: bool, group: str, member: Member) -> bool:
        """Add or refresh a member; return True if it is new on this connection."""
        old = members.get(member.client_id)
        if old is not None and old.connection is member.connection:
            old.last_ms = member.last_ms
            return False
        key = (consumer, group, member.client_id)
        if old is None:
            if self._count >= self._clients_max:
                raise busy(f"{self._clients_max} clients are known already")
            if len(self._by_connection.get(member.connection, ())) >= (
                MEMBERSHIPS_PER_CONNECTION_MAX
            ):
                raise busy(
                    f"{MEMBERSHIPS_PER_CONNECTION_MAX} clients and groups are known of this "
                    "connection already"
                )
            self._count += 1
        elif not self._may_replace(old.connection, member.connection):
            raise _somebody_elses(member.client_id)
        else:
            self._forget_key(old.connection, key)
        members[member.client_id] = member
        if not consumer:
            self._producer_groups.setdefault(member.client_id, set()).add(group)
        self._by_connection.setdefault(member.connection, set()).add(key)
        return True

    def unregister(
        self,
        connection: ClientConnection,
        client_id: str,
        producer_group: str | None,
        consumer_group: str | None,
    ) -> None:
        """Remove the client from these groups (35). Raises Refused."""
        left = ((False, producer_group), (True, consumer_group))
        for consumer, group in left:
            member = self._members(consumer, group or "").get(client_id)
            if member is not None and not self._may_replace(member.connection, connection):
                raise _somebody_elses(client_id)
        for consumer, group in left:
            if group and self._leave(consumer, group, client_id) and consumer:
                self._notify(group)

    def closed(self, connection: ClientConnection) -> None:
        for client_id in self._requesters_by.pop(connection, ()):
            del self._requesters[client_id]
        for consumer, group, client_id in sorted(self._by_connection.pop(connection, set())):
            if self._leave(consumer, group, client_id) and consumer:
                self._notify(group)

    def expire(self, now_ms: int) -> None:
        """Remove clients with a heartbeat that is too old."""
        oldest_ms = now_ms - self._expiry_ms
        tables: list[tuple[bool, str, dict[str, Member]]] = [
            (True, name, group.members) for name, group in self.consumers.items()
        ]
        tables += [(False, name, members) for name, members in self.producers.items()]
        for consumer, name, members in tables:
            for client_id in [m.client_id for m in members.values() if m.last_ms < oldest_ms]:
                log.info("client_expired group=%s client=%s", name, client_id)
                if self._leave(consumer, name, client_id) and consumer:
                    self._notify(name)

    def client_ids(self, group: str) -> list[str]:
        consumer_group = self.consumers.get(group)
        return sorted(consumer_group.members) if consumer_group is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        consumer_group = self.consumers.get(group)
        return consumer_group.subscriptions.get(topic) if consumer_group is not None else None

    def has_left(self, group: str, topic: str) -> bool:
        """Return whether the connected consumers subscribe only to different topics. Retry topics
        always belong to their group."""
        consumer_group = self.consumers.get(group)
        subscribed = consumer_group.subscriptions if consumer_group is not None else {}
        return bool(subscribed) and topic not in subscribed and not topic.startswith(RETRY_PREFIX)

    def producer_connection(self, client_id: str) -> ClientConnection | None:
        """Return the connection of the producer's latest heartbeat in any group. Before the first
        heartbeat, return the connection of its last request."""
        groups = self._producer_groups.get(client_id, ())
        members = [self.producers[group][client_id] for group in groups]
        reachable = [member for member in members if member.connection.is_open]
        if not reachable:
            requester = self._requesters.get(client_id)
            return requester if requester is not None and requester.is_open else None
        return max(reachable, key=lambda member: member.last_ms).connection

    def requester(self, connection: ClientConnection, ext: Mapping[str, str]) -> None:
        """Register the connection of a request with these V2 header fields if its sender may expect
        a reply. Raises no error that handling the send would not raise."""
        if ext["b"].startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return  # sent back by its consumer, not by the requester
        properties = decode_properties(ext.get("i") or "")
        client_id = properties.get("REPLY_TO_CLIENT")
        if (
            not client_id
            or len(client_id) > NAME_LENGTH_MAX
            or properties.get("MSG_TYPE") == "reply"
        ):
            return
        before = self._requesters.get(client_id)
        if before is connection:
            return
        if before is None and len(self._requesters) >= REQUESTERS_MAX:
            return  # its heartbeat will follow
        if before is not None:
            if not self._may_replace(before, connection):
                return  # a client of a different account
            self._requesters_by[before].discard(client_id)
        self._requesters[client_id] = connection
        self._requesters_by.setdefault(connection, set()).add(client_id)

    def set_subscriptions(self, group_name: str, entries: list[Any]) -> None:
        """Apply the subscriptions that a consumer reported when asked. Raises BodyError."""
        group = self.consumers.get(group_name)
        if group is None or not isinstance(entries, list):
            return
        fresh = [subscription_from_json(entry) for entry in entries[:SUBSCRIPTIONS_PER_GROUP_MAX]]
        known = group.subscriptions
        fresh = [subscription for subscription in fresh if subscription.topic in known]
        more = sum(one.kept_bytes - known[one.topic].kept_bytes for one in fresh)
        if not self._kept.take(max(0, more)):
            return  # its next heartbeat is rejected
        before = group.kept_bytes + max(0, more)
        changed = group.renew(fresh)
        self._kept.give_back(before - group.kept_bytes)
        if changed:
            self._notify(group_name)

    def consumer(self, connection: ClientConnection, group_name: str) -> Member | None:
        group = self.consumers.get(group_name)
        for consumer, name, client_id in self._by_connection.get(connection, ()):
            if group is not None and consumer and name == group_name:
                return group.members.get(client_id)
        return None

    def is_consumer(self, connection: ClientConnection, group: str) -> bool:
        """Return whether a consumer of the group uses this connection."""
        memberships = self._by_connection.get(connection, ())
        return any(consumer and name == group for consumer, name, _ in memberships)

    def notify_pending(self) -> None:
        """Notify large groups of collected changes, once per TELL_PAUSE_MS."""
        untold, self._untold = self._untold, {}
        self._just_notified.clear()
        for name in untold:
            self._notify(name)

    def notify_all(self) -> None:
        """Notify every consumer to rebalance, because this replica has become the leader."""
        for name in list(self.consumers):
            self._notify(name)

    def _members(self, consumer: bool, group: str) -> dict[str, Member]:
        if not consumer:
            return self.producers.get(group, {})
        consumer_group = self.consumers.get(group)
        return {} if consumer_group is None else consumer_group.members

    def _leave(self, consumer: bool, group: str, client_id: str) -> bool:
        members = self._members(consumer, group)
        member = members.pop(client_id, None)
        if member is None:
            return False
        self._count -= 1
        if not consumer:
            groups = self._producer_groups[client_id]
            groups.discard(group)
            if not groups:
                del self._producer_groups[client_id]
        self._forget_key(member.connection, (consumer, group, client_id))
        if consumer:
            left = self.consumers[group]
            before = left.kept_bytes
            left.forget_wishes(member)
            if not members:
                del self.consumers[group]
            self._kept.give_back(before - (left.kept_bytes if members else 0))
        elif not members:
            del self.producers[group]
        return True

    def _forget_key(self, connection: ClientConnection, key: tuple[bool, str, str]) -> None:
        keys = self._by_connection.get(connection)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_connection[connection]

    def _notify(self, group_name: str) -> None:
        group = self.consumers.get(group_name)
        if group is None or not self._notify_enabled(group_name):
            return
        if len(group.members) > PROMPT_MEMBERS_MAX:
            if group_name in self._just_notified:
                self._untold[group_name] = None
                return
            self._just_notified.add(group_name)
        _tell(group.members.values(), group_name)


def _kept_bytes(subscriptions: Mapping[str, Subscription]) -> int:
    return sum(subscription.kept_bytes for subscription in subscriptions.values())


def _wish(subscription: Subscription) -> tuple[str, str]:
    return subscription.expression_type, subscription.expression


def _tell(members: Iterable[Member], group: str) -> None:
    for member in list(members):
        command = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}
        )
        try:
            if member.connection.is_open:
                member.connection.invoke_oneway(command)
        except RemotingError as error:  # its next rebalance, every 20 s, finds out
            log.info("notify_failed group=%s client=%s: %s", group, member.client_id, error)


def _somebody_elses(client_id: str) -> Refused:
    return Refused(
        ResponseCode.NO_PERMISSION, f"client {client_id[:255]} is connected with another account"
    )


def _in_steps(items: Iterable[T], take: Callable[[T], R]) -> Steps[list[R]]:
    """Call `take` with each item, GROUPS_PER_STEP per step; return its results."""
    results: list[R] = []
    for number, item in enumerate(items, 1):
        results.append(take(item))
        if number % GROUPS_PER_STEP == 0:
            yield
    return results


def _groups(body: dict[str, Any], key: str) -> list[Any]:
    """Return the groups of a heartbeat under `key`. Raises BodyError."""
    groups = body.get(key) or []
    if not isinstance(groups, list):
        raise BodyError(f"{key} of a heartbeat is no list")
    return groups


def _name(fields: Any, key: str) -> str:
    """Return the name under `key`. Raises BodyError."""
    name = fields.get(key) if isinstance(fields, dict) else None
    if isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX and name.isprintable():
        return name
    raise BodyError(f"a heartbeat's {key} is missing, or no name")


def _check_texts(consumers: list[Any]) -> None:
    """Raise BodyError if a heartbeat's subscriptions have too much text."""
    subscription_sets = [
        fields.get("subscriptionDataSet") for fields in consumers if isinstance(fields, dict)
    ]
    lists = [
        subscriptions for subscriptions in subscription_sets if isinstance(subscriptions, list)
    ]
    texts = [
        text
        for subscriptions in lists
        for one in subscriptions
        if isinstance(one, dict) and isinstance(text := one.get("subString"), str)
    ]
    if sum(text.count("||") for text in texts) > TAGS_PER_HEARTBEAT_MAX:
        raise BodyError(f"a heartbeat of more than {TAGS_PER_HEARTBEAT_MAX} tags")
    if sum(map(len, texts)) > EXPRESSIONS_CHARS_MAX:
        raise BodyError(f"expressions of more than {EXPRESSIONS_CHARS_MAX} characters")


def _consumer_data(fields: Any) -> ConsumerData:
    """Read a ConsumerData bean. Raises BodyError."""
    name = _name(fields, "groupName")
    entries = fields.get("subscriptionDataSet") or []
    if not isinstance(entries, list) or len(entries) > SUBSCRIPTIONS_PER_GROUP_MAX:
        raise BodyError("subscriptionDataSet is not a list, or too long")
    subscriptions = [subscription_from_json(entry) for entry in entries]
    return ConsumerData(
        name,
        _word(fields, "consumeType", "CONSUME_PASSIVELY"),
        _word(fields, "messageModel", "CLUSTERING"),
        _word(fields, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
        {subscription.topic: subscription for subscription in subscriptions},
    )


def _word(fields: dict[str, Any], key: str, default: str) -> str:
    return str(fields.get(key) or default)[:NAME_LENGTH_MAX]
