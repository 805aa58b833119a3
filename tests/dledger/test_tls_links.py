"""Links between replicas over TLS: who is believed, and the way there from plain ones."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import contains
from pathlib import Path
from typing import Any

import pytest

from raftmq.dledger.transport.transport import LinkConfig, PeerAddress
from raftmq.dledger.transport.wire import encode_message
from raftmq.remoting.process_tls import LINK_LIMITS, PeerTls
from raftmq.remoting.tls import ClientAuth, ClientTls, Renewed, ServerTls, TlsMode
from raftmq.remoting.tls_links import TlsLinks, valid_for
from raftmq.remoting.tls_listener import ArrivalLimits, TlsPolicy
from tests.certificates import Authority
from tests.dledger.transport.test_transport import Net, beat, big_append
from tests.dledger.transport.test_transport import dial as raw_dial
from tests.remoting.harness import on_both_loops
from tests.waiting import until

BIG_BYTES = 6 << 20


class World:
    """A group's CA, and another one."""

    def __init__(self, directory: Path) -> None:
        self.ca = Authority(directory)
        self.stranger = Authority(directory, "stranger")

    def links(
        self,
        mode: str = "enforcing",
        *,
        hosts: tuple[str, ...] = (),
        expired: bool = False,
        ca: Authority | None = None,
        limits: ArrivalLimits = LINK_LIMITS,
    ) -> TlsLinks:
        cert, key = (ca or self.ca).issue(f"{mode}{hosts}{expired}", *hosts, expired=expired)
        server = ServerTls(cert, key, "", self.ca.path, ClientAuth.REQUIRE)
        policy = TlsPolicy(TlsMode(mode), Renewed(server, "s"), limits)
        return TlsLinks(PeerTls(policy, Renewed(ClientTls(self.ca.path, cert, key), "c")))


_made: list[World] = []


def world() -> World:
    if not _made:
        directory = tempfile.mkdtemp(prefix="tls-links-")
        atexit.register(shutil.rmtree, directory)
        _made.append(World(Path(directory)))
    return _made[0]


@asynccontextmanager
async def running(*networks: TlsLinks | None) -> AsyncIterator[Net]:
    """A node each; None: one that has no TLS."""
    net = Net(len(networks))
    try:
        for number, network in enumerate(networks):
            config = LinkConfig(network=network) if network is not None else LinkConfig()
            await net.start(f"n{number}", config=config)
        yield net
    finally:
        await net.close()


async def both_open(net: Net) -> None:
    for own, other in (("n0", "n1"), ("n1", "n0")):
        opened = net.seen[own].opened
        await net.seen[own].until(partial(contains, opened, other))


@on_both_loops
async def test_tls_links_carry_messages_and_frames_in_both_directions() -> None:
    first, second = world().links(), world().links()
    async with running(first, second) as net:
        await both_open(net)
        assert net.links["n0"].send("n1", big_append(BIG_BYTES), droppable=True)
        for own, other in (("n0", "n1"), ("n1", "n0")):
            message = beat(own, other)
            assert net.links[own].send(other, encode_message(message), droppable=False)
            await net.seen[other].until(partial(contains, net.seen[other].messages, message))
        await net.seen["n1"].until(lambda: len(net.seen["n1"].messages) == 2)
        assert first.listener is not None
        assert (first.listener.counts.tls, first.listener.counts.plain) == (1, 0)
        await net.stop("n1")
        await net.seen["n0"].until(lambda: net.seen["n0"].closed == ["n1", "n1"])


@on_both_loops
async def test_tls_link_rejects_a_plain_peer() -> None:
    strict = world().links()
    async with running(strict, None) as net:
        assert strict.listener is not None
        counts = strict.listener.counts

        def told() -> bool:
            """Not only, as at first, that n1 does not listen yet."""
            error = net.links["n0"].last_error("n1").lower()
            return "during the handshake" in error or "reset" in error

        await until(lambda: counts.plain_refused and told())
        assert net.seen["n0"].opened == net.seen["n1"].opened == []


@pytest.mark.parametrize("wrong", ["ca", "expired", "host"])
def test_tls_link_rejects_untrusted_expired_and_misnamed_certificates(wrong: str) -> None:
    """Neither as the one that dials, nor as the one that is dialled."""
    options: dict[str, dict[str, Any]] = {
        "ca": {"ca": world().stranger},
        "expired": {"expired": True},
        "host": {"hosts": ("n1.example",)},
    }
    reported, heard = {
        "ca": ("certificate is refused: unable to get local issuer", "closed before"),
        "expired": ("certificate is refused: certificate has expired", "closed before"),
        "host": ("IP address mismatch", "the certificate shown is not valid for 127.0.0.1"),
    }[wrong]

    @on_both_loops
    async def scenario() -> None:
        good, bad = world().links(), world().links(**options[wrong])
        async with running(good, bad) as net:
            await until(lambda: reported in net.links["n0"].last_error("n1"))
            await until(lambda: heard in net.links["n1"].last_error("n0"))
            assert good.listener is not None
            counts = good.listener.counts
            await until(lambda: wrong == "host" or counts.failed)
            assert net.seen["n0"].opened == net.seen["n1"].opened == []

    for loop_name in ("asyncio", "uvloop"):
        scenario(loop_name)


@on_both_loops
async def test_replicas_switch_from_plain_to_tls_one_at_a_time() -> None:
    """One replica at a time: plain, permissive, enforcing; neighbours always reach each other."""
    for modes in (("permissive", None), ("permissive", "permissive"), ("permissive", "enforcing")):
        made = [None if mode is None else world().links(mode) for mode in modes]
        async with running(*made) as net:
            await both_open(net)
        assert made[0] is not None
        assert bool(made[0].fallen_back_count) == (modes[1] is None)


@on_both_loops
async def test_slow_tls_handshakes_at_the_limit_do_not_block_a_replica() -> None:
    limits = ArrivalLimits(arriving_max=2, grace_s=0.05, patience_s=0.3)
    async with running(world().links(limits=limits)) as net:
        slow = [await raw_dial(net, "n0") for _ in range(6)]
        for _, writer in slow[:3]:
            writer.write(b"\x16\x03\x01")
        late = Net(2)
        for unused in late.sockets.values():
            assert unused is not None
            unused.close()
        late.peers["n0"] = net.peers["n0"]
        late.peers["n1"] = PeerAddress("n1", "127.0.0.1", late.peers["n1"].port)
        late.sockets["n1"] = None
        await late.start("n1", config=LinkConfig(network=world().links()))
        await late.seen["n1"].until(lambda: late.seen["n1"].opened == ["n0"])
        for _, writer in slow:
            writer.transport.abort()
        await late.close()


@pytest.mark.parametrize(
    ("host", "valid"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", False),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("n0.example", True),
        ("N0.Example.", True),
        ("n1.example", False),
        ("a.brokers.example", True),
        ("a.b.brokers.example", False),
        ("brokers.example", False),
        ("b.top", False),  # a wildcard for all of a top-level domain is none
        ("localhost", False),  # the common name counts for nothing
    ],
)
def test_certificate_is_valid_for_its_alternative_names_only(host: str, valid: bool) -> None:
    names = [("DNS", "n0.example"), ("DNS", "*.brokers.example"), ("DNS", "*.top")]
    addresses = ["127.0.0.1", "0:0:0:0:0:0:0:1\n", "<invalid>"]
    certificate = {
        "subject": ((("commonName", "localhost"),),),
        "subjectAltName": (*names, *(("IP Address", text) for text in addresses)),
    }
    assert valid_for(certificate, host) is valid
    assert not valid_for({"subject": certificate["subject"]}, host)
