"""The story of a recording: a foreign client does a bit of everything that it can do.

As the scenarios of tests/interop/scenarios.py, but with one broker that nobody kills, and with few
messages; nothing is judged here but that the client is given what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.interop.driver import ClientError, Driver
from tests.interop.runs import patiently
from tests.interop.scenarios import BIG, JAVA, NEWER, WITH_GO
from tests.interop.targets import make_topic

QUEUES = 2
WAIT_S = 60.0
HELD_S = 22.0  # longer than clients let a pull wait at the broker


class Story:
    """One client's session. Names are short: they are in every record."""

    def __init__(self, driver: Driver, namesrv: str) -> None:
        self.driver = driver
        self.namesrv = namesrv
        self._running: list[str] = []

    def start(self, do: str, name: str, **fields: Any) -> str:
        fields = {"name": name, "group": f"G-{name}", "namesrv": self.namesrv, **fields}
        patiently(lambda: self.driver.call(do, **fields))
        self._running.append(name)
        return name

    def producer(self, name: str, **fields: Any) -> str:
        fields = {"retries": 0, "selector": "", "transactional": False, **fields}
        return self.start("producer", name, **fields)

    def consumer(self, name: str, topic: str, **fields: Any) -> str:
        plain = {
            "kind": "push",
            "expression": "*",
            "sql": False,
            "from": "FIRST_OFFSET",
            "broadcast": False,
            "strategy": "average",
            "failures": 0,
            "broker": "group-a",
        }
        return self.start("consumer", name, **{**plain, "topic": topic, **fields})

    def topic(self, name: str) -> str:
        make_topic(self.namesrv, name, QUEUES)
        return name

    def send(self, producer: str, how: str, topic: str, *messages: dict[str, Any]) -> Any:
        results = self.driver.call(
            "send", producer=producer, how=how, topic=topic, messages=list(messages)
        )
        assert all(result["ok"] for result in results), results
        return results

    def wait(self, consumer: str, bodies: Sequence[str], reconsumed: int = 0) -> None:
        def there() -> bool:
            result = {
                event["body"]
                for event in self.driver.events(consumer)
                if event["reconsumed"] >= reconsumed
            }
            return set(bodies) <= result

        assert self.driver.wait(there, WAIT_S), (consumer, bodies, self.driver.events(consumer))

    def stop(self, name: str) -> None:
        self._running.remove(name)
        patiently(lambda: self.driver.call("stop", name=name))

    def stop_all(self) -> None:
        for name in reversed(list(self._running)):
            self.stop(name)


def tell(driver: Driver, namesrv: str) -> None:
    """All of it, one thing after the other."""
    story = Story(driver, namesrv)
    produces_and_consumes(story)
    filters(story)
    keeps_order(story)
    tries_again(story)
    delays(story)
    if driver.client in WITH_GO:
        pulls(story)
        transacts(story)
    if driver.client in NEWER:
        pulls_lightly(story)
    if driver.client in (*NEWER, "go"):
        asks(story)
    if driver.client in JAVA:
        looks_up_and_resets(story)
    waits_in_vain(story)
    story.stop_all()


def produces_and_consumes(story: Story) -> None:
    topic = story.topic("T")
    producer = story.producer("P")
    properties = {"colour": "red", "заголовок": "значение"}
    story.send(
        producer,
        "sync",
        topic,
        {"body": "s1", "tags": "TagA", "keys": "k1", "properties": properties},
        {"body": "s2" + BIG, "tags": "TagB", "keys": "k2"},
    )
    story.send(producer, "async", topic, {"body": "a1"})
    bodies = ["s1", "s2" + BIG, "a1"]
    if story.driver.client in WITH_GO:
        story.send(producer, "batch", topic, {"body": "b1"}, {"body": "b2"})
        story.send(producer, "oneway", topic, {"body": "o1"})
        bodies += ["b1", "b2", "o1"]
    first = story.consumer("C", topic)
    story.wait(first, bodies)
    story.send(producer, "sync", topic, {"body": "s3"})  # a held pull is answered
    story.wait(first, ["s3"])
    second = story.consumer("C2", topic, group="G-C")  # the first one is told, and they share
    time.sleep(2)
    story.stop(second)
    everybody = story.consumer("B", topic, broadcast=True)
    story.wait(everybody, ["s3"])
    story.stop(everybody)


