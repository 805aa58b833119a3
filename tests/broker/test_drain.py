"""A broker group that is drained, until nothing is left that its removal would lose."""

import asyncio
import shutil
from contextlib import AsyncExitStack

import orjson
import pytest

from raftmq.broker.admin import drain as admin_drain
from raftmq.broker.admin import progress, remainder
from raftmq.broker.cluster import sharing
from raftmq.broker.transactions.service import Transactions
from raftmq.client import Message, Producer
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.broker.test_definition_sharing import group, has_master, make_topic, name_server
from tests.broker.transactions.test_service import half
from tests.waiting import until

DELAYED = "DELAY\x013\x02"  # 10 s


async def drain(group, op):
    broker = await group.leading()
    answer = await group.ask(broker, RequestCode.DRAIN_GROUP, {"op": op})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return orjson.loads(answer.body)


def rows(status):
    return [(row["topic"], row["group"], row["messages"]) for row in status["unconsumed"]]


async def create(group, topic):
    broker = await group.leading()
    ext = TopicHeader(topic, 1, 1, 6).to_ext()
    return (await group.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code


async def test_draining_group_creates_no_topic_and_accepts_sends_for_the_grace(tmp_path):
    async with Group(tmp_path, drainGraceMs=3_600_000) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T")
        status = await drain(one, "start")
        assert status["drainingMs"] > 0 and status["takesSends"] and not status["isEmpty"]
        assert (await one.send(broker, "T")).code == ResponseCode.SUCCESS
        assert (await one.send(broker, "New")).code == ResponseCode.NO_PERMISSION
        delayed = await one.send(broker, "T", properties=DELAYED)
        assert delayed.code == ResponseCode.NO_PERMISSION
        assert await create(one, "New") == ResponseCode.NO_PERMISSION
        assert await create(one, "T") == ResponseCode.SUCCESS  # it exists
        assert not (await drain(one, "cancel"))["drainingMs"]
        assert await create(one, "New") == ResponseCode.SUCCESS
        assert (await one.send(broker, "T", properties=DELAYED)).code == ResponseCode.SUCCESS


async def test_drain_survives_a_failover_and_a_restart(tmp_path):
    async with Group(tmp_path, 3, drainGraceMs=0) as three:
        broker = await three.leading()
        await three.create_topic(broker, "T")
        since_ms = (await drain(three, "start"))["drainingMs"]
        for _ in range(2):
            broker = await three.leading()
            await until(lambda one=broker: one.sends.closed)
            assert (await three.send(broker, "T")).code == ResponseCode.NO_PERMISSION
            assert (await drain(three, "status"))["drainingMs"] == since_ms
            name = await three.leader()
            await three.kill(name)
            await three.start(name)
        await drain(three, "cancel")
        broker = await three.leading()
        assert (await three.send(broker, "T")).code == ResponseCode.SUCCESS


async def test_drain_counts_messages_until_they_are_consumed(tmp_path):
    async with Group(tmp_path, drainGraceMs=0) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T", 2)
        for queue in (0, 0, 1):
            assert (await one.send(broker, "T", queue=queue)).code == ResponseCode.SUCCESS
        assert (await one.send(broker, "T", properties=DELAYED)).code == ResponseCode.SUCCESS
        status = await drain(one, "start")
        assert rows(status) == [("T", "", 3)]
        assert status["delayed"] == 1 and status["latestDueMs"] > broker.context.wall_ms()
        assert not status["isEmpty"] and not status["takesSends"]
        assert status["emptyAtMs"] is None  # nobody consumes
        for queue, offset in ((0, 1), (1, 1)):
            assert (await one.commit(broker, "T", queue, offset)).code == ResponseCode.SUCCESS
        await until(lambda: broker.state.offsets.get("T", "cg", 1) == 1)
        status = await drain(one, "status")
        assert rows(status) == [("T", "cg", 1)]
        await one.commit(broker, "T", 0, 2)
        await until(lambda: broker.state.offsets.get("T", "cg", 0) == 2)
        status = await drain(one, "status")
        assert status["unconsumed"] == [] and not status["isEmpty"]  # one is still delayed
        assert status["emptyAtMs"] == status["latestDueMs"]


async def test_draining_group_is_empty_only_after_it_rejects_sends(tmp_path):
    async with Group(tmp_path, drainGraceMs=3_600_000) as one:
        broker = await one.leading()
        assert not (await drain(one, "status"))["isEmpty"]
        assert not (await drain(one, "start"))["isEmpty"]
        body = b"drainGraceMs=0\n"
        answer = await one.ask(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, body)
        assert answer.code == ResponseCode.SUCCESS
        async with asyncio.timeout(60):
            while not (await drain(one, "status"))["isEmpty"]:  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.01)


