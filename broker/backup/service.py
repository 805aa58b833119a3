"""The BACKUP request (30003, ours) of a running replica.

Ext `op`:

    mark    at the leader: body {"index"}: all that was acknowledged before is at or below it
    begin   `atLeast`: wait until so much is applied here, then copy the tables and note where the
            log ends with that frame. Body: facts; ext: `session`, `size` of the parcel, `end`.
            `bytesPerS` limits reads and digests. With a `session`, several readers share it, and
            a repeated begin returns the same
    state   `session`, `offset`: a chunk of the parcel, a group snapshot
            (dledger.raft.snapshot_install)
    read    `session`, `position`, `size`: bytes of the log, fewer where a segment ends
    frames  `session`, `position`, `end`: ext `start`, `end` of the frames that start in that range
            of a segment
    digest  `session`, `position`, `end`: SHA-256 of these bytes of the log (broker.backup.digests)
    units   `session`, body: runs of ConsumeQueue entries: their SHA-256, or with `content` = true
            the entries, which are zeros if absent
    damaged `session`, `position`: what was read there is no frame. If so it is fetched from a peer
    end     `session`: it is done

Tables are copied on the loop as for a snapshot install. The log is read in a thread per request.
Retention spares the unread log of a session, and all of the log of a shared session, until it is
silent for SILENT_MS, older than HOLD_MS, or the disk is too full. Reads of removed bytes are
answered [OVERTAKEN], and the backup starts again. A session keeps its last DIGESTS_KEPT_MAX digests
of the log: a repeated request reads nothing.

Any member of a Raft group serves backups; only `mark` needs the leader.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.snapshot_install import (
    GROUP_SNAPSHOT_BYTES_MAX,
    GroupSnapshot,
    configuration_section,
)
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.fast_json import dumps
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES
from raftmq.store.errors import OffsetOutOfRange

from ..checkpointer import finished
from ..component import Service
from ..context import Context
from ..errors import Refused, busy, invalid
from ..tables.snapshot_install import BrokerCapture, capture
from .digests import Digester, Pace, frames_within, pieces_of
from .protocol import (
    BEHIND,
    CHUNK_BYTES,
    DIGEST_BYTES_MAX,
    GONE,
    OVERTAKEN,
    READ_BYTES_MAX,
    Facts,
    decode_runs,
    encode_facts,
)
from .settings import settings_of

log = logging.getLogger("raftmq.broker.backup")

SESSIONS_MAX = 2
SILENT_MS = 120_000  # between two reads, for the tool's writes and rate limit
HOLD_MS = 24 * 3_600_000
POLL_MS = 10
WAIT_MS = 5_000  # for frames to be applied; [BEHIND] afterwards
READ_WAIT_MS = 5_000  # for a session's rate; [BUSY] afterwards
DIGESTS_WAITING_MAX = 8  # of all sessions
DIGESTS_KEPT_MAX = 65_536  # of a session, some 20 MiB; those of 1 TiB in 16 MiB each
_NAME = re.compile(r"[0-9a-f]{8,64}")


@dataclass(slots=True)
class _Session:
    """A backup or an audit reading from this replica. Retention may delete the log before `needed`,
    which is not moved if the session is `shared`. `digests` are by start and end."""

    parcel: bytes
    facts: Facts
    end: int
    since_ms: int
    heard_ms: int
    needed: int
    shared: bool
    pace: Pace
    digests: dict[tuple[int, int], bytes] = field(default_factory=dict)


class Backups:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._sessions: dict[str, _Session] = {}
        self._beginning = 0
        self._digester = Digester(context.store.commitlog, context.store.queues)
        self._digests_waiting = 0

    def service(self) -> Service:
        return Service(handlers={int(RequestCode.BACKUP): self.handle})

    def needed_from(self) -> int | None:
        """Return the CommitLog offset from which a backup still reads, or None."""
        self._expire()
        return min((session.needed for session in self._sessions.values()), default=None)

    async def handle(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle a BACKUP request. Raises Refused, RaftError."""
        ext = request.ext or {}
        operations = {
            "mark": self._mark,
            "begin": self._start,
            "state": self._state,
            "read": self._read,
            "frames": self._frames,
            "digest": self._digest,
            "units": self._units,
            "damaged": self._damaged,
            "end": self._end,
        }
        operation = operations.get(ext.get("op", ""))
        if operation is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"op={ext.get('op')!r}: expected one of {', '.join(operations)}",
            )
        return await operation(request, ext)

    async def _mark(self, request: RemotingCommand, _: dict[str, str]) -> RemotingCommand:
        engine = self._engine()
        self._context.roles.require_leading()
        index = await engine.read_barrier()
        return RemotingCommand.response_to(request, body=dumps({"index": index}))

    async def _start(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        context, engine = self._context, self._engine()
        at_least, given = _number(ext, "atLeast"), ext.get("session", "")
        pace = Pace(_number(ext, "bytesPerS") if "bytesPerS" in ext else 0)
        if given and not _NAME.fullmatch(given):
            raise invalid(f"session={given!r} is no name")
        self._expire()
        if given in self._sessions:
            return self._started(request, given)
        if len(self._sessions) + self._beginning >= SESSIONS_MAX:
            raise busy(f"{SESSIONS_MAX} backups are read from this replica already", retriable=True)
        self._beginning += 1
        try:
            captured = await self._captured(engine, at_least)
        finally:
            self._beginning -= 1
        # Without an await since the copy, so the log still has the tables' frame.
        index, settled = engine.log.index, engine.core.membership.configurations.settled
        facts = self._facts(engine, captured.applied_index)
        end = index.end_of(facts.index)
        name = given or secrets.token_hex(8)
        now_ms = context.clock_ms()
        needed = facts.start
        session = _Session(b"", facts, end, now_ms, now_ms, needed, bool(given), pace)
        self._sessions[name] = session
        first, previous_term = index.first_index, index.previous_term
        segment_size_bytes = context.store.commitlog.segment_size_bytes

        def encoded() -> bytes:
            return GroupSnapshot(
                first,
                previous_term,
                facts.start,
                facts.index,
                segment_size_bytes,
                configuration_section(*settled),
                captured.encode(),
            ).encode()

        loop = asyncio.get_running_loop()
        try:
            session.parcel = await finished(loop.run_in_executor(None, encoded))
        finally:
            if not 0 < len(session.parcel) <= GROUP_SNAPSHOT_BYTES_MAX:
                self._sessions.pop(name, None)
        if len(session.parcel) > GROUP_SNAPSHOT_BYTES_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the tables have {len(session.parcel)} bytes")
        log.info(
            "backup_started session=%s index=%d start=%d end=%d",
            name,
            facts.index,
            facts.start,
            end,
        )
        return self._started(request, name)

    def _started(self, request: RemotingCommand, name: str) -> RemotingCommand:
        session = self._sessions[name]
        if not session.parcel:
            raise busy(f"session {name} is started by another request", retriable=True)
        session.heard_ms = self._context.clock_ms()
        fields = {"session": name, "size": str(len(session.parcel)), "end": str(session.end)}
        return RemotingCommand.response_to(request, ext=fields, body=encode_facts(session.facts))

    async def _state(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        session = self._session(ext)
        offset = _number(ext, "offset")
        return RemotingCommand.response_to(
            request, body=session.parcel[offset : offset + CHUNK_BYTES]
        )

    async def _read(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        session = self._session(ext)
        position, size = _number(ext, "position"), _number(ext, "size")
        commitlog = self._context.store.commitlog
        _check_range(session, position, min(position + size, session.end), READ_BYTES_MAX, size)
        await self._turn(session, size)
        self._check_present(position)
        if not session.shared:
            session.needed = position
        hold = commitlog.hold(position)
        loop = asyncio.get_running_loop()
        size = min(size, session.end - position)
        try:
            data = await finished(loop.run_in_executor(None, hold.read, position, size))
        except OSError as error:
            raise _disk_error(error) from error
        finally:
            commitlog.release(hold)
        return RemotingCommand.response_to(request, body=data)

    async def _frames(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        session, log = self._session(ext), self._engine().log
        position, end = _number(ext, "position"), _number(ext, "end")
        _check_range(session, position, end, log.segment_end(position) - position)
        self._check_present(position)
        start, end = frames_within(log.index, position, end)
        fields = {"start": str(start), "end": str(min(end, session.end))}
        return RemotingCommand.response_to(request, ext=fields)

    async def _digest(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        session, log = self._session(ext), self._engine().log
        position, end = _number(ext, "position"), _number(ext, "end")
        _check_range(session, position, end, DIGEST_BYTES_MAX)
        digest = session.digests.get((position, end))
        if digest is None:
            try:
                with self._awaited():
                    await self._turn(session, end - position)
                    self._check_present(position)
                    pieces = [*pieces_of(log.index, log.segment_end, position, end)]
                    digest = await self._digester.digest(pieces)
            except OffsetOutOfRange:
                self._check_present(position)
                raise
            while len(session.digests) >= DIGESTS_KEPT_MAX:
                del session.digests[next(iter(session.digests))]
            session.digests[position, end] = digest
        return RemotingCommand.response_to(request, body=digest)

    async def _units(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        session = self._session(ext)
        try:
            runs = decode_runs(request.body)
        except msgspec.MsgspecError as error:
            raise invalid(f"no runs of entries: {error}") from error
        if self._context.store.derived.dispatched_offset < session.end:
            raise busy("the ConsumeQueues are behind the session's log", retriable=True)
        with self._awaited():
            await self._turn(session, sum(run.count for run in runs) * QUEUE_ENTRY_BYTES)
            content = ext.get("content") == "true"
            data = await self._digester.units(runs, content=content)
        return RemotingCommand.response_to(request, body=data)

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Count a digest in progress. Raises Refused, also for an OSError inside."""
        if self._digests_waiting >= DIGESTS_WAITING_MAX:
            raise busy(f"{DIGESTS_WAITING_MAX} digests are awaited already", retriable=True)
        self._digests_waiting += 1
        try:
            yield
        except OSError as error:
            raise _disk_error(error) from error
        finally:
            self._digests_waiting -= 1

    async def _turn(self, session: _Session, size: int) -> None:
        """Wait until the session's rate allows to read so many bytes. Raises Refused."""
        wait_ms = session.pace.reserve(size, self._context.clock_ms(), READ_WAIT_MS)
        if wait_ms is None:
            raise busy("others wait for this session's rate already", retriable=True)
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)

    def _check_present(self, position: int) -> None:
        """Raise Refused if retention has removed the log there."""
        first = self._context.store.commitlog.min_offset
        if position < first:
            raise Refused(
                ResponseCode.PULL_OFFSET_MOVED,
                f"retention has removed the log before {first}",
                tag=OVERTAKEN,
            )

    async def _damaged(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        self._session(ext)
        position = _number(ext, "position")
        damaged = self._engine().log.frame_is_damaged(position)
        log.warning("backup_met_damage position=%d confirmed=%s", position, damaged)
        return RemotingCommand.response_to(request, body=dumps({"damaged": damaged}))

    async def _end(self, request: RemotingCommand, ext: dict[str, str]) -> RemotingCommand:
        self._session(ext)
        del self._sessions[ext["session"]]
        log.info("backup_ended session=%s", ext["session"])
        return RemotingCommand.response_to(request)

    async def _captured(self, engine: RaftMember, at_least: int) -> BrokerCapture:
        """Return a copy of the tables at frame `at_least` or later. Raises Refused."""
        context = self._context
        deadline_ms = context.clock_ms() + WAIT_MS
        while True:
            applied = context.state.applied_index
            # Installed tables may be ahead of the log for a while.
            if at_least <= applied <= engine.log.index.last_index:
                captured = capture(context.state, context.store)
                if captured is not None:
                    return captured
            if context.clock_ms() >= deadline_ms:
                raise Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"this replica has applied frame {applied}; {at_least} is asked for",
                    retriable=True,
                    tag=BEHIND,
                )
            await asyncio.sleep(POLL_MS / 1000)

    def _facts(self, engine: RaftMember, index: int) -> Facts:
        config, core = self._context.config, engine.core
        return Facts(
            group=config.group_name,
            broker=config.broker_name,
            cluster=config.broker_cluster_name,
            node=config.node_name,
            role=core.role.value,
            members=tuple(
                f"{m.node_id}-{m.address}" for m in core.membership.configurations.current.members
            ),
            index=index,
            term=engine.log.index.term_at(index),
            current_term=core.term,
            start=self._context.store.commitlog.min_offset,
            settings=settings_of(config),
            time_ms=self._context.wall_ms(),
        )

    def _engine(self) -> RaftMember:
        if self._context.config.is_classic:
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "this broker is no replica of a Raft group: backups are of Raft groups. Stop a"
                " classic master, and copy its storePathRootDir instead",
            )
        return self._context.log.raft

    def _session(self, ext: dict[str, str]) -> _Session:
        self._expire()
        session = self._sessions.get(ext.get("session", ""))
        if session is None:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this replica knows of no such backup (any more)",
                retriable=True,
                tag=GONE,
            )
        session.heard_ms = self._context.clock_ms()
        return session

    def _expire(self) -> None:
        now_ms = self._context.clock_ms()
        for name, session in list(self._sessions.items()):
            silent_ms = now_ms - session.heard_ms
            if silent_ms > SILENT_MS or now_ms - session.since_ms > HOLD_MS:
                log.warning("backup_forgotten session=%s silent_ms=%d", name, silent_ms)
                del self._sessions[name]


def _check_range(session: _Session, start: int, end: int, most: int, size: int = 1) -> None:
    """Raise Refused unless the session's log has [start, end), of at most so many bytes."""
    first = session.facts.start
    if not first <= start < end <= session.end or not 0 < max(size, end - start) <= most:
        raise invalid(
            f"[{start}, {end}) size={size}: this session is of [{first}, {session.end}), at most"
            f" {most} bytes at once"
        )


def _disk_error(error: OSError) -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{error}", retriable=True, tag="DISK_ERROR")


def _number(ext: dict[str, str], name: str) -> int:
    """Parse a number. Raises Refused."""
    text = ext.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{name}={text!r} is no number")
    return int(text)
