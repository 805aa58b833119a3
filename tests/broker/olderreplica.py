"""Plays a replica that runs an older program: it answers hellos as that does, and says no more."""

import asyncio

from raftmq.dledger.wire import HelloAnswer, encode_answer

OLDER_VERSION = 3  # of before group ids, writers and pops


class OlderReplica:
    """Listens in the place of a replica that was killed, until it is closed."""

    def __init__(self, name):
        self._name = name
        self._greeted = []

    async def start(self, group):
        self._server = await asyncio.start_server(self._answer, sock=group.listener(self._name))

    def close(self):
        self._server.close()
        for writer in self._greeted:
            writer.close()

    async def _answer(self, reader, writer):
        self._greeted.append(writer)
        try:
            await reader.readuntil(self._name.encode())
            writer.write(encode_answer(HelloAnswer("", OLDER_VERSION)))
            while await reader.read(1 << 16):
                pass
        except (ConnectionResetError, asyncio.IncompleteReadError):
            pass  # that node went away
        finally:
            writer.close()
