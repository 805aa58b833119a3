"""Which hosts are this machine and nobody else. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Of a name or a literal address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
