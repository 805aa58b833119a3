"""The table of scenarios, and which foreign clients can do each. Every scenario has a leader killed
in the middle (`Run.strike`, `Run.traffic`).
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.interop.driver import ClientError
from tests.interop.rooms import shares
from tests.interop.runs import PACE_S, PATIENCE_S, QUEUES, STEPS, Consumer, Delivery, Run
from tests.interop.targets import ask, leader_of

NEWER = ("java49", "java53")  # lite pull and requests came with 4.6
JAVA = ("java43", *NEWER)
WITH_GO = (*JAVA, "go")
ALL = (*WITH_GO, "node")
# Java's lite pull of 5.3 asks with LITE_PULL_MESSAGE, which brokers of 4.9 do not know.
NEEDS_5 = frozenset({("lite-pull", "java53")})
BIG = "0123456789abcdef" * 1024  # clients compress from 4096 bytes on
SHARDS = 4
# Refuse each message once; again after a second.
ONCE_MORE: dict[str, Any] = {"failures": 1, "delay": 1}
LEVEL_MS = {1: 1_000, 3: 10_000}  # of the default messageDelayLevel


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    clients: tuple[str, ...]
    work: Callable[[Run], None]
    rooms: bool = False  # against two broker groups in two rooms


# ---- producing


def sends(how: str, size: int = 1, body: str = "") -> Callable[[Run], None]:
    """Messages sent so, `size` in one call, come whole to a consumer that was there before."""

    def work(run: Run) -> None:
        if run.client == "node":
            run.make_topic()  # it sends to topics that are there, only
        producer = run.producer()

        def step(number: int) -> bool:
            return run.send(
                producer,
                how,
                *(
                    {
                        "body": f"{number}.{part}{body}",
                        "tags": "TagA",
                        "keys": f"k{number}.{part}",
                        "properties": {"colour": "red", "заголовок": "значение"},
                    }
                    for part in range(size)
                ),
            )

        run.surely(lambda: step(-1))  # makes the topic
        # The name server has the topic.
        ask(run.target.namesrv, lambda admin: admin.cluster.route(run.topic))
        consumer = run.consumer()
        run.traffic(step)
        run.check_delivered(consumer)
        for d in consumer.deliveries:
            number = d["body"].removesuffix(body)
            assert (d["tags"], d["keys"]) == ("TagA", f"k{number}"), d
            assert d["properties"]["colour"] == "red", d
            assert d["properties"]["заголовок"] == "значение", d
        run.check_committed(consumer)

    return work


def sends_oneway(run: Run) -> None:
    """Nobody says what became of them, and what finds no connection is gone; but they go on coming
    through, before the kill and after it."""
    run.make_topic()
    producer, consumer = run.producer(), run.consumer()

    def send(name: str) -> None:
        run.send(producer, "oneway", {"body": name})

    def come_through(kind: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        number = 0
        while sum(body.startswith(kind) for body in set(consumer.bodies())) < STEPS:
            assert time.monotonic() < deadline, f"one-way messages do not come through: {kind}"
            number += 1
            send(f"{kind}-{number}")
            time.sleep(PACE_S)

    come_through("early")
    run.strike()
    while not run.kill.over.is_set():
        send("meanwhile")
        time.sleep(PACE_S)
    run.kill.wait_over()
    come_through("late")
    deliveries = [d for d in consumer.deliveries if d["body"] != "meanwhile"]
    run.count_repeats(deliveries)


def by_shard(run: Run, kind: str, selector: str) -> Consumer:
    run.make_topic()
    producer, consumer = run.producer(selector=selector), run.consumer(kind=kind)

    def step(number: int) -> bool:
        shard = f"shard{number % SHARDS}"
        return run.send(producer, "ordered", {"body": f"{shard}-{number}", "shard": shard})

    run.traffic(step)
    run.check_delivered(consumer)
    return consumer


def in_order(deliveries: list[Delivery]) -> None:
    """Within a shard one queue, and numbers that only rise; repeats do not count."""
    last: dict[str, int] = {}
    queues: dict[str, int] = {}
    seen = set()
    for d in deliveries:
        if d["body"] in seen:
            continue
        seen.add(d["body"])
        shard, number = d["body"].split("-")
        assert queues.setdefault(shard, d["queue"]) == d["queue"], d
        assert last.get(shard, -1) < int(number), (d["body"], last)
        last[shard] = int(number)


def sends_ordered(run: Run) -> None:
    """The log has them in the order of sending."""
    consumer = by_shard(run, "push", "hash")
    in_order(sorted(consumer.deliveries, key=lambda d: (d["queue"], d["offset"])))
    run.check_committed(consumer)


def consumes_orderly(run: Run) -> None:
    """They are handed out in the order of sending."""
    consumer = by_shard(run, "orderly", "hash")
    in_order(consumer.deliveries)
    run.check_committed(consumer)


# ---- consuming


def plain(run: Run, producer: str) -> Callable[[int], bool]:
    return lambda number: run.send(producer, "sync", {"body": f"m{number}"})


def pulls(run: Run) -> None:
    """A queue pulled from its beginning: every offset once, none left out."""
    run.make_topic(1)
    producer = run.producer()
    puller = run.consumer(kind="pull")
    got: list[Delivery] = []

    def pull_to_the_end() -> None:
        deadline = time.monotonic() + PATIENCE_S
        end = -1  # not known yet; a send that failed may have put its message there, too
        while len(got) != end or not {s.body for s in run.sent} <= {d["body"] for d in got}:
            try:
                answer = run.driver.call(
                    "pull",
                    consumer=puller.name,
                    topic=run.topic,
                    broker=run.target.broker,
                    queue=0,
                    offset=len(got),
                    count=7,
                )
                got.extend(answer["messages"])
                end = answer["max"]
                assert answer["next"] == len(got), answer
            except ClientError as error:
                assert time.monotonic() < deadline, error
                time.sleep(PACE_S)

    run.several(lambda number: run.send(producer, "sync", {"body": f"first{number}"}))
    pull_to_the_end()
    run.traffic(plain(run, producer))
    pull_to_the_end()
    assert [d["offset"] for d in got] == list(range(len(got)))
    run.count_repeats(got)
    run.wait_committed(run.group)


def lite_pulls(run: Run) -> None:
    run.make_topic()
    producer, consumer = run.producer(), run.consumer(kind="lite")
    run.traffic(plain(run, producer))
    run.check_delivered(consumer)
    run.check_committed(consumer)


def broadcasts(run: Run) -> None:
    """Each of two consumers of one group is given everything."""
    run.make_topic()
    producer = run.producer()
    pair = [run.consumer(broadcast=True) for _ in range(2)]
    run.traffic(plain(run, producer))
    for consumer in pair:
        run.check_delivered(consumer)


def filtered(run: Run, matches: Callable[[int], bool], **options: Any) -> None:
    run.make_topic()
    producer, consumer = run.producer(), run.consumer(**options)

    def step(number: int) -> bool:
        return run.send(
            producer,
            "sync",
            {
                "body": str(number),
                "tags": "Tag" + "ABC"[number % 3],
                "properties": {"number": str(number), "colour": "red" if number % 2 else "blue"},
            },
        )

    run.traffic(step)
    run.check_delivered(consumer, bodies={s.body for s in run.sent if matches(int(s.body))})
    wrong = [body for body in consumer.bodies() if not matches(int(body))]
    assert not wrong, f"delivered against the filter: {wrong}"


def filters_tags(run: Run) -> None:
    filtered(run, lambda number: number % 3 != 2, expression="TagA || TagB")


def filters_sql(run: Run) -> None:
    expression = "number BETWEEN 3 AND 1000 AND (colour = 'red' OR TAGS IN ('TagC'))"
    filtered(
        run,
        lambda number: number >= 3 and (number % 2 == 1 or number % 3 == 2),
        expression=expression,
        sql=True,
    )


def begins_at(where: str) -> Callable[[Run], None]:
    """A group's first consumer begins there. Queues that were never cut and are in memory answer
    a new group with offset 0, ours as Apache's; so it is an empty queue that shows `LAST`."""

    def work(run: Run) -> None:
        run.make_topic()
        producer = run.producer()
        early = time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() - 3600))
        options = {"from": where} | ({"timestamp": early} if where == "TIMESTAMP" else {})
        if where != "LAST_OFFSET":
            run.several(lambda number: run.send(producer, "sync", {"body": f"early{number}"}))
        consumer = run.consumer(**options)
        if where == "LAST_OFFSET":
            deadline = time.monotonic() + PATIENCE_S
            while len({d["queue"] for d in consumer.deliveries}) < QUEUES:  # until it has them all
                run.surely(lambda: run.send(producer, "sync", {"body": f"warm{len(run.sent)}"}))
                time.sleep(PACE_S)
                assert time.monotonic() < deadline, "it has not got all queues"
        run.traffic(plain(run, producer))
        bodies = {s.body for s in run.sent if not s.body.startswith("warm")}
        run.check_delivered(consumer, bodies=bodies)
        run.check_committed(consumer)

    return work


