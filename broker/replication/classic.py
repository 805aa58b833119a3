"""Classic mode, with a CommitLog without frames, written by a master and copied by its slaves.

The master appends waiting sends (a batch is a group commit), dispatches them at once and sends them
to its slaves. Senders are answered by the acknowledgement rule (broker.replication.ha.acks):
SYNC_FLUSH waits for fdatasync, SYNC_MASTER for a slave. A waiting batch does not delay the next.

A slave appends and dispatches its master's bytes and accepts no sends. Topics, groups and offsets
are not in the log. Changes apply to the tables at once, `broker.tables.config_files` writes them,
and slaves pull them (broker.replication.ha.metadata).

A failed write or fdatasync ends the broker, because the page cache is then unreliable. A temporary
shortage before a write (store.transient_errors) is retried. A master's sends wait, and a slave ends
its link.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EDQUOT, ENOSPC

from raftmq.dledger.raft.errors import NotLeader
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.process_tls import ProcessTls
from raftmq.store.commitlog.group_flusher import FlushMode, GroupFlusher
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC
from raftmq.store.errors import StoreError
from raftmq.store.frame import EntryBatch
from raftmq.store.message_store import MessageStore
from raftmq.store.transient_errors import RETRY_S, passes

from ..config import BrokerConfig
from ..durations import DURATIONS, Durations
from ..error_isolation import Contained
from ..errors import OutcomeUnknown, Refused
from ..scheduler import Activity
from ..send.queue import Batch
from ..send.service import SendPath
from ..tables.config_files import ConfigFiles
from ..tables.state import BrokerState, Change, decode_command_payload
from .ha.acks import AckBook, Answered, SlaveWish
from .ha.follower import Follower
from .ha.master import HaMaster
from .ha.protocol import Run
from .ha.slave import HaSlave
from .peer_auth import NO_GATES, Gates

log = logging.getLogger("raftmq.broker.classic")

DEFINING = ("put_topic", "put_group")  # they change only a definition
KEPT_IN_FILES = (*DEFINING, "delete_topic", "delete_group")
POOL_THREADS = 2  # for fdatasync, and to prepare segments
TICK_MS = 50  # maximum delay of timeouts and heartbeats


class LocalApplication:
    """The sends, tables and queues of this broker, driven by the engine."""

    def __init__(
        self,
        state: BrokerState,
        sends: SendPath,
        store: MessageStore,
        *,
        on_entries: Callable[[Sequence[EntryBatch]], None],
        on_topics: Callable[[Sequence[str]], None],
        on_role: Callable[[RoleEvent], None],
        on_link: Callable[[], None],
        files: ConfigFiles,
        contained: Contained,
        activity: Activity,
    ) -> None:
        """`on_link()` is called when a slave's link to its master starts or ends."""
        self.state = state
        self.sends = sends
        self.store = store
        assert store.classic is not None
        self._log = store.classic
        self.files = files
        self.role_changed = on_role
        self.link_changed = on_link
        self._on_entries = on_entries
        self._on_topics = on_topics
        self._contained = contained
        self._activity = activity

    def allocate(self, length: int) -> int:
        """Return the position for a batch of `length` bytes, with its space prepared. Raises
        StoreError, or OSError without a visible change."""
        commitlog = self.store.commitlog
        self.store.derived.write_full_tails()
        position = commitlog.allocate(length)
        commitlog.prepare_segment(position)
        return position

    def append(self, batch: Batch) -> None:
        """Write and dispatch a batch, apply its commands, wake held pulls. Raises OSError."""
        self._log.append(batch.position, batch.data, batch.entries, batch.stamp_ms)
        for command in batch.group.commands:
            self.apply(command, batch.stamp_ms, batch.position)
        self._arrived(batch.entries)

    def copy(self, run: Run, own_from: int | None) -> None:
        """Do the same for bytes of the master's log (`own_from` as in store.commitlog.classic_log).
        Raises Diverged, FlushUnderWay, and OSError, after which the end of the log shows whether
        the bytes were written."""
        if run.last_record < 0:
            self._log.copy_blank(run.data)
        else:
            self._arrived(self._log.copy(run.data, run.newest_ms, own_from))

    def _arrived(self, entries: Sequence[EntryBatch]) -> None:
        self._activity.note()
        self._on_entries(entries)

    def answer(self, answered: Sequence[Answered[Batch]]) -> None:
        at = 0
        while at < len(answered):
            code = answered[at][1]
            end = at
            while end < len(answered) and answered[end][1] == code:
                end += 1
            self.sends.answer([batch for batch, _ in answered[at:end]], code)
            at = end

    def apply(self, payload: bytes, now_ms: int, records_at: int = -1) -> Change:
        """Apply a command to the tables. Raises StateError."""
        self._activity.note()
        at = self.store.commitlog.max_offset if records_at < 0 else records_at
        change = self.state.apply(self.state.applied_index + 1, now_ms, payload, at)
        self.topics_changed(change.topics)
        return change

    async def start_as_master(self) -> None:
        """Lower and save progress that is ahead of the log, before appends. Raises OSError."""
        if keep_within(self.state, self.store.queues.end_of):
            log.info("progress_rolled_back: it was ahead of the log")
            await self.files.save()

    def topics_changed(self, names: Sequence[str]) -> None:
        for name in names:
            exists = self.state.topics.get(name) is not None
            self.store.queues.topic_changed(name, exists=exists)
            self.sends.topic_changed(name)
        if names:
            self._contained.run("topics_told", lambda: self._on_topics(names))


