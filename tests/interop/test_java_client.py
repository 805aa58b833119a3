"""The official Java client, unmodified, against a Raft group of three real processes."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import BlockingProducer, Message
from tests.interop.jvm import Jvm, patient_consumer, patient_producer, sent, viewed
from tests.interop.targets import committed, ends
from tests.waiting import wait_until

WAIT_S = 240  # a bound against hanging, not an expectation
POLL_S = 0.05
UP_S = 240
# Java sends at most three times, one at once after the other, and one-way messages are gone while
# nobody leads: a leader must not change because the machine is busy. One that is killed is missed
# by the end of its connections.
SETTINGS = (
    "mappedFileSizeCommitLog=16777216",
    "electionTimeoutMinMs=3000",
    "electionTimeoutMaxMs=5000",
    "diskSpaceWarningLevelRatio=100",  # however full the machine's disk is
)
pytestmark = pytest.mark.timeout(900)


def mqcluster(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "raftmq.chaos.cluster.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=UP_S + WAIT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class Cluster:
    def __init__(self, directory: Path, *settings: str, options: Sequence[str] = ()) -> None:
        self.directory = str(directory)
        arguments = ["up", "--dir", self.directory, "--timeout", str(UP_S), *options]
        for setting in (*SETTINGS, *settings):
            arguments += ["--set", setting]
        mqcluster(*arguments)
        (self.namesrv,) = [p["address"] for p in self.status() if p["kind"] == "namesrv"]

    def down(self) -> None:
        """End it. Fails if a server has ended by itself, with what that one logged."""
        dead = [p["name"] for p in self.status() if not p["alive"]]
        logs = [(Path(self.directory) / name / "log.txt").read_text()[-4000:] for name in dead]
        mqcluster("down", "--dir", self.directory)
        assert not dead, "\n".join((f"ended by itself: {dead}", *logs))

    def status(self) -> list[dict[str, Any]]:
        answer = json.loads(mqcluster("status", "--dir", self.directory, "--json"))
        processes = answer["nodes"]
        assert isinstance(processes, list)
        return processes

    def leader(self, other_than: str = "") -> dict[str, Any]:
        """Once there is one; `other_than`: the node that led."""
        deadline = time.monotonic() + WAIT_S
        while True:
            leaders = [p for p in self.status() if p["role"] == "leader"]
            if len(leaders) == 1 and leaders[0]["name"] != other_than:
                return leaders[0]
            assert time.monotonic() < deadline, f"nobody leads: {self.status()}"
            time.sleep(POLL_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("interop"))
    yield cluster
    cluster.down()


class Listener:
    """A Java MessageListenerConcurrently; keeps what it was given."""

    def __init__(self, jvm: Jvm) -> None:
        status = jvm.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._success = status.CONSUME_SUCCESS
        self.received: list[tuple[str, str, str, bytes]] = []
        self._changed = threading.Condition()

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        del context
        with self._changed:
            for m in messages:
                row = (m.getTopic(), m.getTags(), m.getKeys(), bytes(m.getBody()))
                self.received.append(row)
            self._changed.notify_all()
        return self._success

    def wait_for(self, done: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(done, WAIT_S), f"{len(self.received)} received"

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


class Callback:
    """A Java SendCallback; keeps what it was told."""

    def __init__(self) -> None:
        self._told: list[str] = []
        self._changed = threading.Condition()

    def onSuccess(self, result: Any) -> None:
        self._tell(result.getSendStatus().toString())

    def onException(self, error: Any) -> None:
        self._tell(error.toString())

    def _tell(self, what: str) -> None:
        with self._changed:
            self._told.append(what)
            self._changed.notify_all()

    def told(self) -> list[str]:
        """Once it was told anything: a consumer may have the message before its sender knows."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._told, WAIT_S), "never called"
            return list(self._told)

    class Java:
        implements = ("org.apache.rocketmq.client.producer.SendCallback",)


def push_consumer(
    jvm: Jvm, cluster: Cluster, group: str, topic: str, expression: str
) -> tuple[Any, Listener]:
    made = jvm.rocketmq.client.consumer.DefaultMQPushConsumer(group)
    consumer = patient_consumer(made, cluster.namesrv)
    consumer.setInstanceName(f"{group}-{id(consumer)}")
    consumer.setPollNameServerInterval(1000)
    where = jvm.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    consumer.setConsumeFromWhere(where)
    consumer.subscribe(topic, expression)
    listener = Listener(jvm)
    consumer.registerMessageListener(listener)
    consumer.start()
    return consumer, listener


def test_java_client_sends_to_a_java_consumer(jvm: Jvm, cluster: Cluster) -> None:
    producer = jvm.producer("pg-java", cluster.namesrv)
    try:
        offsets: dict[int, list[int]] = {}
        for n in range(40):
            tag = "TagA" if n % 2 else "TagB"
            result = sent(producer, jvm.message("JavaJava", tag, f"k{n}", b"body-%d" % n))
            assert result.getSendStatus().toString() == "SEND_OK"
            queue = result.getMessageQueue().getQueueId()
            offsets.setdefault(queue, []).append(result.getQueueOffset())
        for queue_offsets in offsets.values():
            assert queue_offsets == list(range(len(queue_offsets)))
        last = result.getOffsetMsgId()

        batch = jvm.gateway.jvm.java.util.ArrayList()
        for n in range(40, 50):
            batch.add(jvm.message("JavaJava", "TagA", f"k{n}", b"body-%d" % n))
        assert producer.send(batch).getSendStatus().toString() == "SEND_OK"

        callback = Callback()
        producer.send(jvm.message("JavaJava", "TagA", "k50", b"body-50"), callback)
        producer.sendOneway(jvm.message("JavaJava", "TagA", "k51", b"body-51"))

        consumer, listener = push_consumer(jvm, cluster, "cg-java-a", "JavaJava", "TagA")
        try:
            expected = {f"k{n}" for n in range(52) if n % 2 or n >= 40}
            listener.wait_for(lambda: {row[2] for row in listener.received} >= expected)
        finally:
            consumer.shutdown()
        assert {row[1] for row in listener.received} == {"TagA"}
        for _, _, key, body in listener.received:
            assert body == b"body-" + key[1:].encode()
        assert callback.told() == ["SEND_OK"]

        seen = viewed(producer, "JavaJava", last)
        assert bytes(seen.getBody()) == b"body-39"
        assert seen.getKeys() == "k39"
    finally:
        producer.shutdown()