def resumes(run: Run) -> None:
    """Messages that a group had before the kill do not come again: not one."""
    run.make_topic()
    producer, first = run.producer(), run.consumer()
    run.several(lambda number: run.send(producer, "sync", {"body": f"first{number}"}))
    before = {sent.body for sent in run.sent}
    first.wait_for(before)
    run.check_committed(first)
    run.traffic(plain(run, producer))
    second = run.consumer()
    rest = {sent.body for sent in run.sent} - before
    run.check_delivered(second, bodies=rest)
    again = before & set(second.bodies())
    assert not again, f"consumed before the kill, and again: {sorted(again)[:8]}"
    run.check_committed(second)


# ---- the broker's work


def refused_for_good(run: Run, consumer: Consumer) -> list[str]:
    """Bodies that did not come again: given back, with their count; or from the same place as
    before, where the client lost the queue, and with it what its listener had said."""
    again = {d["body"] for d in consumer.deliveries if d["reconsumed"] > 0}
    positions = Counter((d["body"], d["queue"], d["offset"]) for d in consumer.deliveries)
    again |= {body for (body, _, _), times in positions.items() if times > 1}
    return [sent.body for sent in run.sent if sent.body not in again]


def retries(run: Run) -> None:
    """Each message is refused once and comes again, after the kill, too."""
    run.make_topic()
    producer, consumer = run.producer(), run.consumer(**ONCE_MORE)
    run.several(lambda number: run.send(producer, "sync", {"body": f"early{number}"}))
    consumer.wait_for({sent.body for sent in run.sent})
    run.traffic(plain(run, producer))
    run.driver.wait(lambda: not refused_for_good(run, consumer), PATIENCE_S)
    missing = refused_for_good(run, consumer)
    run.outcome.lost += len(missing)
    assert not missing, f"refused, and did not come again: {missing[:8]}"
    assert 1 in {d["reconsumed"] for d in consumer.deliveries}
    for d in consumer.deliveries:
        assert d["topic"] == run.topic, d
        assert d["reconsumed"] <= 1, d
    run.count_repeats([d for d in consumer.deliveries if d["reconsumed"] == 0])


