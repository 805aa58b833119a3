"""A proxied connection with the dialling end, the dialled end, and two flows between them.

Each end gets the bytes of the opposite end, complete, once and in order, unless the connection is
reset. The rules of the link are applied here. An end of stream is passed on; the loss of an end
becomes a reset of the opposite end. Both keep their positions in the flow, so behind a cut they are
invisible before the heal.

Limits: each direction holds its flow's limit plus one read of the loop's (256 KiB) plus the
sockets' own buffers, bounded by `SOCKET_BUFFER_BYTES`; above that the proxy stops reading from the
sender, and TCP pushes back. A connection accepted while the link is cut holds `OPENING_BYTES_MAX`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Protocol, cast

from .byte_stream import Flow, Mark, Pace
from .rules import Effect

SOCKET_BUFFER_BYTES = 256 << 10
WRITE_BUFFER_BYTES = 256 << 10  # past this an end counts as not reading
OPENING_BYTES_MAX = 64 << 10
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds


class Side(Protocol):
    """The link that pairs belong to."""

    effect: Effect
    target: tuple[str, int]
    pace_forward: Pace
    pace_back: Pace
    rng: random.Random

    def opened(self, pair: Pair) -> None: ...

    def closed(self, pair: Pair) -> None: ...

    def carried(self, *, forward: bool, size_bytes: int) -> None: ...

    def target_lost(self) -> None:
        """Called when an end at the target is lost, because the target may not listen any more."""
        ...


class Pair:
    """Both ends of a dialled connection; `opening` until the target is connected."""

    def __init__(self, side: Side) -> None:
        self.side = side
        draw = side.rng.random
        self.dialler = End(self, Flow(side.effect.forward, side.pace_forward, draw), forward=True)
        self.target = End(self, Flow(side.effect.back, side.pace_back, draw), forward=False)
        self.dialler.other, self.target.other = self.target, self.dialler
        self.opening = True
        self._dialling: asyncio.Task[None] | None = None
        self._death: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def held_bytes(self) -> int:
        return self.dialler.flow.held_bytes + self.target.flow.held_bytes

    def dialled_in(self) -> None:
        self.side.opened(self)
        self._live()
        self._connect()

    def rules_changed(self) -> None:
        effect, now_s = self.side.effect, asyncio.get_running_loop().time()
        self.dialler.flow.change(effect.forward, now_s)
        self.target.flow.change(effect.back, now_s)
        self._live()
        self._connect()
        for end in (self.dialler, self.target):
            end.move()

    def reset(self) -> None:
        """Reset both ends now; bytes in flight are lost."""
        self.dialler.reset()
        self.target.reset()
        self.finish()

    def finish(self) -> None:
        """End it and forget it. Harmless the second time."""
        if self._closed:
            return
        self._closed = True
        if self._death is not None:
            self._death.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
        for end in (self.dialler, self.target):
            end.drop()
        self.side.closed(self)

    async def wait_closed(self) -> None:
        """Return once the dialling task has ended."""
        if self._dialling is not None:
            await asyncio.wait([self._dialling])

    def _live(self) -> None:
        """Start or stop the limited life of this connection, by the link's effect."""
        lives_s = self.side.effect.lives_s
        if self._death is not None and not lives_s:
            self._death.cancel()
            self._death = None
        elif self._death is None and lives_s and not self._closed:
            life_s = lives_s * (0.5 + self.side.rng.random())
            self._death = asyncio.get_running_loop().call_later(life_s, self.reset)

    def _connect(self) -> None:
        if self.opening and self._dialling is None and self.side.effect.connects:
            self._dialling = asyncio.create_task(self._dial(), name="dial")

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self.target, *self.side.target)
        except OSError:
            self.side.target_lost()
            self.reset()
            return
        self.opening = False
        self.dialler.move()
        self.target.move()


class End(asyncio.Protocol):
    """An end. `flow` carries its bytes to the opposite end."""

    other: End

    def __init__(self, pair: Pair, flow: Flow, *, forward: bool) -> None:
        self.pair = pair
        self.flow = flow
        self._forward = forward
        self.transport: asyncio.Transport | None = None
        self._reading = True
        self._full = False  # its peer does not read
        self._ended = False  # it sent its last byte
        self._end_delivered = False  # the end of the stream was delivered
        self._gone = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._gone:
            self.reset()  # the pair was given up while this end was being connected
            return
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        if self._forward:
            self.pair.dialled_in()

    def data_received(self, data: bytes) -> None:
        if self.other._gone:
            return  # the opposite end is gone
        self.pair.side.carried(forward=self._forward, size_bytes=len(data))
        other = self.other.transport
        if self.flow.passes and other is not None and not self.pair.opening:
            other.write(data)
            return
        self.flow.push(bytes(data), asyncio.get_running_loop().time())
        self.move()

    def eof_received(self) -> bool:
        self._ended = True
        if not self._forward:
            self.pair.side.target_lost()
        elif self.pair.opening and not self.pair.side.effect.connects:
            self.pair.reset()  # lost before its handshake, so the target never accepted it
            return False
        self.flow.push(Mark.END, asyncio.get_running_loop().time())
        self.move()
        return True  # the reverse direction stays open

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone:
            return  # our own doing
        self._gone = True
        self.transport = None
        self.other.flow.clear()
        if not self._forward:
            self.pair.side.target_lost()
        if self.pair.opening:
            self.pair.reset()
            return
        self.flow.push(Mark.RESET, asyncio.get_running_loop().time())
        self.move()

    def pause_writing(self) -> None:
        self._full = True
        self.other.mind_reading()

    def resume_writing(self) -> None:
        self._full = False
        self.other.mind_reading()

    def move(self) -> None:
        """Deliver due bytes, and schedule the next call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.pair.opening:
            loop = asyncio.get_running_loop()
            for item in self.flow.take(loop.time()):
                self.other.deliver(item)
            due_s = self.flow.next_due_s()
            if due_s is not None:
                self._timer = loop.call_at(due_s, self.move)
        self.mind_reading()

    def deliver(self, item: bytes | Mark) -> None:
        """Write an item of the opposite end to this end."""
        if item is Mark.RESET:
            self.reset()
            self.pair.finish()
            return
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if item is Mark.END:
            self._end_delivered = True
            transport.write_eof()
            if self._ended and self.other._end_delivered:
                self.pair.finish()
        else:
            assert isinstance(item, bytes), item
            transport.write(item)

    def mind_reading(self) -> None:
        """Read from this end only while its flow has room."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.pair.opening:
            desired = self.flow.held_bytes < OPENING_BYTES_MAX
        else:
            desired = not (self.flow.way.cut or self.flow.full or self.other._full)
        if desired != self._reading:
            self._reading = desired
            if desired:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def reset(self) -> None:
        """Reset the connection to its peer (RST) now."""
        self._gone = True
        transport, self.transport = self.transport, None
        if transport is None:
            return
        transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
        )
        transport.abort()

    def drop(self) -> None:
        """Close it; written bytes are still sent."""
        self._gone = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.flow.clear()
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()
