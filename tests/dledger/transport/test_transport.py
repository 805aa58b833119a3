"""Links over real sockets on loopback: who is let in, what is reported, what happens at limits."""

import asyncio
import gc
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from raftmq.dledger.raft.messages import AppendRequest, Heartbeat
from raftmq.dledger.transport.inbound import HANDSHAKING_MAX
from raftmq.dledger.transport.network import PlainNetwork
from raftmq.dledger.transport.transport import (
    LinkConfig,
    PeerAddress,
    PeerLinks,
)
from raftmq.dledger.transport.wire import (
    VERSION,
    Hello,
    HelloAnswer,
    PeerMessage,
    decode_answer,
    encode_answer,
    encode_append,
    encode_hello,
    encode_identity,
    encode_message,
)
from raftmq.store.frame import FrameKind, seal_frame
from tests.ports import bound
from tests.waiting import until

ANSWER = encode_answer(HelloAnswer(""))
WELCOMED = ANSWER + encode_identity(b"") + ANSWER  # what an acceptor that knows no group id says
WELCOME_BYTES = len(WELCOMED)


class Recorder:
    """A handler that notes what it is told and wakes whoever waits for it."""

    def __init__(self) -> None:
        self.messages: list[PeerMessage] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.failed: list[BaseException] = []
        self._changed = asyncio.Event()

    def on_messages(self, messages: list[PeerMessage]) -> None:
        self.messages += messages
        self._changed.set()

    def on_opened(self, peer: str) -> None:
        self.opened.append(peer)
        self._changed.set()

    def on_closed(self, peer: str) -> None:
        self.closed.append(peer)
        self._changed.set()

    def on_failed(self, error: BaseException) -> None:
        self.failed.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Net:
    """Nodes n0, n1 … with their ports reserved before any of them starts."""

    def __init__(self, count: int) -> None:
        self.sockets: dict[str, socket.socket | None] = {}
        self.held: list[socket.socket] = []
        self.peers: dict[str, PeerAddress] = {}
        self.links: dict[str, PeerLinks] = {}
        self.seen: dict[str, Recorder] = {}
        for n in range(count):
            sock = self.sockets[f"n{n}"] = bound()
            port = sock.getsockname()[1]
            self.peers[f"n{n}"] = PeerAddress(f"n{n}", "127.0.0.1", port)
            self.held.append(bound(port))  # nobody else is given it while the node is down

    async def start(self, node: str, group: str = "g", config: LinkConfig | None = None) -> None:
        self.seen[node] = Recorder()
        sock = self.sockets[node]
        self.sockets[node] = None  # a second start listens by host and port
        self.links[node] = PeerLinks(
            node, group, self.peers, self.seen[node], random.Random(1), config, sock
        )
        await self.links[node].start()

    async def stop(self, node: str) -> None:
        await self.links.pop(node).stop()

    async def close(self) -> None:
        for node in list(self.links):
            await self.stop(node)
        for sock in (*self.sockets.values(), *self.held):
            if sock is not None:
                sock.close()


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    made = Net(2)
    yield made
    await made.close()


def beat(sender: str, to: str, round_: int = 1) -> Heartbeat:
    return Heartbeat(sender, to, 1, 0, round_)


def big_append(size: int) -> list[bytes]:
    frame = seal_frame(1, 1, 0, 0, FrameKind.COMMAND, 0, b"x" * size)
    return encode_append(1, 0, 0, 0, [frame])


async def test_link_opens_in_both_directions_and_carries_messages(net: Net) -> None:
    await net.start("n0")
    await net.start("n1")
    a, b = net.seen["n0"], net.seen["n1"]
    await a.until(lambda: a.opened == ["n1"])
    await b.until(lambda: b.opened == ["n0"])
    assert net.links["n0"].send("n1", encode_message(beat("n0", "n1")), droppable=False)
    assert net.links["n1"].send("n0", encode_message(beat("n1", "n0")), droppable=False)
    await b.until(lambda: b.messages == [beat("n0", "n1")])
    await a.until(lambda: a.messages == [beat("n1", "n0")])