class ClassicEngine:
    def __init__(
        self,
        config: BrokerConfig,
        application: LocalApplication,
        *,
        clock_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        on_fatal: Callable[[str], None],
        master_address: Callable[[], str],
        master_ha_address: Callable[[], str],
        listen_socket: socket.socket | None = None,
        tls: ProcessTls | None = None,
        gates: Gates = NO_GATES,
        durations: Durations = DURATIONS,
    ) -> None:
        """`master_address()` and `master_ha_address()` are the master's addresses from a name
        server, or "". Tests pass a bound `listen_socket`. `tls` is loaded. `gates` require proofs
        of peers."""
        tls = tls or ProcessTls(config)
        self.config = config
        self.is_slave = config.is_slave
        self._application = application
        self._commitlog = application.store.commitlog
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._on_fatal = on_fatal
        self._mode = FlushMode(config.flush_disk_type)
        self._waits_flush = self._mode is FlushMode.SYNC
        self._waits_slave = config.broker_role == "SYNC_MASTER"
        self.acks: AckBook[Batch] = AckBook(durations.sync_flush, config.slave_timeout)
        self.own_from = 0  # the CommitLog offset from which this master stored the log
        self._soon: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None  # retries after a shortage
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="classic-disk")
        self._preparing: asyncio.Future[None] | None = None
        self._prepare_due_ms = 0.0
        self._flusher = GroupFlusher(
            self._commitlog,
            self._pool,
            self._mode,
            interval_ms=config.flush_interval_commit_log,
            on_durable=self._durable,
            on_error=lambda error: self.abandon(f"fdatasync failed: {error!r}"),
        )
        self.master = HaMaster(
            self._commitlog,
            config,
            durations,
            clock_ms=clock_ms,
            on_acknowledged=self._replicated,
            tls=tls.server,
            gate=gates.master,
        )
        self.follower = Follower(
            self._commitlog,
            application.state,
            application.store.queues,
            application.files,
            self._pool,
            credentials=config.inner_credentials,
            master_address=master_address,
            address_follows=lambda: bool(config.name_servers),
            interval_ms=config.slave_sync_metadata_interval_ms,
            wall_ms=wall_ms,
            on_topics=self._topics_replaced,
            tls=tls.client,
        )
        self.slave = HaSlave(
            self._commitlog,
            durations,
            master_address=lambda: config.ha_master_address or master_ha_address(),
            verify=self._verify,
            append=self._copy,
            reported=self.reported,
            clock_ms=clock_ms,
            on_link=self._link_changed,
            on_fatal=self.abandon,
            tls=tls.client,
            gate=gates.slave,
        )
        self._listen_socket = listen_socket

    # ---- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start as master or slave. Raises OSError."""
        self._running = True
        self._flusher.start()
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        config = self.config
        if self.is_slave:
            event = RoleEvent(Role.FOLLOWER, 0, None, False, "brokerRole")
        else:
            await self._application.start_as_master()
            self.own_from = self._commitlog.max_offset
            await self.master.start(
                config.bind_address, config.ha_port, config.broker_ip1, self._listen_socket
            )
            event = RoleEvent(Role.LEADER, 0, config.broker_name, True, "brokerRole")
        self._application.role_changed(event)
        if self.is_slave:
            self.slave.start()
            self.follower.start()

    async def stop(self) -> None:
        """Make the log durable, inform slaves and senders, stop. May be repeated."""
        if self._running:
            self._running = False
            await self.slave.stop()
            await self.follower.stop()
            await self._last_sync()
        self._end_timers()
        self._application.answer(self.acks.give_up())
        await self._flusher.stop()
        await self.master.stop()
        if self._preparing is not None:
            await asyncio.wait([self._preparing])
        self._pool.shutdown()

    async def _last_sync(self) -> None:
        """Make the written log durable, so that its senders get SEND_OK."""
        ticket = None
        await self._flusher.stop()
        if self._flusher.failed is None:
            ticket = self._commitlog.start_sync()
        if ticket is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, ticket.run)
            self._durable(self._commitlog.finish_sync(ticket))
        except (OSError, StoreError) as error:
            self.abandon(f"the last fdatasync failed: {error!r}")

    def abandon(self, reason: str) -> None:
        """Stop answering for good, without a further write, answer or sync."""
        self._running = False
        self._end_timers()
        self.slave.abandon()
        self.master.abandon(reason)
        self._on_fatal(reason)

    def _end_timers(self) -> None:
        for handle in (self._soon, self._again, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._again = self._timer = None

    # ---- the master's log -------------------------------------------------------------------

    def request_cut(self, at_once: bool = False) -> None:
        """Write waiting sends now, or at the end of this iteration of the loop."""
        if at_once:
            self._cut()
        elif self._soon is None and self._running:
            self._soon = asyncio.get_running_loop().call_soon(self._cut)

    def _cut(self) -> None:
        """Write all waiting sends, forward them, answer those without a condition."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if not self._running or self._again is not None:
            return
        answered: list[Answered[Batch]] = []
        try:
            while (batch := self._next_batch()) is not None:
                self._application.append(batch)
                self.master.written(batch.position, batch.data)
                answered += self._note(batch)
        except (OSError, StoreError) as error:
            self.abandon(f"the log cannot be written: {error!r}")
            return
        except Exception as error:  # stop on any error, for any caller
            log.critical("log_broken", exc_info=error)
            self.abandon(f"an invariant is broken: {error!r}")
            return
        self._flusher.request()
        self._application.answer(answered)

    def _next_batch(self) -> Batch | None:
        """Build the next batch of waiting sends, or return None. During a shortage they keep
        waiting, and `_cut` runs again after a pause. Raises StoreError, OSError."""
        try:
            return self._application.sends.next_batch(self._application.allocate)
        except OSError as error:  # of `membership`
            if not passes(error):
                raise
            log.warning("disk_full error=%s", error)
            self._again = asyncio.get_running_loop().call_later(RETRY_S, self._cut_again)
            return None

    def _cut_again(self) -> None:
        self._again = None
        self._cut()

    def _note(self, batch: Batch) -> list[Answered[Batch]]:
        """Record the conditions of the batch; return it if there are none."""
        flush, slave = self._waits_flush, SlaveWish.NOTHING
        if flush or self._waits_slave:
            if not self._application.sends.answer_unwaiting(batch):
                flush = False
            elif self._waits_slave:
                available = self.master.available(batch.end)
                slave = SlaveWish.WAIT if available else SlaveWish.UNAVAILABLE
        return self.acks.add(batch, batch.end, flush=flush, slave=slave, now_ms=self._clock_ms())

    def _durable(self, offset: int) -> None:
        self._application.answer(self.acks.flushed(offset))
        if self.is_slave and self._waits_flush:
            self.slave.report()

    def _replicated(self, offset: int) -> None:
        self._application.answer(self.acks.replicated(offset))

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        now_ms = self._clock_ms()
        self._application.answer(self.acks.expire(now_ms))
        self.master.tick(now_ms)
        self.slave.tick(now_ms)
        due = self._preparing is None and now_ms >= self._prepare_due_ms
        if due and self._commitlog.wants_next:
            loop = asyncio.get_running_loop()
            self._preparing = loop.run_in_executor(self._pool, self._commitlog.prepare_next)
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, done: asyncio.Future[None]) -> None:
        self._preparing = None
        error = None if done.cancelled() else done.exception()
        if error is not None:  # not fatal, because the roll retries
            log.warning("prepare_next failed=%s", error)
            self._prepare_due_ms = self._clock_ms() + RETRY_S * 1000

    # ---- the slave's log --------------------------------------------------------------------

    def _copy(self, run: Run) -> None:
        self._application.copy(run, self.follower.comparison.own_from)
        if run.last_record >= 0:
            self.follower.appended(run.last_record)
        self._flusher.request()

    def reported(self) -> int:
        log = self._commitlog
        return log.durable_offset if self._waits_flush else log.max_offset

    async def _verify(self) -> int:
        """Prepare a link; return this log's durable end, or an empty log's offset to request."""
        if self._waits_flush:
            await self._flusher.wait(self._commitlog.max_offset)
        request = await self.follower.verify()
        return 0 if not self._commitlog.max_offset and self.config.sync_from_last_file else request

    def _link_changed(self, up: bool) -> None:
        self.follower.metadata.link_changed(up)
        self._application.link_changed()

    def _topics_replaced(self) -> None:
        self._application.topics_changed(list(self._application.state.topics.entries))

    # ---- the rest of Engine -----------------------------------------------------------------

    def propose_command(self, payload: bytes) -> asyncio.Future[int]:
        """Change the tables now. The result is done once a changed topic or group is in its file;
        offsets are written on a timer. A slave accepts only offsets. Raises NotLeader, StateError,
        and Refused without a change if the file could not be written."""
        command = decode_command_payload(payload)
        if self.is_slave and command["op"] != "commit_offsets":
            raise NotLeader(None)
        if any(one["op"] in KEPT_IN_FILES for one in command.get("commands", [command])):
            try:
                self._application.files.check_room(len(payload))
            except OSError as error:
                tag = "DISK_FULL" if error.errno in (ENOSPC, EDQUOT) else "DISK_ERROR"
                reason = f"its file could not be written ({error}); nothing was changed"
                raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, reason, tag=tag) from error
        try:
            change = self._application.apply(payload, self._wall_ms())
        except AssertionError as error:
            self.abandon(f"an invariant is broken: {error!r}")
            raise
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        index = self._application.state.applied_index
        if not change.topics and not change.groups:
            done.set_result(index)
            return done

        def saved(result: asyncio.Future[None]) -> None:
            error = None if result.cancelled() else result.exception()
            if done.done():
                return
            if isinstance(error, OSError):
                reason = f"the change is in force, but not in its file yet: {error}"
                done.set_exception(OutcomeUnknown(f"{reason}. It is lost if the broker ends now"))
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(index)

        files, defines = self._application.files, command["op"] in DEFINING
        (files.defined() if defines else files.saved()).add_done_callback(saved)
        return done

    def read_barrier(self) -> asyncio.Future[int]:
        """Return, because a log has a single master."""
        proven: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        proven.set_result(self._commitlog.max_offset)
        return proven

    def transfer(self, target: str) -> None:
        raise NotLeader(None)

    def successor(self) -> str | None:
        return None

    def read_failed(self, error: OSError, again: Callable[[], object]) -> None:
        """Do nothing, because no replica could replace the master."""

    async def delete_before(self, position: int) -> int:
        """Delete complete segments; return the new start of the log."""
        self._application.store.delete_before(position)
        return self._commitlog.min_offset

    def ha_status(self) -> dict[str, object]:
        """Return Apache's HARuntimeInfo (907), without the transfer rates."""
        links = [] if self.is_slave else self.master.status()
        info: dict[str, object] = {
            "master": not self.is_slave,
            "masterCommitLogMaxOffset": self._commitlog.max_offset,
            "inSyncSlaveNums": sum(1 for link in links if link["inSync"]),
            "haConnectionInfo": links,
        }
        if self.is_slave:
            info["masterCommitLogMaxOffset"] = self.follower.comparison.master_end
            info["haClientRuntimeInfo"] = {
                "masterAddr": self.slave.master,
                "maxOffset": self._commitlog.max_offset,
                "masterFlushOffset": self.follower.comparison.master_end,
                "isActivated": self.slave.connected,
            }
        return info

    def status(self) -> dict[str, object]:
        return {"role": self.config.broker_role}


def keep_within(state: BrokerState, end_of: Callable[[str, int], int]) -> bool:
    """Lower the progress of delays, timers, transactions and consumers to the ends of their queues;
    return whether anything changed. If pops are ahead, messages in flight are redelivered.
    `end_of(topic, queue id)` is the offset of the next message.

    A slave copies tables and log over different connections, and a file of Apache's under config/
    may be durable before its log. The tables of a new master may therefore be ahead of its queues,
    and the next messages would count as delivered or consumed."""
    delays, offsets, pops = state.delays, state.offsets, state.pops
    before = delays.counter, offsets.counter
    for level, offset in list(delays.offsets.items()):
        end = end_of(SCHEDULE_TOPIC, level - 1)
        if offset > end:
            delays.advance(level, end)
    timer, end = delays.timer, end_of(TIMER_TOPIC, 0)
    if max(timer.end, timer.floor) > end:
        delays.advance_timer(timer._replace(end=min(timer.end, end), floor=min(timer.floor, end)))
    ahead = [
        (topic, group, queue_id, end)
        for (topic, group), queues in offsets.offsets.items()
        for queue_id, offset in queues.items()
        if offset > (end := end_of(topic, queue_id))
    ]
    for (topic, group, queue_id), queue in pops.all_queues():
        if queue.next > (end := end_of(topic, queue_id)):
            first = queue.first_unfinished
            start = end if first is None else min(first, end)
            pops.reset([(topic, group, queue_id, start)])
            queue.popped_to = min(queue.popped_to, end)
            ahead.append((topic, group, queue_id, start))
    if ahead:
        offsets.commit(ahead)
    return before != (delays.counter, offsets.counter)
