"""The types that the node API takes and answers: all those of its OpenAPI document. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from raftmq.broker.config import OPTIONS
from raftmq.broker.tables.writers import NAME_LENGTH_MAX
from raftmq.ops.options import Option
from raftmq.web.schema import INTEGER_MAX, Count, Input, TimeMs, View

NAME_PATTERN = "^[%|a-zA-Z0-9_-]+$"
BODY_TEXT_MAX = 900 * 1024  # characters of a message to send; a request may have 1 MiB
MESSAGES_MAX = 256  # of one answer

Name = Annotated[str, Meta(pattern=NAME_PATTERN, min_length=1, max_length=255)]
QueueCount = Annotated[int, Meta(ge=0, le=65_536)]
QueueId = Annotated[int, Meta(ge=0, le=65_535)]
MessageId = Annotated[
    str,
    Meta(
        pattern="^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$",
        description="offsetMsgId: store host and CommitLog offset, in hexadecimal digits.",
    ),
]
Base64 = Annotated[
    str,
    Meta(
        max_length=BODY_TEXT_MAX,
        pattern="^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
    ),
]
PropertyText = Annotated[str, Meta(min_length=1, max_length=4_096, pattern="^[^\x01\x02]+$")]
NodeName = Annotated[str, Meta(pattern="^[A-Za-z0-9_]+$", max_length=64)]


# ---- answers of all nodes ---------------------------------------------------------------------


class LiveView(View, frozen=True, kw_only=True):
    status: Literal["live"] = "live"


class ReadyView(View, frozen=True, kw_only=True):
    status: Literal["ready"] = "ready"
    role: str


# ---- this node --------------------------------------------------------------------------------


class LogView(View, frozen=True, kw_only=True):
    """CommitLog offsets in bytes; a value that cannot be read is -1."""

    min_offset: int
    max_offset: int
    durable_offset: int


class DiskView(View, frozen=True, kw_only=True):
    state: str
    reason: str
    total_bytes: int
    free_bytes: int
    used_ratio: float


class PeerView(View, frozen=True, kw_only=True):
    """Another replica, as this one sees it. Only a leader knows the figures: `framesInFlight`
    counts the requests on their way to it, `bytesInFlight` their bytes. `lastContactMs`: how long
    ago it was last heard of; a follower knows that of its leader."""

    id: str
    address: str
    voter: bool
    connected: bool
    match_index: int | None
    lag_frames: int | None
    lag_bytes: int | None
    frames_in_flight: int
    bytes_in_flight: int
    last_contact_ms: int | None
    state: str | None
    error: str | None


class MemberView(View, frozen=True, kw_only=True):
    """`role`: voter, or learner, which gets the log and does not count for majorities."""

    id: str
    address: str
    role: str
    broker_id: int


class MemberProgressView(View, frozen=True, kw_only=True):
    """`matchIndex` (last frame it has), `lagFrames` (it lacks) and `recovered` of others are null
    on a replica that does not lead. `whole`: the old name of `recovered`, until version 0.2."""

    id: str
    address: str
    role: str
    broker_id: int
    match_index: int | None
    lag_frames: int | None
    recovered: bool | None
    whole: bool | None


class MembersView(View, frozen=True, kw_only=True):
    items: list[MemberProgressView]
    next: None = None


class MemberBody(Input, frozen=True, kw_only=True):
    """`address`: of its Raft listener, host:port."""

    id: NodeName
    address: Annotated[str, Meta(pattern="^[A-Za-z0-9.-]+:[1-9][0-9]{0,4}$", max_length=255)]


class MemberPath(Input, frozen=True, kw_only=True):
    id: NodeName


class PreferredBody(Input, frozen=True, kw_only=True):
    name: NodeName


class PreferredView(View, frozen=True, kw_only=True):
    """`name` null: nobody is preferred. `standing`: why leadership is where it is, in the leader's
    words."""

    name: str | None
    leader: str | None
    standing: str


class RatesView(View, frozen=True, kw_only=True):
    """Messages a second, over the last 10 s."""

    sends_per_s: float
    pulls_per_s: float


class NodeView(View, frozen=True, kw_only=True):
    """One replica's own view. Raft's values are null in classic mode. `membership`: voter, learner;
    none: removed from its group, or not added yet. `election_backoff`: the
    factor by which the configured election time-outs are multiplied at present; 1 unless the group
    is starved; `election_halved`: they are halved, as the leader has been heard without a pause
    for a while. `group_id`: null while the group has none. `foreign`: replicas of other groups that
    were refused in the last half minute, in words. `peers_prove_themselves`: no replica is accepted
    as a peer without a proof that it has the group's secret. `recovered`: false while this replica
    may have lost promises; `recovering` then says why. Until version 0.2 `whole` and
    `election_patience` are the old names of `recovered` and `election_backoff`."""

    name: str
    group: str
    cluster: str
    broker_id: int
    mode: str
    engine: str
    version: str
    address: str
    http_address: str
    boot_time_ms: int
    pid: int
    role: str
    membership: str | None
    term: int
    leader: str | None
    leader_address: str
    leader_http_address: str
    leader_ready: bool
    preferred_leader: str | None
    group_id: str | None
    foreign: list[str]
    peers_prove_themselves: bool
    voted_for: str | None
    election_backoff: int | None
    election_halved: bool
    election_patience: int | None
    recovered: bool
    whole: bool
    recovering: str | None
    commit_index: int | None
    applied_index: int | None
    last_index: int | None
    durable_index: int | None
    first_index: int | None
    commit_log: LogView
    disk: DiskView
    peers: list[PeerView]
    rates: RatesView
    members: list[MemberView]


class TransferBody(Input, frozen=True, kw_only=True):
    target: NodeName | None = None


class TransferView(View, frozen=True, kw_only=True):
    target: str


class StopBody(Input, frozen=True, kw_only=True):
    hand_over: Literal[True] = True


class StopView(View, frozen=True, kw_only=True):
    stopping: Literal[True] = True


# ---- topics and groups ------------------------------------------------------------------------


class TopicPath(Input, frozen=True, kw_only=True):
    topic: Name


class QueuePath(Input, frozen=True, kw_only=True):
    topic: Name
    queue_id: QueueId


class GroupPath(Input, frozen=True, kw_only=True):
    group: Name


class TopicBody(Input, frozen=True, kw_only=True):
    """`perm`: 4 read, 2 write, 1 inherit."""

    read_queue_nums: QueueCount = 8
    write_queue_nums: QueueCount = 8
    perm: Annotated[int, Meta(ge=0, le=7)] = 6
    order: bool = False
    filter_type: Literal["SINGLE_TAG", "MULTI_TAG"] = "SINGLE_TAG"
    sys_flag: Annotated[int, Meta(ge=0, le=3)] = 0


TopicWanted = Annotated[
    TopicBody,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"properties": {"readQueueNums": {"minimum": 1}}},
                {"properties": {"writeQueueNums": {"minimum": 1}}},
            ]
        }
    ),
]


class TopicView(View, frozen=True, kw_only=True):
    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int
    system: bool
    version: str


class TopicPage(View, frozen=True, kw_only=True):
    items: list[TopicView]
    next: str | None


class QueueView(View, frozen=True, kw_only=True):
    """`lastStoreTimeMs` null: the queue is empty."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time_ms: int | None