def dead_letters(run: Run) -> None:
    """Refused every time, a message ends in the group's dead-letter topic."""
    run.make_topic()
    producer = run.producer()
    refusing = run.consumer(failures=99, delay=1, reconsume_max=1)
    dead = f"%DLQ%{run.group}"
    run.several(lambda number: run.send(producer, "sync", {"body": f"early{number}"}))
    refusing.wait_for({sent.body for sent in run.sent})
    run.traffic(plain(run, producer))
    deadline = time.monotonic() + PATIENCE_S
    while dead not in ask(run.target.namesrv, lambda admin: admin.cluster.topics()):
        assert time.monotonic() < deadline, "no dead-letter topic"
        time.sleep(PACE_S)
    reader = run.consumer(dead, f"{run.group}-dead")
    expected = {sent.body for sent in run.sent}
    reader.wait_for(expected)
    run.count_repeats(reader.deliveries)
    # A client that cannot give a message back tries again itself, and counts beyond the limit.
    assert {0, 1} <= {d["reconsumed"] for d in refusing.deliveries}


def delays(run: Run) -> None:
    """Ten seconds from before the kill, one second after it: never early, and all."""
    run.make_topic()
    producer, consumer = run.producer(), run.consumer()

    def send(name: str, level: int) -> bool:
        return run.send(producer, "sync", {"body": f"{name}-{level}", "delay": level})

    run.several(lambda number: send(f"early{number}", 3))
    run.traffic(lambda number: send(f"late{number}", 1))
    expected = {sent.body for sent in run.sent}
    consumer.wait_for(expected)
    for d in consumer.deliveries:
        late = d["at_ms"] - d["born_ms"]
        assert late >= LEVEL_MS[int(d["body"].split("-")[1])], (d["body"], late)
    run.count_repeats(consumer.deliveries)
    run.check_committed(consumer)


