"""Moves of waiting timer messages and dead letters from a draining group to another group.

The leader moves *windows*, ranges of a queue, one at a time (broker.tables.broker_group):

1. The command `move` opens a window. Its timer messages wait no longer in this group's wheel.
2. The leader sends the window's messages to the other group's leader (TAKE_MESSAGES). It is an
   exactly-once writer there (broker.tables.writers) whose batch is the window's number, so the
   watermark shares a frame with the messages.
3. The command `moved` closes the window.

A new leader continues with the open window. It opens the writer again, which fences its
predecessor and returns the watermark. So a window is stored once, and closed only once it is
stored. After a cancellation, or if another target is chosen, an open window without a watermark
returns: its timer messages are stored in this group again, in the frame that closes it. While the
other group does not answer, only the window's messages wait for it.

Messages of delay levels first become timer messages (broker.delayed.delay_levels). Messages keep
their ids, properties, due times and born times. A topic that the other group does not have is
created there; ordered topics and deleted topics get no write permission.

A recall is passed to every group that got timer messages, and is rejected while its message is in
an open window.

TAKE_MESSAGES (30011, ours) has the ext fields `writer`, `epoch`, `batch` and `sequence`=0. Its body
is a line of JSON, {"topics":[bean,…]} with the messages' topics as in Apache's TopicConfig, then
the records as stored, of the timer topic or of dead letters. SUCCESS means that they are committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from raftmq.dledger.raft.errors import RaftError
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import BodyError, RemotingError
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.names import DLQ_PREFIX
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.remoting.topic_attributes import is_ordered_topic
from raftmq.store.dispatch import QUEUE_ENTRY, TIMER_TOPIC, timer_code
from raftmq.store.errors import StoreDamaged, StoreError
from raftmq.store.properties import decode_properties
from raftmq.store.record import (
    MessageRecord,
    RecordError,
    decode_record,
    encode_record,
    walk_records,
)

from ..cluster.other_groups import OtherGroups
from ..component import RoleChange, Service
from ..context import Context
from ..errors import OutcomeUnknown, Refused, StateError, busy, forbidden, invalid
from ..messages.half_message import REAL_TOPIC
from ..messages.send_request import Outgoing, as_stored
from ..messages.timer_message import Key, key_of, rolled
from ..scheduler import IDLE_MS, Chore
from ..send.callbacks import Completion, is_unknown
from ..send.service import SendPath
from ..tables.broker_group import Window, move, moved
from ..tables.state import commit_offsets, put_topic, several
from ..tables.topics import PERM_WRITE, TopicConfig, topic_from_json
from .timers import BYTES_MAX, COUNT_MAX, TimerService

CHECK_MS = 100
RETRY_MS = 1_000  # after an error
POLL_MS = 500  # without anything to move
PER_SECOND_MAX = 2_000  # messages
LINE_BYTES_MAX = 256 * 1024  # of the topics of a window
MOVED_GROUP = "CID_RMQ_SYS_MOVED"  # its offsets in dead letter topics are those of the move
log = logging.getLogger("raftmq.broker.cluster")


class Target(NamedTuple):
    """The other group's leader, and the epoch of the writer that is open there."""

    name: str
    address: str
    epoch: int


