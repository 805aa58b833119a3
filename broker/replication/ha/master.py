"""The master's side of the HA stream, with a link for each slave.

A slave's first report is the offset to continue at. A report of 0 (an empty log) is served from the
oldest byte, or with `syncFromLastFile` from the last segment, as by Apache's masters. A slave ahead
of this log, or before its first byte, is rejected, because its log is not a prefix, or bytes are
missing.

New bytes are sent from memory to slaves that are up to date, and from the files to the rest. A slow
slave delays no other, since some WRITE_BYTES_MAX wait in its connection, the rest in the log. The
limit is SLAVES_MAX slaves.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from raftmq.dledger.transport.peer_auth import Gate
from raftmq.ops.listening import PlainListening, listen_plain
from raftmq.remoting.address import format_address
from raftmq.remoting.connection import FROM_PEER
from raftmq.remoting.tls_listener import TlsListener, TlsPolicy
from raftmq.store.commitlog.commitlog import CommitLog

from ...config import BrokerConfig
from ...durations import Durations
from .protocol import HaProtocolError, ReportReader, transfer

log = logging.getLogger("raftmq.broker.ha.master")

SLAVES_MAX = 16
WRITE_BYTES_MAX = 1 << 20  # in a slave's connection
READ_BYTES = 1 << 18  # of the log per read
TRANSFER_BYTES = 32 << 10  # of the log per transfer, as at Apache's
TURN_BYTES_MAX = 4 << 20  # to a slave that catches up, per turn


class HaMaster:
    """All slaves of a master. Every method runs on the loop."""

    def __init__(
        self,
        commitlog: CommitLog,
        config: BrokerConfig,
        durations: Durations,
        *,
        clock_ms: Callable[[], int],
        on_acknowledged: Callable[[int], None],
        tls: TlsPolicy | None = None,
        gate: Gate | None = None,
    ) -> None:
        """`on_acknowledged(offset)` reports that a slave has everything below `offset`. With a
        `gate` slaves must prove themselves first."""
        self._gate = gate
        self._tls = tls
        self.commitlog = commitlog
        self.config = config
        self.durations = durations
        self.clock_ms = clock_ms
        self.links: set[SlaveLink] = set()
        self.acknowledged = 0  # the highest offset ever reported by a slave
        self.address = ""
        self.abandoned = ""  # the reason for rejecting all slaves
        self._on_acknowledged = on_acknowledged
        self._server: PlainListening | TlsListener | None = None

    async def start(
        self, host: str, port: int, advertised_host: str, bound_socket: socket.socket | None = None
    ) -> None:
        """Listen; `address` is then the advertised address. Raises OSError."""
        policy = self._tls

        def factory() -> asyncio.Protocol:
            return SlaveLink(self)

        accepting = factory if self._gate is None else self._gate.accepting(factory)
        if policy is not None:
            self._server = TlsListener(accepting, policy)
            await self._server.listen(host, port, bound=bound_socket)
        else:
            self._server = await listen_plain(accepting, host, port, bound_socket)
        bound = self._server.sockets[0].getsockname()[1]
        self.address = format_address(advertised_host, bound)
        log.info("ha_listening address=%s", self.address)

    async def stop(self) -> None:
        self.abandon("the master stops")
        if self._server is not None:
            await self._server.wait_closed()

    def abandon(self, reason: str) -> None:
        """Accept no more slaves and close every link."""
        self.abandoned = self.abandoned or reason
        if self._server is not None:
            self._server.close()
        if self._gate is not None:
            self._gate.close()
        for link in list(self.links):
            link.close(reason)

    def written(self, position: int, data: bytes) -> None:
        """Forward `data`, which was appended at `position`."""
        for link in self.links:
            link.offer(position, data)

    def available(self, end: int) -> bool:
        """Return whether some slave is close enough to wait for a record that ends at `end`."""
        nearest = max((link.acknowledged for link in self.links if link.serving), default=None)
        return nearest is not None and end - nearest < self.config.ha_slave_fallbehind_max

    @property
    def in_sync(self) -> int:
        """The number of slaves close enough to be waited for."""
        end, behind_max = self.commitlog.max_offset, self.config.ha_slave_fallbehind_max
        return sum(link.serving and end - link.acknowledged < behind_max for link in self.links)

    def tick(self, now_ms: int) -> None:
        """Send heartbeats on idle links; close silent ones."""
        for link in list(self.links):
            link.tick(now_ms)

    def status(self) -> list[dict[str, object]]:
        """Return each slave as Apache's HAConnectionRuntimeInfo."""
        end = self.commitlog.max_offset
        return [
            {
                "addr": link.peer_address,
                "slaveAckOffset": link.acknowledged,
                "diff": end - link.acknowledged,
                "inSync": link.serving
                and end - link.acknowledged < self.config.ha_slave_fallbehind_max,
                "transferFromWhere": link.next_offset,
            }
            for link in self.links
        ]

    def reported(self, offset: int) -> None:
        if offset > self.acknowledged:
            self.acknowledged = offset
            self._on_acknowledged(offset)


