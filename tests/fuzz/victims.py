"""The servers that are fed, and what has to hold of them: they answer others in between, nothing
that they store is broken, and they start again on what they stored."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from audit.walk import walk_range
from namesrv.server import NameServer, NameServerConfig
from remoting.client import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from store.record import decode_record
from tests.broker.cluster import Group, until
from tests.fuzz.cases import Case

PATIENCE_S = 60.0  # a server that has not answered for so long is stuck
OWN = "Innocent"  # the topic of the others


class Surprises(logging.Handler):
    """Exceptions that nobody expected, as the servers log them: `with Surprises() as found:`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.found) < 100:
            self.found.append(logging.Formatter().format(record))

    def __enter__(self) -> list[str]:
        logging.getLogger().addHandler(self)
        return self.found

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


class Victim:
    """One server. `feed` gives it a case; `others` is what its other clients see."""

    address = ""

    def __init__(self) -> None:
        self.client = RemotingClient(connect_timeout_ms=60_000)
        self._writer: asyncio.StreamWriter | None = None
        self.fed = 0
        self.connections = 0

    async def feed(self, case: Case) -> None:
        """Send it. A connection on which the bytes were no frames may be closed by the server."""
        if self._writer is None or self._writer.is_closing():
            host, _, port = self.address.rpartition(":")
            reader, self._writer = await asyncio.open_connection(host, int(port))
            self.connections += 1
            self._sink = asyncio.get_running_loop().create_task(_read_all(reader))
        self.fed += 1
        try:
            self._writer.write(case.data)
            async with asyncio.timeout(PATIENCE_S):
                await self._writer.drain()
            if not case.whole:
                self._writer.write_eof()
                async with asyncio.timeout(PATIENCE_S):
                    await self._sink  # the server ends it, too
                await self._drop()
        except (ConnectionError, OSError):
            await self._drop()

    async def _drop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            await asyncio.wait([self._sink])

    async def ask(self, code: int, ext: dict[str, str] | None = None) -> RemotingCommand:
        command = RemotingCommand.request(code, ext)
        return await self.client.invoke(self.address, command, PATIENCE_S * 1000)

    async def others(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self._drop()
        await self.client.close()


async def _read_all(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    except OSError:
        return  # the server closed it: it may


class BrokerVictim(Victim):
    """A broker whose other client sends and reads along."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.sent: list[bytes] = []

    def group(self) -> Group:
        return Group(self.root, messageDelayLevel="1s 5s", enablePropertyFilter="true")

    async def begin(self, group: Any) -> None:
        self.group_ = group
        self.broker = await group.leading()
        self.address = self.broker.address
        assert (await group.create_topic(self.broker, OWN, 1)).code == 0
        assert (await group.create_topic(self.broker, "Fuzzed", 4)).code == 0

    @property
    def codes(self) -> list[int]:
        return list(self.broker.processor.handlers)

    async def others(self) -> None:
        """Somebody else's send is stored and can be read."""
        body = os.urandom(8).hex().encode()
        answer = await self.group_.send(self.broker, OWN, body, timeout_ms=PATIENCE_S * 1000)
        assert answer.code == 0, (answer.code, answer.remark)
        self.sent.append(body)
        await self.group_.create_topic(self.broker, "Fuzzed", 4)  # it may have been deleted
        assert not self.broker.failed.done(), self.broker.failed.result()

    async def read_back(self) -> None:
        """Everything somebody else sent is there once, in order."""
        found: list[bytes] = []
        while len(found) < len(self.sent):
            answer = await self.group_.pull(self.broker, OWN, len(found))
            assert answer.code == 0, (answer.code, answer.remark)
            data, at = answer.body, 0
            while at < len(data):
                record = decode_record(data, at)
                found.append(record.body)
                at += int.from_bytes(data[at : at + 4], "big")
        assert found == self.sent

    async def starts_again(self) -> int:
        """Stop in order, look at every byte of the log, start; returns how many records it has."""
        name = next(iter(self.group_.brokers))
        await self.group_.stop(name)
        count = 0
        for segment in sorted((self.root / name / "commitlog").iterdir()):
            data = memoryview(segment.read_bytes())
            walk = walk_range(data, int(segment.name), 0, len(data))
            assert [gap for gap in walk.gaps if gap.kind == 2] == [], walk.gaps
            for at in walk.records:
                decode_record(data, at)  # verifies lengths and CRC
            count += len(walk.records)
        await self.group_.start(name)
        self.broker = await self.group_.leading()
        self.address = self.broker.address
        await until(lambda: self.broker.state.topics.get(OWN) is not None)
        await self.read_back()
        return count


class NameServerVictim(Victim):
    """A name server with a broker that everybody asks for."""

    async def begin(self, server: NameServer) -> None:
        self.server = server
        self.address = server.address

    @staticmethod
    def server_() -> NameServer:
        return NameServer(NameServerConfig("127.0.0.1", 0, http_enable=False))

    @property
    def codes(self) -> list[int]:
        assert self.server._server is not None
        return [int(code) for code in RequestCode if code < 1000]

    async def others(self) -> None:
        key = {"namespace": OWN, "key": "k", "value": str(self.fed)}
        assert (await self.ask(RequestCode.PUT_KV_CONFIG, key)).code == 0
        answer = await self.ask(RequestCode.GET_KV_CONFIG, {"namespace": OWN, "key": "k"})
        assert answer.ext == {"value": str(self.fed)}
        assert (await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
