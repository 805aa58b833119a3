"""Settings of an HTTP API, with its addresses and tokens file."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"  # of httpHealthPort


class WebConfigError(Exception):
    """The configured HTTP API is impossible; the text names the change to make."""


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The configuration keys that brokers and name servers share."""

    enabled: bool = True  # httpEnable
    bind_address: str = "127.0.0.1"  # httpBindAddress
    port: int = 0  # httpPort; 0 for any
    advertised: str = ""  # httpAdvertisedAddress, host:port; derived if ""
    tokens_file: str = ""  # httpTokensFile
    health_port: int = 0  # httpHealthPort, on 127.0.0.1; 0 for none

    def check(self) -> None:
        """Raise WebConfigError for an API that is reachable from outside without a token."""
        if self.enabled and not self.tokens_file and not is_loopback(self.bind_address):
            raise WebConfigError(
                f"httpBindAddress={self.bind_address} is not loopback: set httpTokensFile, so "
                "that not everybody who reaches it is admin, or httpBindAddress=127.0.0.1"
            )

    def advertised_address(self, host: str, port: int) -> str:
        """Return the address to announce: `advertised`, or else `port` at `host`, or at the
        loopback address if it listens only there."""
        if self.advertised:
            return self.advertised
        shown = self.bind_address if is_loopback(self.bind_address) else host
        return f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a name or literal address is loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
