"""Registration of identity, role, term and topics with the name servers.

Each name server has its own task, so that a dead server delays no other. It registers at the start,
every `registerNameServerPeriod`, after `trigger`, and soon after its connection was lost, because
the name server then forgets the broker. A failed attempt is repeated after RETRY_MS. Each missing
answer doubles the time-out and this pause, up to BACKOFF_MAX times, so that a busy name server does
not become busier.

The ready leader registers as brokerId 0, every other replica with its own id. By `raftTerm` a name
server rejects a deposed leader, by `raftGroupId` a replica of a different group of this name. A
replica outside its Raft group unregisters. A member that no name server has listed for UNLISTED_S
reports that (`in_no_route`). With a `registrationKeyFile` registrations are signed, with a nonce
per connection (remoting.registration_proof); a name server without nonces has no key and gets
unsigned registrations.

Our name servers put `topicDelta`=true in their answers. They then get only the changes since their
last table, mostly none, in a few hundred bytes. They request the full table with `needFull`. A
large table may take such a name server longer than the time-out. It then gets the changes since
that table, with the present role and term, and the table is repeated after FULL_REPEAT_S only. All
other name servers get the full table every time, as from Apache's brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError, SendTimeout
from raftmq.remoting.fields import boolean_or, text_or
from raftmq.remoting.registration import (
    BrokerHeader,
    DataVersion,
    RegisterBrokerHeader,
    body_crc,
    encode_register_body,
)
from raftmq.remoting.registration_proof import WRONG_SIGNATURE, RegistrationSigner, ask_signer
from raftmq.remoting.tls import Renewed

from .registeredtopics import RegisteredTopics

log = logging.getLogger("raftmq.broker.registration")

RETRY_MS = 1_000  # a restarted name server gets a registration a second later
LOST_PAUSE_MS = 100  # limits dials to a name server that closes every connection
TIMEOUT_MS = 3_000
BACKOFF_MAX = 8  # times the time-out and the pause, 24 s and 8 s; < a registration period
FULL_REPEAT_S = 60.0  # a name server reads the tables of 100 groups of 20,000 topics in 10 s of CPU
UNREGISTER_TIMEOUT_MS = 500
REFUSALS_REPORTED = 5  # in succession at one name server; a change of role passes sooner
UNLISTED_S = 30.0  # without a route at any name server
SPREAD_S = 1.0  # limit of the wait for name servers after a topic was created


@dataclass(frozen=True, slots=True)
class Identity:
    """The registration without its topics."""

    broker_id: int
    term: int  # 0 without a Raft group
    role: str  # leader, follower, NO_LEADER, or "" without a Raft group
    member: bool = True  # non-members stay out of the routes
    group_id: str = ""  # in hex, NO_GROUP_ID, or "" if the engine has none
    own_id: int = 0  # a Raft leader's broker id as a follower


class Registrar:
    """Registers with the name servers, between one `start` and one `stop`."""

    def __init__(
        self,
        name_servers: Sequence[str],
        *,
        cluster: str,
        broker_name: str,
        address: str,
        ha_address: Callable[[], str],
        http_address: str = "",
        identity: Callable[[], Identity],
        topics: RegisteredTopics,
        on_master: Callable[[str, str], None],
        on_route: Callable[[str, int | None, str], None] = lambda server, broker_id, why: None,
        needs_master: Callable[[], bool],
        period_ms: int,
        timeout_ms: int = TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Renewed | None = None,
        signing_keys: Sequence[bytes] = (),
        removed_groups: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`on_master(address, ha_address)` reports the group's leader according to a name server.
        `on_route(name server, broker id, reason)` reports each change of a route; None means
        unlisted. While `needs_master()` is true, registration repeats until a name server names a
        master. `removed_groups()` returns the ids of groups that were removed from the cluster."""
        self._removed_groups = removed_groups
        self._name_servers = tuple(dict.fromkeys(name_servers))
        self._cluster = cluster
        self._broker_name = broker_name
        self._address = address
        self._ha_address = ha_address
        self._http_address = http_address
        self._needs_master = needs_master
        self._identity = identity
        self._topics = topics
        self._on_master = on_master
        self._period_ms = period_ms
        self._timeout_ms = timeout_ms
        self._client = RemotingClient(
            connect_timeout_ms=timeout_ms, credentials=credentials, tls=tls
        )
        self._client.on_close(self._connection_lost)
        self._signing_keys = tuple(signing_keys)
        self._signers: dict[Connection, RegistrationSigner | None] = {}  # None without a nonce
        self._due: dict[str, asyncio.Event] = {}  # by name server
        self._keeping: dict[str, asyncio.Task[None]] = {}  # by name server
        self._tasks: set[asyncio.Task[None]] = set()
        self._body: tuple[DataVersion, bytes] | None = None  # of the last full table
        self._taken: dict[str, DataVersion] = {}  # versions of name servers that accept deltas
        self._accepts_deltas: set[str] = set()  # name servers, until their connection ends
        # By name server, the last full table without an answer, and when it is repeated
        self._full: dict[str, tuple[Identity, float]] = {}
        self._backoff: dict[str, int] = {}  # by name server, times the time-out and the pause
        self._sent_versions: dict[
            str, int
        ] = {}  # by name server, the counter of the last version sent
        self._refusals: dict[str, int] = {}  # successive rejections by name server
        self._refusal = ""  # the last rejection
        self._failure = "namesrvAddr is empty"  # the last reason of not being listed
        self._unlisted_at_s = 0.0  # the loop's time since which no name server lists it
        self._news = asyncio.Event()  # set after each successful registration
        self.body_bytes_sent = 0
        self.registered: dict[str, Identity] = {}  # by name server, the last registration
        self._on_route = on_route

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._unlisted_at_s = loop.time()
        self._tasks.add(loop.create_task(self._report_missing_route()))
        for server in self._name_servers:
            self._start(server)

    def use(self, name_servers: Sequence[str]) -> None:
        """Register with these name servers from now on, and unregister from the rest."""
        before, self._name_servers = self._name_servers, tuple(dict.fromkeys(name_servers))
        for server in before:
            if server not in self._name_servers:
                for table in (self._due, self._refusals):
                    table.pop(server, None)
                task = asyncio.create_task(self._forget(server, self._keeping.pop(server)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for server in self._name_servers:
            if server not in before:
                self._start(server)

    def _start(self, server: str) -> None:
        self._due[server] = asyncio.Event()
        self._due[server].set()
        self._keeping[server] = asyncio.create_task(self._keep(server))

    async def _forget(self, server: str, keeping: asyncio.Task[None]) -> None:
        """End the registrations with a name server that namesrvAddr no longer has."""
        keeping.cancel()
        await asyncio.wait([keeping])
        await self._unregister(server, self._identity().broker_id)
        self._gone(server, "unregistered: namesrvAddr was changed")
        if server in self._due:  # it was added again
            self._due[server].set()

    def trigger(self) -> None:
        """Register with every name server now, after a change."""
        for event in self._due.values():
            event.set()

    async def spread(self) -> None:
        """Return once every name server that lists this broker has the current topics, or after
        SPREAD_S, so that a new topic can be found."""
        version = self._topics.version.counter
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SPREAD_S):
                while any(
                    self._sent_versions.get(server, -1) < version for server in self.registered
                ):
                    self._news.clear()
                    await self._news.wait()

    @property
    def refused(self) -> str:
        """The reason why this replica is unlisted because of rejections, else "". No name server
        lists it, and at least one has rejected it REFUSALS_TOLD times in succession."""
        refused = max(self._refusals.values(), default=0) >= REFUSALS_REPORTED
        return self._refusal if refused and not self.registered else ""

    @property
    def unlisted(self) -> str:
        """Return why no name server has listed this member for UNLISTED_S, else ""."""
        if self.registered or not self._identity().member:
            return ""
        lasted_s = asyncio.get_running_loop().time() - self._unlisted_at_s
        return self._failure if lasted_s >= UNLISTED_S else ""

    async def _report_missing_route(self) -> None:
        reported = False
        while True:
            await asyncio.sleep(UNLISTED_S / 10)
            reason = self.unlisted
            if reason and not reported:
                log.warning("in_no_route no client finds this broker: %s", reason)
            reported = bool(reason)

    def _connection_lost(self, connection: Connection, reason: str) -> None:
        server = connection.address
        self._signers.pop(connection, None)
        self._taken.pop(server, None)  # the name server forgets the broker with the connection
        self._accepts_deltas.discard(server)
        self._full.pop(server, None)
        self._backoff.pop(server, None)
        if self._gone(server, f"the connection ended: {reason}"):  # RETRY_MS is running otherwise
            loop = asyncio.get_running_loop()
            if server in self._due:
                loop.call_later(LOST_PAUSE_MS / 1000, self._due[server].set)

    async def stop(self) -> None:
        """Stop, and unregister (104)."""
        tasks = [*self._tasks, *self._keeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        own = self._identity().broker_id
        await asyncio.gather(*(self._unregister(server, own) for server in self._name_servers))
        for server in self._name_servers:
            self._gone(server, "unregistered: it stops")
        await self._client.close()

    def _gone(self, server: str, why: str) -> bool:
        """Record that this broker left a name server's routes; return whether it was listed."""
        had = self.registered.pop(server, None) is not None
        if had:
            self._unlisted_at_s, self._failure = asyncio.get_running_loop().time(), why
            self._on_route(server, None, why)
        return had

    async def _keep(self, server: str) -> None:
        event = self._due[server]
        wait_ms = self._period_ms
        while True:
            with contextlib.suppress(TimeoutError):  # the period is over
                async with asyncio.timeout(wait_ms / 1000):  # wait_for may swallow a cancellation
                    await event.wait()
            event.clear()
            done = await self._register(server)
            wait_ms = self._period_ms if done else RETRY_MS * self._backoff.get(server, 1)

    async def _register(self, server: str) -> bool:
        """Register once; return False if it must be repeated soon."""
        identity = self._identity()
        if not identity.member:
            return await self._leave(server)
        version = self._topics.version
        base = self._taken.pop(server, None)
        command, base = await self._command(identity, base)
        now_s = asyncio.get_running_loop().time
        try:
            timeout_ms = self._timeout_ms
            if base is not None or server not in self._accepts_deltas:
                timeout_ms *= self._backoff.get(server, 1)
            response = await self._tell(server, command, timeout_ms)
        except RemotingError as error:
            is_connected = self._client.connection(server) is not None
            if isinstance(error, SendTimeout) and is_connected:
                self._back_off(server)
                if server in self._accepts_deltas:
                    self._taken[server] = base or version
                    if base is None:
                        self._full[server] = identity, now_s() + FULL_REPEAT_S
            self._failure = f"{server}: {error}"
            was_there = self._gone(server, str(error))
            if was_there or identity.broker_id == 0:
                log.warning("register_failed namesrv=%s: %s", server, error)
            return False
        if response.code != ResponseCode.SUCCESS:
            log.warning(
                "register_refused namesrv=%s code=%d remark=%s",
                server,
                response.code,
                response.remark,
            )
            self._refusals[server] = self._refusals.get(server, 0) + 1
            self._failure = self._refusal = f"{server} answers {response.code}: {response.remark}"
            return False
        self._refusals[server] = 0
        if boolean_or(response.ext, "needFull", False):
            before, repeated_s = self._full.get(server, (None, 0.0))
            if base is not None and before == identity and now_s() < repeated_s:
                self._taken[server] = base
                self._back_off(server)
                return False
            return await self._register(server) if base is not None else False
        self._full.pop(server, None)
        self._backoff.pop(server, None)
        if boolean_or(response.ext, "topicDelta", False):
            self._taken[server] = version
            self._accepts_deltas.add(server)
        self._sent_versions[server] = version.counter
        self._news.set()
        before = self.registered.get(server)
        self.registered[server] = identity
        if before is None or before.broker_id != identity.broker_id:
            self._on_route(server, identity.broker_id, "registered")
        if before != identity:
            log.info(
                "registered namesrv=%s broker_id=%d term=%d",
                server,
                identity.broker_id,
                identity.term,
            )
        master = text_or(response.ext, "masterAddr")
        if master:
            self._on_master(master, text_or(response.ext, "haServerAddr"))
        return bool(master) or not self._needs_master()

    def _back_off(self, server: str) -> None:
        self._backoff[server] = min(2 * self._backoff.get(server, 1), BACKOFF_MAX)

    async def _tell(
        self, server: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """Send a registration or unregistration, signed if possible. Raises RemotingError."""
        if not self._signing_keys:
            return await self._client.invoke(server, command, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._client.connect(server)
                if connection not in self._signers:
                    key = self._signing_keys[0]
                    signer = await ask_signer(connection, key, timeout_ms)
                    self._signers[connection] = signer
                    if signer is None:
                        log.warning("registering_unsigned namesrv=%s: it has no key", server)
                    else:  # so it is ours
                        self._accepts_deltas.add(server)
        except TimeoutError as error:
            raise SendTimeout(f"no connection to {server} in {timeout_ms} ms") from error
        signer = self._signers.get(connection)
        if signer is not None:
            signer.sign(command)
        response = await connection.invoke(command, timeout_ms)
        if (response.remark or "").startswith(WRONG_SIGNATURE):
            self._signers.pop(connection, None)  # the next attempt requests a new nonce
        return response

    async def _leave(self, server: str) -> bool:
        """Unregister if this replica may be listed; return False if it must be repeated."""
        registered = self.registered.get(server)
        if registered is None:
            return True
        if not await self._unregister(server, registered.broker_id):
            return False
        self._gone(server, "unregistered: it is no member of its group")
        log.info("unregistered namesrv=%s broker_id=%d: no member", server, registered.broker_id)
        return True

    async def _command(
        self, identity: Identity, base: DataVersion | None
    ) -> tuple[RemotingCommand, DataVersion | None]:
        """Build a registration, with only the changes since `base` if possible. Return the base of
        its topics, None for the full table."""
        topics = None if base is None else self._topics.since(base)
        if topics is None:
            base, body = None, await self._full_body()
        else:
            body = encode_register_body(self._topics.version, topics)
        self.body_bytes_sent += len(body)
        header = RegisterBrokerHeader(
            self._broker_name,
            self._address,
            self._cluster,
            self._ha_address(),
            identity.broker_id,
            compressed=True,
            body_crc=body_crc(body),
            raft_term=identity.term or None,
            raft_role=identity.role or None,
            raft_group_id=identity.group_id or None,
            raft_own_id=identity.own_id or None,
            removed_groups=",".join(self._removed_groups()) or None,
            topic_delta=base is not None,
            delta_base=base,
            http_address=self._http_address,
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header.to_ext(), body), base

    async def _full_body(self) -> bytes:
        version = self._topics.version
        if self._body is None or self._body[0] != version:
            topics = self._topics.all()
            # In a thread, because 100,000 topics need a third of a second.
            body = await asyncio.to_thread(encode_register_body, version, topics)
            self._body = (version, body)
        return self._body[1]

    async def _unregister(self, server: str, broker_id: int) -> bool:
        header = BrokerHeader(self._broker_name, self._address, self._cluster, broker_id)
        command = RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header.to_ext())
        try:
            answer = await self._tell(server, command, UNREGISTER_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                log.warning("unregister_refused namesrv=%s: %s", server, answer.remark)
        except RemotingError as error:  # the name server notices the closed connection anyway
            log.info("unregister_failed namesrv=%s: %s", server, error)
            return False
        return True
