"""Registrations of brokers (103), which may have some 100,000 topics.

A registration's header is checked first. The body is then hashed (in a thread if it is large),
authenticated, and decoded. Large bodies are decoded in order of arrival, a signed and an unsigned
body at a time, so signed brokers have at least every second turn. When
hundreds of brokers return after an outage, the first are thus listed long before the last, and a
waiting registration costs its compressed body only, within the budget of slow requests
(remoting.memory_limits). A broker that repeats a waiting registration takes the place of the first.
A registration waits only if its topics are needed.

Brokers of a cluster have mostly the same topics. While registrations wait, their parsed lines are
remembered, so each distinct line is parsed once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from hashlib import sha256

from raftmq.remoting.address import parse_address
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import FROM_PEER, Answer, Connection
from raftmq.remoting.fair_scheduling import Steps, StepTurns, finish
from raftmq.remoting.registration import (
    NO_GROUP_ID,
    NO_LEADER,
    BodyLimits,
    DataVersion,
    KnownLines,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc,
    peek_data_version,
    reading_register_body,
)
from raftmq.web.settings import is_loopback

from .registration_auth import Proofs
from .routes import (
    EXPIRY_MS,
    THIS_MACHINE,
    Registration,
    RegistrationRefused,
    RouteTable,
    TopicChange,
)

LOG = logging.getLogger("raftmq.namesrv")

TIMEOUT_MS_MIN = 1_000  # smallest timeout of a heartbeat
TIMEOUT_MS_MAX = 600_000
STEPS_AT_ONCE = 4  # about 2 ms; further steps run in turns
SMALL_BYTES = 8 * 1024  # the first steps of a smaller body do not wait; some 500 topics
HASHED_AT_ONCE_BYTES = 256 * 1024  # larger bodies are hashed in a thread, without the interpreter
_answer = RemotingCommand.response_to


class Registrations:
    """Answers registrations from a RouteTable. `order_body()` is the encoded configuration of
    ordered topics."""

    def __init__(
        self,
        table: RouteTable,
        now_ms: Callable[[], int],
        proofs: Proofs,
        turns: StepTurns,
        order_body: Callable[[], bytes],
        *,
        body_limits: BodyLimits,
    ) -> None:
        self.table = table
        self.proofs = proofs
        self._now_ms = now_ms
        self._turns = turns
        self._order_body = order_body
        self._body_limits = body_limits
        self._waiting_lists = {signed: WaitingList() for signed in (True, False)}
        self._lines = KnownLines()

    def register(self, connection: Connection, request: RemotingCommand) -> Answer:
        """103: register a broker with its topics. RegistrationRefused sets the answer's code."""
        header = RegisterBrokerHeader.parse(request.ext)
        try:
            self.proofs.check_header(connection, request)
            self._body_limits.checked(request.body)
            may_be_signed = self.proofs.may_be_signed(request)
            self.table.check(_claim(connection, header, signed=may_be_signed), self._now_ms())
            if len(request.body) > HASHED_AT_ONCE_BYTES:
                return self._register_large(connection, header, request)
            crc, digest = _sums(request.body)
            signed = self.proofs.is_proven(connection, request, digest)
        except RegistrationRefused as refused:
            return _refusal(header, request, refused)
        steps = self._registering(connection, header, request, crc, digest, signed)
        is_small = len(request.body) <= SMALL_BYTES
        if is_small or not self._wants_topics(header, request, digest, signed):
            for _ in range(STEPS_AT_ONCE):
                try:
                    next(steps)
                except StopIteration as end:
                    answer, change = end.value
                    return when_made(answer, change)
        return self._register_in_turn(connection, header, request, steps, signed)

    async def _register_large(
        self, connection: Connection, header: RegisterBrokerHeader, request: RemotingCommand
    ) -> RemotingCommand:
        crc, digest = await asyncio.to_thread(_sums, request.body)
        try:
            signed = self.proofs.is_proven(connection, request, digest)
        except RegistrationRefused as refused:
            return _refusal(header, request, refused)
        steps = self._registering(connection, header, request, crc, digest, signed)
        if not self._wants_topics(header, request, digest, signed):
            answer, change = finish(steps)
            if change is not None:
                await _made(change)
            return answer
        return await self._register_in_turn(connection, header, request, steps, signed)

    def _wants_topics(
        self, header: RegisterBrokerHeader, request: RemotingCommand, digest: bytes, signed: bool
    ) -> bool:
        """Return whether the table needs the topics of a registration."""
        if not request.body:
            return False
        version = peek_data_version(request.body, header.compressed)
        return self.table.wants_topics(
            header.broker_name, header.broker_address, header.broker_id, version, signed, digest
        )

    async def _register_in_turn(
        self, connection: Connection, header: RegisterBrokerHeader, request: RemotingCommand,
        steps: Steps[tuple[RemotingCommand, TopicChange | None]], signed: bool,
    ) -> RemotingCommand:  # fmt: skip
        with self._lines.used():
            async with self._waiting_lists[signed].turn(
                (connection, header.broker_address)
            ) as has_turn:
                if not has_turn:
                    steps.close()
                    return _answer(request, ResponseCode.SYSTEM_BUSY, "[BUSY] repeated meanwhile")
                answer, change = await self._turns.run(steps)
                if change is not None:
                    await _made(change)
                return answer

    def _registering(
        self, connection: Connection, header: RegisterBrokerHeader, request: RemotingCommand,
        crc: int, digest: bytes, signed: bool,
    ) -> Steps[tuple[RemotingCommand, TopicChange | None]]:  # fmt: skip
        """Decode the topics if the table needs them, and register. Return the answer, and the
        change of topics that must precede it."""
        if header.body_crc and header.body_crc != crc:
            return _answer(request, ResponseCode.SYSTEM_ERROR, "crc32 not match"), None
        version = peek_data_version(request.body, header.compressed) if request.body else None
        topics = None
        try:
            if self._wants_topics(header, request, digest, signed):
                version, topics = yield from reading_register_body(
                    request.body, header.compressed, self._body_limits, self._lines
                )
            claim = _claim(connection, header, version, topics, digest, signed=signed)
            result = self.table.register(claim, self._now_ms())
        except RegistrationRefused as refused:
            return _refusal(header, request, refused), None
        # Protects the connection, which the broker's routes depend on
        connection.has_account = True
        if result.group_id_before:
            LOG.warning(
                "group_id_changed broker=%s address=%s id=%s before=%s: if nobody meant it, the"
                " stores of the group before are elsewhere (storePathRootDir, a volume)",
                header.broker_name, header.broker_address, header.raft_group_id,
                result.group_id_before, extra=FROM_PEER,
            )  # fmt: skip
        if result.changed:
            LOG.info(
                "route_changed broker=%s address=%s id=%d term=%s topics=%d",
                header.broker_name, header.broker_address, header.broker_id,
                header.raft_term, self.table.topic_count,
            )  # fmt: skip
        ext = {"topicDelta": "true"}  # this name server accepts deltas
        if header.broker_id != 0 and result.leader_address:
            ext["masterAddr"] = result.leader_address
            ext["haServerAddr"] = result.leader_ha_address
        if result.need_full:
            ext["needFull"] = "true"
        return _answer(request, ext=ext, body=self._order_body()), result.topics