class Moves:
    """Moves windows while this replica leads, and takes those of other groups."""

    def __init__(
        self, context: Context, sends: SendPath, timers: TimerService, others: OtherGroups
    ) -> None:
        self._context = context
        self._state = context.state
        self._sends = sends
        self._timers = timers
        self._others = others
        self._task: asyncio.Task[None] | None = None
        self._target: Target | None = None
        self._returning = 0  # number of a window that may be stored here again
        self._pause_until_ms = 0
        self.problem = ""  # the last error, or ""

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.TAKE_MESSAGES): self.take},
            chores=[Chore("moves", CHECK_MS, self._start, self._rest_ms)],
            role_changed=self._role_changed,
            stop=self._stop,
        )

    def _role_changed(self, change: RoleChange) -> None:
        if not change.goes_on:
            if self._task is not None:
                self._task.cancel()
            self._task = self._target = None
            self._returning = self._pause_until_ms = 0
            self.problem = ""

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _rest_ms(self) -> float:
        moving = self._state.group.moving
        has_work = self._context.roles.leading and (moving.to or moving.windows)
        return max(0, self._pause_until_ms - self._context.clock_ms()) if has_work else IDLE_MS

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Move until there is nothing to move, or an error."""
        try:
            while self._context.roles.leading and await self._step():
                self.problem = ""
            self._pause_until_ms = self._context.clock_ms() + POLL_MS
        except (RemotingError, RaftError, StoreError, RecordError, OSError) as error:
            self._failed(str(error))
        except Exception as error:  # log and tables are intact
            self._context.contained.failed("moves", error)
            self._failed(repr(error))

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("not_moved: %s", problem)
        self.problem = problem
        self._target = None
        self._pause_until_ms = self._context.clock_ms() + RETRY_MS

    async def _step(self) -> bool:
        """Open a window, or close the open window. Return False if there is nothing to do now."""
        windows = self._state.group.moving.windows
        if windows and not self._timers.is_read:
            return False
        if windows:
            return windows[0].number != self._returning and await self._finish(windows[0])
        return await self._open()

    # ---- windows ------------------------------------------------------------------------------

    async def _open(self) -> bool:
        moving = self._state.group.moving
        if not moving.to:
            return False
        opened = self._timers.open_window(moving.to) if moving.timers else None
        if opened is not None:
            await opened.stored()
            return True
        window = self._dead_letters(moving.to) if moving.dead_letters else None
        if window is not None:
            await self._context.log.propose(move(window))
        return window is not None

    def _dead_letters(self, to: str) -> Window | None:
        """Return the next window of dead letters."""
        for topic in self._state.topics.entries:
            if not topic.startswith(DLQ_PREFIX):
                continue
            for queue_id in range(self._state.topics.entries[topic].queue_count):
                queue = self._context.store.queues.queue(topic, queue_id)
                if queue is None:
                    continue
                start = end = max(queue.min_offset, self.moved_before(topic, queue_id))
                size = 0
                for _, record_size, _ in QUEUE_ENTRY.iter_unpack(queue.entries(start, COUNT_MAX)):
                    if end > start and size + record_size > BYTES_MAX:
                        break
                    end, size = end + 1, size + record_size
                if end > start:
                    return Window(0, to, topic, queue_id, start, end)
        return None

    @property
    def open_count(self) -> int:
        """The number of timer messages in open windows, or slightly more."""
        windows = self._state.group.moving.windows
        return sum(one.end - one.start for one in windows if one.topic == TIMER_TOPIC)

    def moved_before(self, topic: str, queue_id: int) -> int:
        """Return the offset before which a queue's dead letters are moved."""
        return self._state.offsets.get(topic, MOVED_GROUP, queue_id) or 0

    def messages(self, window: Window) -> list[MessageRecord]:
        """Return the messages of a window. Raises Refused, StoreError, OSError, RecordError."""
        if window.topic == TIMER_TOPIC:
            return [record for _, record in self._timers.window_messages(window)]
        queue = self._context.store.queues.queue(window.topic, window.queue_id)
        records: list[MessageRecord] = []
        if queue is None:
            return records
        start = max(window.start, queue.min_offset)
        entries = queue.entries(start, max(0, window.end - start))
        for at, _, _ in QUEUE_ENTRY.iter_unpack(entries):
            data = self._context.store.reads.message_at(at)
            if data is None:
                raise StoreDamaged(at, f"not a message of {window.topic}")
            records.append(decode_record(data, check_body=False))
        return records

    async def _finish(self, window: Window) -> bool:
        """Move a window, or return it, and close it."""
        group = self._state.group
        records = self.messages(window)
        if not records:  # recalled, or expired
            return await self._close(window, 0)
        is_current = group.draining_ms > 0 and group.moving.to == window.to
        if window.to in group.removed_groups.values():
            return await self._return(window, records)
        if not group.value:
            raise busy("the broker group has no id yet", retriable=True)
        writer = f"broker group {group.value.hex()}"
        target = self._target
        if target is None or target.name != window.to or not is_current:
            self._target = target = None
            await self._context.log.barrier()
            address = (await self._others.leaders() or {}).get(window.to)
            if address is None:
                raise busy(f"no name server lists a leader of {window.to}", retriable=True)
            epoch, number = await self._others.open_writer(address, TIMER_TOPIC, writer)
            if number >= window.number:
                return await self._close(window, len(records))
            if not is_current:
                return await self._return(window, records)
            self._target = target = Target(window.to, address, epoch)
        ext = {"writer": writer, "epoch": str(target.epoch), "batch": str(window.number)}
        body = _line(self._topics_of(records)) + b"".join(map(encode_record, records))
        await self._others.take(target.address, ext | {"sequence": "0"}, body)
        await self._close(window, len(records))
        await asyncio.sleep(len(records) / PER_SECOND_MAX)
        return True

    async def _close(self, window: Window, count: int) -> bool:
        commands = [moved(window.number, count)]
        if window.topic != TIMER_TOPIC:
            commit = window.topic, MOVED_GROUP, window.queue_id, window.end
            commands.append(commit_offsets([commit]))
        await self._context.log.propose(several(commands))
        return True

    async def _return(self, window: Window, records: Sequence[MessageRecord]) -> bool:
        """Store a window's timer messages here again, and close it. Dead letters are still here."""
        command = moved(window.number, 0)
        if window.topic != TIMER_TOPIC:
            await self._context.log.propose(command)
            return True
        ended = Completion()
        self._sends.store([rolled(as_stored(record)) for record in records], command, ended)
        self._sends.wake()
        self._returning = window.number
        try:
            await ended.stored()
        except RemotingError as error:
            if not is_unknown(error):
                self._returning = 0
            raise
        log.info("window_returned messages=%d to=%s", len(records), window.to)
        return True

    def _topics_of(self, records: Sequence[MessageRecord]) -> list[dict[str, Any]]:
        topics = map(self._state.topics.get, dict.fromkeys(map(_topic_of, records)))
        return [topic.to_json() for topic in topics if topic is not None]

    # ---- recalls ------------------------------------------------------------------------------

    def check_recall(self, slot_ms: int, key: Key) -> None:
        """Raise Refused if the message is in an open window, or may be in a window that is being
        opened. Raises StoreError, OSError, RecordError."""
        if self._timers.is_opening:
            raise busy("timer messages are being moved", retriable=True)
        for window in self._state.group.moving.windows:
            if window.topic == TIMER_TOPIC:
                for slot, record in self._timers.window_messages(window):
                    if slot == slot_ms and key_of(as_stored(record)) == key:
                        raise busy(f"the message is being moved to {window.to}", retriable=True)

    async def recall(self, handle: RecallHandle, group: str) -> None:
        """Recall a message in the groups that got timer messages. Raises Refused,
        OutcomeUnknown."""
        targets = self._state.group.moving.targets
        if not targets:
            return
        leaders = await self._others.leaders() or {}
        for name in targets:
            if name not in leaders:
                raise busy(f"no name server lists a leader of {name}", retriable=True)
            try:
                await self._others.recall(leaders[name], handle._replace(broker_name=name), group)
            except RemotingError as error:
                if error.outcome_unknown:
                    raise OutcomeUnknown(f"{name}: {error}") from error
                raise Refused(error.code, f"{name}: {error}") from error

    # ---- the other group ----------------------------------------------------------------------

    async def take(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Serve TAKE_MESSAGES (30011). Raises Refused, OutcomeUnknown, RaftError, BodyError,
        HeaderError, KeyError."""
        self._context.roles.require_leading()
        topics, messages = _parsed(request.body)
        if self._context.config.is_classic or self._state.group.draining_ms:
            raise forbidden("the broker group is classic, or is draining itself")
        timing = self._timers.timing
        if timing.waiting() + len(messages) > timing.count_max:
            raise busy("too many timer messages wait already (timerMessagesMax)", retriable=True)
        await self._create(topics)
        written = self._sends.writers.check(request.ext or {}, TIMER_TOPIC, 0)
        if written is not None:
            ended = Completion()
            self._sends.store(messages, written.command, ended, written=written)
            self._sends.wake()
            await ended.stored()
        return RemotingCommand.response_to(request)

    async def _create(self, topics: Sequence[TopicConfig]) -> None:
        """Create the missing topics; ordered topics and deleted topics get no write permission."""
        for topic in topics:
            if topic.name in self._state.topics.entries:
                continue
            if not self._state.has_room_for_topics(1, self._context.config.topics_max):
                raise busy("there is no room for another topic (topicsMax)")
            is_ordered = is_ordered_topic(topic.order, topic.message_type)
            if is_ordered or topic.name in self._state.topics.deleted:
                topic = replace(topic, perm=topic.perm & ~PERM_WRITE)
            await self._context.log.propose(put_topic(topic, if_absent=True))


def _line(topics: Sequence[dict[str, Any]]) -> bytes:
    return orjson.dumps({"topics": topics}) + b"\n"


def _parsed(body: bytes) -> tuple[list[TopicConfig], list[Outgoing]]:
    """Return the topics and messages of TAKE_MESSAGES. Raises BodyError, Refused."""
    line, _, data = body.partition(b"\n")
    if len(line) > LINE_BYTES_MAX:
        raise BodyError(f"more than {LINE_BYTES_MAX} bytes of topics")
    try:
        topics = [topic_from_json(bean) for bean in loads_object(line)["topics"]]
    except (KeyError, TypeError, AttributeError, StateError) as error:
        raise BodyError(f"no topics of moved messages: {error!r}") from error
    messages: list[Outgoing] = []
    walk = walk_records(data)
    for at, _ in walk:
        message = as_stored(decode_record(data, at, check_body=False))
        if message.topic == TIMER_TOPIC:
            properties = decode_properties(message.properties)
            if not timer_code(properties) or not properties.get(REAL_TOPIC):
                raise invalid("a timer message without time or topic")
        elif not message.topic.startswith(DLQ_PREFIX):
            raise invalid(f"messages of {message.topic} are not moved")
        messages.append(replace(message, force=True))
        if len(messages) > COUNT_MAX:
            raise BodyError(f"more than {COUNT_MAX} messages")
    if walk.end != len(data):
        raise BodyError(f"a damaged record: {walk.detail}")
    if not messages:
        raise BodyError("no moved messages")
    return topics, messages


def _topic_of(record: MessageRecord) -> str:
    """Return the topic in which consumers read a message."""
    if record.topic != TIMER_TOPIC:
        return record.topic
    return decode_properties(record.properties).get(REAL_TOPIC, "")
