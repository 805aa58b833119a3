"""Dials a host and port, and races the addresses of a name with several.

A silent address (a host that is down, a firewall that drops) would use up the caller's entire
time-out. So the next address is tried in parallel soon (RFC 8305, "Happy Eyeballs"). asyncio
supports that, but uvloop does not. The library aiohappyeyeballs may lose a cancellation, and then
the caller would wait forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from ssl import SSLContext
from typing import Any

STAGGER_S_MAX = 0.1  # RFC 8305, 5 requires at least this; clients give a connect 250 ms
ALL_TRIED_S = 0.5  # half the shortest time-out, dledger's, even with many addresses
NAMED_MAX = 4  # addresses in an error's text


async def dial(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: SSLContext | None = None
) -> asyncio.BaseProtocol:
    """Return the connected protocol that `factory` made; `ssl` checks the certificate for `host`.
    Raises OSError. The caller limits the time (`within`), and may cancel."""
    loop = asyncio.get_running_loop()
    name = None if ssl is None else host
    if not is_address(host):
        addresses = await addresses_of(host, port)
        if len(addresses) > 1:
            connected = await _first_to_answer(addresses)
            # If cancelled here, uvloop before 0.23 would close the descriptor twice.
            _, protocol = await loop.create_connection(
                factory, sock=connected, ssl=ssl, server_hostname=name
            )
            return protocol
        host = str(addresses[0][4][0])  # avoids a second resolution
    _, protocol = await loop.create_connection(factory, host, port, ssl=ssl, server_hostname=name)
    return protocol


@contextlib.asynccontextmanager
async def within(timeout_ms: float) -> AsyncIterator[None]:
    """Limit a dial's time. Raises TimeoutError, with the silent addresses if several."""
    silent = ""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                yield
            except asyncio.CancelledError as given_up:  # Python before 3.11.3 drops it
                silent = "".join(getattr(given_up, "__notes__", ()))
                raise
    except TimeoutError as error:
        if error.args:  # TCP's own error
            raise
        raise TimeoutError(f"no answer in {timeout_ms:g} ms{silent}") from error


async def addresses_of(host: str, port: int) -> Sequence[Any]:
    """Resolve the name with getaddrinfo. Raises OSError."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def is_address(host: str) -> bool:
    """Return whether the host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _first_to_answer(addresses: Sequence[Any]) -> socket.socket:
    """Return a socket that is connected to one of the addresses. Raises OSError."""
    delay_s = min(STAGGER_S_MAX, ALL_TRIED_S / len(addresses))
    left = list(addresses)
    tries: dict[asyncio.Task[socket.socket], str] = {}
    failed: list[tuple[str, OSError]] = []
    try:
        while left or tries:
            if left:
                info = left.pop(0)
                tries[asyncio.create_task(_connected(*info))] = str(info[4][0])
            done, _ = await asyncio.wait(
                tries, timeout=delay_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                at = tries.pop(each)
                try:
                    return each.result()
                except OSError as error:
                    failed.append((at, error))
    except asyncio.CancelledError as given_up:
        given_up.add_note(f" from {_listed(list(tries.values()))}")
        raise
    finally:
        for each in tries:  # awaiting it would swallow a cancellation of this task
            each.cancel()
            each.add_done_callback(_discard)
    raise _together(failed)


async def _connected(family: int, kind: int, proto: int, _: str, address: Any) -> socket.socket:
    connecting = socket.socket(family, kind, proto)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, address)
    except BaseException:
        connecting.close()
        raise
    return connecting


def _discard(late: asyncio.Task[socket.socket]) -> None:
    """Close the connection of a slower address."""
    if not late.cancelled() and late.exception() is None:
        late.result().close()


def _together(failed: list[tuple[str, OSError]]) -> OSError:
    addresses: dict[str, list[str]] = {}
    for at, error in failed:
        addresses.setdefault(os.strerror(error.errno or 0), []).append(at)
    kinds = {type(error) for _, error in failed}
    kind = kinds.pop() if len(kinds) == 1 else OSError
    return kind("; ".join(f"{_listed(hosts)}: {reason}" for reason, hosts in addresses.items()))


def _listed(hosts: list[str]) -> str:
    more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
    return ", ".join(hosts[:NAMED_MAX]) + more
