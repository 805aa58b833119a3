"""The first half of a broker's start: everything that can fail before a service is built.

It claims the store and the ports (broker.startup_claim), reads keys and certificates, recovers the
store and loads the tables. The services are built from the `Opened` that it returns. If it fails,
it has released everything again. Blocking work runs in the broker's pool of one thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from raftmq.ops.descriptors import Shares, descriptor_limit
from raftmq.ops.metrics import Timings
from raftmq.remoting.acl import AclError
from raftmq.remoting.acl.account_file import AccountFile
from raftmq.remoting.address import format_address
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.registration_proof import KeyFileError, load_registration_keys
from raftmq.remoting.tls import TlsError
from raftmq.remoting.tls_listener import ArrivalLimits
from raftmq.store.disk import OsDisk
from raftmq.store.message_store import MessageStore
from raftmq.store.record import pack_host
from raftmq.store.store_lock import StoreLock
from raftmq.web.auth import Access as WebAccess
from raftmq.web.settings import WebConfigError, WebSettings

from .accountbook import load_account_file
from .config import BrokerConfig
from .construction import ports_of, store_config, web_settings
from .errors import EngineError
from .replication.engine import RAFT, Replication
from .replication.peer_auth import Gates, make_gates
from .startup_claim import Claim
from .tables import snapshot
from .tables.config_files import ConfigFiles
from .tables.snapshot_install import RAFT_DIRECTORY, prepare
from .tables.state import BrokerState

log = logging.getLogger("raftmq.broker")

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
    installed_index: int  # tables may be ahead of the log up to here (tables.snapshotinstall)
    covered_index: int  # up to here the snapshots reach that were loaded
    accounts: AccountFile
    gates: Gates
    tls: ProcessTls
    shares: Shares  # of this process's file descriptors
    registration_keys: tuple[bytes, ...]
    web: WebSettings
    web_access: WebAccess | None  # None: httpEnable=false
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
                self.replication_socket.close()  # if the engine was not given it
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
    """Open a broker's store; `disk` is rooted at storePathRootDir, and `lock` its lock, if the
    caller keeps one. Raises ConfigError, EngineError, StoreError, StateError, WebConfigError,
    TlsError, KeyFileError, OSError."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
    claim = Claim(config, disk, lock, replicates=replication_socket is None)
    state, fsync = BrokerState(), Timings()
    shares = Shares(descriptor_limit(), ports_of(config))
    files = replace(store_config(config), open_files_max=shares.files_cached)
    store = MessageStore(disk, files, on_synced=fsync.observe)
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
        for topic, begin in state.topics.begins.items():
            store.queues.show_from(topic, begin)
        accounts = load_account_file(config, state.acl)
        port = config.advertised_port or claim.port
        web = replace(web_settings(config, claim.port), port=claim.http_port)
        http_address = ""
        if web_access is not None:
            told = web.advertised_address(config.broker_ip1, web.port)
            http_address = f"https://{told}" if tls.http_scheme == "https" else told
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
        # Also when cancelled: the thread is waited for, since its work cannot be stopped.
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
    """Read the tokens of the HTTP port; None if it is disabled. Raises WebConfigError."""
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
    """Return STOREHOST for our address; a brokerIP1 that is a host name is resolved. Raises
    OSError."""
    try:
        return pack_host((host, port))
    except ValueError:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return pack_host((str(found[0][4][0]), port))
