"""All that Java's client 5.3.3 is handed, message kind by message kind, from whatever broker.

`told(…)` plays a story: it sends each kind, consumes it, and returns every field and property of
every message that a listener, a transaction check, a requester or a lookup was given, and of every
send's result. What differs from run to run (times, places, ids, addresses) is replaced by what it
has to be: a time by "TIME", once it is shown that it lies in its order, an id by what it is the id
of. So two brokers that treat clients alike tell equal stories.

`python -m tests.interop.deliveries` asks Apache's broker 5.3.3 and writes its story (RECORDED).
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject

from raftmq.store.record import decode_offset_message_id
from tests.interop.apache import ApacheBroker
from tests.interop.jvm import (
    PATIENCE_MS,
    PYSPARK_JARS,
    Jvm,
    fetch_jars,
    patient_consumer,
    patient_producer,
    sent,
    viewed,
)
from tests.interop.targets import make_topic, name_server

RECORDED = Path(__file__).parents[1] / "fixtures" / "recorded" / "deliveries-5.3.3.json"
WAIT_S = PATIENCE_MS / 1000  # a bound against hanging
GROUP = "cg-deliveries"
ORDERLY = "cg-deliveries-orderly"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# Of a message: what is no field, is its body, or says another field's value in another form.
LEFT_OUT = {
    "getClass", "getBody", "getProperties", "getBornHostBytes", "getStoreHostBytes",
    "getBornHostNameString", "getBornHost", "getStoreHost", "getStoreSize", "getVersion",
}  # fmt: skip
KINDS = (
    "normal", "dressed", "sharded", "batch", "level", "at", "after-ms", "after-s", "transaction",
    "checked", "retried", "dead", "retried-transaction", "retried-level", "zlib", "lz4", "zstd",
    "question", "traced",
)  # fmt: skip
IN_ORDER = ("ordered", "given-up")
# Their offset is of a queue that others are in: of a delay level, where retries wait, too; and of
# halves, where "checked" is once more when it is asked about.
NOT_ALONE = ("level", "retried-level", "retried-transaction")
# What both kinds of brokers are told, under the names that both know.
SETTINGS = {
    "brokerClusterName": "DeliveriesCluster",
    "brokerName": "deliveries",
    "transactionTimeOut": "1000",
    "timerWheelEnable": "true",
}
# It looks for what to ask about so often, from its start on. It notes the end of a transaction so
# much later; until then it asks, and delivers, once more.
OF_APACHE = {"transactionCheckInterval": "1000", "transactionOpBatchInterval": "50"}  # ms
# It asks when the time-out is over, and again not before this: on a busy machine an answer comes
# after seconds, or never: it is one-way.
OF_OURS = {"transactionCheckInterval": f"{PATIENCE_MS // 4}"}
# What is decided at once is not to be asked about, though that may come after many seconds, too.
IMMUNE_S = 600
AGAIN_LEVEL = 1  # one second


Told = dict[str, dict[str, Any]]


class Story:
    """What was told so far. Java's threads call the listeners, so it has a lock."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm
        self.told: Told = {}
        self._counts: dict[str, int] = {}
        self._changed = threading.Condition()
        self._getters: dict[str, list[str]] = {}  # by class

    def take(self, whose: str, message: JavaObject) -> tuple[str, int]:
        """Note a message; return its body, and how often the same one was given before."""
        body = bytes(message.getBody()).decode()[:32].strip()
        if message.getTopic() == TRACE_TOPIC:
            body = "trace"
        name = f"{whose}: {body}"
        fields = self._fields(message)
        with self._changed:
            count = self._counts[name] = self._counts.get(name, 0) + 1
            self.told[name if count == 1 else f"{name} ({count})"] = fields
            self._changed.notify_all()
        return body, count - 1

    def note(self, name: str, fields: dict[str, Any]) -> None:
        with self._changed:
            self.told[name] = fields
            self._changed.notify_all()

    def wait_for(self, *names: str) -> None:
        expected = set(names)
        with self._changed:
            came = self._changed.wait_for(lambda: expected <= set(self.told), WAIT_S)
        assert came, f"never came: {sorted(expected - set(self.told))}; did: {sorted(self.told)}"

    def _fields(self, message: JavaObject) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name in self._getters_of(message):
            value = getattr(message, name)()
            result[name] = value if isinstance(value, int | str | bool | None) else str(value)
        properties = {str(k): str(v) for k, v in dict(message.getProperties()).items()}
        check_places(result)
        return plain(result, properties) | {"properties": plain_properties(properties, result)}

    def _getters_of(self, message: JavaObject) -> list[str]:
        """Return the methods that give a field, of whichever class the message is."""
        kind = message.getClass()
        name = kind.getName()
        if name not in self._getters:
            self._getters[name] = sorted(
                {
                    method.getName()
                    for method in kind.getMethods()
                    if method.getParameterCount() == 0
                    and re.match(r"(get|is)[A-Z]", method.getName())
                    and method.getName() not in LEFT_OUT
                }
            )
        return self._getters[name]


