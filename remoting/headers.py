"""Typed headers of requests of producers and consumers, and of the answers.

Each header is a named tuple (immutable, and the cheapest object per message) with wire names in its
fields (`fields.py`). `parse(ext)` raises HeaderError, and `to_ext()` writes the fields. Times are
epoch milliseconds. Fields of 5.x only are optional and omitted if None. Administration headers are
in `admin_headers.py`, registration headers in `registration.py`. Pure, without I/O.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from .codes import RequestCode
from .fields import Absent, Ext, parse_fields, write_fields

PULL_COMMIT_OFFSET = 0x1  # PullHeader.sys_flag bits
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_LITE = 0x10

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


REGION = "DefaultRegion"  # MSG_REGION of all brokers, which clients put into traces


class SendHeader(NamedTuple):
    """Sends 10, 324 and 326 (long names), 310, 320 and 325 (one-letter names)."""

    producer_group: Annotated[str, "a"]
    topic: Annotated[str, "b"]
    default_topic: Annotated[str, "c", Absent("")]
    default_topic_queue_count: Annotated[int, "d", Absent(0)]
    queue_id: Annotated[int, "e"]  # < 0 lets the broker choose
    sys_flag: Annotated[int, "f"]
    born_timestamp_ms: Annotated[int, "g"]
    flag: Annotated[int, "h"]
    properties: Annotated[str, "i", Absent("")]
    reconsume_times: Annotated[int, "j"] = 0
    unit_mode: Annotated[bool, "k"] = False
    max_reconsume_times: Annotated[int | None, "l"] = None
    batch: Annotated[bool, "m"] = False
    broker_name: Annotated[str | None, "n"] = None

    @classmethod
    def parse(cls, ext: Ext, code: int = RequestCode.SEND_MESSAGE_V2) -> SendHeader:
        """Parse a send header. The request's `code` selects long or short names."""
        names = _LONG_NAMES if code in _LONG_NAMED else None
        return cls._make(parse_fields(cls, ext, names))

    def to_ext(self, code: int = RequestCode.SEND_MESSAGE_V2) -> dict[str, str]:
        return write_fields(self, _LONG_NAMES if code in _LONG_NAMED else None)


class SendResponseHeader(NamedTuple):
    """The answer to a send. `message_id` is the offsetMsgId (comma list for a batch)."""

    message_id: Annotated[str, "msgId"]
    queue_id: Annotated[int, "queueId"]
    queue_offset: Annotated[int, "queueOffset"]
    region: Annotated[str, "MSG_REGION"] = REGION
    trace_on: Annotated[bool, "TRACE_ON"] = True
    transaction_id: Annotated[str | None, "transactionId"] = None  # the UNIQ_KEY

    @classmethod
    def parse(cls, ext: Ext) -> SendResponseHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class PullHeader(NamedTuple):
    """11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    queue_offset: Annotated[int, "queueOffset"]
    message_count_max: Annotated[int, "maxMsgNums"]
    sys_flag: Annotated[int, "sysFlag"]
    commit_offset: Annotated[int, "commitOffset"]
    suspend_timeout_ms: Annotated[int, "suspendTimeoutMillis"]
    subscription: Annotated[str, "subscription", Absent("")]
    subscription_version: Annotated[int, "subVersion"]
    expression_type: Annotated[str, "expressionType"] = "TAG"
    bytes_max: Annotated[int | None, "maxMsgBytes"] = None
    broker_name: Annotated[str | None, "bname"] = None

    @classmethod
    def parse(cls, ext: Ext) -> PullHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        # Written by hand for every pull, three times as fast as `write_fields`.
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
    """The answer to a pull; the remark is the store's status name."""

    suggested_broker_id: Annotated[int, "suggestWhichBrokerId"]
    next_offset: Annotated[int, "nextBeginOffset"]
    offset_min: Annotated[int, "minOffset"]
    offset_max: Annotated[int, "maxOffset"]

    @classmethod
    def parse(cls, ext: Ext) -> PullResponseHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        # Written by hand for every pull, three times as fast as `write_fields`.
        return {
            "suggestWhichBrokerId": str(self.suggested_broker_id),
            "nextBeginOffset": str(self.next_offset),
            "minOffset": str(self.offset_min),
            "maxOffset": str(self.offset_max),
        }


