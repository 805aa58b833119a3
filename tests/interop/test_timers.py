"""The official Java client's messages for any time, over the death of the leader that took them;
and one that it recalls."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.client.scenarios.providers import RaftCluster, topic_of
from tests.interop.jvm import PATIENCE_MS, Jvm, patient_consumer, patient_producer, sent

WAIT_S = PATIENCE_MS / 1000  # a bound against hanging, not an expectation
pytestmark = pytest.mark.timeout(600)


class Listener:
    """A MessageListenerConcurrently that keeps what there is of each body: (stored, born) in ms."""

    def __init__(self, jvm: Jvm) -> None:
        status = jvm.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._success = status.CONSUME_SUCCESS
        self.seen: dict[str, list[tuple[int, int]]] = {}
        self._changed = threading.Condition()

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        del context
        with self._changed:
            for message in messages:
                times = int(message.getStoreTimestamp()), int(message.getBornTimestamp())
                self.seen.setdefault(bytes(message.getBody()).decode(), []).append(times)
            self._changed.notify_all()
        return self._success

    def wait_for(self, bodies: set[str]) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bodies <= set(self.seen), WAIT_S)

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


class Client:
    """A producer and a consumer; every method blocks."""

    def __init__(self, jvm: Jvm, namesrv: str, topic: str) -> None:
        self.jvm, self.topic = jvm, topic
        producer = jvm.rocketmq.client.producer.DefaultMQProducer("pg-timers")
        self.producer = patient_producer(producer, namesrv)
        self.producer.setInstanceName(f"timers-{id(self)}")
        self.producer.start()
        consumer = jvm.rocketmq.client.consumer.DefaultMQPushConsumer("cg-timers")
        self.consumer = patient_consumer(consumer, namesrv)
        self.consumer.setInstanceName(f"timers-{id(self)}")
        self.consumer.setPollNameServerInterval(1000)
        where = jvm.rocketmq.common.consumer.ConsumeFromWhere
        self.consumer.setConsumeFromWhere(where.CONSUME_FROM_FIRST_OFFSET)
        self.consumer.subscribe(topic, "*")
        self.listener = Listener(jvm)
        self.consumer.registerMessageListener(self.listener)
        self.consumer.start()
        self.times: dict[str, int] = {}  # when each is wanted, ms
        self.delays: dict[str, int] = {}  # or how much later, ms

    def send(self, body: str, setter: str, value: int) -> Any:
        message = self.jvm.message(self.topic, "TagA", body, body.encode())
        getattr(message, setter)(value)
        result = sent(self.producer, message)
        assert result.getSendStatus().toString() == "SEND_OK"
        return result

    def send_all(self) -> None:
        for body, setter, value, delay_ms in (
            ("seconds", "setDelayTimeSec", 3, 3_000),
            ("milliseconds", "setDelayTimeMs", 2_345, 2_345),
        ):
            self.delays[body] = delay_ms
            self.send(body, setter, value)
        self.at("at", 2_777)
        self.at("over", -60_000)

    def at(self, body: str, ahead_ms: int) -> Any:
        self.times[body] = round(time.time() * 1000) + ahead_ms
        return self.send(body, "setDeliverTimeMs", self.times[body])

    def recalled(self) -> str:
        """Return what was recalled before its time. A busy machine may be too late for the
        first: those come, or do not."""
        for ahead_ms in (4_000, 15_000, 60_000):
            body = f"recalled-{ahead_ms}"
            result = self.at(body, ahead_ms)
            due_ms = self.times.pop(body)
            try:
                given = self.producer.recallMessage(self.topic, result.getRecallHandle())
            except Py4JJavaError:
                if round(time.time() * 1000) < due_ms - 1_000:
                    raise
                continue
            assert given == result.getMsgId()
            self.at("behind it", due_ms + 300 - round(time.time() * 1000))
            return body
        raise AssertionError("none was recalled in time")

    def check(self, gone: str) -> None:
        expected = {*self.times, *self.delays}
        assert self.listener.wait_for(expected), expected - set(self.listener.seen)
        seen = self.listener.seen
        assert gone not in seen
        for body, at_ms in self.times.items():
            assert all(stored >= at_ms for stored, _ in seen[body]), (body, at_ms, seen[body])
        for body, delay_ms in self.delays.items():
            assert all(stored - born >= delay_ms for stored, born in seen[body]), (body, seen[body])
        assert all(len(set(times)) == 1 for times in seen.values()), seen  # stored once

    def stop(self) -> None:
        self.consumer.shutdown()
        self.producer.shutdown()


@pytest.mark.long
async def test_java_timer_messages_survive_the_leader(jvm: Jvm, tmp_path: Path) -> None:
    async with RaftCluster(tmp_path) as cluster:
        topic = await topic_of(cluster)
        client = await asyncio.to_thread(Client, jvm, cluster.namesrv, topic)
        try:
            await asyncio.to_thread(client.send_all)
            gone = await asyncio.to_thread(client.recalled)
            await cluster.fail_over()
            await asyncio.to_thread(client.check, gone)
        finally:
            await asyncio.to_thread(client.stop)
