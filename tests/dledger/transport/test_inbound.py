"""Peers that are let in, and the connection that brings a peer's messages."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.transport.group_id import GroupIdentity
from raftmq.dledger.transport.inbound import (
    HANDSHAKING_MAX,
    STRANGERS_MAX,
    TAKEOVERS_MAX,
    Accepted,
    Incoming,
)
from raftmq.dledger.transport.link import LinkConfig, PeerAddress
from raftmq.dledger.transport.outbound import Local
from raftmq.dledger.transport.wire import Hello, MessageReader


class World:
    """The incoming side of n0 in group g, to which n1 and strangers dial."""

    def __init__(self, config: LinkConfig | None = None) -> None:
        self.closed: list[str] = []
        address = PeerAddress("n0", "127.0.0.1", 1)
        self.local = Local("n0", "g", address, config or LinkConfig(), GroupIdentity())
        handler = SimpleNamespace(on_closed=self.closed.append)
        self.incoming = Incoming(self.local, cast(Any, handler), MessageReader)

    def accept(self, peer: str | None = None) -> Accepted:
        accepted = Accepted(self.local, self.incoming)
        assert self.incoming.opened(accepted)
        if peer is not None:
            accepted.peer = peer
            self.incoming.welcome(accepted, peer)
        return accepted

    def refusal(self, hello: Hello) -> str:
        return self.incoming.refusal(hello, asyncio.BaseTransport())

    def dial_in(self, ip: str) -> str:
        """Come from this address as n1, and take its place; return why that is refused."""
        why = self.incoming.refusal(Hello("g", "n1", "n0"), from_ip(ip))
        if not why:
            self.accept("n1").line.transport = cast(Any, from_ip(ip))
        return why


def from_ip(ip: str) -> asyncio.BaseTransport:
    """A transport whose other end has this IP address."""
    made = SimpleNamespace(abort=lambda: None)
    made.get_extra_info = lambda name: (ip, 7) if name == "peername" else None
    return cast(Any, made)


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello("g", "n1", "n0"), ""),
        (Hello("g", "stranger", "n0"), ""),
        (Hello("h", "n1", "n0"), "this is group g, not h"),
        (Hello("g", "n1", "n2"), "this is n0, not n2"),
        (Hello("g", "n0", "n0"), "this is n0 itself"),
        (Hello("g", "gone", "n0"), "gone was removed from group g"),
    ],
)
async def test_inbound_hello_refusal_reasons(hello: Hello, why: str) -> None:
    world = World()
    world.incoming.remove({"gone"})
    assert world.refusal(hello) == why


async def test_peer_that_dials_again_loses_its_old_connection() -> None:
    world = World()
    old = world.accept("n1")
    new = world.accept("n1")
    world.incoming.lost(old)
    assert world.closed == []
    assert world.incoming.line("n1") is new.line
    world.incoming.lost(new)
    assert world.closed == ["n1"]
    assert world.incoming.line("n1") is None


async def test_two_processes_with_one_id_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.local.dialers["n1"] = cast(Any, SimpleNamespace(hurry=lambda: None))
    for _ in range(TAKEOVERS_MAX + 1):
        world.accept("n1")
        world.accept("stranger")
    assert not world.local.identity.foreign(0.0)
    for _ in range(2):
        world.accept("n1")
        world.accept("stranger")
    (reported,) = world.local.identity.foreign(0.0)
    assert "two processes say that they are n1" in reported
    assert caplog.text.count("same_id_twice") == 1


@pytest.mark.parametrize(
    ("dialled", "real", "double", "kept"),
    [
        ("10.0.0.1", "10.0.0.1", "10.0.0.9", True),
        ("10.0.0.1", "::ffff:10.0.0.1", "::ffff:10.0.0.9", True),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1", False),  # on one machine nothing tells them apart
        ("10.0.0.1", "10.0.0.2", "10.0.0.9", False),  # its machine has several addresses
    ],
)
async def test_connection_from_the_dialled_address_wins_a_duplicate_id(
    dialled: str, real: str, double: str, kept: bool
) -> None:
    world = World()
    world.local.dialers["n1"] = cast(
        Any, SimpleNamespace(hurry=lambda: None, hosts=["n1"], transport=from_ip(dialled))
    )
    refused = [world.dial_in(real if n % 2 else double) for n in range(2 * TAKEOVERS_MAX)]
    assert not any(refused[:TAKEOVERS_MAX])  # a replica that dials again
    assert any(refused) == kept
    if kept:
        why = f"n1 is at {dialled}: 10.0.0.9 has another process with its dLegerSelfId"
        assert [world.dial_in(double) for _ in range(3)] == [why] * 3
        assert not world.dial_in(real)
        line = world.incoming.line("n1")
        assert line is not None
        assert line.where == f"{real}:7"
    assert "two processes say that they are n1" in world.local.identity.foreign(0.0)[0]


async def test_peer_that_redials_seldom_is_not_reported_as_duplicate() -> None:
    world = World()
    for _ in range(3 * TAKEOVERS_MAX):
        world.incoming.lost(world.accept("n1"))
    assert not world.local.identity.foreign(0.0)


async def test_silent_connections_are_limited_in_number() -> None:
    world = World()
    world.accept("n1")
    silent = [world.accept() for _ in range(HANDSHAKING_MAX)]
    aborted: list[Accepted] = []
    for one in silent:
        one.line.abort = partial(aborted.append, one)  # type: ignore[method-assign]
    for one in silent[:2]:
        one.holder = "10.0.0.2"  # another replica, whose hello is on its way
    for _ in range(20):
        world.accept()
    assert aborted == silent[2:22]
    assert world.incoming.refusals == 20
    world.incoming.welcome(silent[0], "n2")


async def test_closed_listener_accepts_no_connection_and_reports_none() -> None:
    world = World()
    known = world.accept("n1")
    world.incoming.is_shut = True
    assert not world.incoming.opened(Accepted(world.local, world.incoming))
    world.incoming.lost(known)
    assert world.closed == []


async def test_non_members_are_rejected_where_joining_is_disabled() -> None:
    world = World(LinkConfig(strangers=False))
    assert world.refusal(Hello("g", "stranger", "n0")) == "stranger is no member of group g"
    world.local.dialers["n1"] = cast(Any, SimpleNamespace(hosts=["127.0.0.1"], transport=None))
    assert world.refusal(Hello("g", "n1", "n0")) == ""


async def test_non_members_are_limited_in_number_and_do_not_block_members() -> None:
    world = World()
    for number in range(STRANGERS_MAX):
        world.accept(f"s{number}")
    assert world.refusal(Hello("g", "one-more", "n0")) == "too many strangers are connected"
    assert world.refusal(Hello("g", "s0", "n0")) == ""  # it dials again
    world.local.dialers["n1"] = cast(Any, SimpleNamespace(hosts=["127.0.0.1"], transport=None))
    assert world.refusal(Hello("g", "n1", "n0")) == ""
