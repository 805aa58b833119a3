"""The send path, from requests through frames to responses.

An accepted send becomes records (broker/messages/send_request.py) in the waiting list. The Raft
member calls `next_frame` when it may propose. All waiting sends, up to `frameSizeMax`, become a
single frame, Raft entry and group commit. Applying the frame sends the responses, with a single
write per connection.

Responses (docs/errors.md):
- SEND_OK once the frame is committed;
- 14 [NOT_LEADER] if the send is not stored, because it was never proposed or its frame was
  truncated;
- 14 [DISK_FULL] without disk space, also for waiting sends;
- 1 [OUTCOME_UNKNOWN] if the outcome is not known within `Durations.outcome`;
- 2 [BUSY] if `waitingBytesMax` of sends wait or are in flight, or the send has waited for
  `waitTimeMillsInSendQueue`.

Queue offsets come from an append table that is valid for one leadership. A ready leader has applied
its whole log, so the ConsumeQueues give the first offsets. There is no task, future or lock per
message.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import MsgspecError

from raftmq.remoting.codec import RawFrame
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import JSON
from raftmq.remoting.errors import HeaderError
from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.fields import parse_integer
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC
from raftmq.store.frame import Frame
from raftmq.store.properties import UNIQ_KEY, decode_properties

from ..component import Service
from ..config import BrokerConfig
from ..durations import DURATIONS
from ..error_isolation import Contained
from ..errors import OutcomeUnknown, Refused, busy, forbidden, illegal, not_leader, rejected
from ..messages.half_message import HALF_TOPIC
from ..messages.send_request import (
    Outgoing,
    Record,
    SendQueue,
    SendRules,
    SendTopic,
    Special,
    check_topic,
    check_types,
    parse_batch,
    parse_single,
    parse_special,
    properties_of,
    record_of,
)
from ..scheduler import IDLE_MS, Chore
from ..tables.groups import SubscriptionGroup
from ..tables.idempotent_sends import Key, Once, command_size, once_key
from ..tables.state import BrokerState, several
from ..tables.topics import PERM_WRITE, RETRY_PREFIX, TopicConfig, topic_name_problem
from .auto_create_topic import WAITING_OVERHEAD_BYTES, Creations
from .callbacks import Done
from .exactly_once import WriterRequests, Written
from .fast_path import PLAIN_START, decode_plain, plain_record
from .frame_builder import build_frame, build_records
from .idempotency import Repeats, sent_once
from .queue import (
    OWN,
    AttendedTime,
    Backlog,
    Batch,
    Connection,
    Group,
    HeldSend,
    HeldSends,
    Pending,
    Sender,
    Stored,
    split_unwaiting,
)
from .responses import Answers, Writes
from .retry_policy import group_of, retry_or_dead_letter
from .topic_redirect import Redirects, entry_code, internal_topics, redirect

log = logging.getLogger("raftmq.broker.send")

COMMAND_OVERHEAD_BYTES = 64  # upper bound of a command's cost besides its bytes
WRITTEN = "the message was written but is not known to be committed"
REFUSED_AT_ONCE = 512  # some ten milliseconds of work
OVERDUE = "more comes in than can be stored; the message was not stored, try again"
SEND_CODE = int(RequestCode.SEND_MESSAGE_V2)
WRITER_CODE = int(RequestCode.SEND_WRITER_BATCH)
BATCH_CODES = (int(RequestCode.SEND_BATCH_MESSAGE), WRITER_CODE)


@dataclass(frozen=True, slots=True)
class SendLog:
    """Functions of the log that a send path uses.

    `queue_end(topic, queue_id)` is the ConsumeQueue's max offset. `request_cut(at_once)` schedules
    the next frame. `propose(payload, done)` calls `done(None)` once the command is applied, or
    `done(error)`. `barrier(done)` calls it once this replica is confirmed as leader.
    `leader_address()` is "" if unknown. `newest_ms` is the latest store time in the log."""

    queue_end: Callable[[str, int], int]
    request_cut: Callable[[bool], None]
    propose: Callable[[bytes, Callable[[Exception | None], None]], None]
    barrier: Callable[[Callable[[Exception | None], None]], None]
    leader_address: Callable[[], str]
    newest_ms: int = 0


@dataclass(frozen=True, slots=True)
class SendHooks:
    """Functions of other services that a send path calls.

    `on_half(group, connection)` runs before a half message is stored, and may raise Refused.
    `on_request(connection, fields)` registers a send that expects a reply. `on_stored(seconds)`
    reports the time from proposal to commit. `timers_waiting()` counts the waiting timer messages.
    `holds_locks(group)` is True if the group's consumers lock queues."""

    on_half: Callable[[str, object], None] = lambda group, connection: None
    on_request: Callable[[Any, Mapping[str, str]], None] = lambda connection, fields: None
    on_stored: Callable[[float], None] = lambda seconds: None
    timers_waiting: Callable[[], int] = lambda: 0
    holds_locks: Callable[[str], bool] = lambda group: False