class ConsumerOffsetHeader(NamedTuple):
    """14 QUERY_CONSUMER_OFFSET and 15 UPDATE_CONSUMER_OFFSET (which has `commit_offset`).
    `client_id` is the committing consumer, in our clients only."""

    consumer_group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    commit_offset: Annotated[int | None, "commitOffset"] = None
    zero_if_not_found: Annotated[bool, "setZeroIfNotFound"] = True  # 14 only
    client_id: Annotated[str | None, "clientId"] = None  # 15 only

    @classmethod
    def parse(cls, ext: Ext) -> ConsumerOffsetHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        ext = write_fields(self)
        if self.zero_if_not_found:
            del ext["setZeroIfNotFound"]
        return ext


class QueueOffsetHeader(NamedTuple):
    """29 SEARCH_OFFSET_BY_TIMESTAMP (which has `timestamp_ms`), 30 MAX, 31 MIN, 32 EARLIEST."""

    topic: Annotated[str, "topic"]
    queue_id: Annotated[int, "queueId"]
    timestamp_ms: Annotated[int | None, "timestamp"] = None
    boundary: Annotated[str, "boundaryType"] = "LOWER"
    committed: Annotated[bool, "committed"] = True

    @classmethod
    def parse(cls, ext: Ext) -> QueueOffsetHeader:
        header = cls._make(parse_fields(cls, ext))
        return header._replace(boundary=header.boundary.upper())

    def to_ext(self) -> dict[str, str]:
        ext = {"topic": self.topic, "queueId": str(self.queue_id)}
        if self.timestamp_ms is not None:
            ext["timestamp"] = str(self.timestamp_ms)
            ext["boundaryType"] = self.boundary
        return ext


class SendBackHeader(NamedTuple):
    """36 CONSUMER_SEND_MSG_BACK. With `delay_level` 0 the broker decides; < 0 means dead letter."""

    commitlog_offset: Annotated[int, "offset"]
    group: Annotated[str, "group"]
    delay_level: Annotated[int, "delayLevel"]
    origin_message_id: Annotated[str, "originMsgId"] = ""
    origin_topic: Annotated[str, "originTopic"] = ""
    unit_mode: Annotated[bool, "unitMode"] = False
    max_reconsume_times: Annotated[int | None, "maxReconsumeTimes"] = None

    @classmethod
    def parse(cls, ext: Ext) -> SendBackHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class EndTransactionHeader(NamedTuple):
    """37 END_TRANSACTION. `decision`: 0 unknown, 8 commit, 12 rollback."""

    producer_group: Annotated[str, "producerGroup"]
    half_queue_offset: Annotated[int, "tranStateTableOffset"]
    commitlog_offset: Annotated[int, "commitLogOffset"]
    decision: Annotated[int, "commitOrRollback"]
    message_id: Annotated[str, "msgId"]
    transaction_id: Annotated[str, "transactionId"] = ""
    from_check: Annotated[bool, "fromTransactionCheck"] = False
    topic: Annotated[str, "topic"] = ""

    @classmethod
    def parse(cls, ext: Ext) -> EndTransactionHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class CheckTransactionHeader(NamedTuple):
    """39 CHECK_TRANSACTION_STATE, broker to producer, one-way."""

    half_queue_offset: Annotated[int, "tranStateTableOffset"]
    commitlog_offset: Annotated[int, "commitLogOffset"]
    message_id: Annotated[str, "msgId", Absent("")]
    transaction_id: Annotated[str, "transactionId", Absent("")]
    offset_message_id: Annotated[str, "offsetMsgId", Absent("")]

    @classmethod
    def parse(cls, ext: Ext) -> CheckTransactionHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)


class UnregisterClientHeader(NamedTuple):
    """35 UNREGISTER_CLIENT."""

    client_id: Annotated[str, "clientID"]
    producer_group: Annotated[str | None, "producerGroup"] = None
    consumer_group: Annotated[str | None, "consumerGroup"] = None

    @classmethod
    def parse(cls, ext: Ext) -> UnregisterClientHeader:
        return cls._make(parse_fields(cls, ext))

    def to_ext(self) -> dict[str, str]:
        return write_fields(self)
