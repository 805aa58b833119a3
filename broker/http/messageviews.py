"""Messages in answers of the HTTP API.

The bodies of an answer are limited to LIST_BODY_BYTES_MAX; further bodies are omitted. Text is the
UTF-8 body, decompressed if its producer compressed it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from raftmq.remoting.address import format_address
from raftmq.store.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from raftmq.store.record import MessageRecord, decode_record, offset_message_id, walk_records
from raftmq.web.resources.messages import MessageView

from ..admin.message_query import text_of

LIST_BODY_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record and its size in the log."""

    record: MessageRecord
    size_bytes: int


class Budget:
    """The remaining bytes of bodies in an answer; None is unlimited."""

    def __init__(self, size_bytes: int | None) -> None:
        self._left = size_bytes

    def take(self, size_bytes: int) -> bool:
        if self._left is None:
            return True
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        return True


def views_of(records: Iterable[StoredMessage]) -> list[MessageView]:
    budget = Budget(LIST_BODY_BYTES_MAX)
    return [view_of(stored, budget) for stored in records]


def view_of(stored: StoredMessage, budget: Budget) -> MessageView:
    record = stored.record
    properties = decode_properties(record.properties)
    shown = budget.take(len(record.body))
    return MessageView(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.physical_offset,
        store_size=stored.size_bytes,
        offset_msg_id=record_id(record),
        msg_id=properties.get(UNIQ_KEY),
        tags=properties.get(TAGS),
        keys=properties.get(KEYS),
        born_timestamp=record.born_timestamp_ms,
        born_host=format_address(*record.born_host),
        store_timestamp=record.store_timestamp_ms,
        store_host=format_address(*record.store_host),
        reconsume_times=record.reconsume_times,
        flag=record.flag,
        sys_flag=record.sys_flag,
        properties=properties,
        body_size=len(record.body),
        body=base64.b64encode(record.body).decode() if shown else None,
        text=text_of(record) if shown else None,
    )


def record_id(record: MessageRecord) -> str:
    return offset_message_id(record.store_host, record.physical_offset)


def records_of(buffers: Iterable[bytes]) -> list[StoredMessage]:
    return [
        StoredMessage(decode_record(buffer, at), size)
        for buffer in buffers
        for at, size in walk_records(buffer)
    ]


def keys_of(stored: StoredMessage) -> list[str]:
    return decode_properties(stored.record.properties).get(KEYS, "").split()