async def test_group_is_not_empty_while_a_half_message_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Transactions, "tick", lambda self: None)  # as right after a failover
    async with Group(tmp_path, drainGraceMs=0) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T")
        await half(one, broker, "A", topic="T")
        status = await drain(one, "start")
        assert (status["remaining"], status["isEmpty"]) == (0, False)


async def test_unknown_operations_and_a_target_without_a_move_are_rejected(tmp_path):
    async with Group(tmp_path) as one:
        broker = await one.leading()
        for ext in ({"op": "destroy"}, {"op": "start", "to": "broker-b"}):
            answer = await one.ask(broker, RequestCode.DRAIN_GROUP, ext)
            assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("grace_ms", [0, 1_000])
async def test_no_send_fails_while_one_of_two_groups_is_drained(tmp_path, monkeypatch, grace_ms):
    """A producer that sends all the time stores everything, the last part in the other group."""
    monkeypatch.setattr(sharing, "PERIOD_S", 0.1)
    settings = {"drainGraceMs": grace_ms}
    async with (
        name_server() as server,
        group(tmp_path, "a", server, **settings) as staying,
        group(tmp_path, "b", server, **settings) as leaving,
    ):
        await make_topic(staying, "T", 2)
        brokers = [await one.leading() for one in (staying, leaving)]
        await until(lambda: brokers[1].state.topics.get("T") is not None)
        await until(lambda: all(has_master(server, f"broker-{one}") for one in "ab"))
        await until(lambda: len(server.table.queues("T") or {}) == 2)
        results = []
        async with Producer("pg", [server.address]) as producer:

            async def send_until(done):
                while not done():
                    results.append(await producer.send(Message("T", b"x")))

            def used(broker):
                return any(one.queue.broker_name == broker for one in results)

            await send_until(lambda: used("broker-a") and used("broker-b"))
            drained = asyncio.create_task(drain(leaving, "start"))
            await send_until(lambda: brokers[1].sends.closed)
            await drained
            await until(lambda: not server.table.queues("T")["broker-b"].perm & 2)
            last = len(results)
            await send_until(lambda: len(results) >= last + 50)
            assert all(one.queue.broker_name == "broker-a" for one in results[-10:])


async def test_only_an_empty_group_is_removed_and_it_cannot_register_again(tmp_path):
    async with name_server() as server, group(tmp_path, "b", server, drainGraceMs=0) as leaving:
        broker = await leaving.leading()
        await until(lambda: has_master(server, "broker-b"))
        await leaving.create_topic(broker, "T")
        assert (await leaving.send(broker, "T")).code == ResponseCode.SUCCESS

        await until(lambda: broker.state.group.value)  # its id

        async def remove(**ext):
            one = await leaving.leading()
            return await leaving.ask(one, RequestCode.DRAIN_GROUP, {"op": "remove", **ext})

        answer = await remove()
        assert "not draining" in answer.remark
        await drain(leaving, "start")
        answer = await remove()
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "[NOT_EMPTY] the broker group still has: 1 of T for no group"
        assert has_master(server, "broker-b")
        assert (await leaving.commit(broker, "T", 0, 1)).code == ResponseCode.SUCCESS
        await until(lambda: broker.state.offsets.get("T", "cg", 0) == 1)
        answer = await remove()
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "no other group records the removal: no name server lists one" in answer.remark
        answer = await remove(lose="true")
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert orjson.loads(answer.body)["removed"]
        await until(lambda: not list(server.table.brokers("broker-b")))
        await leaving.stop("n0")
        again = await leaving.start("n0")
        await until(lambda: again.roles.leading)
        await asyncio.sleep(0.2)
        assert not list(server.table.brokers("broker-b"))


async def test_remaining_groups_keep_a_removed_group_from_registering(
    tmp_path, monkeypatch, caplog
):
    """A copy of its store from before the removal is rejected by a new name server, too, once any
    other leader has registered there."""
    monkeypatch.setattr(sharing, "PERIOD_S", 0.1)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(name_server())
        a, c = [
            await stack.enter_async_context(group(tmp_path, one, server, drainGraceMs=0))
            for one in "ac"
        ]
        async with group(tmp_path, "b", server, drainGraceMs=0) as leaving:
            broker = await leaving.leading()
            await until(lambda: all(has_master(server, f"broker-{one}") for one in "abc"))
            await drain(leaving, "start")
            await until(lambda: broker.state.group.value)
            await leaving.stop("n0")
            shutil.copytree(tmp_path / "b", tmp_path / "copy")
            broker = await leaving.start("n0")
            await until(lambda: has_master(server, "broker-b"))
            answer = await leaving.ask(broker, RequestCode.DRAIN_GROUP, {"op": "remove"})
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            group_id = broker.state.group.value.hex()
        for one in (a, c):
            leader = await one.leading()
            await until(lambda one=leader: group_id in one.state.group.removed_groups)
        again = await stack.enter_async_context(name_server())
        body = f"namesrvAddr={again.address}\n".encode()
        leader = await c.leading()
        assert (await c.ask(leader, RequestCode.UPDATE_BROKER_CONFIG, {}, body)).code == 0
        await until(lambda: has_master(again, "broker-c"))
        copied = Group(tmp_path / "copy", brokerName="broker-b", namesrvAddr=again.address)
        returned = await stack.enter_async_context(copied)
        await returned.leading()
        await until(lambda: "[REMOVED]" in caplog.text)
        assert not list(again.table.brokers("broker-b"))


