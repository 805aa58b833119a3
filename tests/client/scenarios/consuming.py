"""Scenarios of consumers, each with a leader killed in the middle (where there are several)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from raftmq.client import (
    Admin,
    AllocateByConsistentHash,
    BrokerRefused,
    BrokerUnreachable,
    ConsumeFrom,
    ConsumeResult,
    FailurePolicy,
    Later,
    LitePullConfig,
    LitePullConsumer,
    LockConfig,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    OffsetFile,
    Producer,
    PullConfig,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from raftmq.client.message import properties_text
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from tests.client.scenarios.producing import QUICK, SEND_MS, Seen, consumer_of
from tests.client.scenarios.providers import PATIENCE_S, Cluster, fresh, topic_of
from tests.waiting import until

T = TypeVar("T")


async def send_all(cluster: Cluster, topic: str, bodies: list[bytes], **options: str) -> None:
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **options), SEND_MS)  # type: ignore[arg-type]


async def answered(ask: Callable[[], Awaitable[T]]) -> T | None:
    """Ask an administrator's question that may be repeated; None if the answer took too long: a JVM
    that has just started may stand still on a busy machine, for longer than a request waits."""
    try:
        return await ask()
    except BrokerUnreachable:
        return None
    except BrokerRefused as error:
        if error.code != ResponseCode.CONSUME_MSG_TIMEOUT:  # the consumer's own answer
            raise
        return None


async def retries(cluster: Cluster) -> None:
    """A failed message comes again, from the retry topic, with its own topic's name."""
    topic = await topic_of(cluster)
    times: defaultdict[bytes, list[int]] = defaultdict(list)
    topics: set[str] = set()

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        times[message.body].append(message.reconsume_times)
        topics.add(message.topic)
        bad = message.body == b"bad" and message.reconsume_times < 2
        return ConsumeResult.RECONSUME_LATER if bad else ConsumeResult.SUCCESS

    config = replace(QUICK, pull=replace(QUICK.pull, consume_batch_size=1))
    async with consumer_of(cluster, topic, listen, config):
        await send_all(cluster, topic, [b"good", b"bad"])
        await until(lambda: times[b"bad"])
        await cluster.fail_over()
        await until(lambda: 2 in times[b"bad"], lambda: dict(times))
    assert times[b"bad"][0] == 0 and set(times[b"bad"]) == {0, 1, 2}
    assert times[b"good"][0] == 0 and topics == {topic}


async def consume_time_outs(cluster: Cluster) -> None:
    """A message whose listener does not return goes back and comes again; its late answer is
    ignored, and the group is past the message at once."""
    topic = await topic_of(cluster, 1)
    hangs = asyncio.Event()
    times: list[int] = []
    late = 0

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        nonlocal late
        (message,) = messages
        times.append(message.reconsume_times)
        if message.reconsume_times:
            return ConsumeResult.SUCCESS
        await hangs.wait()
        late += 1
        return ConsumeResult.RECONSUME_LATER

    config = replace(QUICK, consume_timeout_ms=300, pull=replace(QUICK.pull, consume_batch_size=1))
    consumer = consumer_of(cluster, topic, listen, config)
    async with consumer:
        await send_all(cluster, topic, [b"slow"])
        await until(lambda: times)
        await cluster.fail_over()
        await until(lambda: 1 in times, lambda: times)
        hangs.set()
        await until(lambda: late)
        (queue,) = [queue for queue in consumer.queues if queue.topic == topic]
        assert consumer.offsets[queue] == 1
        assert 1 <= consumer.timed_out <= times.count(0)  # a kill may bring the first one twice
    assert set(times) == {0, 1}, "the late answer did not send it back again"