def check_places(found: dict[str, Any]) -> None:
    """Assert of a message what is different each time."""
    if "getStoreTimestamp" in found:
        assert 0 < found["getBornTimestamp"] <= found["getStoreTimestamp"], found
        assert found["getStoreTimestamp"] <= time.time() * 1000 + 1000, found
        assert found["getBornHostString"] == "127.0.0.1", found
    if found.get("getOffsetMsgId"):
        _, position = decode_offset_message_id(found["getOffsetMsgId"])
        assert position == found["getCommitLogOffset"], found


def plain(found: dict[str, Any], properties: dict[str, str]) -> dict[str, Any]:
    """Return the fields, with what differs each time replaced by what it is."""
    same = dict(found)
    unique = properties.get("UNIQ_KEY", "")
    for name in ("getBornTimestamp", "getStoreTimestamp", "getDeliverTimeMs"):
        same[name] = "TIME" if found.get(name) else found.get(name)
    for name in ("getMsgId", "getTransactionId"):
        same[name] = known_id(found.get(name), unique)
    for name in ("getOffsetMsgId", "getPreparedTransactionOffset"):
        same[name] = "PLACE" if found.get(name) else found.get(name)
    if found.get("getStoreTimestamp"):  # the first message of a log may be at 0
        same["getCommitLogOffset"] = "PLACE"
    if found.get("getReconsumeTimes") or "TRANSACTION_CHECK_TIMES" in properties:
        same["getQueueOffset"] = "ANY"  # of a topic that several kinds have in common
    if found.get("getTopic") == TRACE_TOPIC:
        same["getKeys"] = "IDS"
        same["getBodyCRC"] = "CRC"
        same["getQueueId"] = "ANY"
    return {name: value for name, value in same.items() if value is not None}


def known_id(value: Any, unique: str) -> Any:
    if value is None:
        return None
    return "UNIQ_KEY" if value == unique else "OTHER"


def plain_properties(properties: dict[str, str], found: dict[str, Any]) -> dict[str, str]:
    unique = properties.get("UNIQ_KEY", "")
    same: dict[str, str] = {}
    for name, value in properties.items():
        if value == unique:
            value = "ID"
        elif name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"):
            decode_offset_message_id(value)
            value = "PLACE" if value != found.get("getOffsetMsgId") else "ITS OWN PLACE"
        elif name == "TRANSACTION_CHECK_TIMES":
            assert int(value) >= 1, (value, found)
            value = "COUNT"
        elif name in ("MAX_OFFSET",):
            assert int(value) > found["getQueueOffset"], (name, value, found)
            value = "OFFSET"
        elif name in ("CORRELATION_ID", "REPLY_TO_CLIENT"):
            value = "ID"
        elif name == "KEYS" and found.get("getTopic") == TRACE_TOPIC:
            value = "IDS"
        elif re.fullmatch(r"1[5-9]\d{11}", value):
            value = "TIME"
        same[name] = value
    return same


