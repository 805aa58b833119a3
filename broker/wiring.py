"""Construction of a broker's send path, registrar, engine and HTTP operations.

broker.broker lists all parts in order and calls these functions. Raft applies frames once they are
committed (broker.state_machine); a classic master or slave writes records to a log without frames
(broker.replication.classic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raftmq.dledger.raft.messages import RoleEvent
from raftmq.remoting.tls_links import TlsLinks
from raftmq.store.frame import EntryBatch
from raftmq.web.operation import Operation

from .admin.acl import AccountChanges
from .admin.exactly_once_writers import Writers
from .admin.message_query import KeyQueries
from .admin.parts import Parts
from .admin.topics_and_groups import Catalog
from .backup.service import Backups
from .checkpointer import ClassicKeeper, Keeper, RaftKeeper
from .clients import ClientTable
from .construction import send_rules
from .consume.offset_resets import Resets
from .consume.pull import PullService
from .consume.queue_locks import LockService
from .context import Context
from .delayed.timers import TimerService
from .history.history import History
from .http.accounts import AccountOperations
from .http.consumers import ConsumerOperations, ModeOperations
from .http.drain import DrainOperations
from .http.faults import FaultDoor, FaultOperations
from .http.history import HistoryOperations
from .http.leadership import LeadershipOperations
from .http.messages import MessageOperations
from .http.node import NodeOperations
from .http.settings import SettingOperations
from .http.tables import TableOperations
from .http.writers import WriterOperations
from .registeredtopics import RegisteredTopics
from .registration import Registrar
from .replication.classic import ClassicEngine, LocalApplication
from .replication.engine import Engine, member_config
from .replication.members import Members
from .retention import Retention, Unexpired
from .scheduler import Activity
from .send.service import SendHooks, SendLog, SendPath
from .startup import Opened
from .state_machine import BrokerApplication
from .tables.snapshot_install import Source
from .tables.timer_wheel import TimerWheel
from .tables.topics import TopicConfig
from .transactions.service import Halves


def make_send_path(
    opened: Opened,
    context: Context,
    halves: Halves,
    clients: ClientTable,
    wheel: TimerWheel,
    locks: LockService,
    on_stored: Callable[[float], None],
) -> SendPath:
    """Return the send path. `on_stored(seconds)` gets the duration of each group commit."""
    return SendPath(
        context.config,
        context.state,
        send_rules(context.config, opened.store_host),
        SendLog(
            queue_end=context.store.queues.end_of,
            request_cut=context.log.request_cut,
            propose=context.log.propose_then,
            barrier=context.log.barrier_then,
            leader_address=lambda: context.roles.address_elsewhere,
            newest_ms=context.store.derived.newest_ms,
        ),
        clock_ms=context.clock_ms,
        wall_ms=context.wall_ms,
        hooks=SendHooks(
            on_half=halves.admit,
            on_request=clients.requester,
            on_stored=on_stored,
            timers_waiting=lambda: wheel.count,
            holds_locks=locks.are_held,
        ),
        contained=context.contained,
        outcome_ms=context.durations.outcome,
    )


def make_registrar(opened: Opened, context: Context, template: TopicConfig | None) -> Registrar:
    """Return the registrar. Name servers list `template`, the template for created topics."""
    config, log = context.config, context.log

    def ha_address() -> str:
        """Return the address for slaves; a Raft replica has none."""
        return log.classic.master.address if config.is_classic else context.address

    return Registrar(
        config.name_servers,
        cluster=config.broker_cluster_name,
        broker_name=config.broker_name,
        address=context.address,
        ha_address=ha_address,
        http_address=context.http_address,
        identity=lambda: log.identity,
        topics=RegisteredTopics(context.state.topics, template, context.state.group),
        on_master=context.roles.hint_master,
        on_route=context.events.route_changed,
        needs_master=lambda: config.is_slave or context.roles.misses_address,
        period_ms=config.register_name_server_period,
        tls=context.tls.client,
        credentials=config.inner_credentials,
        signing_keys=opened.registration_keys,
        removed_groups=lambda: context.state.group.removed_groups,
    )


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks of an engine and its application.

    `arrived(entries)`: entries were added to ConsumeQueues. `fatal(reason)`: the
    engine has failed. `restart(reason)`: this replica's data is void, and a new start rebuilds
    it."""

    arrived: Callable[[Sequence[EntryBatch]], None]
    topics_changed: Callable[[Sequence[str]], None]
    role_changed: Callable[[RoleEvent], None]
    fatal: Callable[[str], None]
    restart: Callable[[str], None]