class QueuePage(View, frozen=True, kw_only=True):
    items: list[QueueView]
    next: str | None


class WriterPath(Input, frozen=True, kw_only=True):
    topic: Name
    writer: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class WatermarkView(View, frozen=True, kw_only=True):
    """The last request of a writer that is stored in a queue."""

    queue_id: int
    batch: int
    sequence: int


class WriterView(View, frozen=True, kw_only=True):
    """`lastTimeMs`: when it was opened or wrote last."""

    topic: str
    writer: str
    epoch: int
    last_time_ms: int
    watermarks: list[WatermarkView]


class WriterPage(View, frozen=True, kw_only=True):
    items: list[WriterView]
    next: str | None


class SubscriptionGroupBody(Input, frozen=True, kw_only=True):
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Annotated[int, Meta(ge=0, le=65_536)] = 1
    retry_max_times: Annotated[int, Meta(ge=-1, le=1_000_000)] = 16
    broker_id: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] = 0
    which_broker_when_consume_slowly: Annotated[int, Meta(ge=0, le=INTEGER_MAX)] = 1
    notify_consumer_ids_changed_enable: bool = True


class SubscriptionGroupView(View, frozen=True, kw_only=True):
    name: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    version: str


class SubscriptionGroupPage(View, frozen=True, kw_only=True):
    items: list[SubscriptionGroupView]
    next: str | None


class GroupDeleteQuery(Input, frozen=True, kw_only=True):
    """`offsets`: also delete the offsets that the group committed."""

    offsets: bool = False


# ---- consumers --------------------------------------------------------------------------------


class ClientView(View, frozen=True, kw_only=True):
    client_id: str
    address: str
    language: str
    version: int


class ConsumerGroupItem(View, frozen=True, kw_only=True):
    name: str
    client_count: int
    consume_enable: bool
    lag: int
    topics: list[str]


class ConsumerGroupPage(View, frozen=True, kw_only=True):
    items: list[ConsumerGroupItem]
    next: str | None


class ConsumerQueueView(View, frozen=True, kw_only=True):
    """`consumerOffset` null: nothing committed; `lastTimeMs`: store time of the last message that
    the group has consumed."""

    topic: str
    queue_id: int
    consumer_offset: int | None
    broker_offset: int
    lag: int
    last_time_ms: int | None


class ConsumerGroupView(View, frozen=True, kw_only=True):
    name: str
    consume_enable: bool
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    clients: list[ClientView]
    queues: list[ConsumerQueueView]
    queues_left_out: int
    lag: int


class ResetTo(Input, frozen=True, kw_only=True):
    """Exactly one of the three."""

    time_ms: TimeMs | UnsetType = UNSET
    offset: Count | UnsetType = UNSET
    position: Literal["earliest", "latest"] | UnsetType = UNSET


