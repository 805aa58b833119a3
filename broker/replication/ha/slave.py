"""The slave's side of the HA stream: follow a master, append its bytes, report.

    loop: know the master → compare the logs (`verify`) → connect → report → append, report, …

Bytes are checked to be complete records that continue this log (broker.replication.ha.protocol),
appended at the master's offsets and dispatched. A report follows each append, with SYNC_FLUSH of
the durable end, otherwise of the written end. Nothing is ever truncated here. If this log is not a
prefix of the master's, the slave rejects the master and logs an error until an operator decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from raftmq.dledger.transport.peer_auth import Gate
from raftmq.ops.connect import dial, within
from raftmq.remoting.address import parse_address
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.tls import Renewed
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.errors import Diverged, FlushUnderWay
from raftmq.store.transient_errors import passes

from ...durations import Durations
from .master import no_delay
from .protocol import (
    REPORT,
    HaProtocolError,
    RecordRuns,
    Run,
    TransferReader,
)

log = logging.getLogger("raftmq.broker.ha.slave")

# Requested of Apache's master with a log that starts at 0, since it answers a request of 0 with its
# last segment. The first byte of a log is the highest byte of a size, which is 0 below 16 MiB.
SECOND_BYTE, FIRST_BYTE = 1, b"\0"
RECONNECT_MS = 200  # doubled after each failure
RECONNECT_MS_MAX = 1_000
CONNECT_TIMEOUT_MS = 3_000
MASTER_ID = "0"  # the brokerId of every master


class LogsDiffer(Exception):
    """This slave's log is not a prefix of the master's. Nothing was changed."""


class HaSlave:
    """Follows the master at `master_address` in a task, between one `start` and one `stop`."""

    def __init__(
        self,
        commitlog: CommitLog,
        durations: Durations,
        *,
        master_address: Callable[[], str],
        verify: Callable[[], Awaitable[int]],
        append: Callable[[Run], None],
        reported: Callable[[], int],
        clock_ms: Callable[[], int],
        on_link: Callable[[bool], None],
        on_fatal: Callable[[str], None],
        tls: Renewed | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`verify()` returns the first report or raises LogsDiffer. `append(run)` raises Diverged;
        FlushUnderWay, after which the link restarts; OSError, which is fatal unless it is temporary
        and nothing was written. `reported()` is the offset to report. `on_link(up)` is called at
        the start and end of a link. With a `gate` the master must prove itself first."""
        self._gate = gate
        self.commitlog = commitlog
        self._tls = tls
        self.durations = durations
        self.append = append
        self.reported = reported
        self.clock_ms = clock_ms
        self.refused = ""  # the difference of the logs, or ""
        self.master = ""  # the linked master, or ""
        self._master_address = master_address
        self._verify = verify
        self._on_link = on_link
        self._on_fatal = on_fatal
        self._link: MasterLink | None = None
        self._unreached = ""  # the reason logged last
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._link.close("abandoned")

    def report(self) -> None:
        """Report an increased offset after a sync."""
        if self._link is not None:
            self._link.report()

    def tick(self, now_ms: int) -> None:
        if self._link is not None:
            self._link.tick(now_ms)

    @property
    def connected(self) -> bool:
        return self._link is not None

    async def _keep(self) -> None:
        wait_ms = RECONNECT_MS
        try:
            while True:
                address = self._master_address()
                if address and await self._follow(address):
                    wait_ms = RECONNECT_MS
                await asyncio.sleep(wait_ms / 1000)
                if address:
                    wait_ms = min(2 * wait_ms, RECONNECT_MS_MAX)
        except (AssertionError, OSError) as error:
            log.critical("slave_failed", exc_info=error)
            self._on_fatal(f"following the master failed: {error!r}")

    async def _follow(self, address: str) -> bool:
        """Run a link to its end; return whether the master sent anything."""
        try:
            host, port = parse_address(address)
            first = await self._verify()
            async with within(CONNECT_TIMEOUT_MS):
                link = await self._connected(host, port)
        except LogsDiffer as error:
            self._refuse(str(error))
            return False
        except (OSError, TimeoutError, RemotingError) as error:
            level = logging.DEBUG if self._unreached == repr(error) else logging.INFO
            log.log(level, "master_not_reached address=%s: %r", address, error)
            self._unreached = repr(error)
            return False
        self._unreached = ""
        self._link, self.master = link, address
        log.info("following master=%s from=%d", address, self.commitlog.max_offset)
        self._on_link(True)
        try:
            link.request(first)
            reason = await asyncio.shield(link.ended)
        finally:
            link.close("stopped")
            self._link, self.master = None, ""
            self._on_link(False)
        log.warning("master_lost address=%s reason=%s", address, reason)
        if link.failure is not None:
            raise link.failure
        self._refuse(link.differs)
        return link.served

    async def _connected(self, host: str, port: int) -> MasterLink:
        """Connect to that address, with a gate to a proven master. Raises OSError."""
        context = None if self._tls is None else self._tls.context

        async def connect(factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
            return await dial(factory, host, port, context)

        def factory() -> MasterLink:
            return MasterLink(self)

        if self._gate is None:
            link = await connect(factory)
        else:
            link = await self._gate.dial(connect, factory, MASTER_ID)
        assert isinstance(link, MasterLink), link
        return link

    def _refuse(self, reason: str) -> None:
        if reason and reason != self.refused:
            log.error(
                "not_following: %s. Nothing was changed here. If the master's log is the right "
                "one, stop this slave, move its store directory away and start it again; if this "
                "one is, stop the master and make this broker the master",
                reason,
            )
        self.refused = reason


class MasterLink(asyncio.Protocol):
    """The connection to the master."""

    def __init__(self, slave: HaSlave) -> None:
        self._slave = slave
        self._frames = TransferReader()
        self._runs: RecordRuns | None = None
        self._transport: asyncio.Transport | None = None
        self._reported = -1
        self._written_ms = self.read_ms = slave.clock_ms()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.served = False  # the master sent something
        self.differs = ""  # the master's bytes do not continue this log
        self.failure: Exception | None = None  # this log cannot be written any more

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        no_delay(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ended.done():
            self.ended.set_result(f"closed by the master: {exc}" if exc else "closed by the master")

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self.read_ms = self._slave.clock_ms()
        try:
            self._receive(data)
        except (HaProtocolError, Diverged) as error:
            self.differs = str(error)
            self.close(str(error))
        except FlushUnderWay as error:
            self.close(f"not now: {error}")
        except (AssertionError, OSError) as error:
            self.failure = error
            self.close(f"cannot append: {error!r}")

    def _receive(self, data: bytes) -> None:
        bodies: list[bytes] = []
        for offset, body in self._frames.feed(data):
            if offset == SECOND_BYTE and self._runs is None:
                offset, body = 0, FIRST_BYTE + body
            self.served = True
            if self._runs is None:
                self._runs = self._start(offset)
            expected = self._runs.received + sum(map(len, bodies))
            if offset != expected:
                raise HaProtocolError(f"the master goes on at {offset}, expected was {expected}")
            if body:
                bodies.append(body)
        if not bodies:
            return
        assert self._runs is not None
        for run in self._runs.feed(b"".join(bodies)):
            commitlog = self._slave.commitlog
            assert run.position == commitlog.max_offset
            try:
                self._slave.append(run)
            except OSError as error:
                if not passes(error) or commitlog.max_offset > run.position:
                    raise
                self.served = False  # the pause grows, as for an unreachable master
                self.close(f"not now: {error!r}")
                return
        self.report()

    def _start(self, offset: int) -> RecordRuns:
        """Apply the first frame's offset. An empty log starts at the master's offset."""
        commitlog = self._slave.commitlog
        if commitlog.max_offset == 0 and offset > 0:
            if offset % commitlog.segment_size_bytes:
                raise HaProtocolError(
                    f"the master begins at {offset}, where no segment of "
                    f"{commitlog.segment_size_bytes} bytes does: its mappedFileSizeCommitLog is "
                    "another one"
                )
            commitlog.start_at(offset)
            log.warning("log_begins at=%d: the master has or sends nothing older", offset)
        return RecordRuns(commitlog.max_offset, commitlog.segment_size_bytes)

    def request(self, offset: int) -> None:
        """Request the log from this offset on, the end of this log, or SECOND_BYTE."""
        self._write(offset)

    def report(self) -> None:
        """Report a changed end of this log to the master."""
        offset = self._slave.reported()
        if offset > self._reported:
            self._write(offset)

    def tick(self, now_ms: int) -> None:
        durations = self._slave.durations
        if now_ms - self.read_ms > durations.ha_silence:
            self.close(f"the master is silent for {now_ms - self.read_ms} ms")
        elif now_ms - self._written_ms >= durations.ha_heartbeat:
            self._write(max(self._reported, self._slave.reported()))

    def _write(self, offset: int) -> None:
        if self._transport is None:
            return
        self._transport.write(REPORT.pack(offset))
        self._reported = offset
        self._written_ms = self._slave.clock_ms()

    def close(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
        if self._transport is not None:
            self._transport.abort()
