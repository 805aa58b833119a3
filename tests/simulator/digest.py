"""One sha256 over all that happens in a seed's world, so that two versions of the code can be
compared: every event's time, every message between nodes as wire.py encodes it, every Ready that a
core hands out, and in the end every byte on every disk and the world's numbers.

Names do not count: a dataclass stands in the digest by its fields' values, in their order, an
enumeration by its value, and a frame or message by its bytes. So a rename leaves the digest as it
was. To compare with an older version, lay this file and `__main__.py` over it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from unittest.mock import patch

from raftmq.dledger.core import RaftCore
from raftmq.dledger.messages import Ready
from raftmq.dledger.wire import PeerMessage, encode_message
from raftmq.store.frame import Frame
from tests.simulator.checks import CheckFailed
from tests.simulator.refill import RefillWorld
from tests.simulator.starved import Restless, Slow, StarvedWorld
from tests.simulator.world import World

Make = Callable[[int, type[RaftCore]], World]  # a world of a seed, with cores of that class


def plain(seed: int, core_class: type[RaftCore]) -> World:
    return World(seed, core_class)


def refill(seed: int, core_class: type[RaftCore]) -> World:
    return RefillWorld(seed, core_class=core_class)


def starved(seed: int, core_class: type[RaftCore]) -> World:
    """Slow messages, or slow processes whose cores are told the time as it is, in turns."""
    slow = Slow.MESSAGES if seed % 2 else Slow.PROCESSES
    return StarvedWorld(seed, slow, core_class, node_class=Restless)


def digest_of(make: Make, seed: int) -> bytes:
    """Play one seed and return its digest."""
    digest = hashlib.sha256()

    class RecordedCore(RaftCore):
        __slots__ = ()

        def ready(self) -> Ready | None:
            ready = super().ready()
            digest.update(repr((self.node_id, values_of(ready))).encode())
            return ready

    world = make(seed, RecordedCore)
    at, send = world.at, world.send

    def recorded_at(when_ms: float, *arguments: Any) -> None:
        digest.update(struct.pack(">d", when_ms))
        at(when_ms, *arguments)

    def recorded_send(message: PeerMessage) -> None:
        digest.update(f"{message.sender}>{message.to}".encode())
        for part in encode_message(message):
            digest.update(part)
        send(message)

    with patch.object(world, "at", recorded_at), patch.object(world, "send", recorded_send):
        try:
            numbers = tuple(world.run().values())
        except CheckFailed:
            numbers = ()  # up to there versions can be compared all the same
    digest.update(repr(numbers).encode())
    for node in world.nodes.values():
        digest.update(repr((node.name, node.disk.operations)).encode())
        for durable in (False, True):
            for path, content in sorted(node.disk.image(durable).items()):
                digest.update(path.encode() + content)
    return digest.digest()


def values_of(value: object) -> object:
    """A value without the names in it."""
    if isinstance(value, Frame):
        return value.index, value.term, value.position, value.data
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return tuple(map(values_of, value))
    if is_dataclass(value):
        return tuple(values_of(getattr(value, field.name)) for field in fields(value))
    return value
