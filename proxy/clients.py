"""The connected clients, their settings and their open Telemetry streams.

No call depends on this table, so any proxy can serve any client. Heartbeats through any proxy renew
a client's registration at the brokers. The stream carries the brokers' requests to a producer.

Limits: `clients_max` clients, TOPICS_MAX topics and CLIENT_BYTES_MAX of settings per client,
QUEUE_MAX commands and `queue_bytes_max` per stream, and an allowance for all clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from sys import getsizeof

from raftmq.remoting.memory_limits import Allowance, Share

from .protocol.messaging_pb2 import ClientType, Code, TelemetryCommand
from .status_codes import StatusError

TOPICS_MAX = 900  # a heartbeat to a broker holds at most 1,000 groups
CLIENT_BYTES_MAX = 1 << 20
CLIENT_BYTES = 4_096  # of a client without settings
ENTRY_BYTES = 200  # of a topic or a subscription, without its text
QUEUE_MAX = 64
SILENCE_S = 60.0  # a silent client is dropped; heartbeats arrive every 10 s

Write = Callable[[TelemetryCommand], Awaitable[None]]


class CommandQueue:
    """The commands to be written to an open Telemetry stream."""

    def __init__(self, retained: Share) -> None:
        self._kept = retained
        # None ends the stream.
        self._waiting: asyncio.Queue[tuple[TelemetryCommand, int] | None] = asyncio.Queue(QUEUE_MAX)

    def put(self, command: TelemetryCommand) -> bool:
        """Queue a command; return False if the queue is full."""
        size = command.ByteSize()
        if self._waiting.full() or not self._kept.take(size):
            return False
        self._waiting.put_nowait((command, size))
        return True

    async def run(self, write: Write) -> None:
        """Write commands until `finish` or cancellation."""
        while await self._write_next(write):
            pass

    async def _write_next(self, write: Write) -> bool:
        waiting = await self._waiting.get()
        if waiting is None:
            return False
        command, size = waiting
        await write(command)
        self._kept.give_back(size)
        return True

    def finish(self) -> None:
        self._drop()
        self._waiting.put_nowait(None)

    def end(self) -> None:
        """Drop the waiting commands. `put` must not be called afterwards."""
        self._drop()
        self._kept.end()

    def _drop(self) -> None:
        while not self._waiting.empty():
            waiting = self._waiting.get_nowait()
            if waiting is not None:
                self._kept.give_back(waiting[1])


class Client:
    """A connected client. `group` is a consumer's. `topics` maps its topics, the most recently used
    last, to their filters."""

    __slots__ = (
        "_subscribed_bytes",
        "access_key",
        "active_s",
        "client_id",
        "group",
        "host",
        "kept",
        "kind",
        "namespace",
        "owner",
        "queue",
        "subscriptions",
        "topics",
        "version",
    )

    def __init__(self, client_id: str, owner: str, now_s: float, retained: Share) -> None:
        self.client_id = client_id
        self.owner = owner  # the account of the client; all its calls need the same account
        self.access_key = ""  # of the caller that opened the stream, with its host
        self.host = ""
        self.kept = retained
        self.kind = ClientType.CLIENT_TYPE_UNSPECIFIED
        self.group = ""
        self.namespace = ""
        self.topics: dict[str, None] = {}
        self.subscriptions: Mapping[str, tuple[str, str]] = {}  # topic → kind, expression
        self._subscribed_bytes = 0
        self.version = 0  # of the subscriptions, their time in ms
        self.queue: CommandQueue | None = None
        self.active_s = now_s

    @property
    def is_producer(self) -> bool:
        return self.kind == ClientType.PRODUCER

    def add_topic(self, topic: str) -> None:
        """Record that the client add_topic a topic. Raises StatusError at the limit."""
        if topic in self.topics:
            del self.topics[topic]
            self.topics[topic] = None
            return
        if len(self.topics) >= TOPICS_MAX:
            oldest = next(iter(self.topics))
            del self.topics[oldest]
            self.kept.give_back(_size(oldest))
        self._take(_size(topic))
        self.topics[topic] = None

    def subscribe(self, subscriptions: Mapping[str, tuple[str, str]], version: int) -> None:
        """Replace the client's subscriptions. Raises StatusError at the limit."""
        size = sum(_size(topic) + _size(text) for topic, (_, text) in subscriptions.items())
        if size > self._subscribed_bytes:
            self._take(size - self._subscribed_bytes)
        else:
            self.kept.give_back(self._subscribed_bytes - size)
        self._subscribed_bytes = size
        self.subscriptions = subscriptions
        self.version = version

    def _take(self, size: int) -> None:
        if not self.kept.take(size):
            text = "there is no room for what this client, or all clients, say of themselves"
            raise StatusError(Code.TOO_MANY_REQUESTS, text)