def transactions(run: Run) -> None:
    """Committed ones are delivered, rolled back ones never; those that the producer left open are
    asked about, before the kill and after it."""
    run.make_topic()
    producer, consumer = run.producer(transactional=True), run.consumer()

    def send(name: str, decide: str, check: str) -> bool:
        body = f"{name}:{check}"
        message = {"body": body, "decide": decide, "properties": {"check": check}}
        return run.send(producer, "transaction", message)

    def step(number: int) -> bool:
        done = send(f"c{number}", "commit", "commit")
        done = send(f"r{number}", "rollback", "rollback") and done
        return send(f"u{number}", "unknown", "rollback" if number % 2 else "commit") and done

    run.traffic(step)
    expected = {sent.body for sent in run.sent if sent.body.endswith(":commit")}
    consumer.wait_for(expected)
    open_ones = {sent.body for sent in run.sent if sent.body.startswith("u")}

    def asked() -> set[str]:
        return {event["body"] for event in run.driver.events(producer, "check")}

    assert run.driver.wait(lambda: open_ones <= asked(), PATIENCE_S), open_ones - asked()
    wrong = [body for body in consumer.bodies() if body.endswith(":rollback")]
    assert not wrong, f"rolled back, and delivered: {wrong}"
    run.count_repeats(consumer.deliveries)


def requests(run: Run) -> None:
    """Questions are answered by another client, before the kill and after it."""
    run.make_topic()
    asker, answerer = run.producer(), run.producer()
    consumer = run.consumer(reply=answerer)
    failed = [""]

    def step(number: int) -> bool:
        body = f"q{number}"
        try:
            answer = run.driver.call(
                "request", producer=asker, topic=run.topic, body=body, ttl_ms=5000
            )
        except ClientError as error:
            failed[0] = run.outcome.error = str(error)
            return False
        assert answer["body"] == f"re:{body}", answer
        return True

    deadline = time.monotonic() + PATIENCE_S
    answered = 0  # in a row
    while answered < 2 * QUEUES:  # until the consumer has all its queues
        answered = answered + 1 if step(-1) else 0
        assert time.monotonic() < deadline, failed[0]
    run.traffic(step)
    run.count_repeats([d for d in consumer.deliveries if d["body"] != "q-1"])  # asked repeatedly


# ---- operators


