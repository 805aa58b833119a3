"""The simulated network: TCP between machines, as asyncio's transports show it.

Every machine has the address 127.0.0.1; ports tell them apart. Bytes arrive in order on each
connection, after a drawn delay, cut or joined at any byte; connections overtake each other. While a
link is cut nothing arrives in that direction: bytes wait, as TCP would send them again, and come
when the link is back, unless a side gives the connection up (its TCP_USER_TIMEOUT, or keepalive).
A process that dies closes its connections; a machine that loses power tells nobody: its peers learn
it by a reset when it is on again, or never.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Container
from contextvars import Context
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tests.simulator.cluster.loop import PROCESS, SimLoop

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine
    from tests.simulator.cluster.process import Process

HOST = "127.0.0.1"
SOCKET_BYTES = 256 * 1024  # that the kernels at both ends take
READ_BYTES_MAX = 256 * 1024
SYN_AGAIN_S = 1.0
FIRST_PORT = 40_000


class Flips(NamedTuple):
    """Bits that flip on their way, and no checksum of TCP's tells: with `probability` one of each
    arrival, on connections with servers at these ports."""

    rng: Random
    probability: float
    ports: Container[int]

    def through(self, data: bytes, own: int, peer: int) -> bytes:
        """Return what arrives of `data`."""
        if own not in self.ports and peer not in self.ports:
            return data
        if self.rng.random() >= self.probability:
            return data
        arrived = bytearray(data)
        arrived[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(arrived)


class Network:
    """All links. `cut` holds pairs (from, to) of machines' names."""

    def __init__(self, loop: SimLoop, rng: Random, delay_ms: float, spike: float) -> None:
        self.loop = loop
        self.rng = rng
        self.delay_ms = delay_ms
        self.spike = spike  # probability of a delay that is twenty times as long
        self.slow_ms = 0.0  # added to every delay, about
        self.flips: Flips | None = None
        self.cut: set[tuple[str, str]] = set()
        self.connections: list[Transport] = []  # one end of each
        self.machines: dict[int, Machine] = {}  # by the ports of their servers
        self.diallers: dict[int, Process] = {}  # by the ports that they dialled from
        self._listeners: dict[int, Server] = {}
        self._bound: dict[int, Process] = {}
        self._ports = FIRST_PORT

    # -- faults -----------------------------------------------------------------------------------

    def heal(self, pairs: set[tuple[str, str]] | None = None) -> None:
        """Let these links (all) work again."""
        self.cut -= self.cut if pairs is None else pairs
        for one in self._ends():
            one.retransmit()

    def sever(self, pairs: set[tuple[str, str]]) -> None:
        """Cut links."""
        self.cut |= pairs
        for one in self._ends():
            one.maybe_give_up_later()

    def reset(self) -> None:
        """Break one connection, as a middlebox does: both sides are told."""
        alive = [one for one in self.connections if not one.lost]
        if alive:
            one = self.rng.choice(alive)
            error = ConnectionResetError(errno.ECONNRESET, "reset by a middlebox")
            one.lose(error)
            one.other.lose(error)

    def process_died(self, process: Process, told: bool) -> None:
        for port, owner in list(self._bound.items()):
            if owner is process:
                del self._bound[port]
                self._listeners.pop(port, None)
        for one in self._ends():
            if one.process is process and not one.lost:
                one.die(told)

    def _ends(self) -> list[Transport]:
        self.connections = [c for c in self.connections if not (c.lost and c.other.lost)]
        return [end for one in self.connections for end in (one, one.other)]

    # -- ports ------------------------------------------------------------------------------------

    def bind(self, port: int) -> int:
        """Take a port for the current process; 0: any. Raises OSError."""
        process = PROCESS.get()
        assert process is not None
        if not port:
            self._ports += 1
            port = self._ports
        if port in self._bound:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._bound[port] = process
        return port

    def bound_by(self, port: int) -> Process | None:
        return self._bound.get(port)

    def release(self, port: int) -> None:
        if self._bound.get(port) is PROCESS.get():
            del self._bound[port]
            self._listeners.pop(port, None)

    def stop_accepting(self, port: int) -> bool:
        return self._listeners.pop(port, None) is not None

    def listen(self, factory: Callable[[], Any], port: int | None, sock: Any) -> Server:
        number = self.bind(port or 0) if sock is None else sock.port
        process = PROCESS.get()
        assert process is not None
        server = Server(self, number, factory, process)
        self._listeners[number] = server
        return server

    # -- connections ------------------------------------------------------------------------------

    def latency_s(self) -> float:
        delay_ms = self.delay_ms * (0.5 + self.rng.random())
        if self.spike and self.rng.random() < self.spike:
            delay_ms *= 20 * (1 + self.rng.random())
        if self.slow_ms:
            delay_ms += self.slow_ms * (0.5 + self.rng.random())
        return delay_ms / 1000

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[Transport, Any]:
        source = PROCESS.get()
        assert source is not None
        while True:
            await asyncio.sleep(self.latency_s())
            target = self._machine_at(port)
            there = (source.machine.name, target)
            if target and not {there, there[::-1]} & self.cut:
                break
            await asyncio.sleep(SYN_AGAIN_S)
        server = self._listeners.get(port)
        if server is None:
            await asyncio.sleep(self.latency_s())
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no listener at port {port}")
        self._ports += 1
        self.diallers[self._ports] = source
        near = Transport(self, source, source.context, (HOST, self._ports), (HOST, port))
        far = Transport(
            self, server.process, server.process.context, (HOST, port), (HOST, self._ports)
        )
        near.other, far.other = far, near
        self.connections.append(near)
        self.loop.call_soon(far.accept, server.factory, context=server.process.context)
        await asyncio.sleep(self.latency_s())
        if near.lost:
            raise ConnectionResetError(errno.ECONNRESET, "reset while connecting")
        protocol = factory()
        near.open(protocol)
        return near, protocol

    def _machine_at(self, port: int) -> str:
        """Return the name of the machine at which servers have this port; "" if it is off."""
        machine = self.machines[port]
        return machine.name if machine.powered else ""