def filters(story: Story) -> None:
    topic = story.topic("F")
    messages = [
        {"body": f"f{n}", "tags": "Tag" + "ABC"[n % 3], "properties": {"number": str(n)}}
        for n in range(6)
    ]
    story.send("P", "sync", topic, *messages)
    tagged = story.consumer("FT", topic, expression="TagA || TagB")
    by_sql = story.consumer(
        "FS", topic, expression="number BETWEEN 2 AND 4 OR TAGS = 'TagC'", sql=True
    )
    story.wait(tagged, ["f0", "f1", "f3", "f4"])
    story.wait(by_sql, ["f2", "f3", "f4", "f5"])
    story.stop(tagged)
    story.stop(by_sql)


def keeps_order(story: Story) -> None:
    topic = story.topic("O")
    producer = story.producer("PO", selector="hash")
    messages = [{"body": f"o{n}", "shard": f"shard{n % 2}"} for n in range(4)]
    story.send(producer, "ordered", topic, *messages)
    consumer = story.consumer("CO", topic, kind="orderly")  # it locks its queues
    story.wait(consumer, [message["body"] for message in messages])
    story.stop(consumer)
    story.stop(producer)


def tries_again(story: Story) -> None:
    topic = story.topic("R")
    story.send("P", "sync", topic, {"body": "r1"}, {"body": "r2"})
    consumer = story.consumer("CR", topic, failures=1, delay=1)
    story.wait(consumer, ["r1", "r2"], reconsumed=1)
    story.stop(consumer)
    if story.driver.client in WITH_GO:
        dead = story.topic("D")
        story.send("P", "sync", dead, {"body": "d1"})
        refusing = story.consumer("CD", dead, failures=99, delay=1, reconsume_max=1)
        story.wait(refusing, ["d1"], reconsumed=1)
        time.sleep(2)  # it gives the message back once more, and it is dead
        story.stop(refusing)


def delays(story: Story) -> None:
    topic = story.topic("L")
    consumer = story.consumer("CL", topic)
    story.send("P", "sync", topic, {"body": "l1", "delay": 1})
    story.wait(consumer, ["l1"])
    story.stop(consumer)


def pulls(story: Story) -> None:
    puller = story.consumer("U", "T", kind="pull")
    where: dict[str, Any] = {"topic": "T", "broker": "group-a", "queue": 0}
    for offset, count in ((0, 2), (2, 32)):
        expected = {"consumer": puller, **where, "offset": offset, "count": count}
        patiently(partial(story.driver.call, "pull", **expected))
    story.stop(puller)


def pulls_lightly(story: Story) -> None:
    consumer = story.consumer("I", "F", kind="lite")
    story.wait(consumer, [f"f{n}" for n in range(6)])
    time.sleep(1.5)  # it commits once a second
    story.stop(consumer)


def transacts(story: Story) -> None:
    topic = story.topic("X")
    producer = story.producer("PX", transactional=True)
    consumer = story.consumer("CX", topic)
    for decide, check in (("commit", "commit"), ("rollback", "rollback"), ("unknown", "commit")):
        message = {"body": f"x-{decide}", "decide": decide, "properties": {"check": check}}
        story.send(producer, "transaction", topic, message)
    story.wait(consumer, ["x-commit", "x-unknown"])  # the broker has asked after the second one
    story.stop(consumer)
    story.stop(producer)


def asks(story: Story) -> None:
    topic = story.topic("Q")
    asker, answerer = story.producer("PQ"), story.producer("PA")
    consumer = story.consumer("CQ", topic, reply=answerer)
    deadline = time.monotonic() + WAIT_S
    answered = 0
    while answered < 2:  # until the consumer has its queues
        try:
            story.driver.call("request", producer=asker, topic=topic, body="q", ttl_ms=3000)
            answered += 1
        except ClientError:
            assert time.monotonic() < deadline
    for name in (consumer, answerer, asker):
        story.stop(name)


def looks_up_and_resets(story: Story) -> None:
    (sent,) = story.send("P", "sync", "T", {"body": "find me", "keys": "key"})
    time.sleep(1)  # until it is in the index
    for by, value in (("key", "key"), ("id", sent["unique"]), ("id", sent["place"])):
        story.driver.call("lookup", producer="P", by=by, topic="T", value=value)
    fields: dict[str, Any] = {
        "namesrv": story.namesrv,
        "topic": "T",
        "group": "G-C",
        "timestamp": 0,
    }
    story.driver.call("reset", name="A", **fields)
    time.sleep(3)  # its consumer begins anew


def waits_in_vain(story: Story) -> None:
    """A pull is held until its time is over."""
    time.sleep(HELD_S)