def lookups(run: Run) -> None:
    """By key, by the client's id and by place."""
    run.make_topic()
    producer = run.producer()

    def step(number: int) -> bool:
        return run.send(producer, "sync", {"body": f"m{number}", "keys": f"key{number}"})

    def look(by: str, value: str, body: str) -> None:
        """The index is made a moment behind the log."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                result = run.driver.call(
                    "lookup", producer=producer, by=by, topic=run.topic, value=value
                )
                if body in [d["body"] for d in result]:
                    return
            except ClientError as error:
                result = str(error)
            assert time.monotonic() < deadline, (by, value, result)
            time.sleep(PACE_S)

    run.surely(lambda: step(-1))
    look("key", "key-1", "m-1")
    look("id", run.sent[0].place, "m-1")
    run.traffic(step)
    for sent in (run.sent[0], run.sent[-1]):
        look("key", f"key{sent.body[1:]}", sent.body)
        look("id", sent.unique, sent.body)
    look("id", run.sent[-1].place, run.sent[-1].body)  # names the broker that stored it: alive


def resets(run: Run) -> None:
    """A group that is set back gets everything again while it runs."""
    run.make_topic()
    producer, consumer = run.producer(), run.consumer()
    run.traffic(plain(run, producer))
    run.check_delivered(consumer)
    run.wait_committed(run.group)
    counted = len(consumer.deliveries)
    start = 0  # ms
    if run.client in JAVA:
        run.driver.call(
            "reset",
            name=f"A-{run.group}",
            namesrv=run.target.namesrv,
            topic=run.topic,
            group=run.group,
            timestamp=start,
        )
    else:
        ask(run.target.namesrv, lambda admin: _reset(admin, run))
    expected = {sent.body for sent in run.sent}

    def again() -> set[str]:
        return set(consumer.bodies()[counted:])

    assert run.driver.wait(lambda: expected <= again(), PATIENCE_S), expected - again()
    run.check_committed(consumer)


async def _reset(admin, run: Run) -> None:
    address = await leader_of(admin, run.topic, run.target.broker)
    await admin.offset.reset(address, run.group, run.topic, 0)


TABLE = (
    Scenario("send-sync", ALL, sends("sync")),
    Scenario("send-async", ALL, sends("async", size=3)),
    Scenario("send-batch", WITH_GO, sends("batch", size=3)),
    Scenario("send-compressed", ALL, sends("sync", body=BIG)),
    Scenario("send-oneway", WITH_GO, sends_oneway),
    Scenario("send-ordered", ALL, sends_ordered),
    Scenario("consume-orderly", ALL, consumes_orderly),
    Scenario("pull", WITH_GO, pulls),
    Scenario("lite-pull", NEWER, lite_pulls),
    Scenario("broadcast", ALL, broadcasts),
    Scenario("tags", ALL, filters_tags),
    Scenario("sql92", ALL, filters_sql),
    Scenario("from-first", ALL, begins_at("FIRST_OFFSET")),
    Scenario("from-last", ALL, begins_at("LAST_OFFSET")),
    Scenario("from-timestamp", ALL, begins_at("TIMESTAMP")),
    Scenario("resume", ALL, resumes),
    Scenario("allocate-average", ALL, shares("average"), rooms=True),
    Scenario("allocate-circle", WITH_GO, shares("circle"), rooms=True),
    Scenario("allocate-config", WITH_GO, shares("config"), rooms=True),
    Scenario("allocate-hash", WITH_GO, shares("hash"), rooms=True),
    Scenario("allocate-room", WITH_GO, shares("room"), rooms=True),
    Scenario("allocate-nearby", WITH_GO, shares("nearby"), rooms=True),
    Scenario("mixed-average", ALL, shares("average", mixed=True), rooms=True),
    Scenario("mixed-circle", WITH_GO, shares("circle", mixed=True), rooms=True),
    Scenario("mixed-hash", JAVA, shares("hash", mixed=True), rooms=True),
    Scenario("mixed-room", WITH_GO, shares("room", mixed=True), rooms=True),
    Scenario("mixed-nearby", JAVA, shares("nearby", mixed=True), rooms=True),
    Scenario("retry", ALL, retries),
    Scenario("dead-letter", WITH_GO, dead_letters),
    Scenario("delay", ALL, delays),
    Scenario("transaction", WITH_GO, transactions),
    Scenario("request-reply", (*NEWER, "go"), requests),
    Scenario("lookup", JAVA, lookups),
    Scenario("reset", WITH_GO, resets),
)