@pytest.mark.parametrize("turns", range(6))
async def test_connection_during_a_stop_is_closed(net: Net, turns: int) -> None:
    await net.start("n0")
    address = net.peers["n0"]
    with socket.create_connection((address.host, address.port)) as dialled:
        for _ in range(turns):
            await asyncio.sleep(0)
        await net.stop("n0")
        gc.collect()  # a connection that nobody owns is told by a ResourceWarning, here or later
        dialled.settimeout(60)
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(dialled.recv, 1) == b""


async def test_stopped_peer_is_reported_and_reconnected(net: Net) -> None:
    await net.start("n0")
    await net.start("n1")
    a = net.seen["n0"]
    await a.until(lambda: a.opened == ["n1"])
    b = net.seen["n1"]
    await b.until(lambda: b.opened == ["n0"])
    await net.stop("n1")
    await a.until(lambda: a.closed == ["n1", "n1"])  # the connection to it, and the one from it
    assert not net.links["n0"].is_open("n1")
    assert not net.links["n0"].send("n1", encode_message(beat("n0", "n1")), droppable=False)
    assert b.closed == []  # who stops is told nothing
    await net.start("n1")
    await a.until(lambda: a.opened == ["n1", "n1"])
    assert net.links["n0"].last_error("n1") == ""


async def test_aborted_link_is_noticed_by_the_peer(net: Net) -> None:
    await net.start("n0")
    await net.start("n1")
    a = net.seen["n0"]
    await a.until(lambda: a.opened == ["n1"])
    await net.seen["n1"].until(lambda: net.seen["n1"].opened == ["n0"])
    net.links["n1"].abort()
    await a.until(lambda: a.closed == ["n1", "n1"])


async def test_peer_that_closes_accepted_links_is_dialled_with_back_off(net: Net) -> None:
    await net.start("n0", config=LinkConfig(backoff_ms_min=1, backoff_ms_max=60_000))
    await net.start("n1")
    await until(lambda: net.seen["n1"].opened)  # its own link hurries ours no more
    loop = asyncio.get_running_loop()
    started = loop.time()
    for count in range(1, 12):
        await until(partial(at_least, net.seen["n0"].opened, count))
        net.links["n1"].refuse("n0", "says something that cannot be")
        await until(partial(at_least, net.seen["n0"].closed, count))
    assert loop.time() - started >= 0.2  # 1 + 2 + 4 ... ms, of each at least half; 11 ms before


def at_least(seen: list[str], count: int) -> bool:
    return len(seen) >= count


async def test_peer_is_dialled_at_its_spare_address_while_it_has_one() -> None:
    """Where it should be is another replica, which says so. A link that is open stays."""
    world = Net(3)
    try:
        await world.start("n1")
        await world.start("n2")
        right, wrong = world.peers["n1"], replace(world.peers["n2"], node_id="n1")
        world.peers = world.peers | {"n1": wrong}
        await world.start("n0")
        links, n0, n1 = world.links["n0"], world.seen["n0"], world.seen["n1"]
        await until(lambda: "this is n2, not n1" in links.last_error("n1"))
        links.set_spares({"n1": right, "n2": world.peers["n2"]})
        await n0.until(lambda: "n1" in n0.opened)
        assert links.last_error("n1") == ""
        assert links.is_at("n1", f"127.0.0.1:{right.port}")
        assert not links.is_at("n1", f"127.0.0.1:{wrong.port}")
        assert links.is_at("n0", f"127.0.0.1:{world.peers['n0'].port}")
        links.set_spares({})
        links.send("n1", encode_message(beat("n0", "n1")), droppable=False)
        await n1.until(lambda: n1.messages == [beat("n0", "n1")])
        world.links["n1"].refuse("n0", "says something that cannot be")
        await until(lambda: "this is n2, not n1" in links.last_error("n1"))
        assert n0.opened.count("n1") == 1
        assert not links.is_at("n1", f"127.0.0.1:{right.port}")
    finally:
        await world.close()


