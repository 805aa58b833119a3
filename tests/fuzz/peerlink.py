"""The openings of a Raft link and of the HA stream, as somebody dials them who has the secret."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

from raftmq.dledger.transport import wire
from raftmq.dledger.transport.peer_auth import (
    RANDOM_SIZE_BYTES,
    Claim,
    Dialling,
    ProofError,
    Purpose,
    Secret,
)
from tests.fuzz.world import GROUP_OF, Node, World

STRANGER = "z9"  # no member's name: a link in a member's name would cut the member's own
T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NotWelcome(OSError):
    """The replica refused the link."""


async def greet(world: World, node: Node, port: str, streams: Streams) -> None:
    """Until messages may follow. Raises NotWelcome, OSError."""
    reader, writer = streams
    group = GROUP_OF[node.name]
    purpose = Purpose.RAFT if port == "raft" else Purpose.HA
    receiver = node.name if port == "raft" else "0"  # a classic broker goes by its brokerId
    heard = bytearray()
    random = secrets.token_bytes(RANDOM_SIZE_BYTES)
    claim = Claim(purpose, group, STRANGER, receiver)
    proof = Dialling(Secret(world.secret), claim, random)
    writer.write(proof.opening)
    while not proof.done:
        try:
            writer.write(proof.receive_data(await _more(reader)))
        except ProofError as error:
            raise NotWelcome(str(error)) from error
    if port != "raft":
        return
    heard += proof.rest
    writer.write(wire.encode_hello(wire.Hello(group, STRANGER, receiver)))
    await _taken(reader, heard, wire.decode_answer)
    group_id = await _taken(reader, heard, wire.decode_identity)
    writer.write(wire.encode_identity(group_id))
    await _taken(reader, heard, wire.decode_answer)


async def _taken(
    reader: asyncio.StreamReader, heard: bytearray, decode: Callable[[bytes], tuple[T, int] | None]
) -> T:
    while True:
        try:
            result = decode(bytes(heard))
        except wire.WireError as error:
            raise NotWelcome(error.reason) from error
        if result is not None:
            del heard[: result[1]]
            return result[0]
        heard += await _more(reader)


async def _more(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(1 << 16)
    if not data:
        raise NotWelcome("closed during the opening")
    return data
