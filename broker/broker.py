"""A broker's services, in order, over an open store.

Start: `open_broker` claims store and ports, recovers the store and loads the tables
(broker.startup). `Broker` builds the services from top to bottom. `start` starts the engine, which
recovers the log and replays committed frames above the snapshots, then listens and registers.

`stop` hands leadership over, answers waiting senders, unregisters, closes the connections, flushes,
writes the snapshots and removes the abort file. After a failure (`failed`) the last three steps are
skipped, and the next start recovers from the log.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from raftmq.dledger.node.proposals import command_bytes_max
from raftmq.dledger.raft.messages import RoleEvent
from raftmq.ops.memory import Trimmer
from raftmq.ops.metrics import Timings
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.memory_limits import Budgets
from raftmq.remoting.names import address_map
from raftmq.remoting.server import RemotingServer, ServerLimits
from raftmq.store.disk import OsDisk
from raftmq.store.frame import EntryBatch
from raftmq.store.store_lock import StoreLock

from .access import Access
from .accountbook import AccountBook
from .admin.acl import AccountChanges, AclAdmin
from .admin.drain import Drain
from .admin.exactly_once_writers import Writers
from .admin.message_query import KeyQueries
from .admin.metrics import BrokerMetrics
from .admin.operator_log import OperatorLog
from .admin.parts import Parts
from .admin.pass_on import PassOn
from .admin.progress import ProgressQueries
from .admin.relay import Relay
from .admin.remainder import Remainder
from .admin.request_log import RequestRecord
from .admin.requests import Admin
from .admin.runtime_info import runtime_info
from .admin.stats import SAMPLE_MS, GroupRates, StatsQueries, Throughput
from .admin.stats import SAMPLE_MS as GROUP_SAMPLE_MS
from .admin.topics_and_groups import Catalog
from .admin.upkeep import Upkeep
from .admission import Admission
from .backup.service import Backups
from .clients import ClientTable
from .cluster.other_groups import OtherGroups
from .cluster.sharing import DefinitionSharing
from .component import RoleChange, Service
from .config import BrokerConfig
from .connection_limit import ClientRoom
from .construction import template_topic, topics_of_names
from .consume.group_creation import GroupCreation
from .consume.offset_commits import OFFSETS_MAX, CommitService
from .consume.offset_resets import ResetMarks, Resets
from .consume.pull import PullService
from .consume.queries import Queries
from .consume.queue_locks import lock_service
from .consume.subscription_refresh import SubscriptionRefresh
from .context import Context, Life
from .delayed.delay_levels import DelayService
from .delayed.moves import Moves
from .delayed.send_back import SendBack
from .delayed.timer_recall import Recalls
from .delayed.timers import TimerService
from .durations import DURATIONS, Durations
from .error_isolation import Contained
from .error_responses import Guard
from .events import NodeEvents
from .history.history import History
from .http.api import NodeApi
from .http.faults import FaultDoor
from .leader_fitness import Reliever
from .pop.service import PopService
from .processor import Processor
from .replication.engine import RAFT, Replication
from .replication.log import ReplicatedLog
from .replication.members import Members
from .replication.roles import RoleView
from .retention import Retention, Unexpired
from .scheduler import Activity, Chore, Housekeeper
from .send.request_reply import ReplyService, reply_topic
from .startup import Opened, open_store
from .tables.state import announce
from .tables.timer_wheel import TimerWheel
from .transactions.service import Halves, Transactions
from .wiring import (
    Callbacks,
    make_keeper,
    make_registrar,
    make_replication,
    make_send_path,
    node_operations,
)

log = logging.getLogger("raftmq.broker")

LINGER_S = 0.1  # after a transfer, for answers to requests already sent
VIP_PORT_BELOW = 2  # Apache's brokers also listen on this lower port


async def open_broker(
    config: BrokerConfig,
    disk: OsDisk,
    *,
    lock: StoreLock | None = None,
    replication_socket: socket.socket | None = None,
    clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    faults: FaultDoor | None = None,
    replication: Replication = RAFT,
    durations: Durations = DURATIONS,
) -> Broker:
    """Open the store and build a broker over it, for one `start` and one `stop`.

    `disk` is rooted at storePathRootDir, and `lock` is its lock if the caller holds it. Timeouts
    follow the monotonic `clock_ms`. Tests pass a bound `replication_socket` for peers or slaves.
    `faults` is the fault layer below disk and clock. Raises the errors of
    `broker.startup.open_store`."""
    opened = await open_store(
        config,
        disk,
        lock=lock,
        replication_socket=replication_socket,
        clock_ms=clock_ms,
        wall_ms=wall_ms,
        replication=replication,
    )
    return Broker(opened, faults, durations)


class Broker:
    """A broker; tests run several in one process."""

    def __init__(self, opened: Opened, faults: FaultDoor | None, durations: Durations) -> None:
        config, state, store = opened.config, opened.state, opened.store
        clock_ms, wall_ms = opened.clock_ms, opened.wall_ms
        self._opened = opened
        self._linger_s = 0.0
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.restarts = False  # it failed only to be restarted at once

        # Shared by all parts.
        self.config, self.disk, self.state, self.store = config, opened.disk, state, store
        self.address, self.port = opened.address, opened.claim.port
        self.gates, self.tls = opened.gates, opened.tls
        self.contained = Contained()
        self.roles = RoleView(config, state)
        self.log = ReplicatedLog(config, self.roles, self.contained)
        self.events = NodeEvents(config, self.roles, wall_ms)
        self.life = Life(boot_ms=wall_ms())
        self.context = context = Context(
            config=config,
            disk=opened.disk,
            state=state,
            store=store,
            log=self.log,
            roles=self.roles,
            events=self.events,
            contained=self.contained,
            budgets=Budgets(),
            life=self.life,
            tls=opened.tls,
            address=opened.address,
            http_address=opened.http_address,
            clock_ms=clock_ms,
            wall_ms=wall_ms,
            durations=durations,
        )
        self._activity = Activity()

        # Accounts, clients, groups.
        self.book = AccountBook(context, opened.accounts)
        self.access = Access(self.book, enabled=config.acl_enable)
        self.groups = GroupCreation(context)
        self.clients = ClientTable(
            kept=context.budgets.kept,
            notify_enabled=self.groups.is_notified,
            on_consumer_group=self.groups.ensure,
            may_replace=self.access.may_replace,
            must_agree=lambda: config.reject_inconsistent_subscriptions,
        )

        # Sending and delayed delivery.
        append = Timings()
        wheel = TimerWheel()
        self.halves = Halves(config)
        self.locks = lock_service(context, self.clients)
        self.sends = make_send_path(
            opened, context, self.halves, self.clients, wheel, self.locks, append.observe
        )
        for topic in (reply_topic(config.broker_cluster_name), *topics_of_names(config)):
            state.topics.internal[topic.name] = topic
        replies = RemotingClient(credentials=config.inner_credentials, tls=opened.tls.client)
        self.replies = ReplyService(context, self.clients, self.sends, replies)
        self.delays = DelayService(context, self.sends)
        self.timers = TimerService(context, self.sends, wheel)

        # Consuming.
        self.commits = CommitService(
            self.log.propose_command,
            lambda: self.roles.takes_commits,
            has_room=state.offsets.room_within(OFFSETS_MAX),
            command_bytes_max=command_bytes_max(config.mapped_file_size_commit_log),
        )
        self.marks = ResetMarks(context, self.commits)
        self.questions = SubscriptionRefresh(self.clients)
        guard = Guard(
            lambda: self.roles.takes_commits, lambda: self.roles.address_elsewhere, self.log.barrier
        )
        self.pulls = PullService(
            context,
            self.clients,
            self.commits,
            self.groups,
            self.marks,
            self.questions,
            guard.refusal,
        )
        self.resets = Resets(
            context,
            self.marks,
            self.commits,
            self.clients,
            self.access,
            self.pulls.holds.release_all,
        )
        asks = RemotingClient(credentials=config.inner_credentials, tls=opened.tls.client)
        self.popping = PopService(
            context,
            self.clients,
            self.groups,
            self.commits,
            self.sends,
            asks,
            guard.refusal,
        )
        queries = Queries(context, self.clients, self.commits, self.resets, self.access)

        # The log and its retention.
        template = template_topic(config)
        self.registrar = make_registrar(opened, context, template)
        callbacks = Callbacks(
            self._arrived,
            self._topics_changed,
            self._role_changed,
            self._on_fatal,
            self._restart,
        )
        client = RemotingClient(
            credentials=config.inner_credentials,
            tls=opened.tls.client,
            reached_at=address_map(config.broker_address_map),
        )
        others = OtherGroups(config, client)
        self.sharing = DefinitionSharing(
            context,
            others,
            self.popping.assignments.change_mode,
            self.registrar.trigger,
        )
        self.moves = Moves(context, self.sends, self.timers, others)
        self.drain = Drain(
            context,
            self.sends,
            others,
            Remainder(context, self.clients, self.timers, self.halves, self.moves),
            self.sharing.take_over,
            self.registrar.trigger,
        )
        self.engine, self.application = make_replication(
            opened, context, self.sends, self.pulls, self._activity, callbacks
        )
        self.log.attach(self.engine)
        if not config.is_classic:
            self.log.raft.identity.subscribe(self.registrar.trigger)
        keys = KeyQueries(store.derived, None if config.is_classic else self.log.raft.log)
        self.transactions = Transactions(
            context, self.halves, self.sends, self.clients, self.access, keys.newest
        )
        self.backups = Backups(context)
        self.retention = Retention(store, config, wall_ms, clock_ms)
        self.unexpired = Unexpired(store.queues, state.offsets, self.events)
        self.keeper = make_keeper(
            opened, context, self.retention, self.unexpired, self.timers, self.backups
        )
        self.reliever = Reliever(context, self.sends, self.retention)
        self.members = Members(context, self.registrar)

        # Operators.
        self.throughput = Throughput(
            clock_ms, wall_ms, lambda: self.sends.put_count, lambda: self.pulls.get_count
        )
        self.catalog = Catalog(context, self.commits, self.popping.settled, self.registrar.spread)
        group_rates = GroupRates(state, clock_ms)
        self.history = History(
            context,
            opened.pool,
            in_count=lambda: self.sends.put_count,
            out_count=lambda: self.pulls.get_count + self.popping.pops.popped_count,
            append_counts=lambda: append.counts,
        )
        parts = Parts(
            context=context,
            gates=opened.gates,
            retention=self.retention,
            reliever=self.reliever,
            unexpired=self.unexpired,
            access=self.access,
            clients=self.clients,
            sends=self.sends,
            pulls=self.pulls,
            delays=self.delays,
            timers=self.timers,
            halves=self.halves,
            transactions=self.transactions,
            popping=self.popping,
            throughput=self.throughput,
            guard=guard,
            registrar=self.registrar,
            drain=self.drain,
        )
        accounts = AccountChanges(self.book, context.wall_ms, is_classic=config.is_classic)
        pass_on = PassOn(context)
        acl_admin = AclAdmin(context, self.book, accounts, self.access, pass_on)
        runtime = partial(runtime_info, parts)
        admin = Admin(context, self.catalog, self.clients, template, runtime, pass_on)
        progress = ProgressQueries(context, self.clients, group_rates)
        stats = StatsQueries(context, group_rates)
        relay = Relay(context, self.clients, self.access)
        writers = Writers(context, self.sends.writers)

        # In the order of their periodic work.
        services = [
            commits := self.commits.service(),
            sends := self.sends.service(),
            keys.service(),
            delays := self.delays.service(),
            timers := self.timers.service(),
            Service(chores=[Chore("rates", SAMPLE_MS, self.throughput.sample)]),
            self.members.service(),
            transactions := self.transactions.service(),
            Service(chores=[Chore("group_rates", GROUP_SAMPLE_MS, group_rates.sample)]),
            reliever := self.reliever.service(),
            self.pulls.service(),
            self.clients.service(clock_ms),
            locks := self.locks.service(),
            *(popping := self.popping.services()),
            self.access.service(self._end_waits),  # admitted clients are checked again
            marks := self.marks.service(),
            self.resets.service(),
            self.replies.service(),
            self.backups.service(),
            acl_admin.service(),
            Upkeep(context, self.keeper, self.retention, self.registrar).service(),
            Recalls(context, self.sends, self.timers, self.moves).service(),
            SendBack(context, self.sends, self.access).service(),
            Service(handlers=queries.handlers()),
            self.catalog.service(),
            sharing := self.sharing.service(),
            draining := self.drain.service(),
            moves := self.moves.service(),
            Service(handlers=admin.handlers(), stop=pass_on.close),
            Service(handlers=progress.handlers()),
            Service(handlers=stats.handlers()),
            Service(handlers=relay.handlers()),
            writers.service(),
            Service(stop=self.questions.stop),
            Service(
                operations=node_operations(
                    parts,
                    self.members,
                    self.catalog,
                    self.resets,
                    keys,
                    faults,
                    writers,
                    accounts,
                    self.history,
                )
            ),
        ]
        operators = OperatorLog(self.sends, wall_ms)
        record = RequestRecord(operators, self.access.who)
        handlers: dict[int, Handler] = {}
        for service in services:
            assert not handlers.keys() & service.handlers.keys(), service
            for code, handler in service.handlers.items():
                handlers[code] = guard.around(record.around(code, handler))
        self.processor = Processor(self.sends, handlers, self._activity)
        self.admission = Admission(self.access, self.processor.on_raw)
        admission = self.admission.service()
        self._services = [*services, admission]
        # In the order of role changes. Work of the former leadership ends before held sends
        # continue.
        self._by_role = [
            sharing, moves, marks, delays, timers, transactions, locks, *popping, reliever,
            draining, sends, admission, commits,
        ]  # fmt: skip
        self.server = RemotingServer(
            handlers,
            on_raw=self.admission.on_raw,
            on_connection_closed=lambda connection, _: self._connection_closed(connection),
            tls=opened.tls.server,
            budgets=context.budgets,
            server_limits=ServerLimits(backlog=opened.shares.accepted_at_once),
            on_held=Trimmer().poll,
            with_accounts=self.access.enabled,
        )
        self._client_room = ClientRoom(opened.shares, store, self.server)
        self.metrics = BrokerMetrics(parts, self.server, append, opened.fsync)
        self.http = NodeApi(
            context,
            opened.web,
            opened.web_access,
            self.metrics,
            [operation for service in services for operation in service.operations],
            operators,
            context.leader_http,
            opened.shares.http,
        )
        quick = [chore for service in self._services for chore in service.chores]
        slow = [*self.keeper.chores(), *self.history.chores(), self._client_room.chore()]
        self._housekeeper = Housekeeper(clock_ms, quick, slow, self._activity, self.fail)

    # ---- life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the broker. Raises EngineError, StoreError, RaftError, StateError, OSError; call
        `stop` also after an error."""
        claim, config = self._opened.claim, self.config
        self.metrics.start()
        health = claim.socket_of("health")
        await self.http.start(claim.socket_of("http"), health)  # shows a wait for peers
        await self.engine.start()  # before the first query
        self.reliever.start()
        self.life.recovered = True
        self._client_room.start()
        await self.server.start(config.bind_address, claim.port, claim.socket_of("client"))
        await self._listen_on_vip_port()
        self.registrar.start()
        self._housekeeper.start()
        self.tls.start()
        log.info(
            "listening port=%d address=%s broker=%s node=%s group=%s",
            claim.port,
            self.address,
            config.broker_name,
            config.node_name,
            config.group_name,
        )

    async def _listen_on_vip_port(self) -> None:
        """Listen on the port used by Java clients before 4.5.1 and by Apache's slaves."""
        port = self.config.listen_port - VIP_PORT_BELOW
        if port <= 0 or self.config.is_slave:
            return
        try:
            await self.server.listen_also(self.config.bind_address, port)
        except OSError as error:  # newer clients and our own slaves do without it
            log.warning("vip_port_not_listened_on port=%d: %s", port, error)

    async def stop(self) -> None:
        """Stop for good, also after a failure or a failed `start`."""
        self.life.stopping = True
        self.metrics.stop()
        await self.tls.stop()
        if await self._handed_over():
            self._end_waits()  # their consumers reconnect to the successor
        await self.registrar.stop()
        await asyncio.sleep(self._linger_s)
        await self._housekeeper.stop()
        self.commits.flush()
        await self.engine.stop()
        for service in self._services:
            await service.stop()
        self.sends.close()
        self._end_waits()
        await self.server.stop()
        self.life.closed = True
        await self.http.stop()
        await self.keeper.settle()
        clean = self.life.recovered and not self.failed.done()
        await asyncio.get_running_loop().run_in_executor(self._opened.pool, self._close, clean)
        if clean:
            log.info("stopped applied=%d", self.state.applied_index)
        self._opened.pool.shutdown()

    async def _handed_over(self) -> bool:
        """Transfer leadership before anything is closed, so that waiting senders still get answers.
        Return False if no replica became leader, or this replica does not lead."""
        if self.config.is_classic or not self.roles.leading or self.failed.done():
            return False
        self.commits.flush()
        successor = await self.log.leave()
        if successor is None:
            log.warning("stopping_without_successor: this replica leads and nobody takes over")
            return False
        log.info("stopping successor=%s", successor)
        self._linger_s = LINGER_S
        return True

    def _close(self, clean: bool) -> None:
        """Close the files; blocking. Without `clean` nothing is written."""
        if clean:
            self.retention.note()
            self.keeper.close()
        self.history.close()
        self._opened.close(clean=clean)

    def abandon(self, reason: str) -> None:
        """Stop answering at once, as in a crash. Call `stop` afterwards."""
        self.engine.abandon(reason)
        for connection in list(self.server.connections):
            connection.abort(reason)

    def fail(self, reason: str) -> None:
        self.abandon(reason)
        self._on_fatal(reason)

    def _on_fatal(self, reason: str) -> None:
        log.critical("broker_failed reason=%s", reason)
        if not self.failed.done():
            self.failed.set_result(reason)

    def _restart(self, reason: str) -> None:
        """End this broker, because its data is void; the next start rebuilds it."""
        self.restarts = True
        self._on_fatal(reason)

    # ---- events ---------------------------------------------------------------------------

    def _connection_closed(self, connection: Connection) -> None:
        self._activity.note()
        self.clients.closed(connection)
        self.pulls.holds.closed(connection)
        self.popping.closed(connection)
        self.access.closed(connection)

    def _arrived(self, entries: Sequence[EntryBatch]) -> None:
        pulls, pops = self.pulls.holds, self.popping.pops.waiting
        if not (pulls.count or pops.count):
            return
        for topic, queue_id, _, packed in entries:
            try:
                pulls.arrived(topic, queue_id, packed)
                pops.arrived(topic, queue_id, packed)
            except Exception as error:
                self.contained.failed("units_told", error)

    def _end_waits(self) -> None:
        """Answer all requests that wait for messages."""
        self.pulls.holds.release_all()
        self.popping.pops.waiting.end_all()

    def _topics_changed(self, names: Sequence[str]) -> None:
        self.registrar.trigger()

    def _role_changed(self, event: RoleEvent) -> None:
        self._activity.note()
        roles = self.roles
        was_leading, term, before = roles.leading, roles.term, self.log.identity
        self.metrics.role_changed(event)
        roles.change(event)
        self.events.role_changed(event)
        leading = roles.leading
        change = RoleChange(
            event,
            leading,
            began=leading and not was_leading,
            ended=was_leading and not leading,
            goes_on=was_leading and leading and term == event.term,
            awaited=self.log.leader_is_awaited(event),
        )
        for service in self._by_role:
            service.role_changed(change)
        if change.began:
            if not self.config.is_classic:
                self._announce()
            self.contained.run("clients_told", self.clients.notify_all)
            self.groups.ensure_all(self.clients)
        news = self.log.identity != before or roles.misses_address
        if news and not self.life.stopping:
            self.registrar.trigger()

    def _announce(self) -> None:
        """Propose a command with this leader's addresses, for all replicas."""

        def done(error: Exception | None) -> None:
            if error is not None:
                log.info("announce_failed: %s", error)

        own = announce(self.config.dleger_self_id, self.address, self.context.http_address)
        self.log.propose_then(own, done)
