"""The opening of a Raft link, as a replica of the group dials it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dledger import wire
from tests.fuzz.world import GROUP_OF, Node, World

STRANGER = "z9"  # no member's name: a link in a member's name would cut the member's own
T = TypeVar("T")


class NotWelcome(OSError):
    """The replica refused the link."""


async def greet(
    world: World, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Until messages may follow. Raises NotWelcome, OSError."""
    hello = wire.Hello(GROUP_OF[node.name], STRANGER, node.name)
    writer.write(wire.encode_hello(hello))
    heard = bytearray()
    await _taken(reader, heard, wire.decode_answer)
    group_id = await _taken(reader, heard, wire.decode_identity)
    writer.write(wire.encode_identity(group_id))
    await _taken(reader, heard, wire.decode_answer)


async def _taken(
    reader: asyncio.StreamReader, heard: bytearray, decode: Callable[[bytes], tuple[T, int] | None]
) -> T:
    while True:
        try:
            found = decode(bytes(heard))
        except wire.WireError as error:
            raise NotWelcome(error.reason) from error
        if found is not None:
            del heard[: found[1]]
            return found[0]
        data = await reader.read(1 << 16)
        if not data:
            raise NotWelcome("closed during the opening")
        heard += data
