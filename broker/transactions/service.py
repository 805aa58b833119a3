"""Ends and checks half messages, on the leader.

A new leader first reads both topics from the group's offsets. Then it accepts END_TRANSACTION and
continues to read new halves. Halves that it ends itself are closed at commit.

The leader checks an open half by storing it again with an incremented check count, ending the old
half in the same frame. After the commit it asks a producer of the group (39). If no producer is
connected, no check is counted. After `transactionCheckMax` checks, or beyond `fileReservedTime`,
the half moves to TRANS_CHECK_MAX_TIME_TOPIC. A later commit still delivers the message once, found
by key in that topic; its op record has the key as well. If the properties have no space for the
count, the half is checked in place.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from raftmq.remoting.acl.accounts import Permission
from raftmq.remoting.acl.needs import Need, topic_need
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import CheckTransactionHeader, EndTransactionHeader
from raftmq.store.errors import StoreError
from raftmq.store.get_message import GetStatus
from raftmq.store.properties import decode_properties
from raftmq.store.record import (
    MessageRecord,
    RecordError,
    decode_record,
    offset_message_id,
    walk_records,
)

from ..access import Access
from ..clients import ClientConnection, ClientTable
from ..component import Service, at_each_leadership
from ..config import BrokerConfig
from ..context import Context
from ..errors import Refused, busy, forbidden, rejected
from ..messages import half_message as conversion
from ..messages.half_message import GIVEN_UP_TOPIC, GROUP, HALF_TOPIC, OP_TOPIC, Half, Root
from ..messages.send_request import Outgoing
from ..scheduler import IDLE_MS, Chore
from ..send.callbacks import Completion, Done
from ..send.service import SendPath
from ..send.topic_redirect import delayed_or_timed
from ..tables.state import commit_offsets, put_topic
from ..tables.topics import TopicConfig
from .book import COMMIT, ROLLBACK, HalfBook

log = logging.getLogger("raftmq.broker.transactions")

OPEN_MAX = 200_000  # open half messages
TURN_MAX = 500  # records read per turn
TURN_BYTES = 1 << 20
CHECKS_PER_TURN_MAX = 200
ASK_FIRST_MS = 60_000  # after an election; producers' heartbeats arrive every 30 s
PROGRESS_MS = 1_000  # between two commits of the progress
WAIT_S = 3.0  # for a new leader that is still reading
WAITING_MAX = 10_000  # END_TRANSACTION requests in progress
BUSY_MS_MAX = 3_000  # a one-way end retries this long, as Apache queues it for a thread
BUSY_PAUSE_S = 0.1
SENDERS_MAX = 10_000  # producer groups with a remembered connection


@dataclass(slots=True)
class Counts:
    """Transactions since the process started."""

    committed: int = 0
    rolled_back: int = 0
    checked: int = 0
    given_up: int = 0


class Halves:
    """The open halves and their senders. The send path calls `admit` before it accepts a half."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.book: HalfBook | None = None  # None if this replica does not lead
        self.senders: OrderedDict[str, ClientConnection] = OrderedDict()  # by producer group

    @property
    def open_count(self) -> int:
        """Half messages that have not ended; 0 on followers."""
        return 0 if self.book is None else len(self.book.open)

    def admit(self, group: str, connection: object) -> None:
        """Check a half message of this producer group before it is stored. Raises Refused."""
        if self._config.reject_transaction_message:
            raise forbidden("this broker takes no transactional messages")
        if self.open_count >= OPEN_MAX:
            raise busy(f"{self.open_count} transactions are open already", retriable=True)
        if not isinstance(connection, Connection):
            return  # sent by HTTP or as a reply; the sender cannot be asked
        self.senders[group] = connection
        self.senders.move_to_end(group)
        if len(self.senders) > SENDERS_MAX:
            self.senders.popitem(last=False)