class SimSocket:
    """The socket of a listener or transport, as far as programs look at it."""

    family = socket.AF_INET

    def __init__(self, network: Network, port: int) -> None:
        self.network = network
        self.port = port
        self.user_timeout_s = 0.0
        self._keepalive = {socket.TCP_KEEPIDLE: 0, socket.TCP_KEEPINTVL: 0, socket.TCP_KEEPCNT: 0}

    @property
    def keepalive_s(self) -> float:
        """How long the kernel keeps a silent connection without answers to its probes; 0: for
        ever. With TCP_USER_TIMEOUT that bounds the probes, not their count."""
        idle_s, interval_s, probes = self._keepalive.values()
        if not idle_s:
            return 0.0
        if not self.user_timeout_s:
            return idle_s + interval_s * probes
        return idle_s + interval_s * max(1, ceil((self.user_timeout_s - idle_s) / interval_s))

    def getsockname(self) -> tuple[str, int]:
        return HOST, self.port

    def fileno(self) -> int:
        return self.port

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self.user_timeout_s = value / 1000
        elif level == socket.IPPROTO_TCP and option in self._keepalive:
            self._keepalive[option] = value

    def close(self) -> None:
        self.network.release(self.port)


class BoundPort:
    """Stands for remoting.bound_port.BoundPort, which binds real sockets."""

    def __init__(self, host: str, port: int) -> None:
        network = cast(SimLoop, asyncio.get_running_loop()).network
        assert network is not None
        self._network = network
        self.port, self.hosts = network.bind(port), [host]
        self._taken = False

    def take(self) -> SimSocket:
        self._taken = True
        return SimSocket(self._network, self.port)

    def close(self) -> None:
        if not self._taken:
            self._network.release(self.port)


class Server:
    """A listener, as asyncio.Server."""

    def __init__(
        self, network: Network, port: int, factory: Callable[[], Any], process: Process
    ) -> None:
        self.sockets = [SimSocket(network, port)]
        self.port = port
        self.factory = factory
        self.process = process
        self._network = network

    def close(self) -> None:
        self._network.release(self.port)

    async def wait_closed(self) -> None:
        pass