async def dead_letters(cluster: Cluster) -> None:
    """A message that fails too often, or is given up, is found in the group's dead letters."""
    topic = await topic_of(cluster)
    tried: defaultdict[bytes, int] = defaultdict(int)

    def listen(messages: list[MessageExt]) -> Later:
        (message,) = messages
        tried[message.body] += 1
        return Later(delay_level=-1) if message.body == b"at once" else Later(delay_level=3)

    config = replace(
        QUICK,
        pull=replace(QUICK.pull, consume_batch_size=1),
        failure=FailurePolicy(max_reconsume_times=1),
    )
    consumer = consumer_of(cluster, topic, listen, config)
    dead: set[bytes] = set()
    async with consumer, PullConsumer(fresh("G"), cluster.namesrv) as reader:
        await send_all(cluster, topic, [b"at once", b"twice"])
        await until(lambda: tried[b"at once"])
        await cluster.fail_over()
        await until(lambda: tried[b"twice"] >= 2, lambda: dict(tried))
        name = (await reader.queues(topic))[0].broker_name
        queue = MessageQueue("%DLQ%" + consumer.group, name, 0)
        async with asyncio.timeout(PATIENCE_S):
            while dead != {b"at once", b"twice"}:
                try:
                    dead |= {message.body for message in await reader.fetch(queue)}
                except BrokerRefused:
                    pass  # there is no such topic yet
                await asyncio.sleep(0.05)


async def orderly(cluster: Cluster) -> None:
    """In order, one at a time, whatever fails in between; the lock outlives its leader."""
    topic = await topic_of(cluster, 2)
    got: defaultdict[int, list[int]] = defaultdict(list)
    running: set[int] = set()
    failed: set[int] = set()

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        assert message.queue_id not in running, "two at a time"
        running.add(message.queue_id)
        await asyncio.sleep(0.001)
        running.discard(message.queue_id)
        number = int(message.body)
        if number % 7 == 3 and number not in failed:
            failed.add(number)
            return ConsumeResult.RECONSUME_LATER
        got[message.queue_id].append(number)
        return ConsumeResult.SUCCESS

    config = replace(
        QUICK,
        orderly=True,
        pull=replace(QUICK.pull, consume_batch_size=1),
        failure=FailurePolicy(20, 20),
        lock=LockConfig(500, 30_000, 50),
    )
    async with consumer_of(cluster, topic, listen, config):
        async with Producer(fresh("P"), cluster.namesrv) as producer:
            for number in range(40):
                if number == 20:
                    await cluster.fail_over()
                await producer.send(
                    Message(topic, b"%d" % number),
                    SEND_MS,
                    selector=lambda queues, _message, n: queues[n % 2],
                    arg=number,
                )
        await until(lambda: {n for q in got.values() for n in q} == set(range(40)), lambda: got)
    for numbers in got.values():
        assert numbers == sorted(numbers), numbers
    assert failed == {3, 10, 17, 24, 31, 38}


async def pulling(cluster: Cluster) -> None:
    """Fetch, commit, and go on elsewhere."""
    topic, group = await topic_of(cluster, 1), fresh("G")
    await send_all(cluster, topic, [b"%d" % n for n in range(20)])
    bodies: list[bytes] = []
    async with PullConsumer(group, cluster.namesrv) as consumer:
        (queue,) = await consumer.queues(topic)
        consumer.seek(queue, 0)
        while len(bodies) < 10:
            bodies += [message.body for message in await consumer.fetch(queue, 10 - len(bodies))]
        await consumer.commit(queue)
        await cluster.fail_over()
        assert await consumer.max_offset(queue) >= 20
        waiting = asyncio.create_task(
            consumer.pull(queue, await consumer.max_offset(queue), wait_ms=120_000)
        )
        await send_all(cluster, topic, [b"new"])
        assert b"new" in {message.body for message in (await waiting).messages}
    async with PullConsumer(group, cluster.namesrv) as consumer:
        assert await consumer.committed(queue) == 10
        while b"new" not in bodies:
            bodies += [message.body for message in await consumer.fetch(queue, wait_ms=1000)]
    assert bodies[:20] == [b"%d" % n for n in range(20)]