def make_replication(
    opened: Opened,
    context: Context,
    sends: SendPath,
    pulls: PullService,
    activity: Activity,
    callbacks: Callbacks,
) -> tuple[Engine, BrokerApplication | LocalApplication]:
    if context.config.is_classic:
        return _classic(opened, context, sends, pulls, activity, callbacks)
    return _raft(opened, context, sends, activity, callbacks)


def _raft(
    opened: Opened,
    context: Context,
    sends: SendPath,
    activity: Activity,
    callbacks: Callbacks,
) -> tuple[Engine, BrokerApplication]:
    log, store, tls = context.log, context.store, context.tls
    application = BrokerApplication(
        context.state,
        sends,
        store.derived,
        log_index=lambda: log.raft.log.index,
        on_entries=callbacks.arrived,
        on_topics=callbacks.topics_changed,
        on_role=callbacks.role_changed,
        recovering=lambda: log.raft.recovering is not None,
        installed_index=opened.installed_index,
        contained=context.contained,
        activity=activity,
    )
    network = TlsLinks(tls.peers) if tls.peers is not None else None
    engine = opened.replication.make(
        member_config(context.config, network, opened.gates.raft),
        context.disk,
        store,
        context.state,
        application,
        clock_ms=context.clock_ms,
        wall_ms=context.wall_ms,
        on_fatal=callbacks.fatal,
        listen_socket=opened.replication_socket,
        source=Source(context.state, store, callbacks.restart),
        settings=context.config.alike,
    )
    return engine, application


def _classic(
    opened: Opened,
    context: Context,
    sends: SendPath,
    pulls: PullService,
    activity: Activity,
    callbacks: Callbacks,
) -> tuple[Engine, LocalApplication]:
    assert opened.files is not None
    config, roles = context.config, context.roles
    application = LocalApplication(
        context.state,
        sends,
        context.store,
        on_entries=callbacks.arrived,
        on_topics=callbacks.topics_changed,
        on_role=callbacks.role_changed,
        on_link=pulls.holds.release_all,  # the answers change
        files=opened.files,
        contained=context.contained,
        activity=activity,
    )
    engine = ClassicEngine(
        config,
        application,
        clock_ms=context.clock_ms,
        wall_ms=context.wall_ms,
        on_fatal=callbacks.fatal,
        master_address=lambda: config.master_address or roles.leader_address,
        master_ha_address=lambda: roles.master_ha_address,
        listen_socket=opened.replication_socket,
        tls=context.tls,
        gates=opened.gates,
        durations=context.durations,
    )
    return engine, application


def make_keeper(
    opened: Opened,
    context: Context,
    retention: Retention,
    unexpired: Unexpired,
    timers: TimerService,
    backups: Backups,
) -> Keeper:
    """Return the keeper of the tables' files. Retention spares the needs of timers and backups."""
    if opened.files is not None:
        return ClassicKeeper(
            context, opened.pool, retention, unexpired, files=opened.files, spare=timers.spare
        )
    return RaftKeeper(
        context,
        opened.pool,
        retention,
        unexpired,
        covered_index=opened.covered_index,
        spare=timers.spare,
        needed_from=backups.needed_from,
    )


def node_operations(
    parts: Parts,
    members: Members,
    catalog: Catalog,
    resets: Resets,
    keys: KeyQueries,
    faults: FaultDoor | None,
    writers: Writers,
    accounts: AccountChanges,
    history: History,
) -> list[Operation]:
    """Return this broker's HTTP operations, in the order of docs/http-api.md."""
    context = parts.context
    apis = (
        NodeOperations(parts, members, context.leader_http),
        HistoryOperations(context, history),
        TableOperations(context, catalog),
        ConsumerOperations(context, catalog, parts.clients, resets),
        MessageOperations(context, parts.sends, keys),
        ModeOperations(context, parts.popping.assignments),
        AccountOperations(accounts, enabled=context.config.acl_enable),
        LeadershipOperations(context, members),
        DrainOperations(parts.drain),
        WriterOperations(writers),
        SettingOperations(parts),
        FaultOperations(context, faults),
    )
    return [operation for api in apis for operation in api.operations()]
