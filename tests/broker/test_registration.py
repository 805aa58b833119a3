"""A name server that loses our connection is told again soon, not only a period later."""

import asyncio

from broker import registration
from remoting.command import RemotingCommand
from remoting.server import RemotingServer
from tests.broker.cluster import Group, until


class NameServer:
    """Counts registrations; may close each connection behind its answer."""

    def __init__(self):
        self.heard = 0
        self.closing = False
        self.server = RemotingServer(
            {103: self._register, 104: lambda _, c: RemotingCommand.response_to(c)}
        )

    def _register(self, connection, command):
        self.heard += 1
        if self.closing:
            connection.abort("test")
            return None
        return RemotingCommand.response_to(command)

    def cut(self):
        for connection in list(self.server.connections):
            connection.abort("test")


async def test_a_change_and_a_stop_at_once(tmp_path):
    """The registrar is woken and cancelled in one turn of the loop: it ends all the same."""
    names = NameServer()
    await names.server.start("127.0.0.1", 0)
    try:
        async with Group(tmp_path, namesrvAddr=f"127.0.0.1:{names.server.port}") as group:
            broker = await group.leading()
            await until(lambda: broker.registrar.registered != {})
            heard = -1
            while heard != names.heard:  # it waits, nothing is under way
                heard = names.heard
                await asyncio.sleep(0.1)
            async with asyncio.timeout(30):
                broker.registrar.trigger()
                await asyncio.sleep(0)  # the waiter is woken, its task not yet
                await broker.registrar.stop()
    finally:
        await names.server.stop()


async def test_a_lost_connection_is_followed_by_a_registration(tmp_path, monkeypatch):
    names = NameServer()
    await names.server.start("127.0.0.1", 0)
    monkeypatch.setattr(registration, "RETRY_MS", 60_000)  # not what brings it back
    try:
        async with Group(tmp_path, namesrvAddr=f"127.0.0.1:{names.server.port}") as group:
            broker = await group.leading()
            await until(lambda: broker.registrar.registered != {})
            for _ in range(3):
                before = names.heard
                names.cut()
                await until(lambda b=before: names.heard > b and broker.registrar.registered != {})
            names.closing = True  # an attempt that fails waits for its time
            before = names.heard
            names.cut()
            await until(lambda: names.heard > before)
            await until(lambda: not names.server.connections)
            assert broker.registrar.registered == {} and names.heard == before + 1
    finally:
        await names.server.stop()
