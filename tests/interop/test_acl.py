"""Foreign clients, unmodified, against our broker with access control: Java's of 4.9 and 5.3 with
AclClientRPCHook, Go's with Credentials; and Java's admin client of 4.9 with 50 to 54.

Who may do what he does is refused nothing at all, not even a heartbeat: the broker counts.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from py4j.protocol import Py4JJavaError

from raftmq.broker.broker import Broker
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.acl import Account
from raftmq.remoting.acl.account_file import parse_accounts
from tests.broker.test_access import PLAIN_ACL, guarded
from tests.interop.driver import ClientError, Driver
from tests.interop.jvm import PATIENCE_MS, Jvm, fetch, patient_consumer, patient_producer, sent
from tests.interop.runs import PACE_S, patiently
from tests.interop.test_java_client import Listener
from tests.waiting import until

T = TypeVar("T")
HERE = Path(__file__).parent
SECRET = "sesame-open-5"
APPLICATION = """
  - accessKey: application
    secretKey: sesame-open-5
    topicPerms: [Orders=PUB|SUB, Written=PUB]
    groupPerms: [billing=SUB, billing-go=SUB]
"""
MESSAGES = 12
QUEUES = 4  # as many as Java's clients guess while they do not know
PATIENCE_S = 180.0
pytestmark = pytest.mark.timeout(600)


class Secured:
    """One replica and a name server, both with access control, on a loop in a thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._ending = asyncio.Event()
        ready: threading.Event = threading.Event()
        self._life = asyncio.run_coroutine_threadsafe(self._live(ready), self._loop)
        assert ready.wait(PATIENCE_S), self._life.exception()

    async def _live(self, ready: threading.Event) -> None:
        path = self._directory / "plain_acl.yml"
        path.write_text(PLAIN_ACL)
        settings = NameServerConfig("127.0.0.1", 0, http_enable=False, acl_enable=True,
                                    acl_file=str(path))  # fmt: skip
        async with NameServer(settings) as names:
            self.namesrv = names.address
            async with guarded(self._directory, namesrvAddr=names.address) as group:
                self.broker: Broker = await group.leading()
                self.address = self.broker.address
                await self.broker.access.book.change(
                    lambda accounts: accounts.with_account(_application(), 1)
                )
                topics = ("Orders", "Written", "Foreign")
                for topic in topics:
                    assert (await group.create_topic(self.broker, topic, QUEUES)).code == 0
                await until(lambda: all(names.table.queues(topic) for topic in topics))
                ready.set()
                await self._ending.wait()

    def refused(self) -> int:
        return self.broker.access.refused_count + self.broker.access.dropped_count

    def wait(self, condition: Callable[[], bool]) -> None:
        self.run(until(condition))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def committed(self, group: str) -> int:
        """Of all queues of Orders."""
        offsets = self.broker.state.offsets
        return sum(offsets.get("Orders", group, queue) or 0 for queue in range(QUEUES))

    def end(self) -> int:
        """Of all queues of Orders."""
        return sum(self.broker.store.queues.end_of("Orders", queue) for queue in range(QUEUES))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._life.result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _application() -> Account:
    return parse_accounts("accounts:" + APPLICATION).by_key["application"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    target = Secured(tmp_path_factory.mktemp("acl"))
    yield target
    target.close()


@pytest.fixture(scope="module", params=["4.9.8", "5.3.3"])
def java(request: pytest.FixtureRequest) -> Iterator[Jvm]:
    jars = None  # 5.3.3's
    if request.param == "4.9.8":
        jars = fetch(HERE / "ivy-tools49.xml", "rocketmq-tools-4.9.8")
    jvm = Jvm(jars=jars)
    yield jvm
    jvm.close()


def hook(jvm: Jvm, access_key: str = "application", secret: str = SECRET) -> Any:
    common = jvm.rocketmq.acl.common
    return common.AclClientRPCHook(common.SessionCredentials(access_key, secret))


@contextmanager
def producer(jvm: Jvm, secured: Secured, secret: str = SECRET, retries: int = 0) -> Iterator[Any]:
    plain = jvm.rocketmq.client.producer.DefaultMQProducer("shop", hook(jvm, secret=secret))
    made = patient_producer(plain, secured.namesrv)
    made.setInstanceName(f"shop-{id(made)}")
    made.setRetryTimesWhenSendFailed(retries)
    made.start()
    try:
        yield made
    finally:
        made.shutdown()


class OrderlyListener(Listener):
    """A Java MessageListenerOrderly: it locks its queues at the broker."""

    def __init__(self, jvm: Jvm) -> None:
        super().__init__(jvm)
        self._success = jvm.rocketmq.client.consumer.listener.ConsumeOrderlyStatus.SUCCESS

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly",)


@contextmanager
def consumer(jvm: Jvm, secured: Secured, group: str, topic: str, listener: Any) -> Iterator[Any]:
    strategy = jvm.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely()
    plain = jvm.rocketmq.client.consumer.DefaultMQPushConsumer(group, hook(jvm), strategy)
    made = patient_consumer(plain, secured.namesrv)
    made.setInstanceName(f"{group}-{id(made)}")
    first = jvm.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    made.setConsumeFromWhere(first)
    made.subscribe(topic, "*")
    made.registerMessageListener(listener)
    made.start()
    try:
        yield made
    finally:
        made.shutdown()


def test_java_client_sends_and_consumes_what_its_account_permits(
    java: Jvm, secured: Secured
) -> None:
    before = secured.refused()
    with producer(java, secured, retries=10) as sending:
        for number in range(MESSAGES):
            message = java.message("Orders", "T", f"k{number}", b"body %d" % number)
            assert sent(sending, message).getSendStatus().toString() == "SEND_OK"
        batch = java.gateway.jvm.java.util.ArrayList()
        for number in range(MESSAGES):
            batch.add(java.message("Orders", "T", f"b{number}", b"x"))
        assert sent(sending, batch).getSendStatus().toString() == "SEND_OK"
        sending.sendOneway(java.message("Orders", "T", "alone", b"one way"))
        keys = {f"{kind}{number}" for kind in "kb" for number in range(MESSAGES)} | {"alone"}
        listener = OrderlyListener(java)
        with consumer(java, secured, "billing", "Orders", listener):
            listener.wait_for(lambda: {row[2] for row in listener.received} >= keys)
    secured.wait(lambda: secured.committed("billing") == secured.end())
    assert secured.refused() == before


def test_java_client_gets_errors_for_what_its_account_does_not_permit(
    java: Jvm, secured: Secured
) -> None:
    queue_end = secured.broker.store.queues.end_of
    for topic, secret, why in (
        ("Orders", "sesame-closed", "Check signature failed for accessKey=application"),
        ("Foreign", SECRET, "No default permission for topic:Foreign"),
    ):
        stored = [queue_end(topic, queue) for queue in range(QUEUES)]
        with producer(java, secured, secret) as sending:
            with pytest.raises(Py4JJavaError) as raised:
                sent(sending, java.message(topic, "T", "k", b"x"))
            text = raised.value.java_exception.getCause().toString()
            assert "CODE: 1" in text and f"AclException: {why}" in text
        assert [queue_end(topic, queue) for queue in range(QUEUES)] == stored
    before = secured.refused()
    listener = Listener(java)
    with consumer(java, secured, "strangers", "Orders", listener):
        secured.wait(lambda: secured.refused() >= before + 2)
    assert listener.received == []
    assert "strangers" not in secured.broker.clients.consumers


def test_java_admin_client_changes_accounts(secured: Secured) -> None:
    jvm = Jvm(jars=fetch(HERE / "ivy-tools49.xml", "rocketmq-tools-4.9.8"))
    try:
        admin = jvm.rocketmq.tools.admin.DefaultMQAdminExt(
            hook(jvm, "administrator", "sesame-open-1"), PATIENCE_MS
        )
        admin.setNamesrvAddr(secured.namesrv)
        admin.setInstanceName("admin")
        admin.start()
        account = jvm.rocketmq.common.PlainAccessConfig()
        account.setAccessKey("from-java")
        account.setSecretKey("sesame-open-6")
        account.setDefaultGroupPerm("SUB")
        account.setTopicPerms(["Orders=SUB", "Written=PUB|SUB"])
        admin.createAndUpdatePlainAccessConfig(secured.address, account)
        made = secured.broker.access.book.current().by_key["from-java"]
        assert made.topic_perms == ("Orders=SUB", "Written=PUB|SUB") and not made.admin
        admin.updateGlobalWhiteAddrConfig(secured.address, "10.1.1.*,10.2.2.2")
        version = admin.examineBrokerClusterAclVersionInfo(secured.address)
        assert version.getBrokerName() == "group-a"
        white = secured.broker.access.book.current().white_addresses
        assert white == ("10.1.1.*", "10.2.2.2")
        admin.deletePlainAccessConfig(secured.address, "from-java")
        assert "from-java" not in secured.broker.access.book.current().by_key
        account.setAccessKey("short")
        with pytest.raises(Py4JJavaError) as raised:
            admin.createAndUpdatePlainAccessConfig(secured.address, account)
        text = raised.value.java_exception.toString()
        assert "AclException" in text and "sesame" not in text
        admin.shutdown()
    finally:
        jvm.close()


def test_go_client_is_limited_to_what_its_account_permits(tmp_path: Path, secured: Secured) -> None:
    before, end = secured.refused(), secured.committed("billing-go")
    keys: dict[str, Any] = {"access_key": "application", "namesrv": secured.namesrv}
    keys |= {"group": "shop", "retries": 0}
    first: dict[str, Any] = {"from": "FIRST_OFFSET"}
    driver = Driver("go", tmp_path)
    try:
        patiently(lambda: driver.call("producer", name="right", secret_key=SECRET, **keys))
        messages = [{"body": f"go {number}"} for number in range(MESSAGES)]
        for message in messages:
            assert send_by_go(driver, "right", "Orders", message, "True") == "True"
        patiently(lambda: driver.call(
            "consumer", name="c", topic="Orders", kind="push", expression="*",
            **first, secret_key=SECRET, **{**keys, "group": "billing-go"},
        ))  # fmt: skip
        bodies = {message["body"] for message in messages}
        assert driver.wait(lambda: {e["body"] for e in driver.events("c")} >= bodies, PATIENCE_S)
        driver.call("stop", name="c")
        secured.wait(lambda: secured.committed("billing-go") > end)
        assert secured.refused() == before
        stored = [secured.broker.store.queues.end_of("Foreign", queue) for queue in range(QUEUES)]
        for topic, secret in (("Foreign", SECRET), ("Orders", "sesame-closed")):
            name = f"to-{topic}"
            given = {**keys, "name": name, "group": name, "secret_key": secret}
            patiently(partial(driver.call, "producer", **given))
            refused = send_by_go(driver, name, topic, {"body": "x"}, "AclException")
            assert "AclException" in refused, refused
        assert secured.refused() >= before + 2
        ends = [secured.broker.store.queues.end_of("Foreign", queue) for queue in range(QUEUES)]
        assert ends == stored
    finally:
        driver.close()


def send_by_go(driver: Driver, name: str, topic: str, message: dict[str, str], wanted: str) -> str:
    """Return what became of a send: "True", or what was wrong; again until that has `wanted` in
    it, since Go gives a busy broker 3 s and no more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            (one,) = driver.call("send", producer=name, topic=topic, how="sync", messages=[message])
            said = str(one["ok"] or one["error"])
        except ClientError as error:
            said = str(error)
        if wanted in said or time.monotonic() > deadline:
            return said
        time.sleep(PACE_S)
