"""RocketMQ 5's own Java client, unmodified, at a proxy, through kills of a leader and of a proxy.

Its calls block, so they are made on threads: the brokers and the proxy are on this loop."""

import asyncio
import signal

import pytest
from py4j.protocol import Py4JJavaError

from tests.interop.java5 import Java5
from tests.proxy.world import ProxyProcess, World
from tests.waiting import until

pytestmark = pytest.mark.long


class Listener:
    """Keeps the bodies that it is given, and how often each was delivered."""

    class Java:
        implements = ["org.apache.rocketmq.client.apis.consumer.MessageListener"]  # noqa: RUF012

    def __init__(self, java):
        self._java = java
        self.found = []

    def consume(self, view):
        body = self._java.text(view)
        first = body not in self.found
        self.found.append(body)
        result = self._java.apis.consumer.ConsumeResult
        return result.FAILURE if body.startswith("fail") and first else result.SUCCESS


class Checker:
    """Commits whatever it is asked about."""

    class Java:
        implements = ["org.apache.rocketmq.client.apis.producer.TransactionChecker"]  # noqa: RUF012

    def __init__(self, java):
        self._java = java
        self.asked = []

    def check(self, view):
        self.asked.append(self._java.text(view))
        return self._java.apis.producer.TransactionResolution.COMMIT


class Load:
    """Messages that are sent one after the other, and a simple consumer that acknowledges each."""

    def __init__(self, java):
        self._java = java
        self.sent = []
        self.failed = []
        self.taken = set()  # bodies
        self.again = []  # ids that came after they were acknowledged
        self._acknowledged = set()
        self._ends = False

    async def send(self, producer, topic):
        while not self._ends:
            body = f"m{len(self.sent) + len(self.failed)}"
            try:
                await asyncio.to_thread(producer.send, self._java.message(topic, body))
                self.sent.append(body)
            except Py4JJavaError as error:
                self.failed.append((body, error))

    async def take(self, consumer):
        while True:
            try:
                views = await asyncio.to_thread(consumer.receive, 16, self._java.seconds(15))
                for view in views:
                    await self._acknowledge(consumer, view)
            except Py4JJavaError:
                continue  # what it got or did not acknowledge comes again

    async def _acknowledge(self, consumer, view):
        message_id = view.getMessageId().toString()
        if message_id in self._acknowledged:
            self.again.append(message_id)
        self.taken.add(self._java.text(view))
        await asyncio.to_thread(consumer.ack, view)
        self._acknowledged.add(message_id)

    async def more(self, count):
        """Wait until so many more are sent."""
        expected = len(self.sent) + count
        await until(lambda: len(self.sent) >= expected, patience_s=60)

    def end(self):
        self._ends = True


@pytest.fixture
async def world(tmp_path):
    settings = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
    async with World(tmp_path / "brokers", 3, **settings) as world:
        yield world


@pytest.fixture
async def java(world, tmp_path):
    java = await asyncio.to_thread(Java5, tmp_path, world.proxies[0].port)
    yield java
    await asyncio.to_thread(java.close)


async def test_java5_client_sends_and_consumes_through_a_leader_kill(world, java):
    await world.topic("T")
    listener = Listener(java)
    producer = await asyncio.to_thread(java.producer, "T")
    await asyncio.to_thread(java.push, "cg", "T", listener)
    sent = []
    for number in range(60):
        if number == 30:
            await world.group.kill(await world.group.leader())
        body = f"m{number}"
        await asyncio.to_thread(producer.send, java.message("T", body))
        sent.append(body)
    await asyncio.to_thread(producer.send, java.message("T", "fail once"))
    await until(lambda: set(sent) <= set(listener.found), patience_s=60)
    await until(lambda: listener.found.count("fail once") == 2, patience_s=60)


