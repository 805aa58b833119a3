"""Claims the lock, identity and ports of a broker before its store is opened.

So a start that cannot succeed fails before recovery has changed a byte.

The order is: the lock (store.store_lock), the identity (store.identity), the ports. A directory
without an identity is noted as this node's once everything else was claimed. If it has a log, that
is another node's as likely as this one's: a replica that adopts it recovers before it votes.
Blocking.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from ipaddress import ip_address

from raftmq.dledger.storage.hard_state import distrust
from raftmq.remoting.bound_port import BoundPort
from raftmq.store.disk import OsDisk
from raftmq.store.identity import StoreIdentity, check_identity, record_identity
from raftmq.store.store_lock import StoreLock, lock_store
from raftmq.store.transient_errors import passes
from raftmq.web.app import LOOPBACK

from .config import BrokerConfig
from .construction import web_settings
from .errors import EngineError
from .tables.snapshot_install import RAFT_DIRECTORY

log = logging.getLogger("raftmq.broker.startup_claim")


def identity_of(config: BrokerConfig) -> StoreIdentity:
    """Return the identity that the directory of such a broker must have."""
    size = config.mapped_file_size_commit_log
    if config.is_classic:
        return StoreIdentity("classic", config.broker_name, "", size)
    return StoreIdentity("raft", config.group_name, config.dleger_self_id, size)


def described(config: BrokerConfig) -> str:
    """Return how the broker is described to others, for example to a second process that asks for
    the same store."""
    return f"mqbroker {config.node_name} of {config.group_name}"


def _is_name_of_loopback(host: str, bound: BoundPort) -> bool:
    """Return whether a name that others may know this machine by is one of itself alone here, as
    installers write it into /etc/hosts."""
    if host.lower() in ("", "localhost", *bound.hosts):
        return False
    return all(ip_address(number.split("%")[0]).is_loopback for number in bound.hosts)


class Claim:
    """The claims of one broker: call `take`, then hand out the sockets one by one with
    `socket_of`; call `release` when the store is closed."""

    def __init__(
        self, config: BrokerConfig, disk: OsDisk, lock: StoreLock | None, *, replicates: bool
    ) -> None:
        """`lock`: the store's lock, if the broker's creator holds and keeps it. `replicates`: also
        claim the port for replicas."""
        self._config = config
        self._disk = disk
        self._lent = lock
        self._lock: StoreLock | None = None
        self._replicates = replicates
        self._size_noted = False
        self._ports: dict[str, BoundPort] = {}
        self.port = config.listen_port  # for listenPort=0 the port that was taken
        self.http_port = 0  # the port where HTTP listens; 0: it does not

    def take(self) -> None:
        """Claim lock, identity and ports. Raises StoreInUse, WrongIdentity, EngineError, OSError;
        call `release` even then."""
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
        """The store's lock, once it is taken."""
        lock = self._lent or self._lock
        assert lock is not None
        return lock

    def socket_of(self, name: str) -> socket.socket | None:
        """Return the socket for `client`, `http`, `health` or `replication`; None: bind the
        address."""
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
        """Note the segments' size: the log was opened with it. Raises OSError."""
        if not self._size_noted:
            self._size_noted = self._written(identity_of(self._config))

    def _note(self, own: StoreIdentity) -> None:
        adopted = self._disk.exists("commitlog")
        if adopted and not self._config.is_classic:
            distrust(self._disk, RAFT_DIRECTORY)  # before its identity makes the store ours
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
        """Write the identity. Return False if there is no room: the next start does it."""
        try:
            record_identity(self._disk, identity)
        except OSError as error:
            if not passes(error):
                raise
            log.warning("store_identity_not_noted: %s", error)
            return False
        return True