async def lite_pulling(cluster: Cluster) -> None:
    """Subscribed: nothing is lost between two consumers of a group. Assigned: seek."""
    topic, group = await topic_of(cluster), fresh("G")
    config = LitePullConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        auto_commit_interval_ms=100,
        rebalance_interval_ms=1000,
        pull=PullConfig(suspend_ms=5000),
    )
    bodies = {b"%d" % n for n in range(60)}
    await send_all(cluster, topic, sorted(bodies))
    got: set[bytes] = set()
    first = LitePullConsumer(group, cluster.namesrv, config=config)
    first.subscribe(topic)
    async with first, asyncio.timeout(PATIENCE_S):
        while len(got) < 30:
            got |= {message.body for message in await first.poll(500)}
        await cluster.fail_over()
        await first.commit()
    second = LitePullConsumer(group, cluster.namesrv, config=config)
    second.subscribe(topic)
    deadline = time.monotonic() + PATIENCE_S
    async with second:
        while got != bodies:
            got |= {message.body for message in await second.poll(500)}
            positions = {queue.queue_id: second.position(queue) for queue in second.assignment}
            assert time.monotonic() < deadline, (bodies - got, positions)
    async with LitePullConsumer(fresh("G"), cluster.namesrv, config=config) as third:
        queue = (await third.fetch_queues(topic))[1]
        await third.assign([queue])
        await third.seek_to_end(queue)
        end = third.position(queue)
        await third.seek(queue, end - 1)
        (last,) = await third.poll(120_000)
        assert (last.queue, last.queue_offset) == (queue, end - 1)


async def broadcasting(cluster: Cluster) -> None:
    """Everybody gets everything, and goes on at its own place."""
    topic, group = await topic_of(cluster), fresh("G")
    with TemporaryDirectory() as directory:
        files = [OffsetFile(Path(directory) / name / "offsets.json") for name in "ab"]
        seen = [Seen(), Seen(), Seen()]

        def member(number: int, listener: Seen) -> PushConsumer:
            config = replace(
                QUICK, message_model=MessageModel.BROADCASTING, offset_storage=files[number]
            )
            consumer = PushConsumer(group, cluster.namesrv, listener, config=config)
            consumer.subscribe(topic)
            return consumer

        bodies = [b"%d" % n for n in range(20)]
        async with member(0, seen[0]), member(1, seen[1]):
            await send_all(cluster, topic, bodies[:10])
            await seen[0].has(bodies[:10])
            await cluster.fail_over()
            await send_all(cluster, topic, bodies[10:])
            await seen[0].has(bodies)
            await seen[1].has(bodies)
        await send_all(cluster, topic, [b"later"])
        async with member(0, seen[2]):
            await seen[2].has([b"later"])
        assert set(seen[2].bodies) == {b"later"}


async def tags(cluster: Cluster) -> None:
    """Also of two tags with the same hash."""
    topic, seen = await topic_of(cluster), Seen()
    consumer = PushConsumer(fresh("G"), cluster.namesrv, seen, config=QUICK)
    consumer.subscribe(topic, "Aa || C")
    async with consumer:
        for tag in ("Aa", "BB", "C", "D"):  # Aa and BB have one hash
            await send_all(cluster, topic, [tag.encode()], tags=tag)
        await cluster.fail_over()
        await send_all(cluster, topic, [b"BB too"], tags="BB")
        await send_all(cluster, topic, [b"C too"], tags="C")
        await seen.has([b"Aa", b"C", b"C too"])
    assert set(seen.bodies) == {b"Aa", b"C", b"C too"}