class SendPath:
    """Handles all sends of a broker, on the loop, without waiting."""

    def __init__(
        self,
        config: BrokerConfig,
        state: BrokerState,
        rules: SendRules,
        log: SendLog,
        *,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        hooks: SendHooks = SendHooks(),
        contained: Contained | None = None,
        outcome_ms: int = DURATIONS.outcome,
    ) -> None:
        self._config = config
        self._outcome_ms = outcome_ms
        self._contained = contained or Contained()
        self._state = state
        self._rules = rules
        self._queue_end = log.queue_end
        self._request_cut = log.request_cut
        self._barrier = log.barrier
        self._clock_ms = clock_ms  # monotonic, for timeouts
        self._wall_ms = wall_ms
        self._answers = Answers(config, rules.store_host, log.leader_address, self._contained)
        self._host = rules.store_host.hex().upper()  # an offsetMsgId is this and a position
        self._store_host = rules.store_host
        self._group_size_max = min(config.frame_size_max, rules.record_bytes_max)
        self._backlog = Backlog(config.waiting_bytes_max)
        self.held_bytes_max = config.waiting_bytes_max  # the current limit of `Backlog`
        self._groups: deque[Group] = deque()
        self._pending: dict[int, Pending] = {}
        self._topics: dict[str, SendTopic] = {}
        self._queues: dict[str, dict[int, SendQueue]] = {}
        self._deleted: deque[tuple[str, int]] = deque()  # topics with queues, time of deletion
        self.redirects = Redirects.of(config, wall_ms, hooks.timers_waiting)
        self.internal_topics = state.topics.internal
        self.internal_topics.update(
            {topic.name: topic for topic in internal_topics(self.redirects.levels_ms)}
        )
        self._creations = Creations(config, state, log.propose, self._created)
        self._next_queue = 0
        self._term = 0
        self._leading = False
        self._held_bytes = 0
        self._held = HeldSends(clock_ms)
        self._attended = AttendedTime(clock_ms)
        self.disk_full = ""  # the reason for rejecting sends, or ""
        self.draining = False  # nothing is created or delayed here (broker.admin.drain)
        self.closed = False  # clients' sends are rejected
        self.put_count = 0  # messages stored
        self.repeat_count = 0  # idempotent sends that were already stored
        self._repeats = Repeats()
        self.writers = WriterRequests(state.writers)
        self._on_half = hooks.on_half
        self._on_request = hooks.on_request
        self._on_stored = hooks.on_stored
        self._holds_locks = hooks.holds_locks
        # The latest store time in the log. Store times never decrease, because the search for
        # offsets by time is binary.
        self.stamp_ms = log.newest_ms

    # ---- requests -------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def results(self) -> dict[tuple[int, str], int]:
        return self._answers.results

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def service(self) -> Service:
        return Service(
            chores=[
                Chore(
                    "outcomes",
                    max(50, self._outcome_ms // 10),
                    self.sweep,
                    lambda: 0 if self._pending else IDLE_MS,
                ),
                Chore("held_sends", 0, self.release_overdue, self._rest_ms),
            ],
            role_changed=lambda change: self.leadership(
                change.event.term, change.leading, change.awaited
            ),
        )

    def receive(
        self, sender: Sender, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> None:
        """Handle a send with V2 header fields, and respond if it is rejected."""
        if code in BATCH_CODES:
            finish(self.receive_batch(sender, ext, body, born_host, code))
            return
        try:
            self.admit(sender, ext, body, born_host, code)
        except (Refused, HeaderError, KeyError, ValueError) as error:
            self._refuse(sender, error)

    def receive_batch(
        self, sender: Sender, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> Steps[None]:
        """Handle a batch like `receive`, in steps."""
        try:
            yield from self._admit_batch(sender, ext, body, born_host, code)
        except (Refused, HeaderError, KeyError, ValueError) as error:
            self._refuse(sender, error)

    def _refuse(self, sender: Sender, error: Exception) -> None:
        if not isinstance(error, Refused):
            reason = f"the send header is malformed: {error}; the message was not stored"
            self._answers.refuse(sender, rejected(reason))
        elif error.absent:  # according to this replica, which may be deposed
            self._barrier(partial(self._refuse_proven, sender, error))
        else:
            self._answers.refuse(sender, error)

    def _refuse_proven(self, sender: Sender, refused: Refused, error: Exception | None) -> None:
        self._answers.refuse(sender, refused if error is None else _not_stored())

    def wake(self, at_once: bool = False) -> None:
        """Request a frame of the waiting sends, after calls of `receive` or `admit`. By default it
        is built at the end of this turn of the loop, with the sends of other connections."""
        if self._groups:
            self._request_cut(at_once)

    def admit_plain(
        self, connection: Connection, frames: Sequence[RawFrame], born_host: bytes
    ) -> int:
        """Queue sends by the fast path, or reject them, up to the first frame that needs another.
        Returns their number."""
        if not self._leading or self.disk_full or len(born_host) != 8:
            return 0
        topics, rules = self._topics, self._rules
        group = self._groups[-1] if self._groups else None
        count = 0
        for serialize_type, header, body in frames:
            if serialize_type != JSON or not header.startswith(PLAIN_START):
                break
            try:
                send = decode_plain(header)
                fields = send.fields
                topic = topics.get(fields.b)
                if topic is None or not topic.plain or send.code != SEND_CODE or send.flag:
                    break
                parsed = plain_record(fields, body, topic, born_host, rules)
            except (MsgspecError, RecursionError, ValueError):
                break  # unusual or malformed; decode_command decides
            if parsed is None:
                break
            count += 1
            record, unique_key = parsed
            size = record[1]
            sender = connection, send.opaque, 0, JSON
            held_bytes = self._held_bytes + size + WAITING_OVERHEAD_BYTES
            # checked here because a rejection must not cost more than a send
            if held_bytes > self.held_bytes_max:
                self._answers.refuse(sender, self._busy())
                continue
            if (
                group is None
                or group.size_bytes + size > self._group_size_max - group.command_bytes
            ):
                group = self._open_group()
            group.size_bytes += size
            group.held_bytes += size + WAITING_OVERHEAD_BYTES
            self._held_bytes = held_bytes
            group.records.append(record)
            group.replies.append((sender, unique_key, 1))
        return count

    def admit(
        self, sender: Sender, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> None:
        """Check a send and queue it, or create its topic first.

        Raises Refused, or HeaderError, KeyError or ValueError for a malformed header, without
        effect.
        """
        topic = self._topic_for(sender, ext, body, born_host, code)
        if topic is None:
            return
        if not topic.plain and topic.name.startswith(RETRY_PREFIX):
            stored = retry_or_dead_letter(ext, self._retry_group(topic.name), self._holds_locks)
            if stored is not ext:
                self.admit(sender, stored, body, born_host, code)
                return
        queue = self._chosen_queue(topic, ext)
        try:
            records, size, unique_key, wants_reply = parse_single(
                ext, body, queue, topic, born_host, self._rules
            )
        except Special:
            self._admit_special(sender, ext, body, born_host, queue, topic)
            return
        if topic.message_type:
            check_types(topic, (properties_of(record, topic) for record in records))
        if wants_reply:
            self._on_request(sender[0], ext)
        group = self._reserve(size)
        group.records += records
        group.replies.append((sender, unique_key, 1))

    def _topic_for(
        self, sender: Sender, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> SendTopic | None:
        """Return a send's topic; None if it waits for topic or leader. Raises Refused."""
        name = ext["b"]
        topic = self._topics.get(name)
        if topic is None or not self._leading or self.disk_full:
            topic = self._open_topic(name, sender, ext, body, born_host, code)
        if topic is not None and not topic.plain:
            check_topic(name)
            if not topic.writable:
                raise forbidden(f"topic [{name}] is not writable")
        return topic

    def _chosen_queue(self, topic: SendTopic, ext: Mapping[str, str]) -> SendQueue:
        text = ext["e"]
        return topic.chosen.get(text) or self._queue_for(topic, parse_integer(text, "queueId"))

    def _admit_batch(
        self, sender: Sender, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> Steps[None]:
        """Admit a batch or a writer's request in steps; answer a stored writer's request."""
        topic = self._topic_for(sender, ext, body, born_host, code)
        if topic is None:
            return
        if topic.name.startswith(RETRY_PREFIX):
            raise illegal("a batch holds no retries; none was stored")
        queue = self._chosen_queue(topic, ext)
        if code == WRITER_CODE and self._written(sender, ext, queue, topic) is None:
            return
        parsed = yield from parse_batch(ext, body, queue, topic, born_host, self._rules)
        records, size, unique_key, wants_reply = parsed
        if self._topics.get(topic.name) is not topic:
            raise not_leader("the leader or the topic changed; the batch was not stored")
        if self.disk_full:
            raise self._disk_full_error()
        written = self._written(sender, ext, queue, topic) if code == WRITER_CODE else None
        if code == WRITER_CODE and written is None:
            return
        command = written.command if written is not None else b""
        if written is not None:
            self._check_fits(size, len(command))
        elif wants_reply:
            self._on_request(sender[0], ext)
        group = self._reserve(size, len(command))
        group.records += records
        group.replies.append((sender, unique_key, len(records)))
        if written is not None:
            group.commands.append(command)
            self._start_written(group, written)

    def _start_written(self, group: Group, written: Written) -> None:
        group.written = [*(group.written or ()), written]
        self.writers.start(written)

    def _written(
        self, sender: Sender, ext: Mapping[str, str], queue: SendQueue, topic: SendTopic
    ) -> Written | None:
        """Return a writer's request to store; None after answering a stored request."""
        written = self.writers.check(ext, topic.name, parse_integer(ext["e"], "queueId"))
        if written is None:
            self._answers.repeated(sender, ResponseCode.SUCCESS, "", queue.queue_id, -1, "")
        return written

    def _retry_group(self, topic: str) -> SubscriptionGroup:
        may_be_made = self._config.auto_create_subscription_group
        return group_of(topic, self._state.groups, may_be_made=may_be_made)

    def _admit_special(
        self,
        sender: Sender,
        ext: Mapping[str, str],
        body: bytes,
        born_host: bytes,
        queue: SendQueue,
        topic: SendTopic,
    ) -> None:
        """Queue a send that may first be stored in an internal topic. The response names the queue
        the sender chose."""
        message, unique_key, wants_reply = parse_special(ext, body, queue, born_host, self._rules)
        if topic.message_type:
            check_types(topic, (message.properties,))
        if wants_reply:
            self._on_request(sender[0], ext)
        has_unique_key = UNIQ_KEY in decode_properties(ext.get("i") or "")
        key = once_key(message.topic, decode_properties(message.properties), has_unique_key)
        if key is not None and self._is_repeated(key, sender, unique_key):
            return
        redirected = redirect(message, self.redirects)
        if self.draining and redirected.topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
            if not topic.name.startswith(RETRY_PREFIX):
                raise forbidden("the broker group is draining; the message was not stored")
        if redirected.topic == HALF_TOPIC:
            self._on_half(ext["a"], sender[0])
        record = self._own_record(redirected)
        group = self._reserve(record[1], 0 if key is None else command_size(key))
        if key is not None:
            group.once = group.once or []
            group.once.append(Once(len(group.records), key, queue.queue_id))
            self._repeats.start(key)
        handle = self.redirects.handle(redirected)
        group.add_redirected(record, sender, unique_key, queue.queue_id, handle)

    def _is_repeated(self, key: Key, sender: Sender, unique_key: str) -> bool:
        """Return True for an idempotent send that repeats a send, whose response it gets."""
        since_ms = max(self.stamp_ms, self._wall_ms()) - self._config.idempotent_window_ms
        sent = self._state.once.get(key, since_ms)
        if sent is None:
            return self._repeats.join(key, sender, self._clock_ms())
        self.repeat_count += 1
        location = sent.message_id, sent.queue_id, sent.queue_offset
        self._answers.repeated(sender, ResponseCode.SUCCESS, *location, unique_key)
        return True

    def store(
        self,
        messages: Sequence[Outgoing],
        command: bytes,
        done: Done,
        *,
        reserve_bytes: int = 0,
        written: Written | None = None,
    ) -> None:
        """Store the broker's own `messages` and `command` (b"" if none) in a single frame. `done`
        is called once with the outcome. `reserve_bytes` is extra room above the waiting limit.
        `written` is a writer's request with these messages, and has the command. Call `wake`
        afterwards.

        Raises Refused if they are not stored; `done` is not called then. The topics must exist.
        """
        if not self._leading:
            raise _not_stored()
        if self.disk_full:
            raise self._disk_full_error()
        records = [self._own_record(message) for message in messages]
        size = sum(record[1] for record in records)
        self._check_fits(size, len(command))
        group = self._reserve(size, len(command), reserve_bytes)
        group.records += records
        group.replies.append((OWN, "", len(records)))
        group.dones.append(done)
        if command:
            group.commands.append(command)
        if written is not None:
            self._start_written(group, written)

    @property
    def own_bytes_max(self) -> int:
        return self._rules.record_bytes_max

    def check(self, message: Outgoing) -> None:
        """Raise Refused if `store` could never accept this message."""
        self._check_fits(self._own_record(message)[1])

    def _check_fits(self, size: int, command_size: int = 0) -> None:
        """Reject records and a command that no frame can hold."""
        if size + command_size > self._rules.record_bytes_max:
            raise illegal(f"{size} bytes do not fit into a frame")

    def _own_record(self, message: Outgoing) -> Record:
        name = message.topic
        topic = self._topics.get(name)
        if topic is None:
            config = self._state.topics.get(name)
            if config is not None:
                topic = self._topics[name] = self._prepared(config)
            elif message.force:
                topic = SendTopic(TopicConfig(name, 1, 1))
            else:
                raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first")
        queue_id = message.queue_id
        if message.force:
            config = self._state.topics.get(name)
            if config is not None and config.read_queue_count:
                queue_id %= config.read_queue_count  # consumers do not read a removed queue
        if message.force and queue_id >= topic.queue_count:
            queue = self._queue(name, queue_id)
        else:
            queue = self._queue_for(topic, queue_id)
        return record_of(message, queue, topic, entry_code(message), self._rules)

    def _reserve(self, size: int, command_size: int = 0, reserve_bytes: int = 0) -> Group:
        """Return the group for `size` bytes, and count them as waiting. Raises Refused."""
        held = size + WAITING_OVERHEAD_BYTES
        if self._held_bytes + held > self.held_bytes_max + reserve_bytes:
            raise self._busy()
        groups = self._groups
        if command_size:
            command_size += COMMAND_OVERHEAD_BYTES
        group = groups[-1] if groups else None
        if (
            group is None
            or group.size_bytes + group.command_bytes + size + command_size > self._group_size_max
        ):  # a single send may exceed the limit; its frame holds nothing else
            group = self._open_group()
        group.size_bytes += size
        group.command_bytes += command_size
        group.held_bytes += held
        self._held_bytes += held
        return group

    def _open_group(self) -> Group:
        group = Group(self._attended.advance())
        self._groups.append(group)
        return group

    def _busy(self) -> Refused:
        return busy(
            f"{self._held_bytes} bytes of sends wait already, the bound is "
            f"{self.held_bytes_max}; try again"
        )

    def _queue_for(self, topic: SendTopic, queue_id: int) -> SendQueue:
        if queue_id < 0:
            if not topic.write_count:
                raise forbidden(f"topic [{topic.name}] has no queue")
            self._next_queue += 1
            queue_id = self._next_queue % topic.write_count
        elif queue_id >= topic.queue_count:
            raise rejected(
                f"queueId {queue_id} is illegal: topic [{topic.name}] has "
                f"{topic.queue_count} queues"
            )
        queue = topic.chosen[str(queue_id)] = self._queue(topic.name, queue_id)
        return queue

    def _queue(self, topic: str, queue_id: int) -> SendQueue:
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            delay_ms = self.redirects.levels_ms[queue_id] if topic == SCHEDULE_TOPIC else -1
            queue = SendQueue(topic, queue_id, self._queue_end(topic, queue_id), delay_ms)
            queues[queue_id] = queue
        return queue

    # ---- topics ---------------------------------------------------------------------------

    def drain(self, *, draining: bool, closed: bool) -> None:
        """Create no topics and take no new delayed messages while `draining`, and no sends at all
        if `closed`. Retries are always taken."""
        self.draining = draining
        if closed != self.closed:
            self.closed = closed
            self._topics.clear()

    def _prepared(self, config: TopicConfig) -> SendTopic:
        if self.closed and not config.name.startswith(RETRY_PREFIX):
            config = replace(config, perm=config.perm & ~PERM_WRITE)
        return SendTopic(config, types_checked=self._config.enable_topic_message_type_check)

    def topic_changed(self, name: str) -> None:
        self._topics.pop(name, None)
        if name in self._queues and self._state.topics.get(name) is None:
            self._deleted.append((name, self._attended.now_ms))
        while self._deleted and self._forget_queues(*self._deleted[0]):
            self._deleted.popleft()

    def _forget_queues(self, topic: str, deleted_ms: int) -> bool:
        """Forget a deleted topic's queues; return False while a record of them may be in flight."""
        if self._state.topics.get(topic) is None:
            if self._groups and self._groups[0].started_ms <= deleted_ms:
                return False
            for queue in self._queues.get(topic, {}).values():
                if queue.next_offset != self._queue_end(topic, queue.queue_id):
                    return False
            self._queues.pop(topic, None)
        return True

    def _open_topic(
        self,
        name: str,
        sender: Sender,
        ext: Mapping[str, str],
        body: bytes,
        born_host: bytes,
        code: int,
    ) -> SendTopic | None:
        """Handle the slow cases of admission, all but a known topic on a healthy leader."""
        if not self._leading:
            if self._hold(HeldSend(sender, ext, body, born_host, code)):
                return None
            raise _not_stored()
        if self.disk_full:
            raise self._disk_full_error()
        if not self._config.broker_permission & PERM_WRITE:
            raise forbidden("the broker is not writable")
        problem = topic_name_problem(name)
        if problem:
            raise rejected(problem)
        check_topic(name)
        config = self._state.topics.get(name)
        if config is not None:
            topic = self._topics[name] = self._prepared(config)
            return topic
        self._create(name, HeldSend(sender, ext, body, born_host, code))
        return None

    def _create(self, name: str, send: HeldSend) -> None:
        if name.startswith(RETRY_PREFIX):
            self._retry_group(name)  # check that the group exists or may be created
        elif self.draining:
            raise forbidden(f"the broker group is draining; topic [{name}] was not created")
        self._creations.wait(name, send, self.held_bytes_max - self._held_bytes)
        self._held_bytes += len(send.body) + WAITING_OVERHEAD_BYTES

    def _created(self, sends: list[HeldSend], name: str, error: Exception | None) -> None:
        for send in sends:
            self._held_bytes -= len(send.body) + WAITING_OVERHEAD_BYTES
            if error is None:
                self.receive(*send)
            else:  # the send is not stored
                refused = not_leader(f"topic [{name}] could not be created: {error}")
                self._answers.refuse(send.sender, refused)
        self.wake()

    # ---- calls of the Raft member ---------------------------------------------------------

    def next_frame(self, term: int, index: int, allocate: Callable[[int], int]) -> Frame | None:
        """Build the next frame from the waiting sends, or return None."""
        groups = self._groups
        if not groups or not self._leading or term != self._term:
            return None
        group = groups[0]
        stamp_ms = max(self.stamp_ms, self._wall_ms())
        command = group.command
        if group.once is not None:
            command = several([*group.commands, sent_once(group, self._store_host, self._config)])
        try:
            frame, positions, offsets = build_frame(
                group.records,
                len(command) + group.size_bytes,
                index,
                term,
                allocate,
                stamp_ms,
                self._store_host,
                command,
            )
        except struct.error as error:
            self._refuse_unencodable(groups.popleft(), error)
            return self.next_frame(term, index, allocate)
        groups.popleft()  # after all calls that may raise
        self._backlog.proposed(group.held_bytes)
        self.stamp_ms = stamp_ms
        built_ms = self._clock_ms()
        self._pending[index] = Pending(group, positions, offsets, frame, built_ms)
        return frame

    def _refuse_unencodable(self, group: Group, error: struct.error) -> None:
        """Reject a group with a number that does not fit its record, despite all checks of sends.
        Nothing of the group reaches the log."""
        self._contained.failed("cut", error)
        reason = f"a number does not fit into its record ({error}); the message was not stored"
        self._fail(group, illegal(reason))

    def next_batch(self, allocate: Callable[[int], int]) -> Batch | None:
        """Build the next batch of classic mode. It is stored once it is written."""
        groups = self._groups
        if not groups or not self._leading:
            return None
        group = groups[0]
        stamp_ms = max(self.stamp_ms, self._wall_ms())
        position = allocate(group.size_bytes)
        if group.once is not None:
            group.commands.append(sent_once(group, self._store_host, self._config))
        try:
            data, positions, offsets, entries = build_records(
                group.records, position, stamp_ms, self._store_host
            )
        except struct.error as error:
            self._refuse_unencodable(groups.popleft(), error)
            return self.next_batch(allocate)
        assert len(data) == group.size_bytes
        groups.popleft()
        self._backlog.proposed(group.held_bytes)
        self.stamp_ms = stamp_ms
        return Batch(group, positions, offsets, entries, position, data, stamp_ms)

    def applied(self, frame: Frame) -> Pending | None:
        """Handle a frame's commit. Returns the pending batch if this replica proposed it."""
        pending = self._pending.pop(frame.index, None)
        if pending is None:
            return None
        if pending.frame.term != frame.term:  # another leader's frame has this index
            self._fail(pending.group, _replaced())
            return None
        return pending

    def answer(self, stored: Sequence[Stored], code: int = 0) -> None:
        """Respond to the senders of stored groups with SEND_OK or a code of STORED_CODES, in a
        single write per connection."""
        code = int(code)
        answers, writes = self._answers, Writes()
        now_s = time.perf_counter()
        for pending in stored:
            group = pending.group
            if pending.built_s:
                self._on_stored(now_s - pending.built_s)
            self.put_count += answers.stored(pending, code, writes)
            for written in group.written or ():
                self.writers.finish(written)
            for once, sender in self._repeats.finish(group.once or ()):
                self.repeat_count += 1
                position, offset = pending.positions[once.at], pending.offsets[once.at]
                message_id = f"{self._host}{position:016X}"
                answers.repeated(sender, code, message_id, once.queue_id, offset, once.key[1])
            self._held_bytes -= group.held_bytes
            group.held_bytes = 0
            answers.notify(group.take_callbacks(), None)
        answers.write(writes)

    def answer_unwaiting(self, batch: Batch) -> bool:
        """Respond to sends with WAIT=false, which do not wait for disk and slaves. Returns False if
        no sender waits."""
        unwaiting = split_unwaiting(batch)
        if unwaiting is None:
            return True
        put_count, results = self.put_count, dict(self.results)
        self.answer([unwaiting])
        # These are counted with the rest of the batch.
        self.put_count, self._answers.results = put_count, results
        return any(not sender[2] for sender, _, _ in batch.group.replies)

    def truncated(self, from_index: int) -> None:
        """Fail the sends of truncated frames from this index on; they are not stored."""
        for index in [index for index in self._pending if index >= from_index]:
            group = self._pending.pop(index).group
            self._fail(group, _replaced())

    def leadership(self, term: int, leading: bool, awaited: bool = False) -> None:
        """Handle a role change and reset the append table. `leading` is True on a ready leader.
        `awaited` is True while a leader is expected soon; sends are held briefly."""
        if leading and self._leading and term == self._term:
            return
        self._term = term
        self._leading = leading
        self._topics.clear()
        self._queues.clear()
        self._deleted.clear()
        if awaited:
            self._held.start()
            self._held.groups += self._groups
            self._groups.clear()
            return
        if not leading:
            waiting, self._groups = self._groups, deque()
            for group in waiting:
                self._fail(group, _not_stored())
        self._release()

    def _hold(self, send: HeldSend) -> bool:
        """Hold a send without a leader. Returns False if it must be rejected."""
        size = len(send.body) + WAITING_OVERHEAD_BYTES
        if not self._held.holding or self._held_bytes + size > self.held_bytes_max:
            return False
        self._held_bytes += size
        self._held.sends.append(send)
        return True

    def _release(self) -> None:
        """Resubmit or reject the held sends, since the leader is known or the time is over."""
        sends, groups = self._held.finish()
        for group in groups:  # their queue offsets are those of another leadership
            self._fail(group, _not_stored())
        for send in sends:
            self._held_bytes -= len(send.body) + WAITING_OVERHEAD_BYTES
            self.receive(*send)
        self.wake()

    def release_overdue(self) -> None:
        """Reject sends that waited too long, and all while the disk is full. A chore."""
        if self._held.overdue:
            self._release()
        now_ms, wait_ms = self._attended.advance(), self._config.wait_time_mills_in_send_queue
        refused = 0
        while (
            self._groups
            and (self.disk_full or self._groups[0].started_ms < now_ms - wait_ms)
            and refused < REFUSED_AT_ONCE  # the rest in the next tick, because heartbeats are due
        ):
            refused += len(self._groups[0].replies)
            refusal = self._disk_full_error() if self.disk_full else busy(OVERDUE)
            self._fail(self._groups.popleft(), refusal)
        self.held_bytes_max = self._backlog.bytes_allowed(
            self._groups, self._held_bytes, wait_ms, now_ms
        )

    def _rest_ms(self) -> float:
        held = self._groups or self._held.holding
        low = self.held_bytes_max < self._config.waiting_bytes_max  # the limit rises with time
        return 0 if held or low else IDLE_MS

    def sweep(self) -> None:
        """Respond to sends after an outcome has been unknown too long. Called by a timer."""
        oldest_ms = self._clock_ms() - self._outcome_ms
        for pending in self._pending.values():
            if pending.built_ms <= oldest_ms and pending.group.replies:
                log.warning(
                    "outcome_unknown index=%d term=%d sends=%d",
                    pending.frame.index,
                    pending.frame.term,
                    len(pending.group.replies),
                )
                self._fail(pending.group, OutcomeUnknown(WRITTEN), decided=False)
                pending.group.replies = []
        for sender in self._repeats.overdue(oldest_ms):
            self._answers.refuse(sender, OutcomeUnknown(WRITTEN))

    def close(self) -> None:
        """Respond to all remaining senders before shutdown."""
        self.leadership(self._term, False)
        for pending in self._pending.values():
            reason = "the broker stops before the message was known committed"
            self._fail(pending.group, OutcomeUnknown(reason))
        self._pending.clear()

    # ---- refusals -------------------------------------------------------------------------

    def _disk_full_error(self) -> Refused:
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, self.disk_full, tag="DISK_FULL")

    def _fail(
        self, group: Group, refusal: Refused | OutcomeUnknown, *, decided: bool = True
    ) -> None:
        if decided:
            for written in group.written or ():
                self.writers.finish(written)
        if group.once is not None and decided:
            for _, sender in self._repeats.finish(group.once):
                self._answers.refuse(sender, refusal)
        for sender, _, _ in group.replies:
            self._answers.refuse(sender, refusal)
        self._held_bytes -= group.held_bytes
        group.held_bytes = 0
        self._answers.notify(group.take_callbacks(), refusal)


def _not_stored() -> Refused:
    return not_leader("this replica is not the leader; the message was not stored")


def _replaced() -> Refused:
    return not_leader("leadership changed before the message was replicated; not stored")
