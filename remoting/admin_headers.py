"""Typed headers of administration requests, and of requests from brokers to clients.

The rules of `headers.py` apply: named tuples, `parse(ext)` raises HeaderError, times in
milliseconds. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from .codes import RequestCode
from .fields import Absent, Ext, integer, parse_fields, text, write_fields
from .headers import SendHeader


class TopicHeader(NamedTuple):
    """17 UPDATE_AND_CREATE_TOPIC. `perm` bits: 4 read, 2 write, 1 inherit."""

    topic: Annotated[str, "topic"]
    read_queue_count: Annotated[int, "readQueueNums"]
    write_queue_count: Annotated[int, "writeQueueNums"]
    perm: Annotated[int, "perm"]
    filter_type: Annotated[str, "topicFilterType"] = "SINGLE_TAG"
    sys_flag: Annotated[int, "topicSysFlag"] = 0
    order: Annotated[bool, "order"] = False
    default_topic: Annotated[str, "defaultTopic"] = "TBW102"
    attributes: Annotated[str, "attributes"] = ""
    keep_messages: Annotated[bool | None, "keepMessages"] = None  # ours, of a deleted topic

    @classmethod
    def parse(cls, ext: Ext) -> TopicHeader:
        return cls._make(parse_fields(cls, ext))

    @classmethod
    def of_bean(cls, topic: str, bean: Mapping[str, Any], perm: int) -> TopicHeader:
        """Make the request from a topic's description by a broker (351 and 21), with a new
        permission and without its attributes."""
        return cls(
            topic,
            int(bean["readQueueNums"]),
            int(bean["writeQueueNums"]),
            perm,
            str(bean.get("topicFilterType") or "SINGLE_TAG"),
            int(bean.get("topicSysFlag") or 0),
            bool(bean.get("order", False)),
        )

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class QueryMessageHeader(NamedTuple):
    """12 QUERY_MESSAGE; with `unique_key` the key is a UNIQ_KEY instead of one of KEYS."""

    topic: Annotated[str, "topic"]
    key: Annotated[str, "key"]
    count_max: Annotated[int, "maxNum"]
    begin_timestamp_ms: Annotated[int, "beginTimestamp"]
    end_timestamp_ms: Annotated[int, "endTimestamp"]
    unique_key: Annotated[bool, "_UNIQUE_KEY_QUERY"] = False

    @classmethod
    def parse(cls, ext: Ext) -> QueryMessageHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class ResetOffsetHeader(NamedTuple):
    """222 INVOKE_BROKER_TO_RESET_OFFSET and its echo, 220. Timestamp -1 is the end."""

    topic: Annotated[str, "topic"]
    group: Annotated[str, "group"]
    timestamp_ms: Annotated[int, "timestamp"]
    force: Annotated[bool, "isForce", Absent(False)] = True
    queue_id: Annotated[int, "queueId"] = -1
    offset: Annotated[int, "offset"] = -1

    @classmethod
    def parse(cls, ext: Ext) -> ResetOffsetHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class RunningInfoHeader(NamedTuple):
    """307 GET_CONSUMER_RUNNING_INFO."""

    consumer_group: Annotated[str, "consumerGroup"]
    client_id: Annotated[str, "clientId"]
    include_stack: Annotated[bool, "jstackEnable"] = False

    @classmethod
    def parse(cls, ext: Ext) -> RunningInfoHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class ConsumeDirectlyHeader(NamedTuple):
    """309 CONSUME_MESSAGE_DIRECTLY; the body is a record."""

    consumer_group: Annotated[str, "consumerGroup"]
    client_id: Annotated[str | None, "clientId"] = None
    message_id: Annotated[str | None, "msgId"] = None
    broker_name: Annotated[str | None, "brokerName"] = None

    @classmethod
    def parse(cls, ext: Ext) -> ConsumeDirectlyHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class ReplyPushHeader(NamedTuple):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT, a send header and the origin of the reply."""

    send: SendHeader
    born_host: str
    store_host: str
    store_timestamp_ms: int

    @classmethod
    def parse(cls, ext: Ext) -> ReplyPushHeader:
        return cls(
            SendHeader.parse(ext, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT),
            text(ext, "bornHost"),
            text(ext, "storeHost"),
            integer(ext, "storeTimestamp"),
        )

    def to_ext(self) -> dict[str, str]:
        ext = self.send.to_ext(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        ext["bornHost"] = self.born_host
        ext["storeHost"] = self.store_host
        ext["storeTimestamp"] = str(self.store_timestamp_ms)
        return ext
