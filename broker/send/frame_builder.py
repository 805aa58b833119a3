"""Builds frames from waiting sends, and formats SEND_OK responses.

`build_records` gives records their queue offset, physical offset and store timestamp. It also packs
the ConsumeQueue entries, so the leader does not parse its own frame when it applies it (tests
compare them with store.dispatch). `build_frame` adds a frame header, which classic mode does not
have. `AnswerFormat` formats the header of SEND_OK from a JSON template with five values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import orjson

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import MQ_VERSION
from raftmq.remoting.command import JSON, RESPONSE_FLAG, RemotingCommand
from raftmq.store.dispatch import QUEUE_ENTRY, EntryBatch
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame, FrameKind, seal_frame

from ..messages.send_request import MAGIC_V1, MAGIC_V2, Record, SendQueue

_PREFIX = struct.Struct(">ii")
_SIZES = 1024  # larger headers are packed when needed
_PREFIXES = [_PREFIX.pack(size + 4, size) for size in range(_SIZES)]


def build_frame(
    records: Sequence[Record],
    payload_size: int,
    index: int,
    term: int,
    allocate: Callable[[int], int],
    now_ms: int,
    store_host: bytes,
    command: bytes = b"",
) -> tuple[Frame, list[int], list[int], list[Units]]:
    """Build and seal the frame of `command` and `records`, of `payload_size` bytes in sum. Returns
    the frame and the results of `build_records` except the payload."""
    frame_position = allocate(HEADER_SIZE_BYTES + payload_size)
    payload, positions, offsets, groups = build_records(
        records, frame_position + HEADER_SIZE_BYTES + len(command), now_ms, store_host
    )
    if command:
        payload = command + payload
    assert len(payload) == payload_size
    frame = seal_frame(
        index,
        term,
        frame_position,
        now_ms,
        FrameKind.MESSAGES,
        len(records),
        payload,
        len(command),
    )
    return frame, positions, offsets, groups


def by_queue(records: Sequence[Record]) -> dict[SendQueue, list[int]]:
    """Return the record indexes of each queue, in order of appearance. Records are stored in this
    order, so that pulls of a queue read contiguous bytes."""
    indexes_by_queue: dict[SendQueue, list[int]] = {}
    get = indexes_by_queue.get
    for at, record in enumerate(records):
        indexes = get(record[0])
        if indexes is None:
            indexes_by_queue[record[0]] = [at]
        else:
            indexes.append(at)
    return indexes_by_queue


def build_records(
    records: Sequence[Record], position: int, now_ms: int, store_host: bytes
) -> tuple[bytes, list[int], list[int], list[Units]]:
    """Encode records in the order of `by_queue`, the first at `position`.

    Each `tail` starts with the topic length, one nonzero byte in a V1 record, or two bytes of which
    the first is 0 in V2. Returns the bytes, the physical offset and the queue offset of each
    record, and the ConsumeQueue entries per queue. Advances `next_offset` of the queues. Raises
    struct.error without any change.
    """
    chunks: list[bytes] = []
    add = chunks.append
    positions = [0] * len(records)
    offsets = [0] * len(records)
    groups: list[Units] = []
    pack_entry = UNIT.pack
    indexes_by_queue = by_queue(records)
    for queue, indexes in indexes_by_queue.items():
        queue_id, offset = queue.queue_id, queue.next_offset
        due_ms = now_ms + queue.delay_ms if queue.delay_ms >= 0 else None
        units: list[bytes] = []
        for at in indexes:
            (
                _,
                size,
                head,
                crc,
                flag,
                sys_flag,
                born_ms,
                born_host,
                reconsume,
                body,
                tail,
                tags_code,
            ) = records[at]
            add(
                head(
                    size,
                    MAGIC_V1 if tail[0] else MAGIC_V2,
                    crc,
                    queue_id,
                    flag,
                    offset,
                    position,
                    sys_flag,
                    born_ms,
                    born_host,
                    now_ms,
                    store_host,
                    reconsume,
                    0,
                    len(body),
                )
            )
            add(body)
            add(tail)
            units.append(pack_entry(position, size, tags_code if due_ms is None else due_ms))
            positions[at] = position
            offsets[at] = offset
            position += size
            offset += 1
        groups.append((queue.topic, queue_id, queue.next_offset, b"".join(units)))
    for queue, indexes in indexes_by_queue.items():
        queue.next_offset += len(indexes)
    return b"".join(chunks), positions, offsets, groups


class AnswerFormat:
    """Formats SEND_OK, or the status `code`, for stored sends. Built once from address, region and
    trace flag."""

    __slots__ = ("_code", "_end", "_ext", "_middle", "_plain", "_start", "host")

    def __init__(self, region: str, trace_on: bool, store_host: bytes, code: int = 0) -> None:
        fields = f'"MSG_REGION":{_quoted(region)},"TRACE_ON":"{"true" if trace_on else "false"}"'
        self._code = code
        self._ext = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        self.host = store_host.hex().upper()  # an offsetMsgId is this and 16 hex digits of offset
        self._start = f'{{"code":{code},"extFields":{{{fields},"msgId":"'
        self._middle = '},"flag":1,"language":"PYTHON","opaque":'
        self._end = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'
        start, middle, end = (
            text.encode().replace(b"%", b"%%") for text in (self._start, self._middle, self._end)
        )
        self._plain = (
            start + self.host.encode() + b'%016X","queueId":"%d","queueOffset":"%d",'
            b'"transactionId":"%b"' + middle + b"%d" + end
        )

    def plain(
        self, opaque: int, position: int, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        """Format `success` for a message by its position, as nearly all responses need it."""
        if not unique_key.isalnum():  # it may need JSON escapes
            ids = f"{self.host}{position:016X}"
            return self.success(opaque, ids, queue_id, queue_offset, unique_key)
        changing = (position, queue_id, queue_offset, unique_key.encode(), opaque)
        header = self._plain % changing
        size = len(header)
        return (_PREFIXES[size] if size < _SIZES else _PREFIX.pack(size + 4, size)) + header

    def success(
        self, opaque: int, message_ids: str, queue_id: int, queue_offset: int, unique_key: str
    ) -> bytes:
        """Format a complete response frame with a JSON header and no body."""
        if unique_key.isalnum():  # it needs no JSON escapes
            transaction = f',"transactionId":"{unique_key}"'
        else:
            transaction = f',"transactionId":{_quoted(unique_key)}' if unique_key else ""
        header = (
            f'{self._start}{message_ids}","queueId":"{queue_id}",'
            f'"queueOffset":"{queue_offset}"{transaction}{self._middle}{opaque}{self._end}'
        ).encode()
        size = len(header)
        return _PREFIX.pack(size + 4, size) + header

    def any(
        self,
        request: tuple[int, int],
        positions: Sequence[int],
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        recall_handle: str = "",
    ) -> bytes:
        """Format the response to a send or batch. `request` is opaque and header codec; `positions`
        are the physical offsets of its messages."""
        opaque, serialize_type = request
        ids = ",".join([f"{self.host}{position:016X}" for position in positions])
        if serialize_type == JSON and not recall_handle:
            return self.success(opaque, ids, queue_id, queue_offset, unique_key)
        return self.success_in(
            opaque, ids, queue_id, queue_offset, unique_key, serialize_type, recall_handle
        )

    def success_in(
        self,
        opaque: int,
        message_ids: str,
        queue_id: int,
        queue_offset: int,
        unique_key: str,
        serialize_type: int,
        recall_handle: str = "",
    ) -> bytes:
        """Format `success` in any header codec, with a timer message's recall handle if given."""
        ext = {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        if unique_key:
            ext["transactionId"] = unique_key
        if recall_handle:
            ext["recallHandle"] = recall_handle
        response = RemotingCommand(self._code, opaque, RESPONSE_FLAG, ext=ext | self._ext)
        return encode_command(response, serialize_type)


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
