"""TLS for the links between replicas, with certificates of the group's CA on both sides.

It replaces dledger's `PlainNetwork`, independent of the transmitted data.

The dialling replica checks the certificate against the dialled host. The accepting replica checks
that the CA signed the certificate and that it is valid for the host of the replica that the peer
claims to be. A single certificate for the replica's host in `dLegerPeers` therefore serves both
ways, and a stolen certificate is valid for its own host only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from raftmq.ops.connect import dial

from .process_tls import PeerTls
from .tls import TlsMode, tls_reason
from .tls_listener import TlsListener

LOG = logging.getLogger("raftmq.remoting.tls")

Factory = Callable[[], asyncio.Protocol]


class TlsLinks:
    """Listens for and dials the links between replicas, with TLS."""

    def __init__(self, tls: PeerTls) -> None:
        self.listener: TlsListener | None = None
        self.fallen_back_count = 0  # permissive dials that fell back to plain text
        self._tls = tls
        self._permissive = tls.policy.mode is TlsMode.PERMISSIVE

    async def listen(
        self, factory: Factory, host: str, port: int, bound: socket.socket | None
    ) -> TlsListener:
        self.listener = TlsListener(factory, self._tls.policy)
        await self.listener.listen(host, port, bound=bound)
        return self.listener

    async def dial(self, factory: Factory, host: str, port: int, peer: str) -> asyncio.BaseProtocol:
        """Dial a peer. Raises OSError with TLS's reason. The certificate is checked for `host`;
        `peer` is not used."""
        context = self._tls.client.context
        try:
            return await dial(factory, host, port, context)
        except ConnectionRefusedError:
            raise
        except (ssl.SSLError, ConnectionError) as error:
            if not self._permissive:
                raise ConnectionError(tls_reason(error)) from error
            reason = tls_reason(error)
        self.fallen_back_count += 1
        # 1, 2, 4, 8, …, against floods
        if self.fallen_back_count & (self.fallen_back_count - 1) == 0:
            LOG.warning("peer_dialled_in_the_clear peer=%s:%d reason=%s", host, port, reason)
        return await dial(factory, host, port)

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        certificate = transport.get_extra_info("peercert")
        if certificate is None:  # plain; `enforcing` would have closed it before
            return ""
        if valid_for(certificate, host):
            return ""
        return f"the certificate shown is not valid for {host}"


def valid_for(certificate: dict[str, Any], host: str) -> bool:
    """Return whether a certificate, in ssl's form, is for the host, as an address, a name, or a
    wildcard name (`*.brokers.example`)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        wild = f"*.{name.partition('.')[2]}"
        names = {str(v).lower() for kind, v in _names(certificate) if kind == "DNS"}
        return name in names or (wild in names and wild.count(".") >= 2)
    return any(kind == "IP Address" and _is(text, address) for kind, text in _names(certificate))


def _is(text: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return ipaddress.ip_address(text.strip()) == address
    except ValueError:  # OpenSSL's text for an address of a wrong length is not an address
        return False


def _names(certificate: dict[str, Any]) -> list[tuple[str, str]]:
    return list(certificate.get("subjectAltName", ()))