async def test_java5_simple_consumer_receives_hides_and_acknowledges(world, java):
    await world.topic("T")
    producer = await asyncio.to_thread(java.producer, "T")
    consumer = await asyncio.to_thread(java.simple, "cg", "T")
    await asyncio.to_thread(producer.send, java.message("T", "one"))
    (view,) = await asyncio.to_thread(consumer.receive, 16, java.seconds(30))
    assert java.text(view) == "one" and view.getTag().get() == "a"
    await asyncio.to_thread(consumer.ack, view)
    broker = await world.group.leading()
    assert broker.state.pops.in_flight("T", "cg") == 0
    await asyncio.to_thread(producer.send, java.message("T", "two"))
    (view,) = await asyncio.to_thread(consumer.receive, 16, java.seconds(30))
    await asyncio.to_thread(consumer.changeInvisibleDuration, view, java.seconds(10))
    # It keeps the old handle, which is void: the message comes again.
    with pytest.raises(Py4JJavaError, match="40013"):
        await asyncio.to_thread(consumer.ack, view)


async def test_java5_client_gets_fifo_and_delayed_messages(world, java):
    await world.topic("F", kind="FIFO")
    await world.topic("D", kind="DELAY")
    await world.consumer_group("orderly", consumeMessageOrderly=True)
    in_order, later = Listener(java), Listener(java)
    producer = await asyncio.to_thread(java.producer, "F")
    await asyncio.to_thread(java.push, "orderly", "F", in_order)
    await asyncio.to_thread(java.push, "cg", "D", later)
    for number in range(10):
        await asyncio.to_thread(producer.send, java.message("F", f"{number}", group="g"))
    await asyncio.to_thread(producer.send, java.message("D", "later", delay_ms=2000))
    await until(lambda: len(in_order.found) >= 10, patience_s=60)
    assert in_order.found == [f"{number}" for number in range(10)]
    await until(lambda: later.found == ["later"], patience_s=60)


async def test_java5_transactions_are_ended_or_checked(world, java):
    await world.topic("X", kind="TRANSACTION")
    checker, listener = Checker(java), Listener(java)
    producer = await asyncio.to_thread(java.producer, "X", checker)
    await asyncio.to_thread(java.push, "cg", "X", listener)

    def transact(body, end):
        transaction = producer.beginTransaction()
        producer.send(java.message("X", body), transaction)
        if end:
            getattr(transaction, end)()

    await asyncio.to_thread(transact, "committed", "commit")
    await asyncio.to_thread(transact, "dropped", "rollback")
    await asyncio.to_thread(transact, "orphan", "")
    await until(lambda: {"committed", "orphan"} <= set(listener.found), patience_s=60)
    assert "dropped" not in listener.found and "orphan" in checker.asked


async def test_java5_load_survives_the_kill_of_one_of_two_proxies(tmp_path):
    once = "idempotentSends=true"  # the client sends again what got no answer
    async with (
        World(tmp_path / "brokers") as world,
        ProxyProcess(world.namesrv, 0, once) as first,
        ProxyProcess(world.namesrv, 0, once) as second,
    ):
        await world.topic("T")
        java = await asyncio.to_thread(Java5, tmp_path, first.port, second.port)
        try:
            await load_through_a_kill(java, first)
        finally:
            await asyncio.to_thread(java.close)


async def load_through_a_kill(java, proxy):
    """What is acknowledged to the producer is heard by a push consumer and a simple one; what the
    simple one acknowledged does not come again."""
    listener, load = Listener(java), Load(java)
    producer = await asyncio.to_thread(java.producer, "T")
    consumer = await asyncio.to_thread(java.simple, "simple", "T")
    push = await asyncio.to_thread(java.push, "push", "T", listener)
    async with asyncio.TaskGroup() as tasks:
        sends = tasks.create_task(load.send(producer, "T"))
        takes = tasks.create_task(load.take(consumer))
        await load.more(50)
        await proxy.end(signal.SIGKILL)
        await load.more(50)
        load.end()
        await sends
        expected = set(load.sent)
        await until(lambda: expected <= load.taken, patience_s=60)
        takes.cancel()
    assert load.again == []
    if not expected <= set(listener.found):
        # This client does not repeat a receive that breaks off, so what the dead proxy was about
        # to tell it stays its own until it ends.
        java.clients.remove(push)
        await asyncio.to_thread(push.close)
        await asyncio.to_thread(java.push, "push", "T", listener)
    await until(lambda: expected <= set(listener.found), patience_s=150)
