"""Messages in queries, answers and send requests."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ..schema import INTEGER_MAX, Count, Input, TimeMs, View
from .basics import BODY_TEXT_MAX, MESSAGES_MAX, Base64, MessageId, Name, PropertyText, QueueId


class MessageView(View, frozen=True, kw_only=True):
    """`body` is base64; `text` is the body if it is UTF-8. A body too large for a list is null;
    request the message by its offsetMsgId."""

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


class QueueMessagePage(View, frozen=True, kw_only=True):
    """`next` is the offset to continue with, as text."""

    items: list[MessageView]
    next: str | None
    min_offset: int
    max_offset: int


MessageLimit = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]


class MessagesQuery(Input, frozen=True, kw_only=True):
    """Messages by `key`, by `uniqueKey`, or by both; by time if neither is given. `cursor` is
    `next` of the page before."""

    topic: Name
    key: Annotated[str, Meta(max_length=1_024)] = ""
    unique_key: Annotated[str, Meta(max_length=1_024)] = ""
    start_ms: TimeMs = 0
    end_ms: TimeMs = INTEGER_MAX
    limit: MessageLimit = 32
    cursor: Count = 0


class QueueMessagesQuery(Input, frozen=True, kw_only=True):
    """From `offset` on, and from the first message stored at `timeMs` or later."""

    offset: Count | UnsetType = UNSET
    time_ms: TimeMs | UnsetType = UNSET
    limit: MessageLimit = 32


SearchText = Annotated[str, Meta(max_length=1_024)]


class TopicMessagesQuery(Input, frozen=True, kw_only=True):
    """The newest messages of all queues. `tag` and `key` must be equal. `property` is a name, or
    name=value. `text` is contained in the body, in any case. `before` is `next` of the page before.
    `sinceMs` excludes messages stored earlier."""

    limit: MessageLimit = 32
    before: Count | UnsetType = UNSET
    since_ms: TimeMs = 0
    tag: SearchText = ""
    key: SearchText = ""
    property: SearchText = ""
    text: SearchText = ""


class TopicMessagePage(View, frozen=True, kw_only=True):
    """Newest first. `next` is for `before`. A page may be short or empty although there is a next
    page, because a search reads a limited number of messages at a time (`scanned`)."""

    items: list[MessageView]
    next: str | None
    scanned: int


class ResendBody(Input, frozen=True, kw_only=True):
    message_ids: Annotated[list[MessageId], Meta(min_length=1, max_length=MESSAGES_MAX)]


class ResentView(View, frozen=True, kw_only=True):
    """`outcome` is ok, failed (certainly not sent again) or unknown (perhaps sent again)."""

    message_id: str
    outcome: Literal["ok", "failed", "unknown"]
    offset_msg_id: str | None = None
    error: str | None = None


class MessagePath(Input, frozen=True, kw_only=True):
    message_id: MessageId


class SendBody(Input, frozen=True, kw_only=True):
    """Exactly one of `body` (text) and `bodyBase64`. `delayLevel` is one of the broker's delay
    levels; `deliverAtMs` is a time (timerWheelEnable). By default the message is delivered at
    once."""

    topic: Name
    body: Annotated[str, Meta(max_length=BODY_TEXT_MAX)] | UnsetType = UNSET
    body_base64: Base64 | UnsetType = UNSET
    tags: PropertyText | None = None
    keys: PropertyText | None = None
    properties: Annotated[dict[PropertyText, PropertyText], Meta(max_length=64)] = msgspec.field(
        default_factory=dict
    )
    queue_id: QueueId | None = None
    delay_level: Annotated[int, Meta(ge=0, le=64)] = 0
    deliver_at_ms: TimeMs = 0


# The body of a send; the type alone cannot express that exactly one of two fields is required.
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
