"""Finds what no listener of a process can listen at, and two with the same port. Pure.

A start would fail with "Address already in use", and be repeated for ever by what keeps the process
running, as if somebody else had the port.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .options import Option, wrong_value

EVERY_ADDRESS = ("", "0.0.0.0", "::")
HTTP_PORT_ABOVE = 4  # the default httpPort is so much above the port of clients


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a process listens at, and the field that says so; port 0: any free one."""

    name: str
    address: str
    port: int


def check_ports(
    options: Mapping[str, Option],
    config: object,
    places: Mapping[str, str],
    listeners: Iterable[Listener],
) -> None:
    """Raise ConfigError if the address of one of `listeners` is none, or if it would find its port
    taken by one before it: then it names both keys."""
    before: list[Listener] = []
    for one in listeners:
        try:
            one.address.encode("idna")  # as it is resolved
        except UnicodeError as error:
            why = f"{one.address!r} is no address: {error}"
            raise wrong_value(options, config, places, one.name, why) from error
        for other in before if one.port else ():
            if one.port == other.port and _meet(one.address, other.address):
                key = next(o.key for o in options.values() if o.name == other.name)
                why = f"port {one.port} is that of {key}, too"
                raise wrong_value(options, config, places, one.name, why)
        before.append(one)


def _meet(one: str, other: str) -> bool:
    return one == other or one in EVERY_ADDRESS or other in EVERY_ADDRESS


def http_port(http_port: int, own: int) -> int:
    """Return httpPort, or if that is negative its default beside the process's `own` port."""
    return http_port if http_port >= 0 else own and own + HTTP_PORT_ABOVE
