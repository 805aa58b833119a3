"""Exactly-once writers on the leader (broker/tables/writers.py has the table).

A writer has at most one request per queue in flight. So its requests keep their order, and none is
stored after a rejected one. While a writer is opened or deleted it has no request in flight, so the
watermarks that the open returns are final.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.fields import parse_integer

from ..errors import Refused, busy, invalid
from ..tables.writers import NAME_LENGTH_MAX, NUMBER_MAX, Watermark, WriterKey, WriterTable, wrote

FENCED, UNKNOWN_WRITER, OUT_OF_SEQUENCE = "FENCED", "UNKNOWN_WRITER", "OUT_OF_SEQUENCE"


class Written(NamedTuple):
    """A writer's request in flight."""

    writer: WriterKey
    queue_id: int
    mark: Watermark

    @property
    def command(self) -> bytes:
        """The command that shares a frame with the request's messages."""
        return wrote(self.writer, self.queue_id, self.mark)


class WriterRequests:
    """Requests of writers in flight, and writers being opened or deleted."""

    def __init__(self, table: WriterTable) -> None:
        self._table = table
        self._in_flight: set[tuple[WriterKey, int]] = set()
        self._changing: set[WriterKey] = set()
        self.repeat_count = 0  # requests that were already stored

    def check(self, ext: Mapping[str, str], topic: str, queue_id: int) -> Written | None:
        """Return the request; None if it is stored. Raises Refused, KeyError, HeaderError."""
        if queue_id < 0:
            raise invalid("a writer's request names its queue")
        key = topic, ext["writer"]
        epoch, *numbers = (_number(ext, name) for name in ("epoch", "batch", "sequence"))
        mark = Watermark(*numbers)
        writer = self._table.writers.get(key)
        if writer is None or epoch > writer.epoch:
            raise _refused(UNKNOWN_WRITER, f"writer {key[1]} of {topic} is not open at {epoch}")
        if epoch < writer.epoch:
            raise _refused(FENCED, f"writer {key[1]} was opened again: {epoch} < {writer.epoch}")
        last = writer.watermarks.get(queue_id)
        if last is not None and mark <= last:
            self.repeat_count += 1
            return None
        if key in self._changing or (key, queue_id) in self._in_flight:
            raise busy(f"a request of writer {key[1]} is in flight; try again", retriable=True)
        continues = last is not None and mark == (last.batch, last.sequence + 1)
        if mark.sequence and not continues:
            have = "nothing" if last is None else f"{last.batch}/{last.sequence}"
            reason = f"queue {queue_id} has {have} of writer {key[1]}, not what is before"
            raise _refused(OUT_OF_SEQUENCE, f"{reason} {mark.batch}/{mark.sequence}")
        return Written(key, queue_id, mark)

    def start(self, written: Written) -> None:
        self._in_flight.add((written.writer, written.queue_id))

    def finish(self, written: Written) -> None:
        """Record that a request was stored or rejected."""
        self._in_flight.discard((written.writer, written.queue_id))

    def start_change(self, key: WriterKey) -> None:
        """Block the writer's requests until `finish_change`. Raises Refused while a request or
        change of the writer is in flight."""
        if key in self._changing or any(writer == key for writer, _ in self._in_flight):
            raise busy(f"a request of writer {key[1]} is in flight; try again", retriable=True)
        self._changing.add(key)

    def finish_change(self, key: WriterKey) -> None:
        self._changing.discard(key)


def checked_name(name: str) -> str:
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise invalid(f"a writer's name has 1 to {NAME_LENGTH_MAX} printable characters")
    return name


def checked_epoch(ext: Mapping[str, str]) -> int:
    return _number(ext, "epoch")


def _number(ext: Mapping[str, str], name: str) -> int:
    value = parse_integer(ext[name], name)
    if not 0 <= value <= NUMBER_MAX:
        raise invalid(f"{name} is from 0 to {NUMBER_MAX}")
    return value


def _refused(tag: str, reason: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"{reason}; nothing was stored", tag=tag)