class Picky(PlainNetwork):
    """Believes only who comes from where it should be."""

    def doubt(self, transport: asyncio.BaseTransport, host: str) -> str:
        there: str = transport.get_extra_info("peername")[0]
        return "" if there == host else f"{there} is not {host}"


async def test_peer_is_accepted_from_its_spare_address(net: Net) -> None:
    right = net.peers["n1"]
    net.peers["n1"] = replace(right, host="127.0.0.9")
    await net.start("n0", config=LinkConfig(network=Picky()))
    net.peers["n1"] = right
    await net.start("n1")
    await until(lambda: "127.0.0.1 is not 127.0.0.9" in net.links["n1"].last_error("n0"))
    net.links["n0"].set_spares({"n1": right})
    await net.seen["n1"].until(lambda: net.seen["n1"].opened == ["n0"])
    await net.seen["n0"].until(lambda: net.seen["n0"].opened == ["n1"])


async def test_peer_of_another_group_is_rejected_with_a_reason(net: Net) -> None:
    await net.start("n0", group="one")
    await net.start("n1", group="two")
    links = net.links["n0"]
    await until(lambda: "this is group two, not one" in links.last_error("n1"))
    assert net.seen["n0"].opened == []
    assert net.links["n1"].refused >= 1


async def dial(net: Net, node: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", net.peers[node].port)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello("g", "n1", "n9"), "this is n0, not n9"),
        (Hello("g", "n0", "n0"), "this is n0 itself"),
        (Hello("other", "n1", "n0"), "this is group g, not other"),
    ],
)
async def test_wrong_hello_is_answered_with_its_reason(net: Net, hello: Hello, reason: str) -> None:
    await net.start("n0")
    reader, writer = await dial(net, "n0")
    writer.write(encode_hello(hello))
    decoded = decode_answer(await reader.read())  # to the end: it closes
    assert decoded is not None
    assert decoded[0].reason == reason
    writer.close()
    await writer.wait_closed()


async def test_newer_peer_gets_the_version_to_speak(net: Net) -> None:
    await net.start("n0")
    reader, writer = await dial(net, "n0")
    writer.write(encode_hello(Hello("g", "n1", "n0", VERSION + 1)))
    decoded = decode_answer(await reader.readexactly(8))
    assert decoded is not None and decoded[0] == HelloAnswer("", VERSION)
    assert await reader.readexactly(10) == encode_identity(b"")
    writer.write(encode_identity(bytes(16)))
    assert decode_answer(await reader.readexactly(8)) == decoded
    writer.close()
    await writer.wait_closed()


async def test_malformed_input_closes_only_its_connection(net: Net) -> None:
    await net.start("n0")
    await net.start("n1")
    a = net.seen["n0"]
    await a.until(lambda: a.opened == ["n1"])
    for rubbish in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 2000, b"RMQP\x02" + b"\xff" * 2000):
        reader, writer = await dial(net, "n0")
        writer.write(rubbish)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass  # aborted with our bytes unread: just as closed
        writer.close()
    assert net.links["n0"].refused == 3
    assert a.closed == []
    net.links["n1"].send("n0", encode_message(beat("n1", "n0")), droppable=False)
    await a.until(lambda: a.messages == [beat("n1", "n0")])


async def test_malformed_message_closes_the_link_of_its_sender(net: Net) -> None:
    await net.start("n0")
    a = net.seen["n0"]
    _, writer = await dial(net, "n0")
    good = b"".join(encode_message(beat("n1", "n0")))
    # In one go is legal.
    writer.write(encode_hello(Hello("g", "n1", "n0")) + encode_identity(b"") + good)
    await a.until(lambda: len(a.messages) == 1)
    writer.write(good[:-1] + b"?")
    await a.until(lambda: a.closed == ["n1"])
    assert a.messages == [beat("n1", "n0")]
    writer.close()


