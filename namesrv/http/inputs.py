"""Query parameters of the cluster API, and the resulting paths at brokers."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from raftmq.web.operation import Call
from raftmq.web.paging import LIMIT_DEFAULT, Cursor, Limit
from raftmq.web.schema import Count, Input, TimeMs

from .cluster import Item

NAME_LENGTH_MAX = 255
PREFERRED = "/groups/{group}/preferred-leader"
PREFERRED_PATH = "/preferred-leader"  # a broker's
MESSAGES = "/api/v1/messages"  # here and at the brokers
# Paths here and at the brokers.
TOPIC = "/topics/{topic}"
QUEUES = f"{TOPIC}/queues"
QUEUE_MESSAGES = f"{QUEUES}/{{queue_id}}/messages"
SUBSCRIPTION = "/subscription-groups/{name}"
CONSUMERS = "/consumer-groups/{name}"
GroupName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
# Names of topics and consumer groups, as brokers accept them.
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern="^[%|a-zA-Z0-9_-]+$")]
MessageLimit = Annotated[int, Meta(ge=1, le=256)]  # as the node API's
OptionalName = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]


class OfGroup(Input, frozen=True):
    group: GroupName


class OfName(Input, frozen=True):
    name: Name


class OfTopic(Input, frozen=True):
    topic: Name


class OfQueue(Input, frozen=True):
    topic: Name
    queue_id: Annotated[int, Meta(ge=0, le=65535)]


class OfMessage(Input, frozen=True):
    message_id: Annotated[
        str,
        Meta(
            pattern="^([0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})$",
            description="offsetMsgId: store host and CommitLog offset, in hexadecimal digits.",
        ),
    ]


class OneGroup(Input, frozen=True):
    """An optional broker group."""

    group: OptionalName = ""


class AccountQuery(Input, frozen=True):
    """`group` selects a broker group. `lastAdministrator` permits the deletion or downgrade of the
    last administrator."""

    group: OptionalName = ""
    last_administrator: bool = False


class TopicsQuery(Input, frozen=True):
    """`q` is a part of the name, ignoring case. `group` selects a broker group. `kind` is own,
    retry, dead (dead letters), system (the brokers' own), or "" for all."""

    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor = ""
    q: OptionalName = ""
    group: OptionalName = ""
    kind: Literal["", "own", "retry", "dead", "system"] = ""


class SearchPage(Input, frozen=True):
    """`q` is a part of the name, ignoring case. `group` selects a broker group."""

    limit: Limit = LIMIT_DEFAULT
    cursor: Cursor = ""
    q: OptionalName = ""
    group: OptionalName = ""


class FailoversQuery(Input, frozen=True):
    group: OptionalName = ""
    limit: Limit = LIMIT_DEFAULT


class MessagesQuery(Input, frozen=True):
    """A search by `key` or `uniqueKey`, newest first, or by time alone, oldest first. `cursor` is
    `next` of the previous page."""

    topic: Name
    key: OptionalName = ""
    unique_key: OptionalName = ""
    start_ms: TimeMs | None = None
    end_ms: TimeMs | None = None
    limit: MessageLimit = 32
    cursor: Cursor = ""
    group: OptionalName = ""


class QueueMessagesQuery(Input, frozen=True):
    offset: Count | None = None
    time_ms: TimeMs | None = None
    limit: MessageLimit = 32
    group: OptionalName = ""


def filled(path: str, call: Call) -> str:
    """Return the path at a broker, with the call's parameters."""
    values = msgspec.structs.asdict(call.parameters)
    return "/api/v1" + path.format_map({key: quote(str(v), "") for key, v in values.items()})


def query_of(**values: str | int | None) -> dict[str, str]:
    """Return query parameters without missing values."""
    return {key: str(value) for key, value in values.items() if value not in ("", None)}


def items_of(value: Any) -> list[Item]:
    """Return the items of a page or of a plain list."""
    return list(value["items"]) if isinstance(value, dict) and "items" in value else list(value)