class SlaveLink(asyncio.Protocol):
    """A slave's connection."""

    def __init__(self, master: HaMaster) -> None:
        self._master = master
        self._reports = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._later: asyncio.Handle | None = None
        self._read_ms = self._written_ms = master.clock_ms()
        self.serving = False  # after the first report was accepted
        self.acknowledged = 0
        self.next_offset = 0
        self.peer_address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer: Any = transport.get_extra_info("peername")
        self.peer_address = format_address(str(peer[0]), int(peer[1])) if peer else "?"
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        no_delay(transport)
        if self._master.abandoned:  # accepted just before the port was closed
            self.close(self._master.abandoned)
            return
        if len(self._master.links) >= SLAVES_MAX:
            self.close(f"{SLAVES_MAX} slaves are connected already")
            return
        self._master.links.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._master.links:
            self._master.links.discard(self)
            log.info("slave_gone address=%s acknowledged=%d", self.peer_address, self.acknowledged)
        if self._later is not None:
            self._later.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def data_received(self, data: bytes) -> None:
        self._read_ms = self._master.clock_ms()
        try:
            for offset in self._reports.feed(data):
                self._take(offset)
        except HaProtocolError as error:
            self.close(str(error))

    def _take(self, offset: int) -> None:
        commitlog = self._master.commitlog
        if offset > commitlog.max_offset:
            raise HaProtocolError(
                f"the slave has {offset} bytes, this log ends at {commitlog.max_offset}: this "
                "master lost its tail, or the slave follows another log; it must begin anew, "
                "with an empty store directory; keep a copy of its own"
            )
        if not self.serving:
            self._start(offset)
        elif offset > self.next_offset:
            raise HaProtocolError(f"the slave reports {offset}, sent was up to {self.next_offset}")
        self.acknowledged = max(self.acknowledged, offset)
        self._master.reported(offset)

    def _start(self, offset: int) -> None:
        commitlog = self._master.commitlog
        start = offset
        if offset == 0:
            start = commitlog.min_offset
            segments = commitlog.segments()
            if self._master.config.sync_from_last_file and segments:
                start = segments[-1].start
        elif offset < commitlog.min_offset:
            raise HaProtocolError(
                f"the slave has {offset} bytes, this log begins at {commitlog.min_offset}: what "
                "lies between is gone; the slave must begin anew, with an empty store directory;"
                " keep a copy of its own"
            )
        self.next_offset = start
        self.serving = True
        log.info(
            "slave_follows address=%s from=%d end=%d",
            self.peer_address,
            start,
            commitlog.max_offset,
        )
        self._pump()

    def offer(self, position: int, data: bytes) -> None:
        """Forward `data`, just written at `position`."""
        if not self.serving or self._paused or self._later is not None:
            return  # it will be read from the log
        if self.next_offset == position:
            self._send(data)
        else:
            self._pump()

    def _pump(self) -> None:
        """Send missing bytes, as far as the connection accepts them."""
        self._later = None
        commitlog, sent = self._master.commitlog, 0
        while self.serving and not self._paused and self._transport is not None:
            if self.next_offset < commitlog.min_offset:
                self.close(f"bytes from {self.next_offset} on were deleted before it had them")
                return
            try:
                data = commitlog.read(self.next_offset, READ_BYTES)
            except OSError as error:  # of an old segment; this master continues
                self.close(f"what it lacks from {self.next_offset} on cannot be read: {error}")
                return
            if not data:
                return
            self._send(data)
            sent += len(data)
            if sent >= TURN_BYTES_MAX:
                self._later = asyncio.get_running_loop().call_soon(self._pump)
                return

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        view = memoryview(data)
        buffers: list[bytes | memoryview] = []
        for at in range(0, len(data), TRANSFER_BYTES):
            buffers += transfer(self.next_offset + at, view[at : at + TRANSFER_BYTES])
        self._transport.writelines(buffers)
        self.next_offset += len(data)
        self._written_ms = self._master.clock_ms()

    def tick(self, now_ms: int) -> None:
        durations = self._master.durations
        if now_ms - self._read_ms > durations.ha_silence:
            self.close(f"silent for {now_ms - self._read_ms} ms")
        elif self.serving and now_ms - self._written_ms >= durations.ha_heartbeat:
            assert self._transport is not None
            self._transport.writelines(transfer(self.next_offset, b""))
            self._written_ms = now_ms

    def close(self, reason: str) -> None:
        log.warning("slave_closed address=%s: %s", self.peer_address, reason, extra=FROM_PEER)
        self.serving = False
        if self._transport is not None:
            self._transport.abort()


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Set TCP_NODELAY, so that small reports and transfers are sent at once."""
    socket_ = transport.get_extra_info("socket")
    if socket_ is not None:
        socket_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
