"""The function calls that a send costs a producer (tests/callcount.py).

Limits are what was measured, and a tenth. Raise one only with a reason in the commit message; lower
it when far fewer are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from raftmq.client import Message, Producer
from raftmq.client.message import MessageQueue, SendResult
from raftmq.client.producer.channel import Channel
from raftmq.client.producer.producer import Publication
from raftmq.client.route import TopicRouteData
from raftmq.remoting.codec import FrameReader, RawFrame, decode_command
from raftmq.remoting.connection import Connection
from tests.callcount import calls_of

COUNT = 128
SENDING = 38.0  # 34 on 21 November 2026, of which the user's Message is one
RECEIVING = 15.6  # 14, the user's callback and what it does included


class Wire:
    """A connection that keeps what is written."""

    is_open = True

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    def on_close(self, callback: object) -> None: ...

    def hand_to(self, handler: Callable[[Connection, list[RawFrame]], None]) -> None:
        self.handler = handler

    def answers(self) -> list[RawFrame]:
        """To all that was written since the last time."""
        frames = FrameReader().split(b"".join(self.written))
        self.written.clear()
        return [(0, ANSWER % decode_command(frame).opaque, b"") for frame in frames]


ANSWER = (
    b'{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":'
    b'"7F00000100002A9F0000000000000400","queueId":"1","queueOffset":"12","transactionId":"K"},'
    b'"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":479}'
)


async def test_producers_function_calls_per_send() -> None:
    results: list[SendResult] = []
    async with Producer("p", "127.0.0.1:1") as producer:
        engine, wire = producer._running(), Wire()
        channel = Channel(
            "a:1",
            cast("Connection", wire),
            engine._answered,
            engine._lost,
            engine._stored_plainly,
        )
        engine.sender("b").channel = channel
        queues = [MessageQueue("T", "b", number) for number in range(4)]
        route = cast("TopicRouteData", object())
        producer._publications["T"] = Publication(queues, route)
        producer._instance.directory._routes["T"] = cast("Any", route)

        def answered(result: SendResult | None, _error: object) -> None:
            assert result is not None
            results.append(result)

        def send() -> None:
            for _ in range(COUNT):
                producer.send_nowait(Message("T", b"x" * 128), answered)

        def receive(frames: list[RawFrame]) -> None:
            wire.handler(cast("Connection", wire), frames)

        send()
        receive(wire.answers())
        sending = calls_of(send) / COUNT
        frames = wire.answers()
        receiving = calls_of(lambda: receive(frames)) / COUNT
        assert len(results) == 2 * COUNT and not engine.in_flight
        assert SENDING * 0.75 < sending <= SENDING, sending
        assert RECEIVING * 0.75 < receiving <= RECEIVING, receiving
