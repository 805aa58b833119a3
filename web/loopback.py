"""Recognises loopback hosts. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or literal address is loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
