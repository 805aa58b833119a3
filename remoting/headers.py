"""Typed headers of the requests that producers and consumers send, and of the answers. Pure.

Each header is a named tuple (immutable, and the cheapest object to build per message) with
`parse(ext)`, which raises HeaderError, and `to_ext()`. Times are epoch milliseconds. Fields that
only 5.x knows are optional and left out if None. Administration headers are in `admin_headers.py`,
registration headers in `registration.py`.
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
    integer_or_none,
    text,
    text_or,
    text_or_none,
)

PULL_COMMIT_OFFSET = 0x1  # PullHeader.sys_flag bits
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_CLASS_FILTER = 0x8
PULL_LITE = 0x10

_SHORT_NAMES = tuple("abcdefghijklmn")
_LONG_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
    "bname",
)
_LONG_NAMED = frozenset(
    (
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_REPLY_MESSAGE),
        int(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT),
    )
)


class SendHeader(NamedTuple):
    """Sends: 10, 324 and 326 (long names), 310, 320 and 325 (one-letter names)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int
    queue_id: int  # < 0: the broker picks one
    sys_flag: int
    born_timestamp_ms: int
    flag: int
    properties: str
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = None

    @classmethod
    def parse(cls, ext: Ext, code: int = RequestCode.SEND_MESSAGE_V2) -> SendHeader:
        """Parse a send header. The request's `code` decides between long and short names."""
        names = _LONG_NAMES if code in _LONG_NAMED else _SHORT_NAMES
        a, b, c, d, e, f, g, h, i, j, k, l, m, n = names  # noqa: E741 (the wire calls it l)
        return cls(
            text(ext, a),
            text(ext, b),
            text_or(ext, c),
            integer_or(ext, d, 0),
            integer(ext, e),
            integer(ext, f),
            integer(ext, g),
            integer(ext, h),
            text_or(ext, i),
            integer_or(ext, j, 0),
            boolean_or(ext, k, False),
            integer_or_none(ext, l),
            boolean_or(ext, m, False),
            text_or_none(ext, n),
        )

    def to_ext(self, code: int = RequestCode.SEND_MESSAGE_V2) -> dict[str, str]:
        names = _LONG_NAMES if code in _LONG_NAMED else _SHORT_NAMES
        ext: dict[str, str] = {}
        for name, value in zip(names, self, strict=True):
            if value is not None:
                ext[name] = from_boolean(value) if isinstance(value, bool) else str(value)
        return ext


class SendResponseHeader(NamedTuple):
    """The answer to a send. `message_id` is the offsetMsgId (comma list for a batch)."""

    message_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None  # the UNIQ_KEY
    region: str = "DefaultRegion"
    trace_on: bool = True

    @classmethod
    def parse(cls, ext: Ext) -> SendResponseHeader:
        return cls(
            text(ext, "msgId"),
            integer(ext, "queueId"),
            integer(ext, "queueOffset"),
            text_or_none(ext, "transactionId"),
            text_or(ext, "MSG_REGION", "DefaultRegion"),
            boolean_or(ext, "TRACE_ON", True),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "msgId": self.message_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "MSG_REGION": self.region,
            "TRACE_ON": from_boolean(self.trace_on),
        }
        if self.transaction_id is not None:
            ext["transactionId"] = self.transaction_id
        return ext


class PullHeader(NamedTuple):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    message_count_max: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    subscription: str
    subscription_version: int
    expression_type: str = "TAG"
    bytes_max: int | None = None
    broker_name: str | None = None

    @classmethod
    def parse(cls, ext: Ext) -> PullHeader:
        return cls(
            text(ext, "consumerGroup"),
            text(ext, "topic"),
            integer(ext, "queueId"),
            integer(ext, "queueOffset"),
            integer(ext, "maxMsgNums"),
            integer(ext, "sysFlag"),
            integer(ext, "commitOffset"),
            integer(ext, "suspendTimeoutMillis"),
            text_or(ext, "subscription"),
            integer(ext, "subVersion"),
            text_or(ext, "expressionType", "TAG"),
            integer_or_none(ext, "maxMsgBytes"),
            text_or_none(ext, "bname"),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.consumer_group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "maxMsgNums": str(self.message_count_max),
            "sysFlag": str(self.sys_flag),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.suspend_timeout_ms),
            "subscription": self.subscription,
            "subVersion": str(self.subscription_version),
            "expressionType": self.expression_type,
        }
        if self.bytes_max is not None:
            ext["maxMsgBytes"] = str(self.bytes_max)
        if self.broker_name is not None:
            ext["bname"] = self.broker_name
        return ext


class PullResponseHeader(NamedTuple):
    """The answer to a pull, whatever its code; the remark is the store's status name."""

    suggested_broker_id: int
    next_offset: int
    offset_min: int
    offset_max: int

    @classmethod
    def parse(cls, ext: Ext) -> PullResponseHeader:
        return cls(
            integer(ext, "suggestWhichBrokerId"),
            integer(ext, "nextBeginOffset"),
            integer(ext, "minOffset"),
            integer(ext, "maxOffset"),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "suggestWhichBrokerId": str(self.suggested_broker_id),
            "nextBeginOffset": str(self.next_offset),
            "minOffset": str(self.offset_min),
            "maxOffset": str(self.offset_max),
        }