class Clients:
    def __init__(
        self,
        clients_max: int,
        now_s: Callable[[], float],
        retained: Allowance,
        *,
        queue_bytes_max: int,
    ) -> None:
        self._clients_max = clients_max
        self._now_s = now_s
        self._kept = retained
        self._queue_bytes_max = queue_bytes_max
        self._known: dict[str, Client] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._known.values()))

    def find(self, client_id: str) -> Client | None:
        return self._known.get(client_id)

    def touch(self, client_id: str, owner: str) -> Client:
        """Return the calling client, and create it if needed. Raises StatusError at the limit of
        clients and if the client belongs to a different account."""
        client = self._known.get(client_id)
        now_s = self._now_s()
        if client is None:
            if len(self._known) >= self._clients_max:
                text = f"{self._clients_max} clients are known already"
                raise StatusError(Code.TOO_MANY_REQUESTS, text)
            retained = Share(self._kept, CLIENT_BYTES_MAX)
            if not retained.take(CLIENT_BYTES):
                raise StatusError(
                    Code.TOO_MANY_REQUESTS, "clients say too much of themselves already"
                )
            client = self._known[client_id] = Client(client_id, owner, now_s, retained)
        if client.owner != owner:
            raise StatusError(Code.FORBIDDEN, f"{client_id} is the client of another account")
        client.active_s = now_s
        return client

    def add_topic(self, client_id: str, owner: str, topic: str) -> None:
        """Record that a client uses a topic, if the client is connected and below its limits."""
        try:
            self.touch(client_id, owner).add_topic(topic)
        except StatusError:
            pass  # the call itself does not need the record

    def forget(self, client_id: str) -> None:
        client = self._known.pop(client_id, None)
        if client is not None:
            client.kept.end()

    def new_queue(self) -> CommandQueue:
        return CommandQueue(Share(self._kept, self._queue_bytes_max))

    def expire(self, is_owner: Callable[[str], bool]) -> None:
        """Drop clients that are silent and have no stream, and clients of deleted accounts. A
        dropped client can reconnect with a valid account."""
        oldest_s = self._now_s() - SILENCE_S
        for client in self:
            is_silent = client.queue is None and client.active_s < oldest_s
            if is_silent or not is_owner(client.owner):
                self.forget(client.client_id)
                if client.queue is not None:
                    client.queue.finish()

    @property
    def kept_bytes(self) -> int:
        return self._kept.used_bytes

    @property
    def stream_count(self) -> int:
        return sum(client.queue is not None for client in self._known.values())

    def producer_of(self, topic: str, may: Callable[[Client], bool]) -> Client | None:
        """Return a producer of the topic with an open stream and the right to send, in rotation."""
        result = [
            client
            for client in self._known.values()
            if client.is_producer
            and client.queue is not None
            and topic in client.topics
            and may(client)
        ]
        if not result:
            return None
        self._turn += 1
        return result[self._turn % len(result)]


def _size(text: str) -> int:
    """Return the bytes counted for a topic or an expression."""
    return getsizeof(text) + ENTRY_BYTES
