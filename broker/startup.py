"""The steps of a broker's start that can fail before a service is built.

`Claim` takes the lock (store.store_lock), then checks the identity (store.identity), then binds the
ports. A start that cannot succeed thus fails before recovery has changed a byte. A directory
without an identity gets this node's. If it already has a log, the replica recovers before it votes,
because the log may be another node's.

Then keys and certificates are read, the store is recovered and the tables are loaded. The services
are built from the `Opened` that it returns. A failed start releases everything. Blocking work runs
in the broker's pool of one thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address

from raftmq.dledger.storage.hard_state import distrust
from raftmq.ops.descriptors import Shares, descriptor_limit
from raftmq.ops.metrics import Timings
from raftmq.remoting.acl import AclError
from raftmq.remoting.acl.account_file import AccountFile
from raftmq.remoting.address import format_address
from raftmq.remoting.bound_port import BoundPort
from raftmq.remoting.names import is_brokers_own
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.registration_proof import KeyFileError, load_registration_keys
from raftmq.remoting.tls import TlsError
from raftmq.remoting.tls_listener import ArrivalLimits
from raftmq.store.disk import OsDisk
from raftmq.store.identity import StoreIdentity, check_identity, record_identity
from raftmq.store.message_store import MessageStore
from raftmq.store.record import pack_host
from raftmq.store.store_lock import StoreLock, lock_store
from raftmq.store.transient_errors import passes
from raftmq.web.auth import Access as WebAccess
from raftmq.web.settings import LOOPBACK, WebConfigError, WebSettings

from .accountbook import load_account_file
from .config import BrokerConfig
from .construction import ports_of, store_config, web_settings
from .errors import EngineError
from .replication.engine import RAFT, Replication
from .replication.peer_auth import Gates, make_gates
from .tables import snapshot
from .tables.config_files import ConfigFiles
from .tables.snapshot_install import RAFT_DIRECTORY, prepare
from .tables.state import BrokerState

log = logging.getLogger("raftmq.broker")


def identity_of(config: BrokerConfig) -> StoreIdentity:
    """Return the required identity of the broker's directory."""
    size = config.mapped_file_size_commit_log
    if config.is_classic:
        return StoreIdentity("classic", config.broker_name, "", size)
    return StoreIdentity("raft", config.group_name, config.dleger_self_id, size)


def described(config: BrokerConfig) -> str:
    """Return a description of the broker, for a second process that requests the same store."""
    return f"mqbroker {config.node_name} of {config.group_name}"


def _is_name_of_loopback(host: str, bound: BoundPort) -> bool:
    """Return whether an advertised name resolves to loopback on this machine only, as installers
    write it into /etc/hosts."""
    if host.lower() in ("", "localhost", *bound.hosts):
        return False
    return all(ip_address(number.split("%")[0]).is_loopback for number in bound.hosts)


