"""Builds frames and batches from waiting sends.

`build_records` gives records their queue offset, physical offset and store timestamp. It also packs
the ConsumeQueue entries, so that no replica parses the frame when it applies it (tests compare them
with store.dispatch). `build_frame` adds a frame header, which classic mode does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raftmq.store.dispatch import QUEUE_ENTRY
from raftmq.store.frame import HEADER_SIZE_BYTES, EntryBatch, Frame, FrameKind, seal_frame

from ..messages.send_request import MAGIC_V1, MAGIC_V2, Record, SendQueue


def build_frame(
    records: Sequence[Record],
    payload_size: int,
    index: int,
    term: int,
    allocate: Callable[[int], int],
    now_ms: int,
    store_host: bytes,
    command: bytes = b"",
) -> tuple[Frame, list[int], list[int]]:
    """Build and seal the frame of `command` and `records`, of `payload_size` bytes in sum, with its
    ConsumeQueue entries. Returns also the physical and queue offsets of `build_records`."""
    frame_position = allocate(HEADER_SIZE_BYTES + payload_size)
    payload, positions, offsets, entries = build_records(
        records, frame_position + HEADER_SIZE_BYTES + len(command), now_ms, store_host
    )
    if command:
        payload = command + payload
    assert len(payload) == payload_size
    frame = seal_frame(
        index, term, frame_position, now_ms, FrameKind.MESSAGES, len(records), payload, len(command)
    )
    frame.entries = entries
    return frame, positions, offsets


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
) -> tuple[bytes, list[int], list[int], list[EntryBatch]]:
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
    groups: list[EntryBatch] = []
    pack_entry = QUEUE_ENTRY.pack
    indexes_by_queue = by_queue(records)
    for queue, indexes in indexes_by_queue.items():
        queue_id, offset = queue.queue_id, queue.next_offset
        due_ms = now_ms + queue.delay_ms if queue.delay_ms >= 0 else None
        entries: list[bytes] = []
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
            entries.append(pack_entry(position, size, tags_code if due_ms is None else due_ms))
            positions[at] = position
            offsets[at] = offset
            position += size
            offset += 1
        groups.append((queue.topic, queue_id, queue.next_offset, b"".join(entries)))
    for queue, indexes in indexes_by_queue.items():
        queue.next_offset += len(indexes)
    return b"".join(chunks), positions, offsets, groups
