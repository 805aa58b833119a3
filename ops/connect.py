"""Dials a host and a port: of a name with several addresses, the first that answers. Shell.

One after the other, a silent address (a host that is down, a firewall that drops) would use up the
caller's whole time-out. So the next is tried beside it soon (RFC 8305, "Happy Eyeballs"). asyncio
could do that by itself, uvloop cannot; the library aiohappyeyeballs may lose a cancel, and who
stops a dial would wait for ever.
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

STAGGER_S_MAX = 0.1  # RFC 8305, 5 takes no less; clients give a connect 250 ms
ALL_TRIED_S = 0.5  # the last of many addresses too: half the shortest time-out, dledger's
NAMED_MAX = 4  # addresses in an error's text


async def dial(
    factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: SSLContext | None = None
) -> asyncio.BaseProtocol:
    """Return the protocol that `factory` made, connected; `ssl` checks the certificate for `host`.
    Raises OSError. The caller bounds the time (`within`); it may be cancelled."""
    loop = asyncio.get_running_loop()
    name = None if ssl is None else host
    if not is_address(host):
        found = await addresses_of(host, port)
        if len(found) > 1:
            connected = await _first_to_answer(found)
            # Cancelled here, uvloop before 0.23 would close the descriptor twice.
            _, protocol = await loop.create_connection(
                factory, sock=connected, ssl=ssl, server_hostname=name
            )
            return protocol
        host = str(found[0][4][0])  # is not resolved a second time
    _, protocol = await loop.create_connection(factory, host, port, ssl=ssl, server_hostname=name)
    return protocol


@contextlib.asynccontextmanager
async def within(timeout_ms: float) -> AsyncIterator[None]:
    """Bound a dial. Raises TimeoutError, whose text has the addresses that did not answer if the
    name has several."""
    silent = ""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                yield
            except asyncio.CancelledError as given_up:  # Python before 3.11.3 drops it
                silent = "".join(getattr(given_up, "__notes__", ()))
                raise
    except TimeoutError as error:
        if error.args:  # TCP's own
            raise
        raise TimeoutError(f"no answer in {timeout_ms:g} ms{silent}") from error


async def addresses_of(host: str, port: int) -> Sequence[Any]:
    """Resolve the name, as getaddrinfo does. Raises OSError."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def is_address(host: str) -> bool:
    """Return whether the host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _first_to_answer(found: Sequence[Any]) -> socket.socket:
    """Return a socket that is connected to one of the addresses. Raises OSError."""
    delay_s = min(STAGGER_S_MAX, ALL_TRIED_S / len(found))
    left = list(found)
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
        for each in tries:  # is not waited for: a cancel that came meanwhile would be theirs
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
    """Close what was connected although another address was faster."""
    if not late.cancelled() and late.exception() is None:
        late.result().close()


def _together(failed: list[tuple[str, OSError]]) -> OSError:
    """Return one error that says of all addresses why they were not reached."""
    addresses: dict[str, list[str]] = {}
    for at, error in failed:
        addresses.setdefault(os.strerror(error.errno or 0), []).append(at)
    kinds = {type(error) for _, error in failed}
    kind = kinds.pop() if len(kinds) == 1 else OSError
    return kind("; ".join(f"{_listed(hosts)}: {words}" for words, hosts in addresses.items()))


def _listed(hosts: list[str]) -> str:
    more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
    return ", ".join(hosts[:NAMED_MAX]) + more
