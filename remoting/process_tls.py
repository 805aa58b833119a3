"""All TLS contexts of a server process, from its configuration, renewed at run time.

Call `load` before anything listens or dials, and `start` and `stop` on the loop. A context that is
not configured is None, for plain connections.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, replace

from raftmq.ops.server_options import PeerTlsOptions, ServerOptions

from .tls import (
    ClientAuth,
    ClientTls,
    Renewed,
    ServerTls,
    TlsError,
    TlsMode,
    build_server,
)
from .tls_listener import ArrivalCounts, ArrivalLimits, TlsPolicy

RELOAD_S = 10.0  # between two checks whether the files changed
# For a group's few replicas. A dial with TLS takes at most `patience_s`
# (broker.replication.engine).
LINK_LIMITS = ArrivalLimits(arriving_max=64, grace_s=0.2, patience_s=3.0)


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Both sides of the links between replicas."""

    policy: TlsPolicy
    client: Renewed


class ProcessTls:
    def __init__(
        self,
        keys: ServerOptions,
        peer_keys: PeerTlsOptions | None = None,
        limits: ArrivalLimits | None = None,
        *,
        protocols: tuple[str, ...] = (),
    ) -> None:
        """`peer_keys` are for replicas of a Raft group only. `limits` apply to the ports for
        clients and HTTP. TLS offers `protocols` at the port for clients (ALPN)."""
        self._limits = limits or ArrivalLimits()
        self.server: TlsPolicy | None = None  # the ports for clients
        self.client: Renewed | None = None  # own connections
        self.http: TlsPolicy | None = None
        self.peers: PeerTls | None = None
        self._dialling: Renewed | None = None
        self._protocols = protocols
        self._keys = keys
        self._peer_keys = peer_keys
        self._contexts: list[Renewed] = []
        self._task: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Make the contexts from their files. A configured certificate is also read in a disabled
        mode. Blocking. Raises TlsError."""
        keys = self._keys
        serving = replace(_server(keys), protocols=self._protocols)
        self.server = self._policy(keys.tls_server_mode, "server", serving)
        if keys.tls_enable or keys.tls_client_trust_cert_path:
            self._dialling = self._renewed("client", _client(keys))
        if keys.tls_enable:
            self.client = self._dialling
        own = ServerTls(
            keys.http_tls_cert_path, keys.http_tls_key_path, keys.tls_server_key_password
        )
        if not own.cert_path:
            own = _without_clients(_server(keys))  # HTTP callers use tokens instead of certificates
        self.http = self._policy(keys.http_tls_mode, "http", own)
        if self._peer_keys is not None:
            self._load_peers(self._peer_keys)

    def _load_peers(self, keys: PeerTlsOptions) -> None:
        """Make the contexts of Raft's links, with the same certificate for serving and dialling."""
        cert, key = keys.raft_tls_cert_path, keys.raft_tls_key_path
        if not cert:
            cert, key = keys.tls_server_cert_path, keys.tls_server_key_path
        trust = keys.raft_tls_trust_cert_path
        auth = ClientAuth.REQUIRE if trust else ClientAuth.NONE
        serving = ServerTls(cert, key, keys.tls_server_key_password, trust, auth)
        policy = self._policy(keys.raft_tls_mode, "raft server", serving, LINK_LIMITS)
        if policy is None:
            return
        if not trust:
            raise TlsError("Raft's links need the CA of their group: no trust file is named")
        dialling = self._renewed(
            "raft client", ClientTls(trust, cert, key, keys.tls_server_key_password)
        )
        self.peers = PeerTls(policy, dialling)

    def start(self) -> None:
        """Start checks for changed files and expiring certificates, on the running loop."""
        if self._contexts:
            self._task = asyncio.get_running_loop().create_task(self._check_forever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def contexts(self) -> list[Renewed]:
        """Return all contexts, each with its certificate and the error of new files."""
        return list(self._contexts)

    def arrivals(self) -> list[tuple[str, ArrivalCounts]]:
        """Return each port's counts with the name of its context."""
        peers = None if self.peers is None else self.peers.policy
        policies = (("server", self.server), ("http", self.http), ("raft server", peers))
        return [(name, policy.counts) for name, policy in policies if policy is not None]

    @property
    def https(self) -> ssl.SSLContext | None:
        """Return the context for outgoing HTTPS requests; None for the system's trust store."""
        return self._dialling.context if self._dialling is not None else None

    @property
    def http_scheme(self) -> str:
        """Return the announced scheme: `http` also for `permissive`, as clients may lack the CA."""
        enforcing = self.http is not None and self.http.mode is TlsMode.ENFORCING
        return "https" if enforcing else "http"

    @property
    def error(self) -> str:
        """Return in a line why new files are not in use, or ""."""
        return "; ".join(f"{one.name}: {one.error}" for one in self._contexts if one.error)

    @property
    def expiring(self) -> str:
        """Return in a line which certificates expire soon or are expired, or ""."""
        return "; ".join(one.expiry for one in self._contexts if one.expiry)

    @property
    def warnings(self) -> list[str]:
        """Return warnings for health checks of a process that works."""
        return [f"TLS: {self.expiring}"] if self.expiring else []

    async def _check_forever(self) -> None:
        while True:
            for one in self._contexts:
                await asyncio.to_thread(one.check)
            await asyncio.sleep(RELOAD_S)

    def _policy(
        self, mode: str, name: str, settings: ServerTls, limits: ArrivalLimits | None = None
    ) -> TlsPolicy | None:
        if mode == TlsMode.DISABLED:
            if settings.cert_path:  # report a mistake now, not on the day of the switch
                build_server(settings)
            return None
        renewed = self._renewed(name, settings)
        return TlsPolicy(TlsMode(mode), renewed, limits or self._limits)

    def _renewed(self, name: str, settings: ServerTls | ClientTls) -> Renewed:
        renewed = Renewed(settings, name)
        self._contexts.append(renewed)
        return renewed


def _server(keys: ServerOptions) -> ServerTls:
    return ServerTls(
        keys.tls_server_cert_path,
        keys.tls_server_key_path,
        keys.tls_server_key_password,
        keys.tls_server_trust_cert_path,
        ClientAuth(keys.tls_server_need_client_auth),
    )


def _without_clients(settings: ServerTls) -> ServerTls:
    return ServerTls(settings.cert_path, settings.key_path, settings.key_password)


def _client(keys: ServerOptions) -> ClientTls:
    return ClientTls(
        keys.tls_client_trust_cert_path,
        keys.tls_client_cert_path,
        keys.tls_client_key_path,
        keys.tls_client_key_password,
        keys.tls_client_auth_server,
        keys.tls_client_check_host_name,
    )
