"""The answer types of the cluster API.

They contain the brokers' answers, with the group of each. `errors` lists groups that did not
answer. Brokers of earlier versions may omit fields.
"""

from __future__ import annotations

from typing import Any, Generic, Literal

from msgspec import UNSET, UnsetType

from raftmq.web.resources.accounts import AccountView
from raftmq.web.resources.consumers import (
    ClientView,
    ConnectionItem,
    ConsumerGroupItem,
    ConsumerQueueView,
    ModeView,
)
from raftmq.web.resources.messages import MessageView, ResentView, SentView
from raftmq.web.resources.node import NodeView
from raftmq.web.resources.topics import QueueView, SubscriptionGroupView, TopicView
from raftmq.web.schema import T, View


class GroupError(View, frozen=True, kw_only=True):
    """The reason for a group's missing answer."""

    group: str
    error: str


class GroupsPage(View, Generic[T], frozen=True, kw_only=True):
    items: list[T]
    next: str | None
    errors: list[GroupError]


class GroupsListing(View, Generic[T], frozen=True, kw_only=True):
    items: list[T]
    next: None = None
    errors: list[GroupError]


# ---- the cluster ------------------------------------------------------------------------------


class NameServerView(View, frozen=True, kw_only=True):
    address: str
    boot_time_ms: int


class FindingView(View, frozen=True):
    """A difference between replicas. `field` is a field of their node views, `nodes` are those that
    differ."""

    group: str
    severity: str
    field: str
    nodes: tuple[str, ...]
    text: str


class MarkView(View, frozen=True, kw_only=True):
    """A moment of a failover."""

    what: str
    at: int
    since_ms: int
    node: str
    term: int


class FailoverView(View, frozen=True, kw_only=True):
    group: str
    planned: bool
    complete: bool
    old_leader: str
    new_leader: str
    term: int
    started_at: int
    duration_ms: int | None
    marks: list[MarkView]


class BrokerView(View, frozen=True, kw_only=True):
    """A broker with its own view; `node` is null without an answer, for the reason `error`."""

    address: str
    broker_id: int
    name: str
    http_address: str | None
    registered: bool
    gone_since_ms: int | None
    took_ms: float
    node: NodeView | None
    error: str | None


class BrokerGroupView(View, frozen=True, kw_only=True):
    name: str
    cluster: str
    leader: str | None
    preferred_leader: str | None
    leader_address: str | None
    term: int
    topic_count: int
    brokers: list[BrokerView]
    last_failover: FailoverView | None


class ClusterReport(View, frozen=True, kw_only=True):
    """Every replica's own view. `differences` has the texts of the findings."""

    name_server: NameServerView
    at: int
    topic_count: int
    groups: list[BrokerGroupView]
    differences: list[str]
    findings: list[FindingView]


# ---- scaling ----------------------------------------------------------------------------------


class LeaderItem(View, frozen=True, kw_only=True):
    """A broker group's leader, and the replica that should lead. `moves` is true if these differ
    and the group can move; `reason` is why it cannot, else empty."""

    group: str
    leader: str | None
    target: str | None
    preferred: str | None
    moves: bool
    reason: str


class MachineLeaders(View, frozen=True, kw_only=True):
    """The broker groups with a voter on a machine, and the leaders at present and after all moves.
    `zone` is the replicas' brokerZone, or empty."""

    zone: str
    machine: str
    groups: int
    leaders: int
    leaders_after: int


class LeaderBalanceView(View, frozen=True, kw_only=True):
    """`moved` is the group that the request moved, null if it moved none."""

    items: list[LeaderItem]
    next: None = None
    machines: list[MachineLeaders]
    moved: str | None = None


class DefinitionItem(View, frozen=True, kw_only=True):
    """A definition that differs between broker groups. `has` describes it by group; `outcome` and
    `why` are those of an alignment."""

    kind: Literal["topic", "group"]
    name: str
    has: dict[str, str]
    outcome: str
    why: str


class DefinitionPage(View, frozen=True, kw_only=True):
    """`groups` are the compared broker groups; draining groups are left out. A page may be empty
    before the last."""

    items: list[DefinitionItem]
    next: str | None
    groups: list[str]
    errors: list[GroupError]


# ---- topics and groups ------------------------------------------------------------------------


class TopicRoute(View, frozen=True, kw_only=True):
    """A topic in a group, as in routes. `messageType` is null if the group sent none, for
    NORMAL."""

    group: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str | None = None


class TopicItem(View, frozen=True, kw_only=True):
    """`kind` is own, retry, dead (dead letters), or system (the brokers' own)."""

    topic: str
    kind: Literal["own", "retry", "dead", "system"]
    groups: list[TopicRoute]


class TopicOfGroup(TopicView, frozen=True, kw_only=True):
    group: str


class TopicInGroups(View, frozen=True, kw_only=True):
    groups: list[TopicOfGroup]
    errors: list[GroupError]


class QueueOfGroup(QueueView, frozen=True, kw_only=True):
    group: str


class SubscriptionOfGroup(SubscriptionGroupView, frozen=True, kw_only=True):
    group: str


class SubscriptionInGroups(View, frozen=True, kw_only=True):
    groups: list[SubscriptionOfGroup]
    errors: list[GroupError]


