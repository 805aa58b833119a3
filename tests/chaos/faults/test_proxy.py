"""The proxy between real sockets, with cuts, separate directions, ordered delays and limits."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.linkmap import Link
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.chaos.faults import proxy as proxy_module
from raftmq.chaos.faults.byte_stream import HELD_BYTES_MAX
from raftmq.chaos.faults.links import Links
from raftmq.chaos.faults.listening import listen_at
from raftmq.chaos.faults.proxied_connection import OPENING_BYTES_MAX
from raftmq.chaos.faults.proxy import Control, Proxy
from raftmq.chaos.faults.rules import Rule, RuleError
from tests.waiting import until

PATIENCE_S = 60.0  # only a hang takes this long
SILENCE_S = 0.15  # time of observed silence
HOST = "127.0.0.1"


class Server:
    """Echoes by default. Remembers its bytes and the ends of connections."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.taken = 0
        self.lost: list[str] = []
        self.echo = True
        self.reading = asyncio.Event()
        self.reading.set()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await until(lambda: not self._writers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self._writers.add(writer)
        try:
            while True:
                await self.reading.wait()
                data = await reader.read(65536)
                if not data:
                    self.lost.append("end")
                    break
                self.got += data
                if self.echo:
                    writer.write(data)
        except ConnectionError:
            self.lost.append("reset")
        finally:
            self._writers.discard(writer)
            writer.close()


class World:
    """A server behind link `a>b`, and links to nobody behind `a>c`."""

    def __init__(self, directory: Path) -> None:
        self.server = Server()
        self.control = directory / "control"
        self.clients: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> World:
        await self.server.start()
        self.held = HeldPorts(HOST)
        choosing = HeldPorts(HOST)  # held until the proxy is there
        (free,) = self.held.choose(1, random.Random())
        self.port, other = choosing.choose(2, random.Random())
        targets = {"a>b": (self.port, self.server.port), "a>c": (other, free)}
        self.proxy = Proxy(
            [
                {"name": name, "host": HOST, "port": port, "target_port": target}
                for name, (port, target) in targets.items()
            ]
        )
        await self.proxy.start()
        choosing.close()
        self.controls = Control(self.proxy)
        self._server = await asyncio.start_unix_server(
            self.controls.serve, sock=listen_at(self.control), limit=1 << 16
        )
        result = [Link("a", n[2:], "peer", HOST, p, t) for n, (p, t) in targets.items()]
        self.links = Links(result, self.control)
        await self.links.__aenter__()
        await until(lambda: not self.proxy.links["a>c"].state()["listens"])
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self.clients:
            writer.transport.abort()
        await self.links.__aexit__(None, None, None)
        self._server.close()
        await self.controls.stop()
        await self.proxy.stop()
        await self.server.stop()
        self.held.close()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self.clients.append(writer)
        return reader, writer

    async def impose(self, *rules: Rule, owner: str = "test") -> None:
        await self.links.impose(owner, rules)

    async def state(self) -> dict[str, object]:
        return dict((await self.links.state())["a>b"])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World(tmp_path) as made:
        yield made


async def soon(work: Awaitable[bytes]) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def silent(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(SILENCE_S):
            pytest.fail(f"there came {await reader.read(1)!r}")


async def test_proxy_passes_bytes_in_order_in_both_directions(world: World) -> None:
    rng = random.Random(1)
    data = rng.randbytes(3 << 20)
    reader, writer = await world.dial()
    writer.write(data)
    assert await soon(reader.readexactly(len(data))) == data
    state = await world.state()
    assert (state["bytes_forward"], state["bytes_back"]) == (len(data), len(data))
    assert (state["connections"], state["held_bytes"]) == (1, 0)


async def test_proxy_forwards_the_end_of_each_direction_separately(world: World) -> None:
    reader, writer = await world.dial()
    writer.write(b"all of it")
    writer.write_eof()
    assert await soon(reader.read()) == b"all of it"  # and the server's end, when it saw ours
    assert (bytes(world.server.got), world.server.lost) == (b"all of it", ["end"])
    await until(lambda: not world.proxy.links["a>b"].pairs)


async def test_proxy_cut_holds_bytes_and_the_heal_delivers_them(world: World) -> None:
    reader, writer = await world.dial()
    writer.write(b"1")
    assert await soon(reader.readexactly(1)) == b"1"
    await world.impose(Rule("a>b", cut=True))
    writer.write(b"2")
    await silent(reader)
    assert world.server.got == b"1"
    assert world.server.lost == []  # no end was reported
    await world.links.lift("test")
    assert await soon(reader.readexactly(1)) == b"2"


async def test_proxy_cut_hides_closed_connections_until_the_heal(world: World) -> None:
    reader, writer = await world.dial()
    writer.write(b"1")
    await soon(reader.readexactly(1))
    await world.impose(Rule("a>b", cut=True))
    writer.transport.abort()
    await asyncio.sleep(SILENCE_S)
    assert world.server.lost == []
    await world.links.lift("test")
    await until(lambda: len(world.server.lost) == 1)


async def test_connections_opened_under_a_proxy_cut_complete_after_it(world: World) -> None:
    await world.impose(Rule("a>b", cut=True))
    reader, writer = await world.dial()
    writer.write(b"hello")
    gone_reader, gone = await world.dial()
    gone.write(b"never arrives: it gave up before the heal")
    await silent(reader)
    gone.close()
    await until(lambda: len(world.proxy.links["a>b"].pairs) == 1)
    assert world.server.taken == 0
    await world.links.lift("test")
    assert await soon(reader.readexactly(5)) == b"hello"
    assert (world.server.taken, bytes(world.server.got)) == (1, b"hello")
    assert gone_reader.at_eof() or gone_reader.exception() is None


async def test_bytes_of_an_opening_connection_are_limited(world: World) -> None:
    await world.impose(Rule("a>b", "back", cut=True))  # a handshake needs both ways
    reader, writer = await world.dial()
    data = random.Random(2).randbytes(8 * OPENING_BYTES_MAX + (4 << 20))
    writer.write(data)
    await until(lambda: world.proxy.links["a>b"].state()["held_bytes"] >= OPENING_BYTES_MAX)
    await asyncio.sleep(SILENCE_S)
    held = world.proxy.links["a>b"].state()["held_bytes"]
    assert OPENING_BYTES_MAX <= held <= OPENING_BYTES_MAX + (256 << 10)
    assert world.server.taken == 0
    await world.links.lift("test")
    assert await soon(reader.readexactly(len(data))) == data


@pytest.mark.parametrize("way", ["forward", "back"])
async def test_proxy_cut_of_one_direction_keeps_the_other(world: World, way: str) -> None:
    reader, writer = await world.dial()
    writer.write(b"1")
    await soon(reader.readexactly(1))
    await world.impose(Rule("a>b", way, cut=True))
    writer.write(b"2")
    if way == "back":  # requests pass, answers do not
        await until(lambda: bytes(world.server.got) == b"12")
    await silent(reader)
    assert bytes(world.server.got) == (b"12" if way == "back" else b"1")
    await world.links.lift("test")
    assert await soon(reader.readexactly(1)) == b"2"


async def test_proxy_delay_and_jitter_keep_the_order(world: World) -> None:
    reader, writer = await world.dial()
    await world.impose(Rule("a>b", delay_ms=60, jitter_ms=80))
    sent_s = time.monotonic()
    data = bytes(range(200))
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0)
    assert await soon(reader.readexactly(1)) == data[:1]
    assert time.monotonic() - sent_s >= 2 * 0.06
    assert await soon(reader.readexactly(len(data) - 1)) == data[1:]


async def test_delayed_proxy_bytes_are_limited_and_all_arrive(world: World) -> None:
    world.server.echo = False
    _, writer = await world.dial()
    await world.impose(Rule("a>b", delay_ms=60_000))
    data = random.Random(3).randbytes(4 * HELD_BYTES_MAX)
    writer.write(data)
    link = world.proxy.links["a>b"]
    await until(lambda: link.state()["held_bytes"] >= HELD_BYTES_MAX)
    await asyncio.sleep(SILENCE_S)
    assert link.state()["held_bytes"] <= HELD_BYTES_MAX + (256 << 10)
    await world.links.lift("test")
    await until(lambda: len(world.server.got) == len(data))
    assert world.server.got == data


async def test_receiver_that_does_not_read_stops_the_sender(world: World) -> None:
    world.server.echo = False
    world.server.reading.clear()
    _, writer = await world.dial()
    link = world.proxy.links["a>b"]
    data = random.Random(4).randbytes(48 << 20)
    writer.write(data)
    await until(lambda: link.bytes_forward > 0)
    passed = -1
    while passed != link.bytes_forward:  # until it moves no more
        passed = link.bytes_forward
        await asyncio.sleep(SILENCE_S)
    assert 0 < passed < len(data) // 2
    world.server.reading.set()
    await until(lambda: len(world.server.got) == len(data))
    assert world.server.got == data


async def test_proxy_rate_limits_bytes_per_second(world: World) -> None:
    reader, writer = await world.dial()
    await world.impose(Rule("a>b", "forward", rate=400_000))
    begin_s = time.monotonic()
    data = random.Random(5).randbytes(100_000)
    writer.write(data)
    assert await soon(reader.readexactly(len(data))) == data
    assert time.monotonic() - begin_s >= 0.24  # 100 kB at 400 kB/s


async def test_proxy_reset_ends_connections_and_accepts_new_ones(world: World) -> None:
    reader, writer = await world.dial()
    writer.write(b"1")
    await soon(reader.readexactly(1))
    assert await world.links.reset(world.links.all) == 1
    with pytest.raises(ConnectionResetError):
        await soon(reader.read(1))
    await until(lambda: world.server.lost == ["reset"])
    again, writer = await world.dial()
    writer.write(b"2")
    assert await soon(again.readexactly(1)) == b"2"


async def test_proxy_refuse_rejects_connections_and_keeps_its_port(world: World) -> None:
    reader, writer = await world.dial()
    writer.write(b"1")
    await soon(reader.readexactly(1))
    await world.impose(Rule("a>b", refuse=True))
    with pytest.raises(ConnectionRefusedError):
        await world.dial()
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind((HOST, world.port))
    writer.write(b"2")  # existing connections stay
    assert await soon(reader.readexactly(1)) == b"2"
    await world.links.lift("test")
    again, writer = await world.dial()
    writer.write(b"3")
    assert await soon(again.readexactly(1)) == b"3"


async def test_proxy_without_a_listening_target_rejects_connections(world: World) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(HOST, world.links.all[1].port)
    reader, writer = await world.dial()
    writer.write(b"1")
    await soon(reader.readexactly(1))
    await world.server.stop()
    assert await soon(reader.read(1)) == b""  # its end, like that of a dead process
    await until(lambda: not world.proxy.links["a>b"].state()["listens"])
    with pytest.raises(ConnectionRefusedError):
        await world.dial()
    await world.server.start()
    await until(lambda: bool(world.proxy.links["a>b"].state()["listens"]))
    again, writer = await world.dial()
    writer.write(b"2")
    assert await soon(again.readexactly(1)) == b"2"


async def test_short_lived_connections_survive_after_the_heal(world: World) -> None:
    reader, writer = await world.dial()
    await world.impose(Rule("a>b", lives_s=0.05))
    with pytest.raises(ConnectionResetError):
        await soon(reader.read(1))
    await world.dial()
    await until(lambda: not world.proxy.links["a>b"].pairs)
    await world.links.lift("test")
    reader, writer = await world.dial()
    await silent(reader)
    writer.write(b"2")
    assert await soon(reader.readexactly(1)) == b"2"


async def test_proxy_rules_of_several_owners_combine(world: World) -> None:
    reader, writer = await world.dial()
    await world.impose(Rule("a>b", cut=True), owner="1")
    await world.impose(Rule("a>b", cut=True), Rule("a>c", refuse=True), owner="2")
    await world.links.lift("1")
    writer.write(b"1")
    await silent(reader)
    await world.links.lift("2")
    assert await soon(reader.readexactly(1)) == b"1"
    await world.links.lift("2")  # nothing left to lift
    assert "rules" not in await world.state()


async def test_proxy_rules_end_with_their_harness(world: World) -> None:
    reader, writer = await world.dial()
    async with Links(world.links.all, world.control) as other:
        await other.impose("test", [Rule("a>b", cut=True)])
        assert len((await world.state())["rules"]) == 1  # type: ignore[arg-type]
        writer.write(b"1")
        await silent(reader)
        await world.links.lift("test")  # an owner of the same name elsewhere is somebody else
        await silent(reader)
    assert await soon(reader.readexactly(1)) == b"1"


async def test_proxy_limits_of_rules_connections_and_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "RULES_MAX", 2)
    await world.impose(Rule("a>b"), Rule("a>c"))
    await world.impose(Rule("a>b"), Rule("a>b"))  # in the place of earlier rules
    with pytest.raises(ClusterError, match="more than 2 rules"):
        await world.impose(Rule("a>b"), owner="other")
    with pytest.raises(ClusterError, match="no link 'b>a'"):
        await world.impose(Rule("b>a"))
    with pytest.raises(RuleError, match="no link 'b>a'"):
        world.proxy.reset(["b>a"])
    monkeypatch.setattr(proxy_module, "PAIRS_MAX", 1)
    await world.dial()
    reader, _ = await world.dial()
    with pytest.raises(ConnectionResetError):
        await soon(reader.read(1))
    monkeypatch.setattr(proxy_module, "CONTROLS_MAX", 1)
    async with Links(world.links.all, world.control) as one_too_many:
        with pytest.raises(ClusterError, match=r"closed the control|does not answer"):
            await one_too_many.state()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{}", "not a request"),
        (b"[]", "not a request"),
        (b"cut it", "expected a JSON value"),
        (b'{"do":"explode"}', "unknown request 'explode'"),
        (b'{"do":"set","owner":"1","rules":[{"link":"a>b","lose":1}]}', "lose"),
        (b'{"do":"set","owner":"1","rules":7}', "not a request"),
    ],
)
async def test_wrong_proxy_requests_are_answered(world: World, line: bytes, words: str) -> None:
    reader, writer = await asyncio.open_unix_connection(world.control)
    writer.write(line + b"\n")
    answer = json.loads(await soon(reader.readline()))
    assert not answer["ok"] and words in answer["error"]
    writer.write(b'{"do":"state"}\n')
    assert json.loads(await soon(reader.readline()))["ok"]
    writer.close()


