"""Typed headers of administration requests, and of requests from brokers to clients. Pure.

Same rules as `headers.py`: named tuples, `parse(ext)` raises HeaderError, times in milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.fields import (
    Ext,
    boolean_or,
    from_boolean,
    integer,
    integer_or,
    text,
    text_or,
    text_or_none,
)
from raftmq.remoting.headers import SendHeader


class TopicHeader(NamedTuple):
    """17 UPDATE_AND_CREATE_TOPIC. `perm` bits: 4 read, 2 write, 1 inherit."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    default_topic: str = "TBW102"
    attributes: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> TopicHeader:
        return cls(
            text(ext, "topic"),
            integer(ext, "readQueueNums"),
            integer(ext, "writeQueueNums"),
            integer(ext, "perm"),
            text_or(ext, "topicFilterType", "SINGLE_TAG"),
            integer_or(ext, "topicSysFlag", 0),
            boolean_or(ext, "order", False),
            text_or(ext, "defaultTopic", "TBW102"),
            text_or(ext, "attributes"),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "topic": self.topic,
            "readQueueNums": str(self.read_queue_count),
            "writeQueueNums": str(self.write_queue_count),
            "perm": str(self.perm),
            "topicFilterType": self.filter_type,
            "topicSysFlag": str(self.sys_flag),
            "order": from_boolean(self.order),
            "defaultTopic": self.default_topic,
            "attributes": self.attributes,
        }


class QueryMessageHeader(NamedTuple):
    """12 QUERY_MESSAGE; `unique_key`: the key is a UNIQ_KEY, not one of KEYS."""

    topic: str
    key: str
    count_max: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    unique_key: bool = False

    @classmethod
    def parse(cls, ext: Ext) -> QueryMessageHeader:
        return cls(
            text(ext, "topic"),
            text(ext, "key"),
            integer(ext, "maxNum"),
            integer(ext, "beginTimestamp"),
            integer(ext, "endTimestamp"),
            boolean_or(ext, "_UNIQUE_KEY_QUERY", False),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "topic": self.topic,
            "key": self.key,
            "maxNum": str(self.count_max),
            "beginTimestamp": str(self.begin_timestamp_ms),
            "endTimestamp": str(self.end_timestamp_ms),
            "_UNIQUE_KEY_QUERY": from_boolean(self.unique_key),
        }


class ResetOffsetHeader(NamedTuple):
    """222 INVOKE_BROKER_TO_RESET_OFFSET and 220, its echo to clients. Timestamp -1: to the end."""

    topic: str
    group: str
    timestamp_ms: int
    force: bool = True
    queue_id: int = -1
    offset: int = -1

    @classmethod
    def parse(cls, ext: Ext) -> ResetOffsetHeader:
        return cls(
            text(ext, "topic"),
            text(ext, "group"),
            integer(ext, "timestamp"),
            boolean_or(ext, "isForce", False),
            integer_or(ext, "queueId", -1),
            integer_or(ext, "offset", -1),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "topic": self.topic,
            "group": self.group,
            "timestamp": str(self.timestamp_ms),
            "isForce": from_boolean(self.force),
            "queueId": str(self.queue_id),
            "offset": str(self.offset),
        }


class RunningInfoHeader(NamedTuple):
    """307 GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    stack_wanted: bool = False

    @classmethod
    def parse(cls, ext: Ext) -> RunningInfoHeader:
        return cls(
            text(ext, "consumerGroup"),
            text(ext, "clientId"),
            boolean_or(ext, "jstackEnable", False),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "consumerGroup": self.consumer_group,
            "clientId": self.client_id,
            "jstackEnable": from_boolean(self.stack_wanted),
        }


class ConsumeDirectlyHeader(NamedTuple):
    """309 CONSUME_MESSAGE_DIRECTLY; the body is one record."""

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None

    @classmethod
    def parse(cls, ext: Ext) -> ConsumeDirectlyHeader:
        return cls(
            text(ext, "consumerGroup"),
            text_or_none(ext, "clientId"),
            text_or_none(ext, "msgId"),
            text_or_none(ext, "brokerName"),
        )

    def to_ext(self) -> dict[str, str]:
        fields = {
            "consumerGroup": self.consumer_group,
            "clientId": self.client_id,
            "msgId": self.message_id,
            "brokerName": self.broker_name,
        }
        return {name: value for name, value in fields.items() if value is not None}


class ReplyPushHeader(NamedTuple):
    """326 PUSH_REPLY_MESSAGE_TO_CLIENT: a send header and where the reply came from."""

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