class ConsumerOffsetHeader(NamedTuple):
    """14 QUERY_CONSUMER_OFFSET and 15 UPDATE_CONSUMER_OFFSET (which has `commit_offset`)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int | None = None
    zero_if_not_found: bool = True  # 14 only

    @classmethod
    def parse(cls, ext: Ext) -> ConsumerOffsetHeader:
        return cls(
            text(ext, "consumerGroup"),
            text(ext, "topic"),
            integer(ext, "queueId"),
            integer_or_none(ext, "commitOffset"),
            boolean_or(ext, "setZeroIfNotFound", True),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.consumer_group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
        }
        if self.commit_offset is not None:
            ext["commitOffset"] = str(self.commit_offset)
        if not self.zero_if_not_found:
            ext["setZeroIfNotFound"] = "false"
        return ext


class QueueOffsetHeader(NamedTuple):
    """29 SEARCH_OFFSET_BY_TIMESTAMP (which has `timestamp_ms`), 30 MAX, 31 MIN, 32 EARLIEST."""

    topic: str
    queue_id: int
    timestamp_ms: int | None = None
    boundary: str = "LOWER"
    committed: bool = True

    @classmethod
    def parse(cls, ext: Ext) -> QueueOffsetHeader:
        return cls(
            text(ext, "topic"),
            integer(ext, "queueId"),
            integer_or_none(ext, "timestamp"),
            text_or(ext, "boundaryType", "LOWER").upper(),
            boolean_or(ext, "committed", True),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {"topic": self.topic, "queueId": str(self.queue_id)}
        if self.timestamp_ms is not None:
            ext["timestamp"] = str(self.timestamp_ms)
            ext["boundaryType"] = self.boundary
        return ext


class SendBackHeader(NamedTuple):
    """36 CONSUMER_SEND_MSG_BACK. `delay_level` 0: the broker decides, < 0: dead letter now."""

    commitlog_offset: int
    group: str
    delay_level: int
    origin_message_id: str = ""
    origin_topic: str = ""
    unit_mode: bool = False
    max_reconsume_times: int | None = None

    @classmethod
    def parse(cls, ext: Ext) -> SendBackHeader:
        return cls(
            integer(ext, "offset"),
            text(ext, "group"),
            integer(ext, "delayLevel"),
            text_or(ext, "originMsgId"),
            text_or(ext, "originTopic"),
            boolean_or(ext, "unitMode", False),
            integer_or_none(ext, "maxReconsumeTimes"),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {
            "offset": str(self.commitlog_offset),
            "group": self.group,
            "delayLevel": str(self.delay_level),
            "originMsgId": self.origin_message_id,
            "originTopic": self.origin_topic,
            "unitMode": from_boolean(self.unit_mode),
        }
        if self.max_reconsume_times is not None:
            ext["maxReconsumeTimes"] = str(self.max_reconsume_times)
        return ext


class EndTransactionHeader(NamedTuple):
    """37 END_TRANSACTION. `decision`: 0 unknown, 8 commit, 12 rollback."""

    producer_group: str
    half_queue_offset: int
    commitlog_offset: int
    decision: int
    message_id: str
    transaction_id: str = ""
    from_check: bool = False
    topic: str = ""

    @classmethod
    def parse(cls, ext: Ext) -> EndTransactionHeader:
        return cls(
            text(ext, "producerGroup"),
            integer(ext, "tranStateTableOffset"),
            integer(ext, "commitLogOffset"),
            integer(ext, "commitOrRollback"),
            text(ext, "msgId"),
            text_or(ext, "transactionId"),
            boolean_or(ext, "fromTransactionCheck", False),
            text_or(ext, "topic"),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "producerGroup": self.producer_group,
            "tranStateTableOffset": str(self.half_queue_offset),
            "commitLogOffset": str(self.commitlog_offset),
            "commitOrRollback": str(self.decision),
            "msgId": self.message_id,
            "transactionId": self.transaction_id,
            "fromTransactionCheck": from_boolean(self.from_check),
            "topic": self.topic,
        }


class CheckTransactionHeader(NamedTuple):
    """39 CHECK_TRANSACTION_STATE, broker to producer, one-way."""

    half_queue_offset: int
    commitlog_offset: int
    message_id: str
    transaction_id: str
    offset_message_id: str

    @classmethod
    def parse(cls, ext: Ext) -> CheckTransactionHeader:
        return cls(
            integer(ext, "tranStateTableOffset"),
            integer(ext, "commitLogOffset"),
            text_or(ext, "msgId"),
            text_or(ext, "transactionId"),
            text_or(ext, "offsetMsgId"),
        )

    def to_ext(self) -> dict[str, str]:
        return {
            "tranStateTableOffset": str(self.half_queue_offset),
            "commitLogOffset": str(self.commitlog_offset),
            "msgId": self.message_id,
            "transactionId": self.transaction_id,
            "offsetMsgId": self.offset_message_id,
        }


class UnregisterClientHeader(NamedTuple):
    """35 UNREGISTER_CLIENT."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None

    @classmethod
    def parse(cls, ext: Ext) -> UnregisterClientHeader:
        return cls(
            text(ext, "clientID"),
            text_or_none(ext, "producerGroup"),
            text_or_none(ext, "consumerGroup"),
        )

    def to_ext(self) -> dict[str, str]:
        ext = {"clientID": self.client_id}
        if self.producer_group:
            ext["producerGroup"] = self.producer_group
        if self.consumer_group:
            ext["consumerGroup"] = self.consumer_group
        return ext
