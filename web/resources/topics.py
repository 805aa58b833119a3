"""Topics and subscription groups."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from ..schema import INTEGER_MAX, Input, View
from .basics import Name, QueueCount, QueueId


class TopicPath(Input, frozen=True, kw_only=True):
    topic: Name


class QueuePath(Input, frozen=True, kw_only=True):
    topic: Name
    queue_id: QueueId


class GroupPath(Input, frozen=True, kw_only=True):
    group: Name


MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]


class TopicBody(Input, frozen=True, kw_only=True):
    """`perm` adds 4 for read, 2 for write, 1 for inherit. `messageType` stays unchanged if omitted;
    a new topic has NORMAL. `keepMessages` shows the remaining messages of a deleted topic of this
    name; otherwise the topic starts empty."""

    read_queue_nums: QueueCount = 8
    write_queue_nums: QueueCount = 8
    perm: Annotated[int, Meta(ge=0, le=7)] = 6
    order: bool = False
    filter_type: Literal["SINGLE_TAG", "MULTI_TAG"] = "SINGLE_TAG"
    sys_flag: Annotated[int, Meta(ge=0, le=3)] = 0
    message_type: MessageType | UnsetType = UNSET
    keep_messages: bool = False


TopicChange = Annotated[
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
    message_type: str
    attributes: dict[str, str]
    system: bool
    version: str


class EmptiedView(View, frozen=True, kw_only=True):
    """The removed messages, and the groups whose offsets were removed."""

    messages: int
    groups: list[str]


class QueueView(View, frozen=True, kw_only=True):
    """`lastStoreTimeMs` is null if the queue is empty."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_store_time_ms: int | None


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


class GroupDeleteQuery(Input, frozen=True, kw_only=True):
    """`offsets` also deletes the offsets that the group committed."""

    offsets: bool = False
