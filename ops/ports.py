"""Finds invalid addresses of listeners, and two listeners with the same port.

Otherwise a start would fail with "Address already in use" forever, as if a different process had
the port. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .options import Option, wrong_value

EVERY_ADDRESS = ("", "0.0.0.0", "::")
HTTP_PORT_ABOVE = 4  # difference between the default httpPort and the clients' port


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a process listens at (0 for any free port), and its configuration field."""

    name: str
    address: str
    port: int


def check_ports(
    options: Mapping[str, Option],
    config: object,
    locations: Mapping[str, str],
    listeners: Iterable[Listener],
) -> None:
    """Raise ConfigError for an invalid address, or the port of an earlier listener."""
    before: list[Listener] = []
    for one in listeners:
        try:
            one.address.encode("idna")  # as for its resolution
        except UnicodeError as error:
            why = f"{one.address!r} is no address: {error}"
            raise wrong_value(options, config, locations, one.name, why) from error
        for other in before if one.port else ():
            if one.port == other.port and _meet(one.address, other.address):
                key = next(o.key for o in options.values() if o.name == other.name)
                why = f"port {one.port} is that of {key}, too"
                raise wrong_value(options, config, locations, one.name, why)
        before.append(one)


def _meet(one: str, other: str) -> bool:
    return one == other or one in EVERY_ADDRESS or other in EVERY_ADDRESS


def http_port(http_port: int, own: int) -> int:
    """Return httpPort, or if that is negative its default above the process's `own` port."""
    return http_port if http_port >= 0 else own and own + HTTP_PORT_ABOVE