async def test_control_line_without_an_end_closes_the_control(world: World) -> None:
    reader, writer = await asyncio.open_unix_connection(world.control)
    writer.write(b"x" * (1 << 18))
    with pytest.raises(ConnectionResetError):
        await soon(reader.read(1))
    writer.close()
    assert (await world.state())["connections"] == 0


async def test_missing_proxy_control_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not answer"):
        async with Links([], tmp_path / "control"):
            pytest.fail("there is nobody")


async def test_proxy_process_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)  # a Unix address may have 107 bytes only
    deep.mkdir()
    server = Server()
    await server.start()
    held = HeldPorts(HOST)
    (port,) = held.choose(1, random.Random())
    links = [{"name": "a>b", "host": HOST, "port": port, "target_port": server.port}]
    (deep / "links.json").write_text(json.dumps(links))
    text = ["--links", str(deep / "links.json"), "--control", str(deep / "control")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "raftmq.chaos.faults.proxy", *text, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert b"proxy of 1 links" in await soon(process.stdout.readline())
        async with Links(
            [Link("a", "b", "peer", HOST, port, server.port)], deep / "control"
        ) as hand:
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"1")
            assert await soon(reader.readexactly(1)) == b"1"
            await hand.impose("1", [Rule("a>b", cut=True)])
            writer.write(b"2")
            await silent(reader)
            process.terminate()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await soon(reader.readexactly(1))
            writer.close()
            with pytest.raises(ClusterError):
                await hand.state()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop()
        held.close()


