"""Gates that require proofs of peers, made from the configuration.

They guard the Raft port, the HA port and a slave's dials. Without a secret a broker opens such a
port only on loopback, unless TLS requires certificates of both sides.
"""

from __future__ import annotations

import logging
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from raftmq.dledger.transport.peer_auth import Gate, Purpose, Secret
from raftmq.web.settings import is_loopback

from ..config import BrokerConfig
from ..errors import EngineError

log = logging.getLogger("raftmq.broker.peerproof")

ENFORCING = "enforcing"
SECRET_FILE_BYTES_MAX = 4096
_WITHOUT = (
    "whoever reaches it could take part as a peer: set peerSecretFile (the same file for all"
    " brokers of a group), or {tls}, or let it listen on loopback ({address})"
)


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates of a broker; None requires no proof."""

    raft: Gate | None = None
    master: Gate | None = None  # of a classic master's port
    slave: Gate | None = None  # of a slave's dials to its master

    @property
    def all(self) -> tuple[Gate, ...]:
        return tuple(gate for gate in (self.raft, self.master, self.slave) if gate is not None)

    @property
    def proof_required(self) -> bool:
        """True if every peer needs a proof."""
        return bool(self.all) and not any(gate.admissions.accepts_unproven for gate in self.all)


NO_GATES = Gates()


def make_gates(config: BrokerConfig, bound: socket.socket | None = None) -> Gates:
    """Make the gates; reads the secret's file. `bound` is the peers' port if it is already bound.
    Raises EngineError, also for an unprotected port."""
    secret = read_secret(config)
    if not config.is_classic:
        host = _host_of(bound) or config.dleger_bind_address or _own_host(config)
        if secret is None:
            _check_exposed(host, config.raft_tls_mode == ENFORCING, "Raft", "raftTlsMode=enforcing")
            return NO_GATES
        return Gates(raft=_gate(config, secret, Purpose.RAFT))
    if config.is_slave:
        if secret is None or config.ha_accept_unproven_peers:
            return NO_GATES
        return Gates(slave=_gate(config, secret, Purpose.HA))
    unproven = config.ha_accept_unproven_peers
    if secret is None:
        certified = (
            config.tls_server_mode == ENFORCING and config.tls_server_need_client_auth == "require"
        )
        tls = "tlsServerMode=enforcing with tlsServerNeedClientAuth=require"
        host = _host_of(bound) or config.bind_address
        _check_exposed(host, certified or unproven, "HA", tls)
        return NO_GATES
    return Gates(master=_gate(config, secret, Purpose.HA, accept_unproven=unproven))


def read_secret(config: BrokerConfig) -> Secret | None:
    """Read the secret. Raises EngineError; its text does not reveal the secret."""
    name = config.peer_secret_file
    try:
        if not name:
            text = config.peer_secret.encode()
            return Secret(text) if text else None
        path = Path(name)
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("peer_secret_readable file=%s: others than its owner may read it", name)
        with path.open("rb") as file:
            return Secret(file.read(SECRET_FILE_BYTES_MAX).strip())
    except (OSError, ValueError) as error:
        key = f"peerSecretFile={name}" if name else "peerSecret"
        raise EngineError(f"{key}: {error}") from error


def _gate(
    config: BrokerConfig, secret: Secret, purpose: Purpose, *, accept_unproven: bool = False
) -> Gate:
    group = config.group_name if purpose is Purpose.RAFT else config.broker_name
    return Gate(secret, purpose, group, config.node_name, accept_unproven=accept_unproven)


def _host_of(bound: socket.socket | None) -> str:
    return "" if bound is None else str(bound.getsockname()[0])


def _own_host(config: BrokerConfig) -> str:
    return next(p.host for p in config.peers if p.node_id == config.dleger_self_id)


def _check_exposed(host: str, allowed: bool, port: str, tls: str) -> None:
    if allowed:
        return
    if is_loopback(host):
        log.warning("peers_unproven: the %s port asks nobody for a proof (no peerSecretFile)", port)
        return
    address = "dLegerBindAddress" if port == "Raft" else "bindAddress"
    without = _WITHOUT.format(tls=tls, address=address)
    more = ", or haAcceptUnprovenPeers=true" if port == "HA" else ""
    raise EngineError(f"the {port} port would listen on {host}, and {without}{more}")