class Claim:
    """The claims of a broker: `take` them, get each socket by `socket_of`, and `release` them once
    the store is closed."""

    def __init__(
        self, config: BrokerConfig, disk: OsDisk, lock: StoreLock | None, *, replicates: bool
    ) -> None:
        """`lock` is the store's lock if the caller has it. `replicates` also claims that port."""
        self._config = config
        self._disk = disk
        self._lent = lock
        self._lock: StoreLock | None = None
        self._replicates = replicates
        self._size_noted = False
        self._ports: dict[str, BoundPort] = {}
        self.port = config.listen_port  # the bound port if listenPort=0
        self.http_port = 0  # the HTTP port, or 0 without HTTP

    def take(self) -> None:
        """Claim lock, identity and ports; call `release` even after an error. Raises StoreInUse,
        WrongIdentity, EngineError, OSError."""
        config = self._config
        if self._lent is None:
            self._lock = lock_store(self._disk.root, described(config))
        own = identity_of(config)
        empty = not (self._disk.exists("commitlog") and self._disk.listdir("commitlog"))
        known = check_identity(self._disk, config.store_path_root_dir, own, empty=empty)
        if config.is_classic and not known and self._disk.exists(RAFT_DIRECTORY):
            raise EngineError(
                f"storePathRootDir={config.store_path_root_dir} is a Raft replica's: set "
                "enableDLegerCommitLog=true, or another directory for classic mode"
            )
        where = f"bindAddress={config.bind_address} listenPort={config.listen_port}"
        self._bind("client", where, config.bind_address, config.listen_port)
        self.port = self._ports["client"].port
        if config.http_enable:
            web = web_settings(config, self.port)
            where = f"httpBindAddress={web.bind_address} httpPort={web.port}"
            self._bind("http", where, web.bind_address.strip("[]"), web.port)
            self.http_port = self._ports["http"].port
            if web.health_port:
                where = f"httpHealthPort={web.health_port}"
                self._bind("health", where, LOOPBACK, web.health_port)
        if self._replicates:
            self._bind_replication()
        if known is None:
            self._note(replace(own, segment_size_bytes=0))
        self._size_noted = known == own

    @property
    def lock(self) -> StoreLock:
        lock = self._lent or self._lock
        assert lock is not None
        return lock

    def socket_of(self, name: str) -> socket.socket | None:
        """Return the socket for `client`, `http`, `health` or `replication`; None to bind it."""
        port = self._ports.pop(name, None)
        return None if port is None else port.take()

    def release(self) -> None:
        """Release ports and lock; every file of the store must be closed."""
        for port in self._ports.values():
            port.close()
        self._ports.clear()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _bind_replication(self) -> None:
        config = self._config
        if not config.is_classic:
            own = next(p for p in config.peers if p.node_id == config.dleger_self_id)
            host = config.dleger_bind_address or own.host
            self._bind(
                "replication", f"dLegerPeers={own.node_id}-{host}:{own.port}", host, own.port
            )
            if len(config.peers) > 1 and _is_name_of_loopback(host, self._ports["replication"]):
                log.warning(
                    "replication_on_loopback host=%s addresses=%s: no other machine reaches this"
                    " replica there; have this machine resolve %s as the others do, or set"
                    " dLegerBindAddress",
                    host,
                    ",".join(self._ports["replication"].hosts),
                    host,
                )
        elif not config.is_slave:
            where = f"bindAddress={config.bind_address} haListenPort={config.ha_port}"
            self._bind("replication", where, config.bind_address, config.ha_port)

    def _bind(self, name: str, where: str, host: str, port: int) -> None:
        try:
            self._ports[name] = BoundPort(host, port)
        except OSError as error:
            raise OSError(error.errno, f"{where}: {error.strerror or error}") from error

    def note_segment_size(self) -> None:
        """Record the segments' size of the opened log. Raises OSError."""
        if not self._size_noted:
            self._size_noted = self._written(identity_of(self._config))

    def _note(self, own: StoreIdentity) -> None:
        adopted = self._disk.exists("commitlog")
        if adopted and not self._config.is_classic:
            distrust(self._disk, RAFT_DIRECTORY)  # before the identity makes the store ours
        if not self._written(own):
            return
        log.log(
            logging.WARNING if adopted else logging.INFO,
            "%s root=%s mode=%s group=%s node=%s%s",
            "store_adopted" if adopted else "store_noted",
            self._disk.root,
            own.mode,
            own.group,
            own.node,
            ": it recovers before it counts" if adopted and not self._config.is_classic else "",
        )

    def _written(self, identity: StoreIdentity) -> bool:
        """Write the identity. Return False on a full disk; the next start retries."""
        try:
            record_identity(self._disk, identity)
        except OSError as error:
            if not passes(error):
                raise
            log.warning("store_identity_not_noted: %s", error)
            return False
        return True


START_READ_ERRORS = (AclError, EngineError, KeyFileError, TlsError, WebConfigError)


@dataclass(frozen=True, slots=True)
class Opened:
    """A broker's store, tables and ports, ready for its services."""

    config: BrokerConfig
    disk: OsDisk
    pool: ThreadPoolExecutor
    claim: Claim
    replication_socket: socket.socket | None
    state: BrokerState
    store: MessageStore
    fsync: Timings  # of the CommitLog
    files: ConfigFiles | None  # classic mode's tables
    installed_index: int  # the tables may be ahead of the log up to here (tables.snapshot_install)
    covered_index: int  # the last frame in the loaded snapshots
    accounts: AccountFile
    gates: Gates
    tls: ProcessTls
    shares: Shares  # of this process's file descriptors
    registration_keys: tuple[bytes, ...]
    web: WebSettings
    web_access: WebAccess | None  # None with httpEnable=false
    address: str
    http_address: str
    store_host: bytes  # STOREHOST of our records
    clock_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    replication: Replication

    def close(self, *, clean: bool) -> None:
        """Close the store, `clean` or as it is, and release everything. Blocking."""
        try:
            if clean:
                self.store.close()
            else:
                self.store.close_unclean()  # the abort file stays
        finally:
            if self.replication_socket is not None:
                self.replication_socket.close()  # if the engine did not get it
            self.claim.release()