async def test_proxy_sighup_opens_and_closes_links_and_keeps_the_others(tmp_path: Path) -> None:
    server = Server()
    await server.start()
    held = HeldPorts(HOST)
    ports = held.choose(3, random.Random())
    links = [
        {"name": f"a>{port}", "host": HOST, "port": port, "target_port": server.port}
        for port in ports
    ]
    path = tmp_path / "links.json"
    path.write_text(json.dumps(links[:2]))
    words = ["--links", str(path), "--control", str(tmp_path / "control")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "raftmq.chaos.faults.proxy", *words, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await soon(process.stdout.readline())
        gone = [Link("a", str(ports[0]), "peer", HOST, ports[0], server.port)]
        async with Links(gone, tmp_path / "control") as hand:
            await hand.impose("1", [Rule(f"a>{ports[0]}", cut=True)])
            reader, writer = await asyncio.open_connection(HOST, ports[1])
            path.write_text(json.dumps(links[1:]))
            process.send_signal(signal.SIGHUP)
            wanted = {link["name"] for link in links[1:]}

            async def changed() -> bool:
                return set(await hand.state()) == wanted

            await until(changed)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(HOST, ports[0])
            await hand.lift("1")  # the rule of a closed link went with it
            added, to_added = await asyncio.open_connection(HOST, ports[2])
            for stream, to_stream in ((reader, writer), (added, to_added)):
                to_stream.write(b"1")
                assert await soon(stream.readexactly(1)) == b"1"
                to_stream.close()
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.stop()
        held.close()


async def test_proxy_reports_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        links = [{"name": "a>b", "host": HOST, "port": port, "target_port": 1}]
        (tmp_path / "links.json").write_text(json.dumps(links))
        text = ["--links", str(tmp_path / "links.json"), "--control", str(tmp_path / "control")]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "raftmq.chaos.faults.proxy",
            *text,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await process.communicate()
    assert process.returncode == 1 and b"in use" in errors