OneOfThree = Annotated[ResetTo, Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1})]


class ResetBody(Input, frozen=True, kw_only=True):
    """`force`: reset even if consumers are online; they go on from the new offsets."""

    topic: Name
    to: OneOfThree
    queue_ids: Annotated[list[QueueId], Meta(max_length=1_024)] | None = None
    force: bool = False


class ResetQueueView(View, frozen=True, kw_only=True):
    queue_id: int
    before: int | None
    offset: int


class ResetView(View, frozen=True, kw_only=True):
    topic: str
    queues: list[ResetQueueView]


class PausedView(View, frozen=True, kw_only=True):
    name: str
    consume_enable: bool


class ConnectionItem(View, frozen=True, kw_only=True):
    name: str
    clients: list[ClientView]


class ConnectionsView(View, frozen=True, kw_only=True):
    """Groups with their connected clients, by name; `leftOut`: groups that did not fit."""

    producers: list[ConnectionItem]
    consumers: list[ConnectionItem]
    left_out: int


# ---- messages ---------------------------------------------------------------------------------


class MessageView(View, frozen=True, kw_only=True):
    """`body` is base64; `text` is the body if it is UTF-8. A body too large for a list is left out
    (null): ask for the message by its offsetMsgId."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    store_size: int
    offset_msg_id: str
    msg_id: str | None
    tags: str | None
    keys: str | None
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    flag: int
    sys_flag: int
    properties: dict[str, str]
    body_size: int
    body: str | None
    text: str | None


class MessagePage(View, frozen=True, kw_only=True):
    items: list[MessageView]
    next: str | None


class QueueMessagePage(View, frozen=True, kw_only=True):
    """`next`: the offset to go on with, as text."""

    items: list[MessageView]
    next: str | None
    min_offset: int
    max_offset: int


MessageLimit = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]


class MessagesQuery(Input, frozen=True, kw_only=True):
    """By `key`, by `uniqueKey`, or by both; without either by time alone."""

    topic: Name
    key: Annotated[str, Meta(max_length=1_024)] = ""
    unique_key: Annotated[str, Meta(max_length=1_024)] = ""
    begin_ms: TimeMs = 0
    end_ms: TimeMs = INTEGER_MAX
    limit: MessageLimit = 32


class QueueMessagesQuery(Input, frozen=True, kw_only=True):
    """From `offset` on, and from the first message stored at `timeMs` or later."""

    offset: Count | UnsetType = UNSET
    time_ms: TimeMs | UnsetType = UNSET
    limit: MessageLimit = 32


class MessagePath(Input, frozen=True, kw_only=True):
    message_id: MessageId


class SendBody(Input, frozen=True, kw_only=True):
    """Exactly one of `body` (text) and `bodyBase64`."""

    topic: Name
    body: Annotated[str, Meta(max_length=BODY_TEXT_MAX)] | UnsetType = UNSET
    body_base64: Base64 | UnsetType = UNSET
    tags: PropertyText | None = None
    keys: PropertyText | None = None
    properties: Annotated[dict[PropertyText, PropertyText], Meta(max_length=64)] = msgspec.field(
        default_factory=dict
    )
    queue_id: QueueId | None = None


# The body of a send; the type alone cannot say that exactly one of two fields is required.
Sendable = Annotated[
    SendBody,
    Meta(
        extra_json_schema={
            "oneOf": [{"required": ["body"]}, {"required": ["bodyBase64"]}],
            "example": {"topic": "T", "body": "hello"},
        }
    ),
]


class SentView(View, frozen=True, kw_only=True):
    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str


# ---- configuration and figures ----------------------------------------------------------------


class SettingView(View, frozen=True, kw_only=True):
    """`live`: PATCH can change it while the broker runs."""

    key: str
    section: str
    value: bool | int | str
    default: bool | int | str
    live: bool
    unit: str
    doc: str


class ConfigView(View, frozen=True, kw_only=True):
    items: list[SettingView]
    next: None = None


def _as_schema(option: Option) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string" if option.kind == "text" else option.kind}
    if option.choices:
        schema["enum"] = list(option.choices)
    for name, bound in (("minimum", option.low), ("maximum", option.high)):
        if bound is not None:
            schema[name] = bound
    if option.kind == "integer" and option.high is None:
        schema["maximum"] = INTEGER_MAX
    return schema


Changes = Annotated[
    dict[str, bool | int | str],
    Meta(
        min_length=1,
        description="key → value, in the key's own unit.",
        extra_json_schema={
            "properties": {key: _as_schema(option) for key, option in OPTIONS.items()},
            "additionalProperties": False,
        },
    ),
]


class ChangedView(View, frozen=True, kw_only=True):
    """`needsRestart`: valid values that a running broker cannot apply."""

    applied: dict[str, bool | int | str]
    needs_restart: list[str]


class SendResultView(View, frozen=True, kw_only=True):
    code: int
    reason: str
    count: int


class StatisticsView(View, frozen=True, kw_only=True):
    """`runtime`: the table of GET_BROKER_RUNTIME_INFO."""

    runtime: dict[str, str]
    sends: list[SendResultView]
