"""Rot: bytes that were durable change, or a segment's file is gone. And what is true about it.

Of any one frame, and its neighbours, at most a minority of the replicas lacks some because of
damage at any time: struck, or cut with what a repair gave up, and not whole again since. That is
what the promises are made for. (Neighbours: where a header is gone here, and the one behind it
there, just where a term begins, nothing is left that proves the one to follow the other.) Struck
is only what lies below the durable mark *on the platter*: above it, after a power cut, nobody can
tell rot from a write that never happened (store/checkpoint.py). But a segment in front of others
may be lost wherever the mark is: it was filled once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c

from raftmq.dledger.repair import RepairResponse
from raftmq.store.frame import HEADER_SIZE_BYTES, Frame

if TYPE_CHECKING:
    from tests.simulator.node import SimNode
    from tests.simulator.world import World

PAGE_BYTES = 512
_MARK = struct.Struct(">24xq8x4sI")  # of the checkpoint: the durable mark, "RMQC", CRC-32C
_SEALED_BYTES = 40


class Damage:
    """Plants damage, and knows who lacks what because of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = Random(world.seed * 7919 + 1)  # of its own: worlds without rot stay as they are
        self.missing: dict[str, dict[tuple[int, int], Frame]] = {}  # by node and (index, term)
        self._marks: set[str] = set()  # whose checkpoint is damaged
        self.strikes = self.mended = self.given_up = 0

    # -- what is true -----------------------------------------------------------------------------

    def lacks(self, node: SimNode, frame: Frame) -> bool:
        """Whether the node had this frame, and lost it to damage."""
        return (frame.index, frame.term) in self.missing.get(node.name, {})

    def has(self, node: SimNode) -> bool:
        """Whether anything of this node is damaged, or in doubt while it repairs itself."""
        self._refresh(node)
        doubts = node.repair_wants is not None
        return doubts or bool(self.missing.get(node.name)) or node.name in self._marks

    def wiped(self, node: SimNode) -> None:
        """It has a new disk."""
        self.missing.pop(node.name, None)
        self._marks.discard(node.name)

    def takes_part(self, node: SimNode) -> None:
        self._marks.discard(node.name)

    def giving_up(self, node: SimNode) -> None:
        """The node is about to cut its log behind its last good frame."""
        self.given_up += 1
        end = node.log.index.end_position
        held = [f for f in self._frames_on(node) if f.position >= end]
        self.missing.setdefault(node.name, {}).update({(f.index, f.term): f for f in held})

    def _refresh(self, node: SimNode) -> None:
        """Forget what is whole again."""
        missing = self.missing.get(node.name, {})
        for key, frame in list(missing.items()):
            if node.holds(frame, durable=True) and node.holds(frame, durable=False):
                del missing[key]
                self.mended += 1

    def _frames_on(self, node: SimNode) -> list[Frame]:
        """All frames that stand whole on the node's platter and in its page cache."""
        frames = self._world.checker.frames_known()
        return [f for f in frames if node.holds(f, True) and node.holds(f, False)]

    def on_the_way(self, response: RepairResponse) -> RepairResponse:
        """Now and then a bit flips in what a peer answers."""
        if not response.data or self.rng.random() > 0.05:
            return response
        data = bytearray(response.data)
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return replace(response, data=bytes(data))

    # -- planting ---------------------------------------------------------------------------------

    def strike(self, node: SimNode) -> None:
        """Damage something of this node, if something may be."""
        for _ in range(5):
            if self._try(node):
                return

    def strike_fork(self) -> SimNode | None:
        """Damage the header of a frame whose index holds another frame elsewhere, or of one just
        behind: where a repair must not take the one for the other. Returns whose it is."""
        forks: list[tuple[SimNode, Frame]] = []
        held = {node.name: self._frames_on(node) for node in self._world.nodes.values()}
        for node in self._world.nodes.values():
            mark = self._mark(node)
            elsewhere: dict[int, set[int]] = {}
            for name, frames in held.items():
                for frame in frames:
                    if name != node.name:
                        elsewhere.setdefault(frame.index, set()).add(frame.term)
            for frame in held[node.name]:
                others = elsewhere.get(frame.index, set())
                if frame.end <= mark and others and frame.term not in others:
                    forks.append((node, frame))
        if not forks:
            return None
        committed = [fork for fork in forks if self._world.checker.is_committed(fork[1])]
        node, frame = self.rng.choice(committed or forks)
        at = frame.position + self.rng.randrange(HEADER_SIZE_BYTES)
        # A larger frame may hold these bytes within its payload: then that one is struck, too.
        struck = [f for f in held[node.name] if f.position <= at < f.end]
        if not self._may_have_damage(node) or not self._may_lose(node, struck):
            return None
        return node if self._spoil(node, "header at a fork", at, at + 1, struck) else None

    def _try(self, node: SimNode) -> bool:
        rng = self.rng
        mark = self._mark(node)
        held = self._frames_on(node)
        frames = [f for f in held if f.end <= mark]
        if not frames or not self._may_have_damage(node):
            return False
        frame = rng.choice(frames)
        size = node.segment_size_bytes
        segment = frame.position // size * size
        kinds = ["header", "payload", "page", "blank"]
        if not node.alive:
            kinds += ["mark"]
            if segment + size <= mark:
                kinds += ["lost file", "short file"]
            elif any(f.position >= segment + size for f in held):
                kinds += ["lost file"]
        kind = rng.choice(kinds)
        if kind == "mark":
            return self._spoil_mark(node)
        start, end = self._range(kind, frame, segment, segment + size)
        if kind == "lost file":  # and what only the page cache has of it
            held = [f for f in self._world.checker.frames_known() if node.holds(f, False)]
        elif end > mark:
            return False
        struck = [f for f in held if f.position < end and start < f.end]
        if not self._may_lose(node, [frame, *struck]):
            return False
        return self._spoil(node, kind, start, end, struck)

    def _spoil(self, node: SimNode, kind: str, start: int, end: int, struck: list[Frame]) -> bool:
        segment = start // node.segment_size_bytes * node.segment_size_bytes
        path = f"commitlog/{segment:020d}"
        if kind == "lost file":
            done = node.disk.lose_file(path)
        else:
            change = self._change(kind, end - start)
            done = node.disk.spoil(path, start - segment, change)
        if done:
            self.strikes += 1
            self._world.note(f"rot at {node.name}: {kind} {start}..{end} {struck}")
            lost = {(f.index, f.term): f for f in struck}
            self.missing.setdefault(node.name, {}).update(lost)
        return done

    def _range(self, kind: str, frame: Frame, segment: int, segment_end: int) -> tuple[int, int]:
        rng = self.rng
        if kind == "header":
            at = frame.position + rng.randrange(HEADER_SIZE_BYTES)
            return at, at + 1
        if kind == "payload":
            at = rng.randrange(frame.position, frame.end)
            return at, min(at + rng.randint(1, 40), frame.end)
        if kind == "page":
            at = frame.position // PAGE_BYTES * PAGE_BYTES
            return at, at + PAGE_BYTES
        if kind == "blank":  # if the frame is its segment's last; else the next frame's header
            return frame.end, frame.end + 8
        return (frame.position + 20 if kind == "short file" else segment), segment_end

    def _change(self, kind: str, size: int) -> Callable[[bytes], bytes]:
        if kind == "short file":
            return lambda _: b""
        if kind == "page":
            return lambda old: bytes(size) + old[size:]
        mask = bytes(self.rng.randrange(1, 256) for _ in range(size))
        return lambda old: bytes(a ^ b for a, b in zip(old, mask, strict=False)) + old[size:]

    def _spoil_mark(self, node: SimNode) -> bool:
        at, mask = self.rng.randrange(40), self.rng.randrange(1, 256)
        done = node.disk.spoil("checkpoint", at, lambda old: bytes([old[0] ^ mask]) + old[1:])
        if done:
            self._world.note(f"rot at {node.name}: checkpoint byte {at}")
            self._marks.add(node.name)
        return done

    def _may_have_damage(self, node: SimNode) -> bool:
        """Damage may cost promises; so where others have lost some, a minority altogether may."""
        nodes = self._world.nodes.values()
        others = [other for other in nodes if other is not node]
        if not any(other.lost or other.name in self._marks for other in others):
            return True
        return self._world.members.tolerates(node, lambda n: n.lost or self.has(n))

    def _may_lose(self, node: SimNode, touched: list[Frame]) -> bool:
        for other in self._world.nodes.values():
            self._refresh(other)

        def lacks(other: SimNode, near: range) -> bool:
            missing = self.missing.get(other.name, {})
            return self._doubts(other, near) or any(index in near for index, _ in missing)

        for frame in touched:
            near = range(frame.index - 1, frame.index + 2)
            if not self._world.members.tolerates(node, partial(lacks, near=near)):
                return False
        return True

    def _doubts(self, node: SimNode, near: range) -> bool:
        """The node repairs itself, and what it has from there on is not proven to belong there:
        intact, but no better than damaged."""
        wanted = node.repair_wants
        return wanted is not None and near.stop > wanted

    def _mark(self, node: SimNode) -> int:
        """The durable mark as a power cut would leave it; 0 if it is damaged itself."""
        if node.name in self._marks:
            return 0
        data = node.disk.durable("checkpoint")[: _MARK.size]
        if len(data) < _MARK.size:
            return 0
        mark, magic, checksum = _MARK.unpack(data)
        # Rot may stand there still, while the page cache holds a newer record.
        whole = magic == b"RMQC" and checksum == crc32c(data[:_SEALED_BYTES])
        return int(mark) if whole else 0