async def open_store(
    config: BrokerConfig,
    disk: OsDisk,
    *,
    lock: StoreLock | None,
    replication_socket: socket.socket | None,
    clock_ms: Callable[[], int],
    wall_ms: Callable[[], int],
    replication: Replication = RAFT,
) -> Opened:
    """Open a broker's store. `disk` is rooted at storePathRootDir, and `lock` is its lock if the
    caller holds it. Raises ConfigError, EngineError, StoreError, StateError, WebConfigError,
    TlsError, KeyFileError, OSError."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
    claim = Claim(config, disk, lock, replicates=replication_socket is None)
    state, fsync = BrokerState(), Timings()
    shares = Shares(descriptor_limit(), ports_of(config))
    files = replace(store_config(config), open_files_max=shares.files_cached)
    store = MessageStore(disk, files, on_synced=fsync.observe, first_shown=state.topics.starts)
    tls = ProcessTls(config, config, ArrivalLimits(arriving_max=shares.arriving))

    def opened() -> Opened:
        web_access = read_tokens(config)
        tls.load()
        gates = make_gates(config, replication_socket)
        keys = load_registration_keys(config.registration_key_file)
        claim.take()
        files, installed, covered = None, 0, 0
        if config.is_classic:
            files = ConfigFiles(disk, state, pool, store.commitlog)
        else:
            installed = prepare(disk, store.config, RAFT_DIRECTORY)
        store.open(foreign=config.is_classic and claim.lock.foreign)
        claim.lock.record_opened()
        claim.note_segment_size()
        if files is not None:
            files.load()
        elif replication.keeps_log:
            covered = snapshot.load(disk, state)
            snapshot.put_right(disk, state)
        for queue in store.queues.queues():
            if state.topics.get(queue.topic) is None and not is_brokers_own(queue.topic):
                store.queues.topic_changed(queue.topic, exists=False)
        accounts = load_account_file(config, state.acl)
        port = config.advertised_port or claim.port
        web = replace(web_settings(config, claim.port), port=claim.http_port)
        http_address = ""
        if web_access is not None:
            advertised = web.advertised_address(config.broker_ip1, web.port)
            http_address = f"https://{advertised}" if tls.http_scheme == "https" else advertised
        return Opened(
            config=config,
            disk=disk,
            pool=pool,
            claim=claim,
            replication_socket=replication_socket or claim.socket_of("replication"),
            state=state,
            store=store,
            fsync=fsync,
            files=files,
            installed_index=installed,
            covered_index=covered,
            accounts=accounts,
            gates=gates,
            tls=tls,
            shares=shares,
            registration_keys=keys,
            web=web,
            web_access=web_access,
            address=format_address(config.broker_ip1, port),
            http_address=http_address,
            store_host=_store_host(config.broker_ip1, port),
            clock_ms=clock_ms,
            wall_ms=wall_ms,
            replication=replication,
        )

    opening = asyncio.get_running_loop().run_in_executor(pool, opened)
    try:
        return await asyncio.shield(opening)
    except BaseException:
        # Also after a cancellation, because the thread cannot be stopped.
        await asyncio.wait([opening])
        if not opening.exception():
            opening.result().close(clean=False)
        else:
            store.close_unclean()
            claim.release()
            if replication_socket is not None:
                replication_socket.close()
        await tls.stop()
        pool.shutdown()
        raise


def read_tokens(config: BrokerConfig) -> WebAccess | None:
    """Read the tokens of the HTTP port, None if it is disabled. Raises WebConfigError."""
    if not config.http_enable:
        return None
    return WebAccess.of(web_settings(config, config.listen_port))


def start_reads(config: BrokerConfig) -> Iterator[Callable[[], object]]:
    """Yield the reads of a start that need no store. Each raises START_READ_ERRORS if a start would
    fail. A Raft group may have its accounts in its log, without a file."""
    yield partial(read_tokens, config)
    yield ProcessTls(config, config, ArrivalLimits()).load
    yield partial(make_gates, config)
    yield partial(load_registration_keys, config.registration_key_file)
    accounts = AccountFile(config.acl_file)
    if config.acl_enable and (accounts.exists or config.is_classic or config.acl_file_wins):
        yield accounts.read


def _store_host(host: str, port: int) -> bytes:
    """Return STOREHOST; a brokerIP1 that is a host name is resolved. Raises OSError."""
    try:
        return pack_host((host, port))
    except ValueError:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return pack_host((str(infos[0][4][0]), port))
