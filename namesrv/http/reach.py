"""Brokers to which a name server sends HTTP requests.

Any peer of a name server can register any HTTP address. It gets requests only if

1. the registration was signed, or

2. the host is in httpBrokerHosts, or

3. this name server has no registrationKeyFile, and the address is on the registering host. The
request goes to that host's address, whatever the registered name resolves to. So without a key a
stranger can direct requests to its own host only.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from raftmq.remoting.address import parse_address
from raftmq.remoting.errors import ConnectError
from raftmq.web.settings import is_loopback

from ..routes import THIS_MACHINE

HTTPS = "https://"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Contact:
    """The target of requests to a broker's HTTP API. `host` replaces the registered host, which
    stays in the request's Host header. `refused` is the reason for no requests."""

    host: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """`has_key` is of registrations; `allowed` has hosts and networks (httpBrokerHosts)."""

    has_key: bool = False
    allowed: Sequence[str] = ()

    def contact(self, http_address: str, peer: str, *, signed: bool) -> Contact:
        """Return the target for a broker that registered from the host `peer`."""
        try:
            host, _ = parse_address(http_address.removeprefix(HTTPS))
        except ConnectError:
            return Contact(refused="it registered no HTTP address")
        if signed or _is_in(host, self.allowed):
            return Contact()
        if self.has_key:
            return Contact(refused="its registration is not signed (registrationKeyFile)")
        if peer == THIS_MACHINE and (_is_own(host) or not _is_literal(host)):
            return Contact() if _is_own(host) else Contact(LOOPBACK)
        if peer and (host == peer or not _is_literal(host)):
            return Contact(peer)
        return Contact(
            refused=f"{host} is not the host that its registration came from, {peer or 'unknown'}:"
            " registrationKeyFile, or httpBrokerHosts"
        )


def host_problem(text: str) -> str:
    """Return the fault of an entry of httpBrokerHosts, or ""."""
    if "/" not in text:
        return ""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        return str(error)
    return ""


def _is_in(host: str, allowed: Sequence[str]) -> bool:
    if host.lower() in (entry.lower() for entry in allowed):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(entry) for entry in allowed if "/" in entry)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_own(host: str) -> bool:
    """Return whether a host is this machine, by name or by a local address."""
    if is_loopback(host) or host.lower() == socket.gethostname().lower():
        return True
    if not _is_literal(host):
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return not ipaddress.ip_address(host).is_unspecified