class Concurrently:
    """A listener that gives some messages back, so often or always, and answers questions."""

    def __init__(self, story: Story, whose: str, answer: Callable[[JavaObject], None]) -> None:
        status = story.jvm.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._done, self._later = status.CONSUME_SUCCESS, status.RECONSUME_LATER
        self._story, self._whose, self._answer = story, whose, answer

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        again = False
        for message in messages:
            body, before = self._story.take(self._whose, message)
            if body == "question":
                self._answer(message)
            again |= body == "dead" or (body.startswith("retried") and before == 0)
        context.setDelayLevelWhenNextConsume(AGAIN_LEVEL)
        return self._later if again and self._whose == GROUP else self._done

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently",)


class Orderly:
    """A listener that fails once with what is ordered, and always with what is given up."""

    def __init__(self, story: Story) -> None:
        status = story.jvm.rocketmq.client.consumer.listener.ConsumeOrderlyStatus
        self._done, self._again = status.SUCCESS, status.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self._story = story

    def consumeMessage(self, messages: Any, context: Any) -> Any:
        del context
        again = False
        for message in messages:
            body, before = self._story.take(ORDERLY, message)
            again |= body == "given-up" or before == 0
        return self._again if again else self._done

    class Java:
        implements = ("org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly",)


class Decider:
    """Commits at once, or when it is asked."""

    def __init__(self, story: Story) -> None:
        self._state = story.jvm.rocketmq.client.producer.LocalTransactionState
        self._story = story

    def executeLocalTransaction(self, message: Any, arg: Any) -> Any:
        del arg
        requested = bytes(message.getBody()) == b"checked"
        return self._state.UNKNOW if requested else self._state.COMMIT_MESSAGE

    def checkLocalTransaction(self, message: Any) -> Any:
        # Noting it asks the JVM some fifty times: too long, as the broker asks again each second.
        threading.Thread(target=self._story.take, args=("check", message)).start()
        return self._state.COMMIT_MESSAGE

    class Java:
        implements = ("org.apache.rocketmq.client.producer.TransactionListener",)


