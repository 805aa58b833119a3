"""What clients read is what was sent: body, flag, keys, tag, properties and time of birth.

Every message that a client is handed, from whatever topic, is looked up by its UNIQ_KEY among those
that the world's producers were given. What clients and brokers add to properties does not count
(store.properties.ADDED_PROPERTIES), nor the time of birth of what was given back: a client may send
that itself, anew. That nothing is missing is judged elsewhere (chaos.checks).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from raftmq.chaos.workloads.transactions import OP_TOPIC
from raftmq.client import Message, MessageExt, Producer
from raftmq.client.decode import decode_messages
from raftmq.client.producer import producer
from raftmq.client.producer.send_frame import outgoing_batch
from raftmq.store.properties import ADDED_PROPERTIES

READERS = (
    "admin.messages",
    "consumer.queue_puller",
    "consumer.pull_consumer",
    "consumer.simple_consumer",
    "producer.transaction",
)  # modules of the client


class Content(NamedTuple):
    """The parts of a message that an application gives it, and when."""

    body: bytes
    flag: int
    properties: dict[str, str]
    born_ms: int


class Contents:
    """See the module's docstring. `broken(reason)` is told what was read and not sent so."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self.compared = 0
        self._broken = broken
        self._sent: dict[str, Content] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while clients send and read."""
        outgoing = Producer._outgoing
        contents = self

        def on_outgoing(one: Producer, message: Message, *more: Any, **named: Any) -> Any:
            item = outgoing(one, message, *more, **named)
            contents._sent.setdefault(item.unique_key, given(message))
            return item

        def on_batch(messages: Sequence[Message], keys: Sequence[str], *more: Any) -> Any:
            for message, key in zip(messages, keys, strict=True):
                contents._sent.setdefault(key, given(message))
            return outgoing_batch(messages, keys, *more)

        with ExitStack() as stack:
            stack.enter_context(patch.object(Producer, "_outgoing", on_outgoing))
            stack.enter_context(patch.object(producer, "outgoing_batch", on_batch))
            for module in READERS:
                name = f"raftmq.client.{module}.decode_messages"
                stack.enter_context(patch(name, self._reading(decode_messages)))
            yield

    def _reading(self, decode: Callable[..., list[MessageExt]]) -> Callable[..., list[MessageExt]]:
        def reads(*arguments: Any) -> list[MessageExt]:
            messages = decode(*arguments)
            for message in messages:
                self._read(message)
            return messages

        return reads

    def _read(self, message: MessageExt) -> None:
        if message.topic == OP_TOPIC:
            return  # the broker's own
        where = f"{message.topic}-{message.queue_id}@{message.queue_offset}"
        sent = self._sent.get(message.msg_id)
        if sent is None:
            self._broken(f"nobody sent {message.msg_id}, read at {where}")
            return
        self.compared += 1
        properties = of_application(message.properties)
        again = "RETRY_TOPIC" in message.properties
        born_ms = sent.born_ms if again else message.born_timestamp_ms
        result = Content(message.body, message.flag, properties, born_ms)
        for part, is_now, was in zip(Content._fields, result, sent, strict=True):
            if is_now != was:
                self._broken(f"contents differ: {where} has {part} {is_now!r}, sent was {was!r}")


def given(message: Message) -> Content:
    """Return what a message has when it is given to a producer."""
    born_ms = message.born_timestamp_ms
    if born_ms is None:  # the clock of this moment, as the producer reads it
        born_ms = int(time.time() * 1000)
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys or ())
    named = {"KEYS": keys, "TAGS": message.tags or ""}
    properties = {name: text for name, text in named.items() if text} | message.properties
    return Content(bytes(message.body), message.flag, of_application(properties), born_ms)


def of_application(properties: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name not in ADDED_PROPERTIES}
