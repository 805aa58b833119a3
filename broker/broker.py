"""One broker: store, replicated state, engine, server and registration wired together.

Start: claim the store and the ports (broker.claim), open the store, load the snapshots, start the
engine (which recovers the log and replays what is committed above the snapshots), listen, register.
Stop: hand leadership over, answer waiting senders, leave the routes, close the connections, flush,
write the snapshots, remove the abort file. A failure (`failed`) ends in the same `stop`, without
its last three steps: the next start then recovers from the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from raftmq.broker.access import Access
from raftmq.broker.application import BrokerApplication
from raftmq.broker.claim import Claim
from raftmq.broker.clients import ClientTable
from raftmq.broker.config import BrokerConfig
from raftmq.broker.construction import (
    budget_limits,
    send_rules,
    store_config,
    template_topic,
)
from raftmq.broker.consuming.commits import CommitService
from raftmq.broker.consuming.filteredreads import FilteredReads
from raftmq.broker.consuming.followers import read_policy
from raftmq.broker.consuming.pull import PullService
from raftmq.broker.consuming.queries import Queries, not_leader
from raftmq.broker.consuming.service import Consuming
from raftmq.broker.containment import Contained
from raftmq.broker.delivery.delay import delay_service
from raftmq.broker.delivery.sendback import SendBack
from raftmq.broker.delivery.timers.recall import Recalls
from raftmq.broker.delivery.timers.service import timer_service
from raftmq.broker.delivery.transactions.service import Transactions
from raftmq.broker.errors import Refused
from raftmq.broker.fulldisk import FullDisk
from raftmq.broker.guard import Guard
from raftmq.broker.housekeeping import Chore, Housekeeper
from raftmq.broker.http.api import NodeApi
from raftmq.broker.keeper import ClassicKeeper, Keeper, RaftKeeper
from raftmq.broker.operating.admin import Admin
from raftmq.broker.operating.keyquery import KeyQueries
from raftmq.broker.operating.metrics import BrokerMetrics
from raftmq.broker.operating.operators import Operators
from raftmq.broker.operating.rates import SAMPLE_MS, Rates
from raftmq.broker.operating.runtime import runtime_info
from raftmq.broker.operating.stats import SAMPLE_MS as GROUP_SAMPLE_MS
from raftmq.broker.processor import Processor
from raftmq.broker.registeredtopics import RegisteredTopics
from raftmq.broker.registration import Registrar
from raftmq.broker.replication.classic import ClassicEngine, LocalApplication
from raftmq.broker.replication.engine import Engine, make_engine
from raftmq.broker.replication.members import LOOK_MS
from raftmq.broker.replication.peerproof import Gates, make_gates
from raftmq.broker.replication.roles import RoleView, most_advanced
from raftmq.broker.retention import Retention
from raftmq.broker.sending.send import SendPath
from raftmq.broker.tables.configfiles import ConfigFiles
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.installation import Source
from raftmq.broker.tables.state import BrokerState, announce, put_group, put_topic
from raftmq.broker.tables.topics import RETRY_PREFIX, retry_topic
from raftmq.dledger.errors import RaftError
from raftmq.dledger.messages import Role, RoleEvent
from raftmq.ops.logs import set_level
from raftmq.ops.memory import Trimmer
from raftmq.ops.metrics import Timings
from raftmq.remoting.address import format_address
from raftmq.remoting.budgets import Budgets
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.connection import Connection, ConnectionLimits, Handler
from raftmq.remoting.keyfile import load_registration_keys
from raftmq.remoting.processtls import ProcessTls
from raftmq.remoting.server import RemotingServer
from raftmq.remoting.tlslinks import TlsLinks
from raftmq.store.disk import OsDisk
from raftmq.store.messagestore import MessageStore
from raftmq.store.ownership import StoreLock
from raftmq.store.record import pack_host

log = logging.getLogger("raftmq.broker")

GROUPS_BEING_CREATED_MAX = 10_000
LINGER_S = 0.1  # after a hand-over: requests already on their way still get an answer
VIP_PORT_BELOW = 2  # Apache's brokers also listen on the port so far below listenPort


class Broker:
    """A broker within a process (tests run several on one loop). `start` once, `stop` once."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: OsDisk,
        *,
        lock: StoreLock | None = None,
        replication_socket: socket.socket | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """`disk` is rooted at storePathRootDir; `lock`: its lock, if the caller keeps one.
        Time-outs go by `clock_ms`, which is monotonic. `replication_socket` (for Raft peers, or for
        slaves) is bound already (tests)."""
        self.config = config
        self.disk = disk
        self.state = BrokerState()
        self.roles = RoleView(config, self.state)
        fsync = Timings()
        self.store = MessageStore(disk, store_config(config), on_synced=fsync.observe)
        self.failed: asyncio.Future[str] | None = None
        self._replication_socket = replication_socket
        self._claim = Claim(config, disk, lock, replicates=replication_socket is None)
        self.wall_ms = wall_ms
        self.clock_ms = clock_ms
        self.retention = Retention(self.store, wall_ms, clock_ms)
        self.full_disk = FullDisk(self)
        self.contained = Contained()
        self._started = False
        self.begins_anew = False  # it "failed" only to be restarted at once
        self._recovered = False  # the log is open: only then is there anything to flush
        self._closed = False  # the log is closed again
        self.stop_wanted = asyncio.Event()  # somebody asked this process to end
        self._creating_groups: set[str] = set()
        self._stopping = False
        self._handing_over = False  # on request, or because this replica stops
        self._linger_s = 0.0
        self.boot_ms = wall_ms()
        self.put_rates = Rates(clock_ms(), self._today())
        self.get_rates = Rates(clock_ms(), self._today())
        self.metrics = BrokerMetrics(self, fsync)
        self.tls = ProcessTls(config, config)
        self.http = NodeApi(self)
        self.access = Access(self)
        self.gates = Gates()
        self._registration_keys: tuple[bytes, ...] = ()

    # ---- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raises ConfigError, EngineError, StoreError, RaftError, StateError,
        WebConfigError, TlsError, KeyFileError, OSError."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
        await loop.run_in_executor(self._pool, self.http.prepare)
        await loop.run_in_executor(self._pool, self.tls.load)
        bound = self._replication_socket
        self.gates = await loop.run_in_executor(self._pool, make_gates, self.config, bound)
        await loop.run_in_executor(self._pool, self._claim.take)
        self._registration_keys = await loop.run_in_executor(
            self._pool, load_registration_keys, self.config.registration_key_file
        )
        self.keeper: Keeper
        self.engine: Engine
        if self.config.is_classic:
            self.files = ConfigFiles(self.disk, self.state, self._pool)
            self.keeper = self._classic_keeper()
        else:
            self.keeper = self._raft_keeper()
        await loop.run_in_executor(self._pool, self.keeper.prepare)
        await loop.run_in_executor(self._pool, self.store.open)
        await loop.run_in_executor(self._pool, self.keeper.load)
        await loop.run_in_executor(self._pool, self.access.prepare)
        self.port = self._claim.port
        self.address = format_address(self.config.broker_ip1, self._public_port)
        self._build(await self._store_host())
        self._started = True
        await self.http.start(self._claim.socket_of("http"))  # so that a wait for peers shows
        await self.engine.start()  # before anybody can ask about it
        self._recovered = True
        bound = self._claim.socket_of("client")
        await self.server.start(self.config.bind_address, self.port, bound)
        await self._listen_on_vip_port()
        self.registrar.start()
        self._housekeeper.start()
        self.tls.start()
        log.info(
            "listening port=%d address=%s broker=%s node=%s group=%s",
            self.port,
            self.address,
            self.config.broker_name,
            self.config.node_name,
            self.config.group_name,
        )

    async def _listen_on_vip_port(self) -> None:
        """Listen where Java's clients before 4.5.1 send to and Apache's slaves ask their master."""
        port = self.config.listen_port - VIP_PORT_BELOW
        if port <= 0 or self.config.is_slave:
            return
        try:
            await self.server.listen_also(self.config.bind_address, port)
        except OSError as error:  # newer clients and our own slaves do without it
            log.warning("vip_port_not_listened_on port=%d: %s", port, error)

    async def stop(self) -> None:
        """Stop for good; works also after a failure and after a `start` that raised."""
        self._stopping = True
        self.metrics.stop()
        await self.tls.stop()
        if self._started:
            if await self._handed_over():
                self.pulls.holds.release_all()  # their consumers reconnect to the successor
            await self.registrar.stop()
            await asyncio.sleep(self._linger_s)
            await self._housekeeper.stop()
            self.commits.flush()
            await self.engine.stop()
            await self.consuming.stop()
            self.sends.close()
            self.pulls.holds.release_all()
            await self.access.stop()
            await self.server.stop()
            self._closed = True
            await self.http.stop()
            await self.keeper.settle()
        loop = asyncio.get_running_loop()
        assert self.failed is not None
        if self._recovered and not self.failed.done():
            await loop.run_in_executor(self._pool, self._close_clean)
            log.info("stopped applied=%d", self.state.applied_index)
        else:
            await loop.run_in_executor(self._pool, self._close_unclean)
        self._pool.shutdown()
        if self._replication_socket is not None:
            self._replication_socket.close()  # if a failed start did not hand it to the engine
        self._claim.release()

    async def _handed_over(self) -> bool:
        """Hand leadership of a Raft group over before anything is closed, so that senders here
        still get answers. Returns False if nobody took over, or this replica does not lead."""
        assert self.failed is not None
        if self.config.is_classic or not self.roles.leading or self.failed.done():
            return False
        self.commits.flush()
        self._handing_over = True
        successor = await self._framed_engine.hand_over()
        if successor is None:
            log.warning("stopping_without_successor: this replica leads and nobody takes over")
            return False
        log.info("stopping successor=%s", successor)
        self._linger_s = LINGER_S
        return True

    @property
    def is_serving(self) -> bool:
        """True while the broker's parts can be used: its log is open."""
        return self._recovered and not self._closed

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def live_changed(self, changed: Mapping[str, object]) -> None:
        """Apply changed live keys for those parts that do not read the configuration each time."""
        if "logLevel" in changed:
            set_level("root", str(changed["logLevel"]))
        log.info("config_changed keys=%s", ",".join(changed))

    def abandon(self, reason: str) -> None:
        """Fall silent at once, as a crash would: no hand-over, no flush. Call `stop` afterwards."""
        self.engine.abandon(reason)
        for connection in list(self.server.connections):
            connection.abort(reason)

    def _close_clean(self) -> None:
        self.keeper.close()
        self.store.close()

    def _close_unclean(self) -> None:
        """Close the files as they are; the abort file stays."""
        self.store.close_unclean()

    def _on_fatal(self, reason: str) -> None:
        log.critical("broker_failed reason=%s", reason)
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(reason)

    def _begin_anew(self, reason: str) -> None:
        """End this broker: its data is void, and the next start of a broker here rebuilds it."""
        self.begins_anew = True
        self._on_fatal(reason)

    # ---- wiring ---------------------------------------------------------------------------

    @property
    def _public_port(self) -> int:
        return self.config.advertised_port or self.port

    async def _store_host(self) -> bytes:
        """Return STOREHOST of our records. A brokerIP1 that is a host name is resolved once."""
        host, port = self.config.broker_ip1, self._public_port
        try:
            return pack_host((host, port))
        except ValueError:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return pack_host((str(found[0][4][0]), port))

    def _build(self, store_host: bytes) -> None:
        config, state = self.config, self.state
        if self._replication_socket is None:
            self._replication_socket = self._claim.socket_of("replication")
        rules = send_rules(config, store_host)
        self.sends = SendPath(
            config,
            state,
            rules,
            queue_end=self.queue_end,
            request_cut=lambda at_once: self.engine.request_cut(at_once),
            propose=self._propose_then,
            leader_address=lambda: self.roles.leader_address,
            clock_ms=self.clock_ms,
            wall_ms=self.wall_ms,
            contained=self.contained,
        )
        self.sends.stamp_ms = self.store.derived.newest_ms
        if config.is_classic:
            self._build_classic()
        else:
            self._build_framed()
        self.delays = delay_service(self, self._propose_then)
        self.timers = timer_service(self, self._propose_then)
        self.keeper.spare = self.timers.spare
        self.commits = CommitService(
            self.engine.propose_command,
            self._takes_commits,
            has_room=state.offsets.room_within(config.consumer_offsets_max),
        )
        self.clients = ClientTable(
            clients_max=config.clients_max,
            expiry_ms=config.client_expiry_ms,
            notify_enabled=self._notify_enabled,
            on_consumer_group=self._ensure_group,
            may_replace=self.access.may_replace,
        )
        self.pulls = PullService(
            config,
            state,
            self.clients,
            get_messages=self.store.reads.get_messages,
            filtered=FilteredReads(self.store),
            commit_offset=self.commits.commit,
            ensure_group=lambda name: self._ensure_group(name, retry=False),
            leading=self._is_leading,
            reads=read_policy(self),
            on_read_failed=lambda error, again: self.engine.read_failed(error, again),
            clock_ms=self.clock_ms,
            contained=self.contained,
        )
        self._build_edges()
        self.metrics.watch()

    def _build_framed(self) -> None:
        """Build for Raft or pysyncobj, where frames are applied once committed."""
        application = BrokerApplication(
            self.state,
            self.sends,
            self.store.derived,
            log_index=lambda: engine.log_index,
            on_units=self._units_arrived,
            on_topics=self._topics_changed,
            on_role=self._role_changed,
            recovering=lambda: engine.recovering is not None,
            installed_index=self.keeper.installed_index,
            contained=self.contained,
        )
        engine = make_engine(
            self.config,
            self.disk,
            self.store,
            application,
            clock_ms=self.clock_ms,
            wall_ms=self.wall_ms,
            on_fatal=self._on_fatal,
            listen_socket=self._replication_socket,
            source=Source(self.state, self.store, self._begin_anew),
            network=TlsLinks(self.tls.peers) if self.tls.peers is not None else None,
            gate=self.gates.raft,
        )
        self.application = application
        self.engine = self._framed_engine = engine

    def _build_classic(self) -> None:
        """Build for master and slaves."""
        application = LocalApplication(
            self.state,
            self.sends,
            self.store,
            on_units=self._units_arrived,
            on_topics=self._topics_changed,
            on_role=self._role_changed,
            on_link=self._link_changed,
            files=self.files,
            contained=self.contained,
        )
        self.classic = ClassicEngine(
            self.config,
            application,
            clock_ms=self.clock_ms,
            wall_ms=self.wall_ms,
            on_fatal=self._on_fatal,
            master_address=lambda: self.config.master_address or self.roles.leader_address,
            master_ha_address=lambda: self.roles.master_ha_address,
            listen_socket=self._replication_socket,
            tls=self.tls,
            gates=self.gates,
        )
        self.engine = self.classic

    def _raft_keeper(self) -> RaftKeeper:
        return RaftKeeper(
            self.config,
            self.disk,
            self.state,
            self.store,
            self._pool,
            engine=lambda: self._framed_engine,
            retention=self.retention,
        )

    def _classic_keeper(self) -> ClassicKeeper:
        return ClassicKeeper(
            self.config,
            self.files,
            self.store,
            self._pool,
            engine=lambda: self.engine,
            retention=self.retention,
        )

    def _build_edges(self) -> None:
        """Build the parts that talk to the outside: handlers, server, registration, chores."""
        config = self.config
        template = template_topic(config)
        queries = Queries(
            config,
            self.state,
            self.store,
            self.clients,
            self.commits,
            self._barrier,
            self._takes_commits,
            self.clock_ms,
            self.store.config.hot_span_bytes,
            lambda *where: self.operators.resets.reset(*where),
            self.access,
        )
        self.admin = Admin(
            config,
            self.state,
            self.clients,
            self._propose,
            template,
            lambda: runtime_info(self),
            lambda: self.classic.ha_status(),
            self.hand_over,
            lambda: self.registrar.spread(),
        )
        self.key_queries = KeyQueries(config, self.store.derived)
        self.operators = Operators(self, self._propose, self._propose_then, self._barrier)
        self.transactions = Transactions(self, self._propose_then)
        self.consuming = Consuming(self, self._propose, self._barrier)
        handlers: dict[int, Handler] = {
            **queries.handlers(),
            **self.admin.handlers(),
            **self.key_queries.handlers(),
            **self.operators.handlers(),
            **self.transactions.handlers(),
            **Recalls(self).handlers(),
            **SendBack(self, self._propose).handlers(),
            **self.consuming.handlers(),
        }
        guard = Guard(self.metrics.request, lambda: self.roles.leader_address)
        guarded = {code: guard.around(handler) for code, handler in handlers.items()}
        self.processor = Processor(self.sends, guarded)
        self.sends.on_request = self.clients.requester
        self.server = RemotingServer(
            guarded,
            limits=ConnectionLimits(write_bytes_max=config.write_buffer_bytes_max),
            on_raw=self.access.guarding(self.processor.on_raw),
            on_connection_closed=lambda connection, _: self._connection_closed(connection),
            tls=self.tls.server,
            budgets=Budgets(budget_limits(config)),
            on_held=Trimmer().look,
        )
        self.registrar = Registrar(
            config.name_servers,
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            address=lambda: self.address,
            ha_address=self._ha_address,
            http_address=lambda: self.http.address,
            identity=lambda: self.roles.identity,
            topics=RegisteredTopics(self.state.topics, template),
            on_master=self.roles.hint_master,
            needs_master=config.is_slave,
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
            tls=self.tls.client,
            credentials=config.inner_credentials,
            signing_keys=self._registration_keys,
        )
        self._housekeeper = Housekeeper(
            self.clock_ms, self._quick_chores(), self.keeper.chores(), self.fail
        )

    def _quick_chores(self) -> list[Chore]:
        """Return the periodic chores that never block."""
        config = self.config
        return [
            Chore("offset_commits", config.offset_commit_interval_ms, self.commits.flush),
            Chore("outcomes", max(50, config.outcome_timeout_ms // 10), self.sends.sweep),
            Chore("index", 0, self.key_queries.tick),
            Chore("held_sends", 0, self.sends.release_overdue),
            Chore("delayed", 0, self.delays.tick),
            Chore("timers", 0, self.timers.tick),
            Chore("rates", SAMPLE_MS, self._sample_rates),
            Chore("members", LOOK_MS, self.operators.members.look),
            Chore("transactions", 0, self.transactions.tick),
            Chore("group_rates", GROUP_SAMPLE_MS, self.operators.rates.sample),
            *self.full_disk.chores(),
            *self.consuming.chores(),
            *self.access.chores(),
        ]

    def fail(self, reason: str) -> None:
        self.abandon(reason)
        self._on_fatal(reason)

    # ---- the log --------------------------------------------------------------------------

    def _is_leading(self) -> bool:
        return self.roles.leading

    def _takes_commits(self) -> bool:
        return self.roles.takes_commits

    def _ha_address(self) -> str:
        """Return the address that slaves are told; a Raft replica has no such listener."""
        return self.classic.master.address if self.config.is_classic else self.address

    def queue_end(self, topic: str, queue_id: int) -> int:
        queue = self.store.queues.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    async def _barrier(self) -> None:
        """Return once this replica is proven to lead; in classic mode there is nothing to prove.
        Raises Refused, RaftError."""
        if not self.roles.takes_commits:
            raise not_leader()
        await self.engine.read_barrier()

    def hand_over(self, target: str) -> str:
        """Begin to transfer leadership to `target`; "" means the reachable follower that has most.

        Returns the target chosen. Raises Refused, RaftError."""
        if not self.roles.leading:
            raise not_leader()
        target = target or most_advanced(self.engine.status())
        if not target:
            raise Refused(ResponseCode.SYSTEM_ERROR, "no follower is within reach", retriable=True)
        self.engine.transfer(target)
        self._handing_over = True
        return target

    async def _propose(self, payload: bytes) -> int:
        if not self.roles.leading:
            raise not_leader()
        return await self.engine.propose_command(payload)

    def _propose_then(self, payload: bytes, done: Callable[[Exception | None], None]) -> None:
        """Propose, and have `done` called with the error, or None on success."""
        try:
            future = self.engine.propose_command(payload)
        except RaftError as error:
            told = partial(done, error)
            asyncio.get_running_loop().call_soon(self.contained.run, "told_of_command", told)
            return

        def finished(result: asyncio.Future[int]) -> None:
            error = None if result.cancelled() else result.exception()
            told = partial(done, error if isinstance(error, Exception) else None)
            self.contained.run("told_of_command", told)

        future.add_done_callback(finished)

    # ---- events ---------------------------------------------------------------------------

    def _connection_closed(self, connection: Connection) -> None:
        self.clients.closed(connection)
        self.access.closed(connection)

    def _units_arrived(self, topic: str, queue_id: int, units: bytes) -> None:
        self.pulls.holds.arrived(topic, queue_id, units)

    def _topics_changed(self, names: Sequence[str]) -> None:
        self.registrar.trigger()

    def _link_changed(self) -> None:
        """Look at held pulls again: a slave's link to its master began or ended."""
        self.pulls.holds.release_all()

    def _role_changed(self, event: RoleEvent) -> None:
        was_leading, term_before = self.roles.leading, self.roles.term
        before = self.roles.identity
        self.metrics.role_changed(event)
        self.roles.change(event)
        self.http.role_changed(event)
        leading = self.roles.leading
        if not (was_leading and leading and term_before == event.term):
            # Otherwise nothing has ended (a transfer was given up, say), and work under way goes
            # on: restarting it would do it twice.
            self.operators.resets.leadership_changed()
            self.delays.leadership_changed()
            self.timers.leadership_changed()
            self.transactions.leadership_changed()
            self.consuming.leadership_changed()
        if leading and not was_leading:
            self.full_disk.leads_now()
        awaited = self._leader_is_awaited(event)
        self.sends.leadership(event.term, leading, awaited)
        self.access.leadership(awaited)
        if was_leading and not leading:
            self.commits.leadership_lost()
        if leading and not was_leading:
            if not self.config.is_classic:
                self._announce()
            self.contained.run("clients_told", self.clients.notify_all)
            for group in list(self.clients.consumers):
                self.contained.run("group_created", partial(self._ensure_group, group))
        if self.roles.identity != before and not self._stopping:
            self.registrar.trigger()

    def _leader_is_awaited(self, event: RoleEvent) -> bool:
        """Return whether this replica, or the one it hands over to, will lead in a moment."""
        if event.role is Role.LEADER:
            self._handing_over = False
            return not event.leader_ready
        awaited = self._handing_over and event.leader is None
        self._handing_over = awaited
        return awaited

    def _announce(self) -> None:
        def done(error: Exception | None) -> None:
            if error is not None:
                log.info("announce_failed: %s", error)

        own = announce(self.config.dleger_self_id, self.address, self.http.address)
        self._propose_then(own, done)

    def _notify_enabled(self, group: str) -> bool:
        config = self.state.groups.get(group)
        wanted = config is None or config.notify_enable
        return wanted and self.config.notify_consumer_ids_changed_enable

    def _ensure_group(self, name: str, retry: bool = True) -> None:
        """Create a consumer group that is in use, and its retry topic, if that is allowed."""
        if not self.roles.leading or name in self._creating_groups:
            return
        commands: list[bytes] = []
        group = self.state.groups.get(name)
        if group is None and self.config.auto_create_subscription_group:
            group = SubscriptionGroup(name)
            commands.append(put_group(group, if_absent=True))
        if group is None:
            return
        if retry and self.state.topics.get(RETRY_PREFIX + name) is None:
            topic = retry_topic(name, max(1, group.retry_queue_count))
            commands.insert(0, put_topic(topic, if_absent=True))  # precedes its group
        if not commands or len(self._creating_groups) >= GROUPS_BEING_CREATED_MAX:
            return
        self._creating_groups.add(name)

        def done(error: Exception | None) -> None:
            self._creating_groups.discard(name)
            if error is not None:  # the group's next heartbeat or pull tries again
                log.info("group_not_created group=%s: %s", name, error)

        for command in commands:
            self._propose_then(command, done)

    # ---- chores ---------------------------------------------------------------------------

    def _today(self) -> int:
        return time.localtime(self.wall_ms() / 1000).tm_yday

    def _sample_rates(self) -> None:
        now_ms, today = self.clock_ms(), self._today()
        self.put_rates.sample(now_ms, self.sends.put_count, today)
        self.get_rates.sample(now_ms, self.pulls.get_count, today)
