"""A consumer that pops, over the wire; it makes handles as Apache's clients do."""

from typing import NamedTuple

from raftmq.remoting.codes import RequestCode
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.pop_headers import (
    POP_CK,
    AckHeader,
    BatchAck,
    ChangeHeader,
    ChangeResponseHeader,
    Handle,
    PopHeader,
    PopResponseHeader,
    by_queue,
    kind_of,
)
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record, walk_records


class Popped(NamedTuple):
    """A message, where it is stored and its handle."""

    body: bytes
    topic: str
    handle: Handle
    times: int
    properties: dict[str, str]


class Popper:
    """Pops for one group."""

    def __init__(self, group, name="cg", topic="T"):
        self.group = group
        self.name = name
        self.topic = topic

    async def answer(
        self, broker, *, count=32, queue=-1, invisible_ms=60_000, poll_ms=0, **options
    ):
        header = PopHeader(self.name, self.topic, queue, count, invisible_ms, poll_ms, **options)
        return await self.group.ask(broker, RequestCode.POP_MESSAGE, header.to_ext())

    async def pop(self, broker, **options):
        """Return what is popped; [] if the answer is that there is nothing."""
        answer = await self.answer(broker, **options)
        assert answer.code in (0, 210), answer
        return [] if answer.code else self.messages(answer)

    def messages(self, answer):
        head = PopResponseHeader.parse(answer.ext)
        starts = by_queue(head.starts)
        counts = {}
        for part in head.order_counts.split(";") if head.order_counts else ():
            _, where, times = part.split(" ")
            counts[where] = int(times)
        result = []
        for at, _ in walk_records(answer.body):
            record = decode_record(answer.body, at)
            properties = decode_properties(record.properties)
            reported = properties.pop(POP_CK, None)
            if reported is None:
                kind = kind_of(record.topic)
                handle = Handle(
                    starts[kind, record.queue_id][0],
                    head.pop_ms,
                    head.invisible_ms,
                    head.revive_queue,
                    kind == "1",
                    "group-a",
                    record.queue_id,
                    record.queue_offset,
                )
            else:
                handle = Handle.decode(reported)
            topic = f"%RETRY%{self.name}_{self.topic}" if handle.retry else self.topic
            reconsumed = record.reconsume_times
            reconsumed = counts.get(f"qo{record.queue_id}%{record.queue_offset}", reconsumed)
            result.append(Popped(record.body, topic, handle, reconsumed, properties))
        return result

    async def ack(self, broker, one):
        """Acknowledge a message; return the answer's code."""
        handle = one.handle
        header = AckHeader(self.name, one.topic, handle.queue_id, handle.encode(), handle.offset)
        return (await self.group.ask(broker, RequestCode.ACK_MESSAGE, header.to_ext())).code

    async def batch_ack(self, broker, messages):
        acks: dict[tuple[str, int, int, int, int, int], int] = {}
        for one in messages:
            h = one.handle
            key = (one.topic, h.queue_id, h.start, h.pop_ms, h.invisible_ms, h.revive_queue)
            acks[key] = acks.get(key, 0) | 1 << (h.offset - h.start)
        body = {
            "brokerName": "group-a",
            "acks": [
                BatchAck(self.name, *key, bits).to_json(self.topic) for key, bits in acks.items()
            ],
        }
        return (await self.group.ask(broker, RequestCode.BATCH_ACK_MESSAGE, {}, dumps(body))).code

    async def change(self, broker, one, invisible_ms):
        """Change a message's time; return its new handle, or the answer's code."""
        handle = one.handle
        header = ChangeHeader(
            self.name, one.topic, handle.queue_id, handle.encode(), handle.offset, invisible_ms
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await self.group.ask(broker, code, header.to_ext())
        if answer.code:
            return answer.code
        reported = ChangeResponseHeader.parse(answer.ext)
        start = handle.start if handle.order else handle.offset
        changed = handle._replace(
            start=start, pop_ms=reported.pop_ms, invisible_ms=reported.invisible_ms
        )
        return one._replace(handle=changed)