async def test_newer_connection_of_a_peer_replaces_the_older(net: Net) -> None:
    await net.start("n0")
    a = net.seen["n0"]
    hello = encode_hello(Hello("g", "n1", "n0")) + encode_identity(b"")
    first_reader, first = await dial(net, "n0")
    first.write(hello)
    assert await first_reader.readexactly(WELCOME_BYTES)
    second_reader, second = await dial(net, "n0")
    second.write(hello)
    assert await second_reader.readexactly(WELCOME_BYTES)
    try:
        assert await first_reader.read() == b""
    except ConnectionResetError:
        pass  # aborted: just as closed
    second.write(b"".join(encode_message(beat("n1", "n0"))))
    await a.until(lambda: len(a.messages) == 1)
    assert a.closed == []
    for writer in (first, second):
        writer.close()


async def test_silent_connections_are_limited_in_time_and_number(net: Net) -> None:
    # Long enough that all of them are open at once, however slow the machine is.
    await net.start("n0", config=LinkConfig(connect_timeout_ms=3_000))
    open_ones = [await dial(net, "n0") for _ in range(HANDSHAKING_MAX + 1)]
    for reader, writer in open_ones:
        try:
            assert await asyncio.wait_for(reader.read(), 60) == b""
        except ConnectionResetError:
            pass  # aborted: just as closed
        writer.close()
    assert net.links["n0"].refused >= 1


async def test_peer_that_does_not_read_cannot_fill_the_senders_memory(net: Net) -> None:
    """n1 is played by a server that welcomes and then reads nothing."""
    sock = net.sockets["n1"]
    net.sockets["n1"] = None
    stalled: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(WELCOMED)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        stalled.append(writer)

    server = await asyncio.start_server(serve, sock=sock)
    limit = 1 << 20
    await net.start("n0", config=LinkConfig(send_buffer_bytes_max=limit))
    a, links = net.seen["n0"], net.links["n0"]
    await a.until(lambda: a.opened == ["n1"])
    buffers = big_append(1 << 20)
    sent = [links.send("n1", buffers, droppable=True) for _ in range(100)]
    assert True in sent
    assert sent[-1] is False
    transport = links.local.dialers["n1"].transport
    assert transport is not None
    assert transport.get_write_buffer_size() <= limit + len(buffers[1]) + 100
    assert links.dropped("n1") == sent.count(False)
    # A vote still goes out behind the frames.
    assert links.send("n1", encode_message(beat("n0", "n1")), droppable=False)
    await net.stop("n0")
    for writer in stalled:
        writer.close()
    server.close()


async def test_dial_cancelled_at_its_success_leaves_no_dead_link(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop closes the transport of a cancelled dial, and tells its protocol nothing."""
    loop = asyncio.get_running_loop()
    create = loop.create_connection
    cut: list[asyncio.Transport] = []

    async def cut_short(factory, host, port, **options):
        transport, protocol = await create(factory, host, port, **options)
        if port == net.peers["n1"].port and not cut:
            await protocol.welcome
            cut.append(transport)
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
            raise TimeoutError
        return transport, protocol

    await net.start("n1")
    monkeypatch.setattr(loop, "create_connection", cut_short)
    await net.start("n0")
    seen = net.seen["n0"]
    await seen.until(lambda: seen.opened.count("n1") == 2)
    assert cut and "n1" in seen.closed
    assert net.links["n0"].send("n1", encode_message(beat("n0", "n1")), droppable=False)
    await net.seen["n1"].until(lambda: len(net.seen["n1"].messages) == 1)


async def test_bug_in_the_dialler_is_reported(net: Net) -> None:
    await net.start("n0")
    dialer = net.links["n0"].local.dialers["n1"]
    dialer.address = None  # type: ignore[assignment]
    await net.seen["n0"].until(lambda: len(net.seen["n0"].failed) == 1)
    assert isinstance(net.seen["n0"].failed[0], AttributeError)


async def test_large_append_requests_arrive_complete(net: Net) -> None:
    await net.start("n0")
    await net.start("n1")
    a, b = net.seen["n0"], net.seen["n1"]
    await a.until(lambda: a.opened == ["n1"])
    buffers = big_append(3_000_000)
    for _ in range(3):
        assert net.links["n0"].send("n1", buffers, droppable=True)
    await b.until(lambda: len(b.messages) == 3)
    for message in b.messages:
        assert isinstance(message, AppendRequest)
        assert message.frames[0].data == buffers[1]
