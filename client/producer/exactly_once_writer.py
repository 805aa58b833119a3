"""The exactly-once writer, which stores each numbered request once (docs/exactly-once.md).

    async with ExactlyOnceWriter("etl", "Totals", "127.0.0.1:9876") as writer:
        queue = writer.queues[0]
        if writer.last(queue) < (7, 0):
            await writer.write(queue, 7, 0, [Message("Totals", b"...")])

It stores numbered batches in a topic's queues. For each queue the broker group keeps the number of
the writer's last request, (batch, sequence). A request up to that number is not stored again. A
restarted program can therefore repeat its last batch from the first request, if it makes the same
requests. `start` opens the writer; from then on every process that opened it before is rejected
(WriterFenced).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.headers import SendHeader

from ..errors import (
    BrokerRefused,
    ClientError,
    InvalidMessage,
    NoRoute,
    WriterFenced,
)
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from ..message import Message, MessageQueue
from ..retry import CONTROL
from .send_frame import outgoing_batch

TIMEOUT_MS = 3_000  # per attempt
PATIENCE_MS = 60_000  # for repetitions of a request, through a failover
OPENINGS_MAX = 10  # attempts to open a writer during concurrent openings


class WritePosition(NamedTuple):
    """The number of a request, its batch and its sequence in the batch from 0."""

    batch: int
    sequence: int


NOWHERE = WritePosition(-1, -1)  # before the first request


@dataclass(frozen=True, slots=True)
class Opening:
    """An open writer, for further processes that write to queues of their own: its epoch by broker
    group, and the last stored requests."""

    epochs: Mapping[str, int]
    last: Mapping[MessageQueue, WritePosition]


class ExactlyOnceWriter:
    """A writer, for a single event loop. After `start` it writes to `queues`. With `exactly_once`
    False, for brokers without writers (Apache's and classic brokers), a repeated request is stored
    again, and earlier requests are unknown."""

    def __init__(
        self,
        name: str,
        topic: str,
        namesrv: str | Sequence[str],
        *,
        exactly_once: bool = True,
        patience_ms: int = PATIENCE_MS,
        instance_config: InstanceConfig | None = None,
        opening: Opening | None = None,
    ) -> None:
        """A request is repeated for `patience_ms` before an error is raised. With `opening` the
        writer is already open, and `start` connects only."""
        self.name = name
        self.topic = topic
        self.queues: tuple[MessageQueue, ...] = ()
        self.exactly_once = exactly_once
        self._instance = ClientInstance(namesrv, instance_config)
        self._policy = replace(CONTROL, time_ms_max=patience_ms)
        self._is_open = opening is not None
        self._epochs = dict(opening.epochs if opening else {})  # by broker group where it is open
        self._last = dict(opening.last if opening else {})
        self._key_start = hashlib.blake2b(f"{topic}/{name}".encode(), digest_size=6).hexdigest()

    __aenter__, __aexit__ = entered, left

    async def start(self) -> None:
        """Connect, and open the writer in the broker groups of its queues. Raises ClientError."""
        await self._instance.start()
        try:
            async for attempt in self._policy.while_retriable():
                with attempt:
                    route = await self._instance.directory.refresh(self.topic)
            self.queues = route.write_queues(self.topic)
            if not self.queues:
                raise NoRoute(self.topic, "no queue of it may be written to")
            if not self._is_open:
                await self.open_at(self.queues)
        except BaseException:
            await self._instance.stop()
            raise

    async def open_at(self, queues: Sequence[MessageQueue]) -> None:
        """Open the writer also in the broker groups of these queues. Raises ClientError."""
        requested = {queue.broker_name for queue in queues} - self._epochs.keys()
        if self.exactly_once and requested:
            await self._open(sorted(requested))

    @property
    def opening(self) -> Opening:
        return Opening(dict(self._epochs), dict(self._last))

    async def delete(self) -> None:
        """Delete the writer and its watermarks in the broker groups where it was opened, because
        none of its requests will be repeated. Raises ClientError."""
        for broker in sorted(self._epochs):
            await self._reported(broker, "delete", 0)

    async def stop(self) -> None:
        """Close the connections; the writer stays."""
        await self._instance.stop()

    def last(self, queue: MessageQueue) -> WritePosition:
        """Return the number of a queue's last stored request."""
        return self._last.get(queue, NOWHERE)

    async def write(
        self, queue: MessageQueue, batch: int, sequence: int, messages: Sequence[Message]
    ) -> bool:
        """Store messages in a queue atomically; return False if they were stored before. Requests
        of a queue are sequential and numbered in order, from 0 in each batch, and a request with an
        unknown outcome must be repeated. Raises WriterFenced, InvalidMessage, ClientError; then
        call it again with the same arguments."""
        if any(message.topic != self.topic for message in messages):
            raise InvalidMessage(f"writer {self.name} writes to {self.topic} only")
        start = self.unique_key_start(queue, batch)
        keys = [
            message.unique_key or f"{start}{sequence & 0xFFFF:04X}{number:04X}"
            for number, message in enumerate(messages)
        ]
        item = outgoing_batch(messages, keys, int(time.time() * 1000))
        return await self.write_encoded(queue, WritePosition(batch, sequence), item.body)

    def unique_key_start(self, queue: MessageQueue, batch: int) -> str:
        """Return the first 24 of the 32 characters of a message's UNIQ_KEY. They are the same in
        every attempt, so a message stored twice would be detected."""
        return f"{self._key_start}{queue.queue_id & 0xFFFF:04X}{batch & 0xFFFFFFFF:08X}".upper()

    async def write_encoded(
        self, queue: MessageQueue, position: WritePosition, body: bytes
    ) -> bool:
        """Do as `write` for messages encoded as the body of a batch."""
        if position <= self.last(queue):
            return False
        header = SendHeader(
            self.name, self.topic, "", 0, queue.queue_id, 0, int(time.time() * 1000), 0,
            "WAIT\x01true\x02", batch=True, broker_name=queue.broker_name,
        )  # fmt: skip
        ext, code = header.to_ext(), RequestCode.SEND_BATCH_MESSAGE
        if self.exactly_once:
            code = RequestCode.SEND_WRITER_BATCH
            ext |= {
                "writer": self.name,
                "epoch": str(self._epochs[queue.broker_name]),
                "batch": str(position.batch),
                "sequence": str(position.sequence),
            }
        await self._ask(queue.broker_name, code, ext, body)
        self._last[queue] = position
        return True

    @property
    def epoch(self) -> int:
        """The highest epoch at which it was opened; 0 without exactly-once."""
        return max(self._epochs.values(), default=0)

    async def _open(self, brokers: Sequence[str]) -> None:
        """Open the writer in these groups, at an epoch that is new to all of them."""
        for attempt in range(OPENINGS_MAX):
            known = [
                writer["epoch"] for b in brokers for writer in await self._reported(b, "list", 0)
            ]
            epoch = max(known, default=0) + 1
            try:
                for broker in brokers:
                    (writer,) = await self._reported(broker, "open", epoch)
                    self._epochs[broker] = epoch
                    for number, (batch, sequence) in writer["watermarks"].items():
                        queue = MessageQueue(self.topic, broker, int(number))
                        self._last[queue] = WritePosition(int(batch), int(sequence))
            except BrokerRefused as error:
                if not error.remark.startswith("[STALE_EPOCH]") or attempt == OPENINGS_MAX - 1:
                    raise
                # opened by a different process, or by our own attempt with an unknown outcome
                continue
            return

    async def _reported(self, broker: str, op: str, epoch: int) -> list[dict[str, Any]]:
        """Return the data about this writer from a group's leader."""
        ext = {"op": op, "topic": self.topic, "writer": self.name, "epoch": str(epoch)}
        answer = await self._ask(broker, RequestCode.WRITERS, ext)
        writers: list[dict[str, Any]] = loads_object(answer.body)["writers"]
        return [writer for writer in writers if writer["writer"] == self.name]

    async def _ask(
        self, broker: str, code: RequestCode, ext: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        """Ask a group's leader until it answers success. Every request may be repeated: with
        writers it is stored once; otherwise repetition is accepted."""
        async for attempt in self._policy.while_retriable():
            with attempt:
                request = RemotingCommand.request(code, dict(ext), body)
                answer = await self._instance.ask_leader_once(broker, request, TIMEOUT_MS)
                if answer.code != ResponseCode.SUCCESS:
                    raise _refusal(answer, broker, self.name)
        return answer


def _refusal(answer: RemotingCommand, broker: str, name: str) -> ClientError:
    remark = answer.remark or ""
    if remark.startswith("[FENCED]"):
        return WriterFenced(name, broker, remark)
    refused = BrokerRefused(answer.code, remark, broker)
    refused.retriable = answer.code == ResponseCode.SYSTEM_BUSY or refused.outcome_unknown
    return refused
