"""Parses addresses, `host:port` or `[ipv6]:port`; a host may be a name.

Every connect resolves names again, so that a moved broker is found. Pure, without I/O.
"""

from __future__ import annotations

from .errors import ConnectError


def parse_address(address: str) -> tuple[str, int]:
    """Parse `host:port` into (host, port). Raises ConnectError."""
    host, colon, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConnectError(f"not an address of the form host:port: {address[:200]!r}")
    return host, int(port)


def host_of(address: str) -> str:
    """Return the host of `host:port`, or "" for text of another form."""
    try:
        return parse_address(address)[0]
    except ConnectError:
        return ""


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address_list(addresses: str) -> list[str]:
    """Split `a:1;b:2` (Apache's name server lists, also with commas), without blanks."""
    parts = addresses.replace(",", ";").split(";")
    return [part.strip() for part in parts if part.strip()]