class WaitingList:
    """A queue in which one at a time has its turn."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, asyncio.Future[bool]] = {}
        self._is_taken = False

    @property
    def is_taken(self) -> bool:
        return self._is_taken

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[bool]:
        """Wait for a turn. False if a later call with this key has taken the place."""
        if self._is_taken:
            waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            earlier = self._waiting.get(key)
            self._waiting[key] = waiter
            if earlier is not None and not earlier.done():
                earlier.set_result(False)
            try:
                if not await waiter:
                    yield False
                    return
            except asyncio.CancelledError:
                if self._waiting.get(key) is waiter:
                    del self._waiting[key]
                elif waiter.done() and not waiter.cancelled() and waiter.result():
                    self._next()
                raise
        self._is_taken = True
        try:
            yield True
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.pop(next(iter(self._waiting)))
            if not waiter.done():
                waiter.set_result(True)
                return
        self._is_taken = False


def _claim(
    connection: Connection,
    header: RegisterBrokerHeader,
    version: DataVersion | None = None,
    topics: list[TopicConfig] | None = None,
    digest: bytes = b"",
    *,
    signed: bool,
) -> Registration:
    """Return the claim of a registration. `topics` is None if the table does not need them."""
    return Registration(
        cluster=header.cluster,
        broker_name=header.broker_name,
        address=header.broker_address,
        broker_id=header.broker_id,
        ha_address=header.ha_address,
        version=version or DataVersion(),
        topics=topics,
        # A delta without a base cannot be merged, so the full table is requested.
        delta_base=(header.delta_base or DataVersion(-1)) if header.topic_delta else None,
        complete=header.topic_delta is not None,
        term=header.raft_term or 0,
        group_id=(header.raft_group_id or "").replace(NO_GROUP_ID, ""),
        any_group=header.raft_group_id is None and header.raft_role is not None,
        follows=header.raft_role != NO_LEADER,
        own_id=header.raft_own_id or 0,
        removed=header.removed_ids,
        timeout_ms=timeout_ms_of(header.heartbeat_timeout_ms) or EXPIRY_MS,
        channel=connection,
        http_address=header.http_address,
        peer=_peer(connection),
        digest=digest,
        signed=signed,
    )


def _peer(connection: Connection) -> str:
    if not connection.peer_address or not connection.local_address:
        return ""  # already disconnected
    host, _ = parse_address(connection.peer_address)
    own, _ = parse_address(connection.local_address)
    return THIS_MACHINE if host == own or is_loopback(host) else host


def _refusal(
    header: RegisterBrokerHeader, request: RemotingCommand, refused: RegistrationRefused
) -> RemotingCommand:
    LOG.warning("registration_refused broker=%s %s", header.broker_name, refused, extra=FROM_PEER)
    ext = {"leaderAddr": refused.leader_address, "raftTerm": str(refused.term)}
    return _answer(request, refused.code, str(refused), ext)


def _sums(body: bytes) -> tuple[int, bytes]:
    """Return a body's CRC and SHA-256; both release the GIL."""
    return body_crc(body), sha256(body).digest()


def when_made(answer: RemotingCommand, change: TopicChange | None) -> Answer:
    if change is None or change.done:
        return answer

    async def later() -> RemotingCommand:
        await _made(change)
        return answer

    return later()


async def _made(change: TopicChange) -> None:
    if not change.done:
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        change.whenever_done.append(lambda: None if made.done() else made.set_result(None))
        await made


def timeout_ms_of(requested_ms: int | None) -> int | None:
    """Return a heartbeat's timeout within our limits, or None."""
    return min(max(requested_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX) if requested_ms else None
