"""Plays a replica that runs an older program: it answers hellos as that does, and says no more. And
makes the tables' files those of one."""

import asyncio

import orjson

from raftmq.broker.tables import snapshot
from raftmq.dledger.transport.wire import HelloAnswer, encode_answer

OLDER_VERSION = 3  # of before group ids, writers and pops


def without_files_noted(root):
    """Let the tables' files under `root` not say which others there are."""
    for path in (root / snapshot.DIRECTORY).iterdir():
        value = orjson.loads(path.read_bytes())
        del value[snapshot.FILES_KEY], value[snapshot.CHECKSUM_KEY]
        path.write_bytes(orjson.dumps(value))


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