async def sql_filters(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    consumer = PushConsumer(fresh("G"), cluster.namesrv, seen, config=QUICK)
    consumer.subscribe(topic, "a BETWEEN 3 AND 5 OR (TAGS = 'x' AND b IS NULL)", "SQL92")
    async with consumer, Producer(fresh("P"), cluster.namesrv) as producer:
        for number in range(10):
            if number == 4:
                await cluster.fail_over()
            properties = {"a": str(number), "b": "there"}
            await producer.send(
                Message(topic, b"%d" % number, tags="x", properties=properties), SEND_MS
            )
        await producer.send(Message(topic, b"tag", tags="x"), SEND_MS)
        await seen.has([b"3", b"4", b"5", b"tag"])
    assert set(seen.bodies) == {b"3", b"4", b"5", b"tag"}
    refused = PushConsumer(fresh("G"), cluster.namesrv, seen, config=QUICK)
    refused.subscribe(topic, "a BETWEEN", "SQL92")
    try:
        await refused.start()
    except BrokerRefused:
        return
    await refused.stop()
    raise AssertionError("an expression that is none was taken")


async def where_to_begin(cluster: Cluster) -> None:
    """First, last, or by time; and a group that has been there goes on where it was."""
    topic, group = await topic_of(cluster, 1), fresh("G")
    await send_all(cluster, topic, [b"old"])
    await asyncio.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    await send_all(cluster, topic, [b"new"])
    last, timed, first = Seen(), Seen(), Seen()
    by_time = replace(
        QUICK, consume_from=ConsumeFrom.TIMESTAMP, consume_from_timestamp_ms=middle_ms
    )
    one = PushConsumer(
        group, cluster.namesrv, last, config=replace(QUICK, consume_from=ConsumeFrom.LAST_OFFSET)
    )
    one.subscribe(topic)
    async with one, consumer_of(cluster, topic, timed, by_time):
        await until(lambda: any(queue.topic == topic for queue in one.queues))
        await cluster.fail_over()
        await send_all(cluster, topic, [b"newest"])
        await last.has([b"newest"])
        await timed.has([b"new", b"newest"])
    assert set(last.bodies) <= {b"newest"} and b"old" not in timed.bodies
    await send_all(cluster, topic, [b"in between"])
    again = PushConsumer(group, cluster.namesrv, first, config=QUICK)
    again.subscribe(topic)
    async with again:
        await first.has([b"in between"])
    assert set(first.bodies) == {b"in between"}


async def resets(cluster: Cluster) -> None:
    """An administrator moves a group that consumes: to the beginning, and it follows."""
    topic, seen = await topic_of(cluster), Seen()
    bodies = [b"%d" % n for n in range(12)]
    consumer = consumer_of(cluster, topic, seen)
    async with consumer, Admin(cluster.namesrv) as admin:
        await send_all(cluster, topic, bodies)
        await seen.has(bodies)
        await consumer.commit()
        await cluster.fail_over()
        seen.messages.clear()
        await send_all(cluster, topic, [b"found"])  # there is a leader
        await seen.has([b"found"])
        (address,) = (await admin.cluster.leaders_of(topic)).values()
        moved = await admin.offset.reset(address, consumer.group, topic, 0)
        assert {offset for queue, offset in moved.items() if queue.topic == topic} == {0}
        await seen.has(bodies)


async def a_lite_consumer_is_asked(cluster: Cluster) -> None:
    """Where it is, what it does (mqadmin consumerStatus); and it follows when it is moved."""
    topic, group = await topic_of(cluster), fresh("G")
    bodies = {b"%d" % n for n in range(12)}
    config = LitePullConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        auto_commit_interval_ms=100,
        rebalance_interval_ms=1000,
        pull=PullConfig(suspend_ms=5000),
    )
    consumer = LitePullConsumer(group, cluster.namesrv, config=config)
    consumer.subscribe(topic)
    got: set[bytes] = set()

    async def all_of(wanted: set[bytes]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not wanted <= got:
                got.update(message.body for message in await consumer.poll(500))
        await consumer.poll(1)  # what the last one brought is worked on
        await consumer.commit()

    async with consumer, Admin(cluster.namesrv) as admin:
        await send_all(cluster, topic, sorted(bodies))
        await all_of(bodies)
        await cluster.fail_over()
        await send_all(cluster, topic, [b"found"])  # there is a leader
        await all_of({b"found"})
        (address,) = (await admin.cluster.leaders_of(topic)).values()
        client_id = consumer.client_id

        async def known() -> bool:  # a leader that was restarted hears of it again
            return client_id in await admin.group.consumers(group, address)

        await until(lambda: answered(known))
        info = await until(
            lambda: answered(lambda: admin.group.running_info(address, group, client_id))
        )
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        positions = {
            queue.queue_id: state["commitOffset"] for queue, state in info["mqTable"].items()
        }
        assert sorted(positions) == [0, 1, 2, 3] and sum(positions.values()) == 13

        async def status() -> dict[MessageQueue, int] | None:  # Apache's leaves out who was silent
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            reported = await admin.ask(address, code, {"topic": topic, "group": group})
            return loads_object(reported.body)["consumerTable"].get(client_id)

        table = await until(lambda: answered(status))
        assert {queue.queue_id: offset for queue, offset in table.items()} == positions
        got.clear()
        await until(lambda: answered(lambda: admin.offset.reset(address, group, topic, 0)))
        await all_of(bodies)


async def popping(cluster: Cluster) -> None:
    """What is acknowledged is done with; what is not comes again, under any leader."""
    topic, group = await topic_of(cluster, 4), fresh("G")
    await send_all(cluster, topic, [b"other"] * 3, tags="TagB")
    await send_all(cluster, topic, [b"%d" % n for n in range(30)], tags="TagA")
    first, second = (
        SimpleConsumer(group, cluster.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
        for _ in range(2)
    )
    done: dict[bytes, int] = {}
    lost: set[bytes] = set()
    async with first, second, asyncio.timeout(PATIENCE_S):
        for consumer in (first, second):
            await consumer.subscribe(topic, "TagA")
        messages = await received(first, 15, invisible_ms=60_000)
        handle = messages[14].properties["POP_CK"]
        assert await first.ack(messages[:10]) == []
        assert await first.ack(messages[10:11]) == []
        assert await first.change_invisible(messages[11], 3_000)
        done.update((message.body, 0) for message in messages[:11])
        lost.update(message.body for message in messages[11:12])
        messages = await received(second, 15, invisible_ms=5_000)
        lost.update(message.body for message in messages[10:])
        assert not lost & done.keys()
        await cluster.fail_over()
        if cluster.forgets_pops:
            messages = []
        assert await second.ack(messages[:10]) == []
        done.update((message.body, 0) for message in messages[:10])
        while lost - done.keys():
            for message in await second.receive(await_ms=1_000):
                assert message.body not in done or cluster.forgets_pops, message
                assert await second.ack([message]) == []
                done[message.body] = message.reconsume_times
        assert all(done[body] >= 1 for body in lost), done
        # Sent on with all of its properties, it is acknowledged by what it has now. Our client
        # does not send such a message, others may.
        async with Producer(fresh("P"), cluster.namesrv) as producer:
            suffix = properties_text({"POP_CK": handle})
            item = producer._outgoing(Message(topic, b"sent on", tags="TagA"), suffix=suffix)
            deadline = asyncio.get_running_loop().time() + SEND_MS / 1000
            await producer._send_item(item, topic, None, deadline)
        while b"sent on" not in done:
            for message in await second.receive(await_ms=1_000):
                assert message.properties["POP_CK"] != handle
                assert await second.ack([message]) == []
                done[message.body] = message.reconsume_times


async def received(consumer: SimpleConsumer, count: int, invisible_ms: int) -> list[MessageExt]:
    """Receive so many messages."""
    result: list[MessageExt] = []
    while len(result) < count:
        result += await consumer.receive(count - len(result), invisible_ms=invisible_ms)
    return result


async def sharing(cluster: Cluster) -> None:
    """Two members share the queues by the ring; what one leaves the other takes."""
    topic, group = await topic_of(cluster, 8), fresh("G")
    config = replace(QUICK, allocation=AllocateByConsistentHash())
    seen = [Seen(), Seen()]

    def mine(consumer: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.queues if queue.topic == topic}

    members = [PushConsumer(group, cluster.namesrv, s, config=config) for s in seen]
    for member in members:
        member.subscribe(topic)
        await member.start()
    one, two = members
    try:
        await until(lambda: len(mine(one)) + len(mine(two)) == 8 and not mine(one) & mine(two))
        await cluster.fail_over()
        bodies = [b"%d" % n for n in range(40)]
        await send_all(cluster, topic, bodies)
        await until(lambda: set(bodies) <= set(seen[0].bodies) | set(seen[1].bodies))
        await one.stop()
        await until(lambda: mine(two) == set(range(8)), lambda: mine(two))
        await send_all(cluster, topic, [b"to the other"])
        await seen[1].has([b"to the other"])
    finally:
        await two.stop()
        await one.stop()


SCENARIOS = (
    retries,
    consume_time_outs,
    dead_letters,
    orderly,
    pulling,
    lite_pulling,
    broadcasting,
    tags,
    sql_filters,
    where_to_begin,
    resets,
    a_lite_consumer_is_asked,
    popping,
    sharing,
)