class Transport(asyncio.Transport):
    """One end of a connection."""

    other: Transport

    def __init__(
        self,
        network: Network,
        process: Process,
        context: Context,
        own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        super().__init__()
        self.process = process
        self.lost = False  # no callback will come any more
        self._network = network
        self._context = context
        self._socket = SimSocket(network, own[1])
        self._own, self._peer = own, peer
        self._extra = {"peername": peer, "sockname": own, "socket": self._socket}
        self._protocol: Any = None
        self._closing = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._unsent: deque[bytes] = deque()  # beyond what the kernels take
        self._unsent_bytes = 0
        self._flying: deque[bytes] = deque()  # taken, and not arrived
        self._flying_bytes = 0  # these, and what arrived and was not read
        self._arrives_s = 0.0  # the last arrival
        self._fin = False  # sent behind them
        self._paused_writing = False
        self._received: deque[bytes] = deque()
        self._eof = False
        self._reading = True
        self._read_due = False
        self._giving_up = False

    def __repr__(self) -> str:
        return f"{self.process} {self._own[1]}->{self._peer[1]}"

    @property
    def _link(self) -> tuple[str, str]:
        return self.process.machine.name, self.other.process.machine.name

    # -- asyncio.Transport ------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_soon()

    def write(self, data: Any) -> None:
        if self._closing or self.lost or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._send()
        if self._unsent_bytes > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing or self.lost:
            return
        self._closing = True
        self._reading = False
        if not self._unsent:
            self._end()

    def abort(self) -> None:
        if self.lost:
            return
        self._closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self._reset_other()
        self.lose(None)

    # -- opening and ending -----------------------------------------------------------------------

    def accept(self, factory: Callable[[], Any]) -> None:
        if not self.lost:
            self.open(factory())

    def open(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    def lose(self, error: Exception | None) -> None:
        """End this side; its protocol is told."""
        if self.lost:
            return
        self.lost = self._closing = True
        self._received.clear()
        if self._protocol is not None:
            self._network.loop.call_soon(
                self._protocol.connection_lost, error, context=self._context
            )

    def die(self, told: bool) -> None:
        """End this side without a word to its protocol, whose process is dead."""
        self.lost = self._closing = True
        self._unsent.clear()
        self._received.clear()
        if told:
            self._fin = True
            self._fly_on()
        else:
            self.other.maybe_give_up_later()

    def _end(self) -> None:
        """Everything is with the kernel: the connection is closed behind it."""
        self._fin = True
        self.lose(None)
        self._fly_on()

    def _reset_other(self) -> None:
        other = self.other
        if not other.lost:
            error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            loop, network = self._network.loop, self._network

            def arrives() -> None:
                if self._link not in network.cut:
                    other.lose(error)

            loop.call_later(network.latency_s(), arrives, context=self.process.machine.context)

    def maybe_give_up_later(self) -> None:
        """Set a timer if the kernel would give this connection up while it gets no answer."""
        timeout_s, keepalive_s = self._socket.user_timeout_s, self._socket.keepalive_s
        if self.lost or self._giving_up or not (timeout_s or keepalive_s):
            return
        if not self._out_of_reach():
            return
        self._giving_up = True
        wait_s = timeout_s if timeout_s and self._flying_bytes else keepalive_s
        self._network.loop.call_later(wait_s, self._give_up, context=self.process.machine.context)

    def _give_up(self) -> None:
        self._giving_up = False
        if not self.lost and (self._out_of_reach() or self._is_forgotten()):
            self.lose(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _out_of_reach(self) -> bool:
        link = self._link
        return (
            link in self._network.cut
            or link[::-1] in self._network.cut
            or (self.other.lost and not self.other.process.machine.powered)
        )

    def _is_forgotten(self) -> bool:
        """Return whether the other machine lost power and is on again: it resets the connection
        when a probe arrives."""
        return self.other.lost and not self.other._fin

    # -- bytes ------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Hand the kernel what it takes."""
        while self._unsent and self._flying_bytes < SOCKET_BYTES:
            data = self._unsent.popleft()
            self._unsent_bytes -= len(data)
            room = SOCKET_BYTES - self._flying_bytes
            if len(data) > room:
                self._unsent.appendleft(data[room:])
                self._unsent_bytes += len(data) - room
                data = data[:room]
            self._flying.append(data)
            self._flying_bytes += len(data)
            self._fly_on()
        if self._paused_writing and self._unsent_bytes <= self._low and not self.lost:
            self._paused_writing = False
            self._network.loop.call_soon(self._protocol.resume_writing, context=self._context)
        if self._closing and not self._unsent and not self.lost:
            self._end()

    def _fly_on(self) -> None:
        network = self._network
        when_s = max(self._arrives_s, network.loop.now_s + network.latency_s())
        self._arrives_s = when_s
        network.loop.call_at(when_s, self._arrive, context=self.process.machine.context)

    def retransmit(self) -> None:
        """The link is back: what waited is sent again."""
        if (self._flying or self._fin) and self._link not in self._network.cut:
            self._fly_on()

    def _arrive(self) -> None:
        """Everything on its way arrives; or a part of it, and the rest later."""
        network, other = self._network, self.other
        if self._link in network.cut:
            self.maybe_give_up_later()
            return
        if other.lost:
            if self._flying and not other._fin and other.process.machine.powered:
                self.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            elif self._flying:
                self.maybe_give_up_later()
            self._flying.clear()
            return
        if self._flying:
            data = b"".join(self._flying)
            self._flying.clear()
            if len(data) > 1 and network.rng.random() < 0.1:
                at = network.rng.randrange(1, len(data))
                self._flying.append(data[at:])
                data = data[:at]
                self._fly_on()
            if network.flips is not None:
                data = network.flips.through(data, self._own[1], self._peer[1])
            other._received.append(data)
        if self._fin and not self._flying:
            other._eof = True
            if other._unsent:  # this side is gone with bytes unread: TCP says so by a reset
                other.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        other._read_soon()

    def _read_soon(self) -> None:
        if self._reading and not self._read_due and (self._received or self._eof):
            self._read_due = True
            self._network.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        self._read_due = False
        if self.lost or self._protocol is None or not self._reading:
            return
        if self._received:
            data = b"".join(self._received)
            self._received.clear()
            if len(data) > READ_BYTES_MAX:
                self._received.append(data[READ_BYTES_MAX:])
                data = data[:READ_BYTES_MAX]
            self.other._taken(len(data))
            self._protocol.data_received(data)
            self._read_soon()
        elif self._eof:
            if not self._protocol.eof_received():
                self.close()

    def _taken(self, size: int) -> None:
        """The other side has read."""
        self._flying_bytes -= size
        if not self.lost:
            self._send()