async def test_group_with_content_is_removed_only_by_name(tmp_path, caplog):
    async with Group(tmp_path, drainGraceMs=0) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T")
        assert (await one.send(broker, "T")).code == ResponseCode.SUCCESS
        await drain(one, "start")
        await until(lambda: broker.state.group.value)
        ext = {"op": "remove", "lose": "true"}
        assert (await one.ask(broker, RequestCode.DRAIN_GROUP, ext)).code == ResponseCode.SUCCESS
        assert "removed_with_content the broker group still has: 1 of T" in caplog.text


def test_drain_estimate_follows_the_consumption_of_the_last_minutes():
    rate = remainder.ConsumptionRate()
    assert rate.left_s(0.0, 1_000) is None  # one count is no rate
    assert rate.left_s(10.0, 900) == 90.0
    assert rate.left_s(20.0, 1_100) is None  # sends of clients with an older route
    assert rate.left_s(100.0, 500) == 100.0
    assert rate.left_s(319.0, 500) == pytest.approx(500 * 299 / 600)  # since 1,100 at 20 s
    assert rate.left_s(500.0, 500) is None  # nobody consumes any more
    assert rate.left_s(500.0, 0) == 0.0
    for step in range(10_000):
        rate.left_s(500.0 + step, 500)
    assert len(rate._counts) <= remainder.RATE_S / remainder.RATE_STEP_S + 1


async def test_leader_counts_the_remaining_messages_for_the_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr(admin_drain, "COUNT_MS", 50)
    async with Group(tmp_path, drainGraceMs=0) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T")
        assert (await one.send(broker, "T")).code == ResponseCode.SUCCESS
        assert (broker.drain.draining_s, broker.drain.remaining) == (0.0, 0)
        await drain(one, "start")
        await until(lambda: broker.drain.remaining == 1)
        assert broker.drain.draining_s >= 0
        await drain(one, "cancel")
        await until(lambda: broker.drain.remaining == 0)


async def test_messages_of_given_up_consumer_groups_do_not_block_a_removal(tmp_path):
    async with Group(tmp_path, drainGraceMs=0) as one:
        broker = await one.leading()
        await one.create_topic(broker, "T", 1)
        for _ in range(2):
            assert (await one.send(broker, "T")).code == ResponseCode.SUCCESS
        await one.commit(broker, "T", 0, 1)
        await until(lambda: broker.state.offsets.get("T", "cg", 0) == 1)
        (row,) = (await drain(one, "start"))["unconsumed"]
        assert (row["members"], row["givenUp"], row["messages"]) == (0, False, 1)
        assert 0 < row["sinceMs"] <= broker.context.wall_ms()
        ext = {"op": "start", "givenUp": "other,cg"}
        answer = await one.ask(broker, RequestCode.DRAIN_GROUP, ext)
        status = orjson.loads(answer.body)
        assert status["isEmpty"] and status["unconsumed"][0]["givenUp"]
        answer = await one.ask(broker, RequestCode.DRAIN_GROUP, {"op": "start", "givenUp": "a b"})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        await drain(one, "cancel")
        assert not (await drain(one, "start"))["isEmpty"]


async def test_count_of_a_topic_with_many_queues_yields_to_the_event_loop(tmp_path):
    """The ends, the group's progress, and the search for its oldest message go queue by queue."""
    async with Group(tmp_path) as one:
        broker, queues = await one.leading(), 4_000
        await one.create_topic(broker, "T", queues)
        assert (await one.send(broker, "T")).code == ResponseCode.SUCCESS
        broker.state.offsets.commit([("T", "cg", 0, 0)])
        answer = asyncio.ensure_future(broker.drain.status())
        turns = 0
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        (row,) = (await answer)["unconsumed"]
        assert (row["group"], row["messages"]) == ("cg", 1) and row["sinceMs"]
        assert turns >= 4 * queues // progress.STEPS_PER_TURN
