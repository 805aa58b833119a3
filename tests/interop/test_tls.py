"""The official Java clients, unmodified, with TLS: against a broker and a name server that take
nothing else, and that ask for a certificate."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.broker.tlsworld import World, secure_group
from tests.interop.jvm import (
    PATIENCE_MS,
    Jvm,
    fetch,
    fetch_jars,
    patient_consumer,
    patient_producer,
    sent,
)
from tests.waiting import until

WAIT_S = PATIENCE_MS / 1000  # a bound against hanging, not an expectation
pytestmark = pytest.mark.timeout(600)
MESSAGES = 20
CLIENTS = {
    "5.3.3": fetch_jars,
    "4.9.8": lambda: fetch(Path(__file__).with_name("ivy-tools49.xml"), "rocketmq-tools-4.9.8"),
}


class Listener:
    """A MessageListenerConcurrently that keeps bodies."""

    def __init__(self, jvm: Jvm) -> None:
        status = jvm.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._success = status.CONSUME_SUCCESS
        self.bodies: set[bytes] = set()
        self._changed = threading.Condition()

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        del context
        with self._changed:
            self.bodies.update(bytes(message.getBody()) for message in messages)
            self._changed.notify_all()
        return self._success

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.bodies) >= count, WAIT_S)

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


def send_and_consume(jars: Callable[[], list[str]], world: World, namesrv: str) -> None:
    """Blocking."""
    cert, key = world.ca.issue("java")
    properties = {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",  # else it believes everybody
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": world.ca.path,
        "tls.client.certPath": cert,
        "tls.client.keyPath": key,
    }
    jvm = Jvm(properties, jars())
    try:
        made = jvm.rocketmq.client.producer.DefaultMQProducer("pg-tls")
        producer = patient_producer(made, namesrv)
        producer.start()
        bodies = {b"body-%d" % number for number in range(MESSAGES)}
        for body in sorted(bodies):
            result = sent(producer, jvm.message("JavaTls", "TagA", "k", body))
            assert result.getSendStatus().toString() == "SEND_OK"
        made = jvm.rocketmq.client.consumer.DefaultMQPushConsumer("cg-tls")
        consumer = patient_consumer(made, namesrv)
        where = jvm.rocketmq.common.consumer.ConsumeFromWhere
        consumer.setConsumeFromWhere(where.CONSUME_FROM_FIRST_OFFSET)
        consumer.subscribe("JavaTls", "*")
        listener = Listener(jvm)
        consumer.registerMessageListener(listener)
        consumer.start()
        assert listener.wait_for(MESSAGES), len(listener.bodies)
        assert listener.bodies == bodies
        consumer.shutdown()
        producer.shutdown()
    except Py4JJavaError as error:  # its text comes from the JVM, which ends here
        raise AssertionError(str(error)) from None
    finally:
        jvm.close()


@pytest.mark.parametrize("version", CLIENTS)
async def test_java_client_sends_and_consumes_with_tls(version: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    own = world.ca.issue("node")
    world.more = {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": world.ca.path,
        "tls.client.certPath": own[0],
        "tls.client.keyPath": own[1],
    }
    async with world.name_server() as names:
        address = f"127.0.0.1:{names.port}"
        async with secure_group(world, tmp_path, address, count=1) as group:
            broker = await group.leading()
            assert (await group.create_topic(broker, "JavaTls")).code == 0
            await until(lambda: names.table.broker_count == 1)
            await asyncio.to_thread(send_and_consume, CLIENTS[version], world, address)
            assert names.server is not None
            for server in (names.server, broker.server):
                counts = server.arrivals
                assert counts is not None
                assert counts.plain == counts.plain_refused == 0
                assert counts.tls >= 2