class Answered:
    """A RequestCallback; Java's calls it with null when the question is sent."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def onSuccess(self, answer: Any) -> None:
        if answer is not None:
            self._story.take("answer", answer)

    def onException(self, error: Any) -> None:
        self._story.note("answer: none", {"error": error.toString()})

    class Java:
        implements = ("org.apache.rocketmq.client.producer.RequestCallback",)


class Clients:
    """The producers and consumers of the story."""

    def __init__(self, jvm: Jvm, namesrv: str, story: Story) -> None:
        self.jvm, self.namesrv, self.story = jvm, namesrv, story
        self._stops: list[JavaObject] = []
        rocketmq = jvm.rocketmq.client
        self.producer = self._started(rocketmq.producer.DefaultMQProducer("pg-deliveries"))
        transactional = rocketmq.producer.TransactionMQProducer("pg-deliveries-transactions")
        transactional.setTransactionListener(Decider(story))
        self.transactional = self._started(transactional)
        self.consumer(GROUP, [topic(kind) for kind in KINDS])
        self.consumer("cg-dead", [f"%DLQ%{GROUP}", f"%DLQ%{ORDERLY}"])
        self.consumer("cg-traces", [TRACE_TOPIC])
        orderly = rocketmq.consumer.DefaultMQPushConsumer(ORDERLY)
        orderly.setSuspendCurrentQueueTimeMillis(100)
        self._consume(orderly, [topic(kind) for kind in IN_ORDER], Orderly(story))

    def _started(self, made: JavaObject) -> JavaObject:
        producer = patient_producer(made, self.namesrv)
        producer.setInstanceName(f"deliveries-{id(made)}")
        producer.start()
        self._stops.append(producer)
        return producer

    def consumer(self, group: str, topics: list[str]) -> None:
        made = self.jvm.rocketmq.client.consumer.DefaultMQPushConsumer(group)
        self._consume(made, topics, Concurrently(self.story, group, self._answer))

    def _consume(self, made: JavaObject, topics: list[str], listener: object) -> None:
        consumer = patient_consumer(made, self.namesrv)
        consumer.setInstanceName(f"deliveries-{id(made)}")
        consumer.setPollNameServerInterval(500)  # topics of dead letters come late
        consumer.setMaxReconsumeTimes(1)
        where = self.jvm.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        consumer.setConsumeFromWhere(where)
        for name in topics:
            consumer.subscribe(name, "*")
        consumer.registerMessageListener(listener)
        consumer.start()
        self._stops.append(consumer)

    def _answer(self, question: JavaObject) -> None:
        util = self.jvm.rocketmq.client.utils.MessageUtil
        self.producer.send(util.createReplyMessage(question, b"reply"))

    def stop(self) -> None:
        with ThreadPoolExecutor(len(self._stops)) as pool:  # each takes a second or more
            list(pool.map(lambda client: client.shutdown(), self._stops))

    # ---- what is sent

    def send_all(self) -> None:
        self._send_traced()  # first: the trace follows five seconds later
        for name in ("normal", "retried", "dead"):
            self.send(name)
        self.send("dressed", dress)
        key = self.jvm.rocketmq.common.message.MessageAccessor.putProperty
        self.send("sharded", lambda message: key(message, "__SHARDINGKEY", "shard"))
        for name in ("level", "retried-level"):
            self.send(name, lambda message: message.setDelayTimeLevel(1))
        # Long enough for a slow machine: what comes after its time does not wait at all.
        self.send("at", lambda message: message.setDeliverTimeMs(round(time.time() * 1000) + 5_000))
        self.send("after-ms", lambda message: message.setDelayTimeMs(1_200))
        self.send("after-s", lambda message: message.setDelayTimeSec(1))
        self._send_batch()
        for name in ("transaction", "checked", "retried-transaction"):
            message = self.message(name)
            if name != "checked":
                key(message, "CHECK_IMMUNITY_TIME_IN_SECONDS", f"{IMMUNE_S}")
            result = self.transactional.sendMessageInTransaction(message, None)
            self._note_result(name, result)
        for name in IN_ORDER:
            by_hash = self.jvm.rocketmq.client.producer.selector.SelectMessageQueueByHash()
            self._note_result(name, sent(self.producer, self.message(name), by_hash, "key"))
        for name in ("zlib", "lz4", "zstd"):
            self._send_compressed(name)
        question = self.message("question")
        self.producer.request(question, Answered(self.story), PATIENCE_MS)

    def message(self, name: str, body: str = "") -> JavaObject:
        made = self.jvm.rocketmq.common.message.Message(topic(name), (body or name).encode())
        return made

    def send(self, name: str, change: Callable[[JavaObject], object] = lambda _: None) -> None:
        message = self.message(name)
        change(message)
        self._note_result(name, sent(self.producer, message))

    def _send_batch(self) -> None:
        batch = self.jvm.gateway.jvm.java.util.ArrayList()
        for number in range(3):
            message = self.message("batch", f"batch-{number}")
            if number:
                message.setTags(f"Tag{number}")
                message.setKeys(f"key{number}")
            batch.add(message)
        result = sent(self.producer, batch)
        assert len(result.getMsgId().split(",")) == 3
        self._note_result("batch", result)

    def _send_compressed(self, name: str) -> None:
        made = self.jvm.rocketmq.client.producer.DefaultMQProducer(f"pg-{name}")
        kind = getattr(self.jvm.rocketmq.common.compression.CompressionType, name.upper())
        made.setCompressType(kind)
        made.setCompressMsgBodyOverHowmuch(1_000)
        producer = self._started(made)
        message = self.message(name, name.ljust(32) + "0123456789" * 500)
        self._note_result(name, sent(producer, message))

    def _send_traced(self) -> None:
        made = self.jvm.rocketmq.client.producer.DefaultMQProducer("pg-traced")
        made.setEnableTrace(True)
        producer = self._started(made)
        self._note_result("traced", sent(producer, self.message("traced")))

    def _note_result(self, name: str, result: JavaObject) -> None:
        handle = result.getRecallHandle()
        actual = {
            "status": str(result.getSendStatus()),
            "queue": str(result.getMessageQueue()),
            "offset": "ANY" if name in NOT_ALONE else result.getQueueOffset(),
            "region": result.getRegionId(),
            "traceOn": result.isTraceOn(),
            "place": bool(result.getOffsetMsgId()),
            "transactionId": known_id(result.getTransactionId(), result.getMsgId()),
            "recallHandle": handle is not None,
        }
        self.story.note(f"sent: {name}", actual)
        if name == "dressed":
            self._look_up(result)

    def _look_up(self, result: JavaObject) -> None:
        for by, what in (("place", result.getOffsetMsgId()), ("id", result.getMsgId())):
            actual = viewed(self.producer, topic("dressed"), what)
            assert actual.getMsgId() == result.getMsgId()
            self.story.take(f"found by {by}", actual)


def dress(message: JavaObject) -> None:
    message.setTags("TagA")
    message.setKeys("key1 key2")
    message.setFlag(7)
    message.setWaitStoreMsgOK(False)
    message.setBuyerId("buyer")
    message.putUserProperty("colour", "r\u00f6t")
    message.putUserProperty("size", "42")


def topic(kind: str) -> str:
    return f"Deliveries-{kind}"


DELIVERED = (
    *(f"{GROUP}: {kind}" for kind in KINDS if kind not in ("batch",)),
    *(f"{GROUP}: batch-{number}" for number in range(3)),
    f"{GROUP}: retried (2)", f"{GROUP}: dead (2)", f"{GROUP}: retried-transaction (2)",
    f"{GROUP}: retried-level (2)",
    "cg-dead: dead", "cg-dead: given-up", "cg-traces: trace",
    f"{ORDERLY}: ordered", f"{ORDERLY}: ordered (2)", f"{ORDERLY}: given-up",
    f"{ORDERLY}: given-up (2)", "check: checked", "answer: reply",
)  # fmt: skip


def java() -> Jvm:
    """Start a JVM with the client, and what it compresses with besides zlib: Spark's."""
    result = [path for name in ("lz4-java", "zstd-jni") for path in PYSPARK_JARS.glob(f"{name}-*")]
    return Jvm(jars=[*fetch_jars(), *map(str, result)])


def told(jvm: Jvm, namesrv: str) -> Told:
    """Return the story of the broker that is registered there."""
    for kind in (*KINDS, *IN_ORDER):
        make_topic(namesrv, topic(kind), 1)
    story = Story(jvm)
    clients = Clients(jvm, namesrv, story)
    try:
        clients.send_all()
        story.wait_for(*DELIVERED)
    finally:
        clients.stop()
    again = re.compile(r"check: checked \(\d+\)")  # a one-way answer was lost
    return {name: story.told[name] for name in sorted(story.told) if not again.fullmatch(name)}


@contextmanager
def apache(directory: Path) -> Iterator[str]:
    """Apache's broker with a name server of ours; yields that one's address."""
    with name_server() as namesrv:
        broker = ApacheBroker(directory, namesrv, **SETTINGS | OF_APACHE)
        broker.start()
        try:
            yield namesrv
        finally:
            broker.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, apache(Path(directory)) as namesrv:
        jvm = java()
        try:
            story = told(jvm, namesrv)
        finally:
            jvm.close()
    RECORDED.write_text(json.dumps(story, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    print(f"{len(story)} entries in {RECORDED}")


if __name__ == "__main__":
    main()
