"""The official Java client, which lets the broker share queues out (`setClientRebalance(false)`):
groups that pull and groups that pop, over the death of the leader."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from raftmq.client import Admin
from tests.client.scenarios.providers import RaftCluster, topic_of
from tests.interop.jvm import PATIENCE_MS, Jvm, patient_consumer, patient_producer, sent
from tests.waiting import retrying

WAIT_S = PATIENCE_MS / 1000  # a bound against hanging, not an expectation
COUNT = 40
pytestmark = pytest.mark.timeout(600)


class Listener:
    """Refuses every fifth message once; keeps what each body came with."""

    def __init__(self, jvm: Jvm) -> None:
        status = jvm.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._success, self._later = status.CONSUME_SUCCESS, status.RECONSUME_LATER
        self.seen: dict[int, list[tuple[int, str]]] = {}  # body → (times, handle)
        self.done: list[int] = []
        self._changed = threading.Condition()

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        del context
        status = self._success
        with self._changed:
            for message in messages:
                number = int(bytes(message.getBody()).decode())
                came = int(message.getReconsumeTimes()), message.getProperty("POP_CK") or ""
                self.seen.setdefault(number, []).append(came)
                if number % 5 == 0 and len(self.seen[number]) == 1:
                    status = self._later
                else:
                    self.done.append(number)
            self._changed.notify_all()
        return status

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(set(self.done)) >= count, WAIT_S)

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


class Client:
    """A producer and a consumer; every method blocks."""

    def __init__(self, jvm: Jvm, namesrv: str, topic: str, group: str) -> None:
        self.jvm, self.topic = jvm, topic
        producer = jvm.rocketmq.client.producer.DefaultMQProducer(f"p-{group}")
        self.producer = patient_producer(producer, namesrv)
        self.producer.setInstanceName(f"pop-{id(self)}")
        self.producer.start()
        consumer = jvm.rocketmq.client.consumer.DefaultMQPushConsumer(group)
        self.consumer = patient_consumer(consumer, namesrv)
        self.consumer.setInstanceName(f"pop-{id(self)}")
        self.consumer.setPollNameServerInterval(1000)
        where = jvm.rocketmq.common.consumer.ConsumeFromWhere
        self.consumer.setConsumeFromWhere(where.CONSUME_FROM_FIRST_OFFSET)
        self.consumer.setClientRebalance(False)
        self.consumer.setPopInvisibleTime(10_000)
        self.consumer.subscribe(topic, "a || b")
        self.listener = Listener(jvm)
        self.consumer.registerMessageListener(self.listener)

    def send(self, numbers: range) -> None:
        for number in numbers:
            tag = "ab"[number % 2]
            self.send_one(tag, str(number))
            self.send_one("c", "-1")

    def send_one(self, tag: str, body: str) -> None:
        """Send until it is stored: the client may still dial who was killed."""
        message = self.jvm.message(self.topic, tag, "", body.encode())
        again = retrying(lambda error: isinstance(error, Py4JJavaError), patience_s=WAIT_S)
        status = again(sent, self.producer, message).getSendStatus().toString()
        assert status == "SEND_OK"

    def stop(self) -> None:
        self.consumer.shutdown()
        self.producer.shutdown()


async def set_mode(namesrv: str, topic: str, group: str, mode: str) -> None:
    async with Admin(namesrv) as admin:
        for address in (await admin.cluster.leaders_of(topic)).values():
            await admin.group.set_mode(address, group, topic, mode)


async def test_java_pop_and_pull_consumers_get_every_message(jvm: Jvm, tmp_path: Path) -> None:
    modes = ("PULL", "POP")
    async with RaftCluster(tmp_path) as cluster:
        clients: list[Client] = []
        try:
            for mode in modes:
                topic, group = await topic_of(cluster), f"cg-{mode.lower()}"
                if mode != "PULL":  # which is what nobody has to set
                    await set_mode(cluster.namesrv, topic, group, mode)
                clients.append(await asyncio.to_thread(Client, jvm, cluster.namesrv, topic, group))
                await asyncio.to_thread(clients[-1].consumer.start)
            await through(clients, range(COUNT // 2))
            await cluster.fail_over()
            await through(clients, range(COUNT // 2, COUNT))
        finally:
            await asyncio.gather(*[asyncio.to_thread(client.stop) for client in clients])
        for mode, client in zip(modes, clients, strict=True):
            seen = client.listener.seen
            assert set(seen) == set(range(COUNT))
            for number, came in seen.items():
                if number % 5 == 0:
                    assert [times for times, _ in came][:2] == [0, 1], (number, came)
                assert all(bool(handle) == (mode == "POP") for _, handle in came)


async def through(clients: list[Client], numbers: range) -> None:
    """Send these messages to each, and wait until they were consumed."""
    for client in clients:
        await asyncio.to_thread(client.send, numbers)
    for client in clients:
        assert await asyncio.to_thread(client.listener.wait_for, numbers.stop)
