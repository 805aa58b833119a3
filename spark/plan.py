"""A batch's plan, which assigns staged rows to requests identically in every attempt.

Rows are numbered through the files in order. A row with a sharding key goes to the queue of
RocketMQ's SelectMessageQueueByHash; the rest go in runs, queue after queue. A queue's rows are
split into requests by number and size. So the plan determines all requests. Pure.

    {"version":1,"topic":t,"writer":w,"batch":b,"queues":[[broker,id],…],"files":[name,…],
     "rows":n,"requestMessages":n,"requestBytes":n,"query":q}

`query` is the id of a stream's query, from its checkpoint; version 1 had none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from raftmq.client.message import MessageQueue
from raftmq.client.producer.exactly_once_writer import WritePosition

from .errors import FormatError

VERSION = 2
REQUEST_MESSAGES = 1_000  # per request; the limit is 65,536
REQUEST_BYTES = 256 << 10
REQUESTS_BYTES = 64 << 20  # of all incomplete requests
# Staged rows. `properties` are in wire format, without UNIQ_KEY; `hash` is of the sharding key, or
# the chosen queue's number, or null.
STAGED = pa.schema(
    [("body", pa.binary()), ("properties", pa.binary()), ("flag", pa.int32()), ("hash", pa.int32())]
)
_ITEM = struct.Struct(">iiiii")
_INT16 = struct.Struct(">h")
KEY_BYTES = len(b"UNIQ_KEY\x01") + 32 + 1


class PlanError(FormatError, ValueError):
    """A plan cannot be read, or belongs to a different sink."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a batch."""

    topic: str
    writer: str
    batch: int
    queues: tuple[tuple[str, int], ...]
    files: tuple[str, ...]
    rows: int
    request_messages: int
    request_bytes: int
    query: str = ""

    def to_json(self) -> bytes:
        return orjson.dumps({"version": VERSION, **asdict(self)})

    @property
    def message_queues(self) -> list[MessageQueue]:
        return [MessageQueue(self.topic, broker, number) for broker, number in self.queues]


def new_plan(
    topic: str,
    writer: str,
    batch: int,
    queues: list[MessageQueue],
    files: list[str],
    rows: int,
    query: str,
) -> Plan:
    request_bytes = max(1, min(REQUEST_BYTES, REQUESTS_BYTES // len(queues)))
    queue_keys = tuple((queue.broker_name, queue.queue_id) for queue in queues)
    limits = REQUEST_MESSAGES, request_bytes
    return Plan(topic, writer, batch, queue_keys, tuple(files), rows, *limits, query)


def plan_of(data: bytes, topic: str, writer: str, query: str) -> Plan:
    """Read a plan. `query` is "" if unknown. Raises PlanError for a plan of a different sink."""
    try:
        value: dict[str, Any] = orjson.loads(data)
        if value.pop("version") > VERSION:
            raise PlanError("a later version wrote this plan: finish the batch with that one")
        queues = tuple((str(broker), int(number)) for broker, number in value.pop("queues"))
        plan = Plan(**value | {"queues": queues, "files": tuple(value["files"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, PlanError) else PlanError(f"no plan: {error}") from error
    if (plan.topic, plan.writer) != (topic, writer):
        raise PlanError(
            f"this location holds a batch of writer {plan.writer} for topic {plan.topic}, and not "
            f"of {writer} for {topic}: one sink, one location"
        )
    if query and plan.query and plan.query != query:
        raise PlanError(
            f"this location holds a batch of another query, {plan.query}, or of one whose "
            "checkpoint is gone: one sink, one location (option stagingLocation)"
        )
    return plan


@dataclass(slots=True)
class _Filling:
    """A queue's incomplete request."""

    queue: MessageQueue
    position: WritePosition
    parts: list[bytes]
    count: int = 0
    size_bytes: int = 0


Request = tuple[MessageQueue, WritePosition, bytes]


class Requests:
    """Makes the requests of a plan from its rows, in order."""

    def __init__(
        self,
        plan: Plan,
        key_start: Callable[[MessageQueue, int], str],
        only: Collection[int] | None = None,
    ) -> None:
        """`key_start(queue, batch)` returns the prefix of the UNIQ_KEYs of a queue's messages.
        `only` are the indexes of the queues whose requests are made."""
        self._plan = plan
        self._only = range(len(plan.queues)) if only is None else only
        self._fillings = [
            _Filling(q, WritePosition(plan.batch, 0), []) for q in plan.message_queues
        ]
        self._keys = [key_start(q, plan.batch).encode() for q in plan.message_queues]
        self._row = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[Request]:
        """Take the next rows; yield the full requests."""
        bodies = rows.column("body").to_pylist()
        properties = _values(rows.column("properties"), b"")
        flags = _values(rows.column("flag"), 0)
        for start, end, at in self._runs(rows.column("hash"), len(rows)):
            if at not in self._only:
                continue
            yield from self._fill(
                at, zip(bodies[start:end], properties[start:end], flags[start:end], strict=True)
            )
        self._row += len(rows)

    def rest(self) -> Iterator[Request]:
        """Yield the incomplete requests after the last rows."""
        for filling in self._fillings:
            if filling.count:
                yield self._taken(filling)

    def _runs(self, hashes: pa.Array, count: int) -> list[tuple[int, int, int]]:
        """Return the runs of rows of the same queue, as (first row, row behind, queue)."""
        if not count:
            return []
        queues, run = len(self._fillings), self._plan.request_messages
        chosen = (np.arange(self._row, self._row + count) // run) % queues
        if hashes.null_count < count:
            given = hashes.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            # As in Java, the remainder has the dividend's sign, and then its absolute value counts.
            chosen = np.where(hashes.is_valid().to_numpy(zero_copy_only=False),
                              np.abs(given) % queues, chosen)  # fmt: skip
        cuts = np.flatnonzero(np.diff(chosen)) + 1
        starts = [0, *cuts.tolist()]
        return [
            (start, end, int(chosen[start]))
            for start, end in zip(starts, [*starts[1:], count], strict=True)
        ]

    def _fill(self, at: int, messages: Iterable[tuple[bytes, bytes, int]]) -> Iterator[Request]:
        filling, plan = self._fillings[at], self._plan
        for body, properties, flag in messages:
            size = _ITEM.size + len(body) + _INT16.size + KEY_BYTES + len(properties)
            if filling.count and (
                filling.count >= plan.request_messages
                or filling.size_bytes + size > plan.request_bytes
            ):
                yield self._taken(filling)
            sequence, count = filling.position.sequence & 0xFFFF, filling.count
            filling.parts += (
                _ITEM.pack(size, 0, 0, flag, len(body)),
                body,
                _INT16.pack(KEY_BYTES + len(properties)),
                b"UNIQ_KEY\x01%b%04X%04X\x02" % (self._keys[at], sequence, count),
                properties,
            )
            filling.count += 1
            filling.size_bytes += size

    def _taken(self, filling: _Filling) -> Request:
        request = filling.queue, filling.position, b"".join(filling.parts)
        filling.position = WritePosition(filling.position.batch, filling.position.sequence + 1)
        filling.parts, filling.count, filling.size_bytes = [], 0, 0
        return request


def _values(column: pa.Array, default: Any) -> list[Any]:
    """Return the column's values, with `default` for null."""
    if column.null_count == len(column):
        return [default] * len(column)
    values: list[Any] = column.fill_null(default).to_pylist()
    return values