def test_java_consumer_resumes_at_its_committed_offset(jvm: Jvm, cluster: Cluster) -> None:
    producer = jvm.producer("pg-resume", cluster.namesrv)
    try:
        for n in range(20):
            sent(producer, jvm.message("Resume", "T", f"first-{n}", b"x"))
        consumer, listener = push_consumer(jvm, cluster, "cg-resume", "Resume", "*")
        listener.wait_for(lambda: len({row[2] for row in listener.received}) == 20)
        consumer.shutdown()  # commits its offsets, by a request that nobody answers
        wait_committed(cluster.namesrv, "cg-resume", "Resume")
        for n in range(20):
            sent(producer, jvm.message("Resume", "T", f"second-{n}", b"x"))
        again, listener = push_consumer(jvm, cluster, "cg-resume", "Resume", "*")
        second = {f"second-{n}" for n in range(20)}
        listener.wait_for(lambda: {row[2] for row in listener.received} >= second)
        again.shutdown()
        assert {row[2] for row in listener.received} == second
    finally:
        producer.shutdown()


def wait_committed(namesrv: str, group: str, topic: str) -> None:
    """Until the group has committed where each queue ends."""

    def offsets() -> tuple[object, object]:
        return committed(namesrv, group, topic), ends(namesrv, topic)

    def reached() -> bool:
        result, at = offsets()
        return result == at

    wait_until(reached, offsets, patience_s=WAIT_S, pause_s=POLL_S)


def test_our_producer_sends_to_a_java_consumer(jvm: Jvm, cluster: Cluster) -> None:
    big = b"0123456789abcdef" * 1024  # above 4096 bytes: our producer compresses it
    with BlockingProducer("pg-python", cluster.namesrv) as producer:
        for n in range(10):
            body = big if n == 9 else b"python-%d" % n
            message = Message("PythonJava", body, tags="P", keys=f"k{n}")
            producer.send(message, timeout_ms=WAIT_S * 1000)
    consumer, listener = push_consumer(jvm, cluster, "cg-python", "PythonJava", "P")
    try:
        listener.wait_for(lambda: len({row[2] for row in listener.received}) == 10)
    finally:
        consumer.shutdown()
    bodies = {key: body for _, _, key, body in listener.received}
    assert bodies["k9"] == big
    assert bodies["k3"] == b"python-3"


def test_java_client_with_binary_headers_sends_and_consumes(cluster: Cluster) -> None:
    binary = Jvm({"rocketmq.serialize.type": "ROCKETMQ"})
    try:
        producer = binary.producer("pg-binary", cluster.namesrv)
        result = sent(producer, binary.message("BinaryHeaders", "T", "k", b"binary"))
        assert result.getSendStatus().toString() == "SEND_OK"
        consumer, listener = push_consumer(binary, cluster, "cg-binary", "BinaryHeaders", "*")
        listener.wait_for(lambda: bool(listener.received))
        consumer.shutdown()
        producer.shutdown()
    finally:
        binary.close()


def test_java_client_survives_the_leaders_death(jvm: Jvm, cluster: Cluster) -> None:
    """Every send that Java was told is SEND_OK is consumed, over a kill -9 of the leader."""
    made = jvm.rocketmq.client.producer.DefaultMQProducer("pg-failover")
    producer = patient_producer(made, cluster.namesrv)
    producer.setPollNameServerInterval(1000)
    producer.setRetryTimesWhenSendFailed(5)
    producer.setInstanceName("pg-failover")
    producer.start()
    consumer, listener = push_consumer(jvm, cluster, "cg-failover", "Failover", "*")
    acknowledged = set()
    killed = ""
    try:
        deadline = time.monotonic() + WAIT_S
        n = 0
        after = 0
        while after < 50 and time.monotonic() < deadline:
            if n == 50:
                leader = cluster.leader()
                killed = leader["name"]
                mqcluster("kill", "--dir", cluster.directory, killed)
            try:
                result = producer.send(jvm.message("Failover", "T", f"k{n}", b"x"))
            except Exception:  # what Java throws while there is no leader: not acknowledged
                time.sleep(0.05)
            else:
                assert result.getSendStatus().toString() == "SEND_OK"
                acknowledged.add(f"k{n}")
                after += n > 50
            n += 1
        assert after == 50
        listener.wait_for(lambda: {row[2] for row in listener.received} >= acknowledged)
        cluster.leader(other_than=killed)
    finally:
        consumer.shutdown()
        producer.shutdown()
        if killed:
            mqcluster("start", "--dir", cluster.directory, killed)