class SubscriptionItem(View, frozen=True, kw_only=True):
    name: str
    groups: list[SubscriptionOfGroup]


# ---- consumers and connections ----------------------------------------------------------------


class ConsumersOfGroup(ConsumerGroupItem, frozen=True, kw_only=True):
    group: str


class ConsumersItem(View, frozen=True, kw_only=True):
    name: str
    groups: list[ConsumersOfGroup]


class ConsumerQueueOfGroup(ConsumerQueueView, frozen=True, kw_only=True):
    group: str


class ConsumersView(View, frozen=True, kw_only=True):
    """A consumer group over all broker groups, with distinct clients and `lagByTopic` over all
    queues."""

    name: str
    consume_enable: bool
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    expression_types: dict[str, str] = {}  # noqa: RUF012 (msgspec copies it)
    clients: list[ClientView]
    queues: list[ConsumerQueueOfGroup]
    queues_left_out: int
    lag_by_topic: dict[str, int]
    lag: int
    in_flight: int
    errors: list[GroupError]


class ModeOfGroup(ModeView, frozen=True, kw_only=True):
    """`group` is the consumer group, `brokerGroup` the brokers' group."""

    broker_group: str


class ConnectionOfGroup(ConnectionItem, frozen=True, kw_only=True):
    group: str


class ConnectionsOfGroups(View, frozen=True, kw_only=True):
    producers: list[ConnectionOfGroup]
    consumers: list[ConnectionOfGroup]
    errors: list[GroupError]


# ---- messages ---------------------------------------------------------------------------------


class MessageOfGroup(MessageView, frozen=True, kw_only=True):
    group: str


class NewestOfGroups(View, frozen=True, kw_only=True):
    """Newest first. `next` is a value for `before`; `scanned` counts the messages that were
    read."""

    items: list[MessageOfGroup]
    next: str | None
    scanned: int
    errors: list[GroupError]


class QueueMessagesOfGroup(View, frozen=True, kw_only=True):
    items: list[MessageOfGroup]
    next: str | None
    min_offset: int
    max_offset: int


class SentToGroup(SentView, frozen=True, kw_only=True):
    group: str


class ResentByGroup(ResentView, frozen=True, kw_only=True):
    group: str | None = None


class ReplicaTrace(View, frozen=True, kw_only=True):
    """`state` is durable, written, missing (by `behindBytes`), deleted or unknown."""

    name: str
    address: str
    role: str | None
    state: str
    error: str | UnsetType | None = UNSET
    behind_bytes: int | UnsetType = UNSET


class ConsumerTrace(View, frozen=True, kw_only=True):
    """`state` is consumed, waiting, passed (no match with its subscription), never or unknown.
    `expression` is that of its subscription."""

    name: str
    state: str
    consumer_offset: int | UnsetType | None = UNSET
    messages_before: int | UnsetType = UNSET
    clients: int | UnsetType = UNSET
    last_time_ms: int | UnsetType | None = UNSET
    expression: str | UnsetType | None = UNSET
    error: str | UnsetType = UNSET


class TraceView(View, frozen=True, kw_only=True):
    """Replicas and consumers of a message. `consumersLeftOut` counts groups that were not asked."""

    group: str
    message: MessageView
    replicas: list[ReplicaTrace]
    consumers: list[ConsumerTrace]
    consumers_left_out: int | UnsetType = UNSET
    consumers_error: str | UnsetType = UNSET


# ---- accounts ---------------------------------------------------------------------------------


class AccountOfGroup(AccountView, frozen=True, kw_only=True):
    group: str


class AccountItem(View, frozen=True, kw_only=True):
    """An account as each group has it."""

    access_key: str
    groups: list[AccountOfGroup]


class AccountsOfGroup(View, frozen=True, kw_only=True):
    """`enabled` is false for a group without access control."""

    group: str
    enabled: bool
    white_addresses: list[str]


class AccountsOfGroups(View, frozen=True, kw_only=True):
    items: list[AccountItem]
    next: None = None
    groups: list[AccountsOfGroup]
    errors: list[GroupError]


# ---- changes and this process -----------------------------------------------------------------


class GroupNamed(View, frozen=True, kw_only=True):
    group: str


class GroupOutcome(View, frozen=True, kw_only=True):
    """The outcome of a change in a group, ok with the broker's answer (`value`), failed (certainly
    not made) or unknown (possibly made). `status` is 0 without an answer."""

    group: str
    outcome: Literal["ok", "failed", "unknown"]
    status: int
    value: Any = None
    error: str | UnsetType = UNSET


class ChangedInGroups(View, frozen=True, kw_only=True):
    results: list[GroupOutcome]


class UpView(View, frozen=True, kw_only=True):
    status: str


class ServesView(View, frozen=True, kw_only=True):
    """A name server that serves; `warnings` has its problems."""

    status: str
    brokers: int
    warnings: tuple[str, ...] = ()


class OptionView(View, frozen=True, kw_only=True):
    key: str
    value: bool | int | str | float
    default: bool | int | str | float
    live: bool
    description: str


class CallerView(View, frozen=True, kw_only=True):
    """`role` is viewer, operator or admin."""

    name: str
    role: str
