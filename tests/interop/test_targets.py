"""What a busy machine does not answer in time is asked again, and nothing else is."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from raftmq.client import Admin, BrokerUnreachable, MessageQueue
from tests.interop.targets import _committed

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]
ANSWERED = 3  # one of so many requests is


class Busy:
    """An Admin that answers few requests; `answers` counts those that it answered."""

    def __init__(self) -> None:
        self.answers: Counter[object] = Counter()
        self._asked = 0
        self.cluster = SimpleNamespace(route=self._route)
        self.topic = SimpleNamespace(offsets=self._offsets)
        self.offset = SimpleNamespace(committed=self._of_queue)

    async def _route(self, topic: str) -> SimpleNamespace:
        self._answer("route")
        return SimpleNamespace(brokers=[SimpleNamespace(broker_name="broker-a")])

    async def _offsets(self, topic: str) -> dict[MessageQueue, Any]:
        self._answer("offsets")
        return dict.fromkeys(QUEUES)

    async def _of_queue(self, group: str, queue: MessageQueue) -> int | None:
        self._answer(queue)
        return queue.queue_id or None

    def _answer(self, what: object) -> None:
        self._asked += 1
        if self._asked % ANSWERED:
            raise BrokerUnreachable("127.0.0.1:1: no answer", True)
        self.answers[what] += 1


def test_answered_admin_request_is_not_repeated() -> None:
    busy = Busy()
    result = asyncio.run(_committed(cast(Admin, busy), "G", "T"))
    assert result == {queue: queue.queue_id for queue in QUEUES[1:]}
    assert busy.answers == Counter(["route", "offsets", *QUEUES])