class Transactions:
    def __init__(
        self,
        context: Context,
        halves: Halves,
        sends: SendPath,
        clients: ClientTable,
        access: Access,
        newest: Callable[[str, str], Awaitable[Sequence[MessageRecord]]],
    ) -> None:
        """`newest(topic, unique key)` finds messages by their key."""
        self._context = context
        self._newest = newest
        self._config = context.config
        self._store = context.store
        self._halves = halves
        self._sends = sends
        self._clients = clients
        self._access = access
        self._ready = asyncio.Event()
        self._targets = (0, 0)  # end of the first reading
        # offset → requests waiting for its end
        self._busy: dict[int, list[asyncio.Future[None]]] = {}
        self._checked_roots: dict[Root, bool] = {}  # roots stored again for a check
        self._late: set[Root] = set()  # expired halves being committed
        self._waiting = 0
        self._recorded = (0, 0)
        self._recording = False
        self._record_due_ms = 0
        self._leads_since_ms = 0
        self._turn = 0  # counts the producers asked
        self.counts = Counts()

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.END_TRANSACTION): self.end},
            chores=[Chore("transactions", 0, self.tick, self._rest_ms)],
            role_changed=at_each_leadership(self.leadership_changed),
        )

    # ---- leadership and turns ---------------------------------------------------------------

    def leadership_changed(self) -> None:
        """Reset, because this replica became or ceased to be the leader."""
        self._ready.clear()
        for waiters in self._busy.values():
            _release(waiters)
        self._busy.clear()
        self._checked_roots.clear()
        self._leads_since_ms = self._context.clock_ms()
        if not self._context.roles.leading:
            self._halves.book = None
            return
        committed_offset, end = self._context.state.offsets.get, self._context.store.queues.end_of
        self._recorded = (
            committed_offset(HALF_TOPIC, GROUP, 0) or 0,
            committed_offset(OP_TOPIC, GROUP, 0) or 0,
        )
        self._halves.book = HalfBook(*self._recorded)
        self._targets = end(HALF_TOPIC, 0), end(OP_TOPIC, 0)

    def tick(self) -> None:
        book = self._halves.book
        if book is None:
            return
        self._read(book)
        if not self._ready.is_set():
            halves, ops = self._targets
            if book.half_next < halves or book.op_next < ops:
                return
            log.info("transactions_known open=%d", len(book.open))
            self._ready.set()
        self._check_due(book)
        self._record_progress(book)

    def _rest_ms(self) -> float:
        book = self._halves.book
        if book is None:
            return IDLE_MS
        end = self._context.store.queues.end_of
        unread = book.half_next < end(HALF_TOPIC, 0) or book.op_next < end(OP_TOPIC, 0)
        if unread or not self._ready.is_set():
            return 0
        rest_ms = IDLE_MS
        if book.next_due_ms is not None:
            rest_ms = book.next_due_ms - self._context.wall_ms()
        if not self._recording and book.progress() != self._recorded:
            rest_ms = min(rest_ms, self._record_due_ms - self._context.clock_ms())
        return rest_ms

    def _read(self, book: HalfBook) -> None:
        """Read for a turn. Halves come first, because an op follows its half."""
        self._close_gone(book)
        try:
            for record in self._records(HALF_TOPIC, book.half_next, book.skip_halves):
                self._add_half(book, record)
            for record in self._records(OP_TOPIC, book.op_next, book.skip_ops):
                book.add_op(record.queue_offset, conversion.ended_halves(record))
        except (OSError, StoreError, RecordError) as error:
            log.warning("transactions_unreadable: %s", error)  # retried in the next turn

    def _close_gone(self, book: HalfBook) -> None:
        """Close open halves that retention deleted: nothing can end them, all else waits."""
        queue = self._store.queues.queue(HALF_TOPIC, 0)
        minimum = 0 if queue is None else queue.min_offset
        below = takewhile(lambda offset: offset < minimum, book.open)
        gone = [offset for offset in below if offset not in self._busy]
        for offset in gone:
            book.close(offset)
        if gone:
            log.error("transactions_lost count=%d: retention took them", len(gone))

    def _add_half(self, book: HalfBook, record: MessageRecord) -> None:
        config = self._config
        half = conversion.half_of(
            record,
            config.transaction_time_out,
            config.transaction_check_interval,
            self._context.wall_ms(),
        )
        if book.add_half(half) and self._checked_roots.pop(half.root, False):
            self._ask_producer(half, record)

    def _records(
        self, topic: str, offset: int, on_gone: Callable[[int], None]
    ) -> Sequence[MessageRecord]:
        """Return records from `offset` on. Calls `on_gone(offset)` if earlier are deleted."""
        if offset >= self._context.store.queues.end_of(topic, 0):
            return ()
        result = self._store.reads.get_messages(topic, 0, offset, TURN_MAX, TURN_BYTES)
        if result.status is not GetStatus.FOUND:
            if result.next_offset > offset:
                on_gone(result.next_offset)
            return ()
        data = b"".join(result.buffers)
        return [decode_record(data, at, check_body=False) for at, _ in walk_records(data)]

    def _record_progress(self, book: HalfBook) -> None:
        """Commit both offsets at once; an op skipped alone would reopen an ended half."""
        now_ms = self._context.clock_ms()
        progress = book.progress()
        if self._recording or now_ms < self._record_due_ms or progress == self._recorded:
            return
        self._recording = True
        self._record_due_ms = now_ms + PROGRESS_MS

        def done(error: Exception | None) -> None:
            self._recording = False
            if error is None:
                self._recorded = progress
            else:  # retried in the next turn
                log.info("transaction_progress_not_noted: %s", error)

        half, op = progress
        payload = commit_offsets([(HALF_TOPIC, GROUP, 0, half), (OP_TOPIC, GROUP, 0, op)])
        self._context.log.propose_then(payload, done)

    # ---- ends -------------------------------------------------------------------------------

    async def end(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """END_TRANSACTION (37): end a half. Responds after the commit. Raises Refused, AclError,
        OutcomeUnknown, HeaderError."""
        header = EndTransactionHeader.parse(request.ext)
        if header.decision not in (COMMIT, ROLLBACK):
            if header.decision != 0:
                raise rejected(f"commitOrRollback {header.decision} is no decision")
            return RemotingCommand.response_to(request)  # unknown; the producer is asked again
        if self._waiting >= WAITING_MAX:
            raise busy(f"{WAITING_MAX} ends wait already")
        self._waiting += 1
        try:
            if request.is_oneway:  # from Apache's clients, which get no error
                await self._end_oneway(connection, request, header)
            else:
                await self._end(connection, request, header)
        finally:
            self._waiting -= 1
        return RemotingCommand.response_to(request)

    async def _end_oneway(
        self, connection: Connection, request: RemotingCommand, header: EndTransactionHeader
    ) -> None:
        """End a half for a producer that will not retry; otherwise the next check, a timeout later,
        delays its message. Raises the errors of `_end`."""
        give_up_ms = self._context.clock_ms() + BUSY_MS_MAX
        while True:
            try:
                await self._end(connection, request, header)
                return
            except RemotingError as error:
                busy_now = error.code == ResponseCode.SYSTEM_BUSY
                if not busy_now or self._context.clock_ms() >= give_up_ms:
                    log.info("transaction_end_refused group=%s: %s", header.producer_group, error)
                    raise
            await asyncio.sleep(BUSY_PAUSE_S)

    async def _end(
        self, connection: Connection, request: RemotingCommand, header: EndTransactionHeader
    ) -> None:
        def permit(half: MessageRecord) -> None:
            self._access.permit(connection, request, _needs_of(half))

        record, root = self._named_half(header, permit)
        while True:
            book = await self._current_book()
            half = book.find(root)
            waiters = None if half is None else self._busy.get(half.offset)
            if waiters is None:
                break
            waiter = asyncio.get_running_loop().create_future()
            waiters.append(waiter)
            await waiter
        if half is None:
            late = header.decision == COMMIT and book.decision(root) is None
            if not late or not await self._commit_given_up(book, record, root):
                self._check_decision(book, root, header.decision)
            return
        # The rewritten half has the same content, but op and message refer to its position.
        if half.offset != record.queue_offset:
            record = self._record_at(half.position)
            permit(record)
        messages = [conversion.op_record(half.offset, record, self._context.wall_ms())]
        if header.decision == COMMIT:
            messages.insert(0, self._committed(record))
        ended = Completion()
        self._store_end(book, half, messages, header.decision, ended)
        await ended.stored()
        if header.decision == COMMIT:
            self.counts.committed += 1
        else:
            self.counts.rolled_back += 1

    def _committed(self, record: MessageRecord) -> Outgoing:
        message = conversion.committed(record)
        return delayed_or_timed(
            message, decode_properties(message.properties), self._sends.redirects
        )

    async def _commit_given_up(self, book: HalfBook, record: MessageRecord, root: Root) -> bool:
        """Deliver the message of an expired half. Returns False if it did not expire or was
        committed since. Raises Refused, OutcomeUnknown."""
        if root in self._late:
            raise busy("the transaction is being committed", retriable=True)
        self._late.add(root)
        try:
            given_up = await self._newest(GIVEN_UP_TOPIC, root.unique_key)
            if not any(conversion.root_of(half)[1:] == root[1:] for half in given_up):
                return False
            if await self._newest(OP_TOPIC, root.unique_key):
                book.record_end(root, COMMIT)
                return False
            now_ms = self._context.wall_ms()
            op = conversion.op_record(root.offset, record, now_ms, root.unique_key)
            ended = Completion()
            self._sends.store([self._committed(record), op], b"", ended)
            self._sends.wake()
            await ended.stored()
        finally:
            self._late.discard(root)
        book.record_end(root, COMMIT)
        self.counts.committed += 1
        log.info("transaction_committed_late group=%s key=%s", root.group, root.unique_key)
        return True

    def _named_half(
        self, header: EndTransactionHeader, permit: Callable[[MessageRecord], None]
    ) -> tuple[MessageRecord, Root]:
        """Return the half that a producer names, and its root. Raises Refused, or AclError if the
        producer may not send to its topic."""
        record = self._record_at(header.commitlog_offset)
        if record.topic != HALF_TOPIC or record.queue_offset != header.half_queue_offset:
            raise rejected(
                f"at commitLogOffset {header.commitlog_offset} is no half message with "
                f"tranStateTableOffset {header.half_queue_offset}"
            )
        permit(record)
        root = conversion.root_of(record)
        if root.group != header.producer_group:
            raise rejected(
                f"the half message is of producer group {root.group}, not {header.producer_group}"
            )
        return record, root

    def _record_at(self, position: int) -> MessageRecord:
        try:
            data = self._store.reads.message_at(position)
            if data is None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"no message at {position}", absent=True)
            return decode_record(data)
        except (OSError, StoreError, RecordError) as error:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"{error}", retriable=True, tag="DISK_ERROR"
            ) from error

    async def _current_book(self) -> HalfBook:
        """Return the book once it is up to date. Raises Refused."""
        if not self._ready.is_set():
            if self._halves.book is None:
                raise Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "this replica is not the leader; nothing was ended",
                    retriable=True,
                    tag="NOT_LEADER",
                )
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._ready.wait()
            except TimeoutError:
                raise busy(
                    "a new leader still reads what transactions there are", retriable=True
                ) from None
        book = self._halves.book
        if book is None:
            return await self._current_book()
        end = self._context.store.queues.end_of(HALF_TOPIC, 0)
        while book.half_next < end:
            before = book.half_next
            self._read(book)
            if book.half_next == before:
                raise busy("half messages cannot be read")
        return book

    def _check_decision(self, book: HalfBook, root: Root, decision: int) -> None:
        """Return if the half message ended with the same decision. Raises Refused if it ended
        otherwise or is unknown."""
        was = book.decision(root)
        if was == decision:
            return
        how = {COMMIT: "committed", ROLLBACK: "rolled back"}.get(was or 0, "ended")
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the transaction was {how} before", tag="ENDED")

    def _store_end(
        self,
        book: HalfBook,
        half: Half,
        messages: Sequence[Outgoing],
        decision: int | None,
        done: Done,
    ) -> None:
        """Store `messages`, including the half's op, and block other ends until done. Raises
        Refused without effect."""
        waiters: list[asyncio.Future[None]] = []

        def ended(error: Exception | None) -> None:
            if error is None:
                book.close(half.offset, decision)
            elif half.offset in book.open:  # it may still be stored, and its op be read
                book.schedule(half.offset, self._context.wall_ms() + PROGRESS_MS)
            if self._busy.get(half.offset) is waiters:  # else of an earlier leadership
                del self._busy[half.offset]
            _release(waiters)
            done(error)

        self._sends.store(messages, b"", ended)
        self._busy[half.offset] = waiters
        self._sends.wake()

    # ---- checks -----------------------------------------------------------------------------

    def _check_due(self, book: HalfBook) -> None:
        now_ms = self._context.wall_ms()
        for half in book.due(now_ms, CHECKS_PER_TURN_MAX):
            if half.offset in self._busy:
                continue
            try:
                self._check(book, half, now_ms)
            except (Refused, ValueError) as error:
                log.info("check_put_off half=%d: %s", half.offset, error)
                book.schedule(half.offset, now_ms + PROGRESS_MS)

    def _check(self, book: HalfBook, half: Half, now_ms: int) -> None:
        """Store a half again for a check, or expire it. Raises Refused, ValueError."""
        record = self._record_at(half.position)
        age_ms = now_ms - conversion.first_stored_ms(record)
        too_old = age_ms > self._config.file_reserved_time * 3_600_000
        has_producer = self._producer_of(half.root.group, _needs_of(record)) is not None
        again = conversion.stored_again(record, half.root.offset, half.checks + has_producer)
        if not half.checks and (not has_producer or again is not None):
            # This clock may be wrong, so connected producers are asked first.
            led_ms = self._context.clock_ms() - self._leads_since_ms
            too_old = too_old and not has_producer and led_ms >= ASK_FIRST_MS
        op = conversion.op_record(half.offset, record, now_ms)
        if half.checks >= self._config.transaction_check_max or too_old:
            self._give_up(book, half, record, op)
            return
        if again is None:
            self._ask_producer(half, record)
            self.counts.checked += has_producer
            book.schedule(half.offset, now_ms + self._config.transaction_check_interval)
            return

        def done(error: Exception | None) -> None:
            if error is None:
                self.counts.checked += has_producer
            else:
                self._checked_roots.pop(half.root, None)

        self._checked_roots[half.root] = has_producer
        self._store_end(book, half, [again, op], None, done)

    def _give_up(self, book: HalfBook, half: Half, record: MessageRecord, op: Outgoing) -> None:
        topics = self._context.state.topics
        if topics.get(GIVEN_UP_TOPIC) is None:
            topic = put_topic(TopicConfig(GIVEN_UP_TOPIC, 1, 1), if_absent=True)
            self._context.log.propose_then(topic, lambda _: None)
            book.schedule(half.offset, self._context.wall_ms() + PROGRESS_MS)
            return

        def done(error: Exception | None) -> None:
            if error is None:
                self.counts.given_up += 1
                log.warning(
                    "transaction_abandoned group=%s key=%s checks=%d topic=%s",
                    half.root.group,
                    half.root.unique_key,
                    half.checks,
                    GIVEN_UP_TOPIC,
                )

        self._store_end(book, half, [conversion.given_up(record), op], None, done)

    def _producer_of(self, group: str, needs: list[Need]) -> ClientConnection | None:
        """Return a connected producer of the group with the rights `needs`, in rotation."""
        members = self._clients.producers.get(group, {}).values()
        open_ones = (m.connection for m in members if m.connection.is_open)
        connections = [one for one in open_ones if self._access.may_hear(one, needs)]
        if connections:
            self._turn += 1
            return next(islice(connections, self._turn % len(connections), None))
        last = self._halves.senders.get(group)
        if last is None or not last.is_open or not self._access.may_hear(last, needs):
            return None
        return last

    def _ask_producer(self, half: Half, record: MessageRecord) -> None:
        """Send CHECK_TRANSACTION_STATE (39) to a producer of the half's group."""
        connection = self._producer_of(half.root.group, _needs_of(record))
        if connection is None:
            return  # just disconnected; the next check retries
        key = half.root.unique_key
        header = CheckTransactionHeader(
            half.offset,
            half.position,
            key,
            key,
            offset_message_id(record.store_host, half.position),
        )
        try:
            command = RemotingCommand.request(
                RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), conversion.check_body(record)
            )
            connection.invoke_oneway(command)
        except RemotingError as error:  # including Refused; the next check retries
            log.info("check_not_sent group=%s: %s", half.root.group, error)


def _needs_of(half: MessageRecord) -> list[Need]:
    """Return the rights needed to end a half or to be asked for its outcome."""
    topic = decode_properties(half.properties).get(conversion.REAL_TOPIC, "")
    return [topic_need(topic, Permission.PUB)]


def _release(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
