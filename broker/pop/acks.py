"""Acks (200051, 200151) and invisible time changes (200053) of popped messages.

Each request is decided here and answered once it is committed. It waits for changes of its messages
in flight. A redelivered message cannot be acknowledged with its old handle; the response is 208
NO_MESSAGE. An acknowledgement repeated after a lost response gets the first response again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingError
from raftmq.remoting.fast_json import loads_request
from raftmq.remoting.pop_headers import (
    AckHeader,
    ChangeHeader,
    ChangeResponseHeader,
    Handle,
    batch_acks,
)

from ..context import Context
from ..errors import Refused, illegal, invalid
from ..tables.pops import Batch, BatchKey, QueueKey, Step
from .command_batch import StepLog
from .leader_state import LiveQueues
from .requests import INVISIBLE_MS_MAX, PopConnection
from .revive import Deadlines

Answer = Callable[[RemotingCommand], None]
GONE = "the message came again, or never was popped"


class Ack(NamedTuple):
    """The acknowledged messages; bit n is offset `start` + n. `until_ms`: handle's expiry."""

    queue_key: QueueKey
    key: BatchKey
    start: int
    bits: int
    until_ms: int


@dataclass
class Acks:
    """Handlers of acknowledgements and changes. `opened(topic, group)` reports that an orderly
    queue may be open. `refusal` encodes an error."""

    context: Context
    live: LiveQueues
    steps: StepLog
    deadlines: Deadlines
    opened: Callable[[str, str], None]
    refusal: Callable[[RemotingCommand, Exception], RemotingCommand]
    acked_count: int = 0  # messages

    def ack(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200051. Raises Refused, HeaderError."""
        self.context.roles.require_leading()
        header = AckHeader.parse(request.ext)
        handle = Handle.decode(header.handle)
        queue_key = self._queue_key(header.topic, header.consumer_group, header.queue_id)
        until_ms = handle.pop_ms + handle.invisible_ms
        one = Ack(queue_key, (handle.start, handle.pop_ms), header.offset, 1, until_ms)
        self._run(connection, request, partial(self._acknowledge, [one]))

    def batch_ack(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200151. Raises Refused, BodyError."""
        self.context.roles.require_leading()
        acks = [
            Ack(
                self._queue_key(one.topic, one.consumer_group, one.queue_id),
                (one.start, one.pop_ms),
                one.start,
                one.bits,
                one.pop_ms + one.invisible_ms,
            )
            for one in batch_acks(loads_request(request.body))
        ]
        if not any(one.bits for one in acks):
            raise Refused(ResponseCode.NO_MESSAGE, "nothing is acknowledged")
        self._run(connection, request, partial(self._acknowledge, acks))

    def change(self, connection: PopConnection, request: RemotingCommand) -> None:
        """200053. Raises Refused, HeaderError."""
        self.context.roles.require_leading()
        header = ChangeHeader.parse(request.ext)
        if not 0 <= header.invisible_ms <= INVISIBLE_MS_MAX:
            raise invalid(f"invisibleTime is from 0 to {INVISIBLE_MS_MAX} ms")
        handle = Handle.decode(header.handle)
        queue_key = self._queue_key(header.topic, header.consumer_group, header.queue_id)
        self._run(connection, request, partial(self._change, queue_key, handle, header))

    def _queue_key(self, topic: str, group: str, queue_id: int) -> QueueKey:
        topic_config = self.context.state.topics.existing(topic)
        if not 0 <= queue_id < topic_config.queue_count:
            reason = f"queueId[{queue_id}] is illegal, topic:[{topic}]"
            raise illegal(f"{reason} topicConfig.readQueueNums:[{topic_config.read_queue_count}]")
        return topic, group, queue_id

    def _run(
        self,
        connection: PopConnection,
        request: RemotingCommand,
        act: Callable[[RemotingCommand, Answer], None],
    ) -> None:
        """Act now, or once conflicting changes ended. Responds to errors as well."""

        def answer(response: RemotingCommand) -> None:
            connection.write_many([encode_command(response)])

        def run() -> None:
            try:
                self.context.roles.require_leading()
                act(request, answer)
            except _Later as later:
                try:
                    self.live.wait(later.queue_key, run)
                except Refused as refused:
                    answer(self.refusal(request, refused))
            except (Refused, HeaderError) as error:
                if error.code == ResponseCode.NO_MESSAGE:
                    self._prove(request, error, answer)
                else:
                    answer(self.refusal(request, error))

        run()

    def _prove(self, request: RemotingCommand, error: RemotingError, answer: Answer) -> None:
        """Return NO_MESSAGE after a read barrier: a deposed leader's table misses recent pops."""

        def proven(unproven: Exception | None) -> None:
            answer(self.refusal(request, unproven or error))

        self.context.log.barrier_then(proven)

    def _acknowledge(self, acks: Sequence[Ack], request: RemotingCommand, answer: Answer) -> None:
        acked: list[tuple[QueueKey, BatchKey, int]] = []
        orderly: list[tuple[QueueKey, BatchKey]] = []
        steps: list[Step] = []
        gone = False
        for one in acks:
            batch = self.context.state.pops.batch(one.queue_key, one.key)
            mask = 0 if batch is None else batch.mask_of(one.start, one.bits)
            if mask and self.live.is_busy(one.queue_key, one.key, mask):
                raise _Later(one.queue_key)
        for one in acks:
            batch = self.context.state.pops.batch(one.queue_key, one.key)
            mask = 0 if batch is None else batch.mask_of(one.start, one.bits) & batch.pending
            gone = gone or not self._all_known(one, mask)
            # also in an earlier item of this request
            mask &= ~self.live.busy_of(one.queue_key, one.key)
            if batch is None or not mask:
                continue
            steps.append(("done", *one.queue_key, *one.key, mask))
            if batch.order:
                steps.append(self._offset_behind(one.queue_key, one.key, batch, mask))
                orderly.append((one.queue_key, one.key))
            acked.append((one.queue_key, one.key, mask))
            self.live.start(one.queue_key, one.key, mask)
        code = ResponseCode.NO_MESSAGE if gone else ResponseCode.SUCCESS
        remark = GONE if gone else None
        response = RemotingCommand.response_to(request, code, remark)
        if not steps:
            if gone:
                raise Refused(code, GONE)
            answer(response)
            return
        leadership = self.live.leadership

        def done(error: Exception | None) -> None:
            for queue_key, key, mask in acked:
                self.live.finish(queue_key, key, mask, leadership)
            if error is None:
                self.acked_count += sum(mask.bit_count() for _, _, mask in acked)
            answer(response if error is None else self.refusal(request, error))
            for queue_key, key in orderly:
                self.deadlines.add(queue_key, key)  # its last message may be visible sooner
                self.opened(queue_key[0], queue_key[1])

        try:
            self.steps.add(steps, done)
        except Refused:
            for queue_key, key, mask in acked:
                self.live.finish(queue_key, key, mask, leadership)
            raise

    def _all_known(self, one: Ack, pending: int) -> bool:
        """Return True if each message is in flight or acknowledged under this handle."""
        if pending.bit_count() == one.bits.bit_count():
            return True
        queue = self.context.state.pops.get(one.queue_key)
        if queue is None or one.until_ms <= queue.unknown_ms:
            return False
        _, void = queue.void.get(one.key, (0, ()))
        if any(offset >= one.start and one.bits >> (offset - one.start) & 1 for offset in void):
            return False
        last = one.start + one.bits.bit_length() - 1
        return last < queue.popped_to and one.key[1] <= queue.popped_ms

    def _offset_behind(self, queue_key: QueueKey, key: BatchKey, batch: Batch, mask: int) -> Step:
        """Return the step that moves the group's offset of an orderly queue to the first
        unacknowledged message."""
        queue = self.context.state.pops.get(queue_key)
        assert queue is not None
        ended = mask | self.live.busy_of(queue_key, key)
        rest = batch._replace(pending=batch.pending & ~ended).pending_offsets
        topic, group, queue_id = queue_key
        mark = self.context.state.offsets.reset_of(topic, group, queue_id)
        return ("offset", topic, group, queue_id, min(rest, default=queue.next), mark)

    def _change(
        self,
        queue_key: QueueKey,
        handle: Handle,
        header: ChangeHeader,
        request: RemotingCommand,
        answer: Answer,
    ) -> None:
        key = (handle.start, handle.pop_ms)
        batch = self.context.state.pops.batch(queue_key, key)
        mask = 0 if batch is None else batch.mask_of(header.offset, 1)
        if mask and self.live.is_busy(queue_key, key, mask):
            raise _Later(queue_key)
        if batch is None or not batch.pending & mask:
            raise Refused(ResponseCode.NO_MESSAGE, "the message was acknowledged, or came again")
        now_ms, leadership = self.context.wall_ms(), self.live.leadership
        step: Step
        if batch.order:
            visible_ms = now_ms + header.invisible_ms
            step = ("hide", *queue_key, *key, header.offset, visible_ms)
            response_header = ChangeResponseHeader(handle.pop_ms, visible_ms - handle.pop_ms, 999)
            new_key = key
        else:
            new_key = (header.offset, max(now_ms, handle.pop_ms + 1))
            visible_ms = new_key[1] + header.invisible_ms
            step = ("change", *queue_key, *key, header.offset, new_key[1], visible_ms)
            response_header = ChangeResponseHeader(
                new_key[1], header.invisible_ms, handle.revive_queue
            )

        def done(error: Exception | None) -> None:
            self.live.finish(queue_key, key, mask, leadership)
            self.deadlines.add(queue_key, new_key)
            if error is not None:
                answer(self.refusal(request, error))
                return
            answer(RemotingCommand.response_to(request, ext=response_header.to_ext()))

        self.steps.add([step], done)
        self.live.start(queue_key, key, mask)


class _Later(Exception):
    """A change of this queue in flight must end first."""

    def __init__(self, queue_key: QueueKey) -> None:
        self.queue_key = queue_key
