"""Timer messages and dead letters of a draining group that move to another group."""

import asyncio
import random
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from raftmq.broker.cluster import sharing
from raftmq.broker.cluster.other_groups import OtherGroups
from raftmq.broker.delayed import moves
from raftmq.broker.delayed.moves import Moves
from raftmq.broker.errors import busy
from raftmq.broker.send.exactly_once import WriterRequests, Written
from raftmq.broker.tables.writers import Watermark
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fields import parse_integer
from raftmq.remoting.recall_handle import RecallHandle
from raftmq.store.dispatch import QUEUE_ENTRY, SCHEDULE_TOPIC, TIMER_TOPIC
from raftmq.store.properties import decode_properties
from raftmq.store.record import MessageRecord, decode_record, encode_record
from tests.broker.test_definition_sharing import group, has_master, make_topic, name_server
from tests.waiting import until

DAY_MS = 86_400_000
DLQ = "%DLQ%cg"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(sharing, "PERIOD_S", 0.1)
    monkeypatch.setattr(moves, "RETRY_MS", 50)


@asynccontextmanager
async def two_groups(tmp_path, *, replicas=1):
    """A group that is to be drained, b, and the group that its messages move to, a."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(name_server())
        staying = await stack.enter_async_context(group(tmp_path, "a", server))
        settings = {"drainGraceMs": 0}
        leaving = group(tmp_path, "b", server, replicas, **settings)
        leaving = await stack.enter_async_context(leaving)
        await make_topic(staying, "T", 2)
        await until(lambda: all(has_master(server, f"broker-{one}") for one in "ab"))
        broker = await leaving.leading()
        await until(lambda: broker.state.topics.get("T") and broker.state.group.value)
        yield staying, leaving


async def drain(group, op="start", **ext):
    answer = await group.ask(await group.leading(), RequestCode.DRAIN_GROUP, {"op": op, **ext})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return orjson.loads(answer.body)


async def move_timers(group):
    return await drain(group, moveTimers="true")


async def send_timers(group, count, key="K"):
    """Send timer messages of tomorrow; return their delivery time."""
    broker = await group.leading()
    deliver_ms = broker.context.wall_ms() + DAY_MS
    for number in range(count):
        properties = f"UNIQ_KEY\x01{key}{number}\x02TIMER_DELIVER_MS\x01{deliver_ms + number}\x02"
        answer = await group.send(broker, "T", properties=properties)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    return deliver_ms


def stored(broker, topic=TIMER_TOPIC, queue_id=0):
    queue = broker.store.queues.queue(topic, queue_id)
    entries = b"" if queue is None else queue.entries(0, queue.max_offset)
    data = [broker.store.reads.message_at(at) for at, _, _ in QUEUE_ENTRY.iter_unpack(entries)]
    return [decode_record(one) for one in data]


def keys(broker, topic=TIMER_TOPIC):
    return sorted(decode_properties(one.properties)["UNIQ_KEY"] for one in stored(broker, topic))


async def until_empty(group):
    async with asyncio.timeout(60):
        while not (status := await drain(group, "status"))["isEmpty"]:  # noqa: ASYNC110 - asked
            await asyncio.sleep(0.02)
    return status


async def test_waiting_timer_messages_move_with_their_ids_and_times(tmp_path, monkeypatch):
    monkeypatch.setattr("raftmq.broker.delayed.timers.COUNT_MAX", 2)  # several windows
    async with two_groups(tmp_path) as (staying, leaving):
        source, target = await leaving.leading(), await staying.leading()
        assert (await create(leaving, "ordered", order=True)).code == 0
        deliver_ms = await send_timers(leaving, 5)
        delayed = "UNIQ_KEY\x01D\x02DELAY\x0118\x02"  # two hours
        assert (await leaving.send(source, "ordered", properties=delayed)).code == 0
        (due_ms,) = [
            code
            for _, _, code in QUEUE_ENTRY.iter_unpack(
                source.store.queues.queue(SCHEDULE_TOPIC, 17).entries(0, 1)
            )
        ]
        await move_timers(leaving)
        status = await until_empty(leaving)
        assert status["move"]["movedTimers"] == 6 and status["move"]["to"] == "broker-a"
        assert status["timers"] == status["delayed"] == status["inMove"] == 0
        assert keys(target) == ["D", "K0", "K1", "K2", "K3", "K4"]
        messages = stored(target)
        assert {one.born_timestamp_ms for one in messages} == {1_700_000_000_000}
        by_key = {p["UNIQ_KEY"]: p for p in (decode_properties(m.properties) for m in messages)}
        assert by_key["K3"]["TIMER_OUT_MS"] == str(deliver_ms + 3 - 1)
        assert by_key["D"]["TIMER_OUT_MS"] == str(due_ms - 1)
        assert by_key["D"]["REAL_TOPIC"] == "ordered"
        topic = target.state.topics.get("ordered")
        assert topic.order and not topic.writable  # so that no producer sends a key there
        await until(lambda: target.timers.wheel.count == 6)


async def create(group, topic, *, order=False):
    header = TopicHeader(topic, 1, 1, 6)._replace(order=order)
    broker = await group.leading()
    return await group.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())


async def move_with_crash(tmp_path, monkeypatch, crashed, before, *, replicas=1):
    """Move four timers while the source or the target crashes, before a method of a move; return
    the keys that the target has."""
    reached = asyncio.Event()
    method = getattr(Moves, before)

    async def held(self, *arguments):
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return await method(self, *arguments)

    async with two_groups(tmp_path, replicas=replicas) as (staying, leaving):
        await send_timers(leaving, 4)
        monkeypatch.setattr(Moves, before, held)
        await move_timers(leaving)
        await reached.wait()
        one = leaving if crashed == "source" else staying
        name = await one.leader()
        await one.kill(name)
        await one.start(name)
        if crashed == "target":  # the held task ends with its leadership
            name = await leaving.leader()
            await leaving.kill(name)
            await leaving.start(name)
        status = await until_empty(leaving)
        assert status["move"]["movedTimers"] == 4
        return keys(await staying.leading())


@pytest.mark.parametrize(
    ("crashed", "before"), [("source", "_finish"), ("source", "_close"), ("target", "_close")]
)
async def test_crash_during_a_move_neither_loses_nor_repeats_messages(
    tmp_path, monkeypatch, crashed, before
):
    assert await move_with_crash(tmp_path, monkeypatch, crashed, before) == ["K0", "K1", "K2", "K3"]


async def test_new_leader_continues_with_the_open_move_window(tmp_path, monkeypatch):
    moved = await move_with_crash(tmp_path, monkeypatch, "source", "_close", replicas=3)
    assert moved == ["K0", "K1", "K2", "K3"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_leader_crashes_during_a_move_neither_lose_nor_repeat_messages(
    tmp_path, monkeypatch, seed
):
    monkeypatch.setattr("raftmq.broker.delayed.timers.COUNT_MAX", 5)
    monkeypatch.setattr(moves, "PER_SECOND_MAX", 50)
    rng, count = random.Random(seed), 150
    async with two_groups(tmp_path, replicas=3) as (staying, leaving):
        await send_timers(leaving, count)
        await move_timers(leaving)
        moved = 0
        while moved < count:
            await asyncio.sleep(rng.random())
            one = rng.choice((staying, leaving))
            name = await one.leader()
            await one.kill(name)
            await one.start(name)
            moving = (await leaving.leading()).state.group.moving
            moved = moving.moved_timers
        status = await until_empty(leaving)
        assert status["move"]["movedTimers"] == count
        moved_keys = keys(await staying.leading())
        assert moved_keys == sorted(f"K{number}" for number in range(count)), f"seed {seed}"


async def test_move_without_the_watermark_repeats_messages(tmp_path, monkeypatch):
    """So that the tests above can fail."""

    def check(self, ext, topic, queue_id):
        mark = Watermark(parse_integer(ext["batch"], "batch"), 0)
        return Written((topic, ext["writer"]), queue_id, mark)

    async def open_writer(self, *_):
        return 1, 0

    monkeypatch.setattr(WriterRequests, "check", check)
    monkeypatch.setattr(OtherGroups, "open_writer", open_writer)
    moved = await move_with_crash(tmp_path, monkeypatch, "source", "_close")
    assert moved == sorted(["K0", "K1", "K2", "K3"] * 2)


async def test_cancelled_move_returns_a_window_that_was_not_stored(tmp_path, monkeypatch):
    reached, free = asyncio.Event(), asyncio.Event()
    take = OtherGroups.take

    async def held(*arguments):
        reached.set()
        await free.wait()
        return await take(*arguments)

    async with two_groups(tmp_path) as (staying, leaving):
        source, target = await leaving.leading(), await staying.leading()
        await send_timers(leaving, 3)
        monkeypatch.setattr(OtherGroups, "take", held)
        await move_timers(leaving)
        await reached.wait()
        await drain(staying)  # it rejects the messages
        free.set()
        await until(lambda: "draining" in source.moves.problem)
        assert (await drain(leaving, "status"))["inMove"] == 3
        await drain(leaving, "cancel")
        await until(lambda: not source.state.group.moving.windows)
        await until(lambda: source.timers.wheel.count == 3)
        assert keys(target) == []
        ext = {"op": "start", "moveTimers": "true"}
        answer = await leaving.ask(source, RequestCode.DRAIN_GROUP, ext)
        assert "broker-a is draining" in answer.remark
        await drain(staying, "cancel")
        await move_timers(leaving)
        await until_empty(leaving)
        assert keys(target) == ["K0", "K1", "K2"]


async def test_moved_timer_message_is_recalled_and_one_in_an_open_window_is_not(
    tmp_path, monkeypatch
):
    async with two_groups(tmp_path) as (staying, leaving):
        deliver_ms = await send_timers(leaving, 2)
        source, target = await leaving.leading(), await staying.leading()

        async def recall(number):
            handle = RecallHandle("T", "broker-b", deliver_ms + number, f"K{number}").encode()
            ext = {"topic": "T", "recallHandle": handle}
            return await leaving.ask(source, RequestCode.RECALL_MESSAGE, ext)

        assert (await recall(0)).code == ResponseCode.SUCCESS  # it is not moved then

        async def rejected(*_):
            raise busy("not now")

        with monkeypatch.context() as patched:
            patched.setattr(OtherGroups, "take", rejected)
            await move_timers(leaving)
            await until(lambda: source.moves.problem)
            assert "being moved" in (await recall(1)).remark
        await until_empty(leaving)
        assert keys(target) == ["K0", "K1"]  # the recall of K0, and K1
        assert (await recall(1)).code == ResponseCode.SUCCESS
        await until_empty(leaving)
        properties = [decode_properties(one.properties) for one in stored(target)]
        recalls = [one["TIMER_DEL_UNIQKEY"] for one in properties if "TIMER_DEL_UNIQKEY" in one]
        assert recalls == ["K0", "K1", "K1"]  # the last of them moved


async def test_dead_letters_move_once(tmp_path, monkeypatch):
    monkeypatch.setattr(moves, "COUNT_MAX", 2)
    async with two_groups(tmp_path) as (staying, leaving):
        source, target = await leaving.leading(), await staying.leading()
        assert (await create(leaving, DLQ)).code == 0
        for number in range(5):
            properties = f"UNIQ_KEY\x01K{number}\x02DLQ_ORIGIN_TOPIC\x01T\x02"
            assert (await leaving.send(source, DLQ, properties=properties)).code == 0
        assert (await drain(leaving))["deadLetters"] == 5
        await drain(leaving, moveDeadLetters="true", to="broker-a")
        status = await until_empty(leaving)
        assert (status["deadLetters"], status["move"]["movedDeadLetters"]) == (0, 5)
        assert keys(target, DLQ) == [f"K{number}" for number in range(5)]
        assert all(b"DLQ_ORIGIN_TOPIC" in one.properties for one in stored(target, DLQ))


def record(**changes):
    host = ("127.0.0.1", 1)
    one = MessageRecord(DLQ, b"x", b"UNIQ_KEY\x01K\x02", 0, 0, 0, 0, 0, 1, host, 1, host, 0, 0)
    return encode_record(replace(one, **changes))


NO_TOPICS = b'{"topics":[]}\n'


async def test_messages_that_cannot_move_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(moves, "COUNT_MAX", 2)
    monkeypatch.setattr(moves, "LINE_BYTES_MAX", 16)
    async with two_groups(tmp_path) as (staying, _):
        ext = {"writer": "w", "epoch": "1", "batch": "1", "sequence": "0"}
        broker = await staying.leading()
        for body, reason in (
            (b"", ""),
            (b"{}\n" + record(), "no topics"),
            (b'{"topics":[7]}\n' + record(), "no topics"),
            (b'{"topics":[{}]}  \n' + record(), "more than 16 bytes of topics"),
            (NO_TOPICS, "no moved messages"),
            (NO_TOPICS + record()[:-1], "a damaged record"),
            (NO_TOPICS + 3 * record(), "more than 2 messages"),
            (NO_TOPICS + record(topic="T"), "messages of T are not moved"),
            (NO_TOPICS + record(topic=TIMER_TOPIC), "without time or topic"),
            (NO_TOPICS + record(), "UNKNOWN_WRITER"),
        ):
            answer = await staying.ask(broker, RequestCode.TAKE_MESSAGES, ext, body)
            assert answer.code != ResponseCode.SUCCESS and reason in answer.remark
        assert keys(broker, DLQ) == []
