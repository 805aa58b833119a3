"""Messages by key (12): on every replica, over all groups of a topic, and at the limits."""

import asyncio
from typing import Any

import pytest

from raftmq.broker.admin import message_query
from raftmq.broker.admin.message_query import KeyQueries
from raftmq.broker.config import MIB
from raftmq.broker.scheduler import IDLE_MS
from raftmq.client import Admin, Message, MessageQueue, Producer
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.store.errors import StoreDamaged
from raftmq.store.index.message_index import STEP_BYTES, KeyQuery
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import Group
from tests.waiting import until

MS = message_query.MS
FOREVER = (1 << 63) - 1


class Store:
    """Counts the steps; each takes a millisecond of the clock and indexes a megabyte."""

    def __init__(self, behind):
        self.dispatched_offset = behind
        self.indexed_offset = 0
        self.steps = 0
        self.now_ns = 10**15
        self.error: Any = None
        self.asked = []
        self.damaged = set()  # frames, by position

    def index_step(self):
        self.steps += 1
        self.now_ns += MS
        if self.error:
            raise self.error
        self.indexed_offset = min(self.indexed_offset + MIB, self.dispatched_offset)
        return self.dispatched_offset - self.indexed_offset

    def frame_is_damaged(self, position):
        return position in self.damaged

    def pass_damage(self, position):
        assert position == self.error.position
        self.error = None

    def query(self, topic, key, max_count, start_ms, end_ms):
        yield
        self.asked.append((topic, key, max_count, start_ms, end_ms))
        return KeyQuery([], 5, 7)


def queries(store):
    return KeyQueries(store, store, lambda: store.now_ns)  # it is its own damaged log


async def steps_of_a_tick(store, keeper):
    before = store.steps
    await keeper.tick()
    return store.steps - before


async def test_index_tick_is_short_while_messages_arrive_and_longer_when_idle():
    store = Store(behind=200 * MIB)
    keeper = queries(store)
    for _ in range(3):
        store.dispatched_offset += 1
        assert await steps_of_a_tick(store, keeper) == message_query.BUSY_NS // MS
    assert await steps_of_a_tick(store, keeper) == message_query.IDLE_NS // MS


async def test_index_far_behind_gets_its_time_despite_arrivals():
    store = Store(behind=message_query.BEHIND_BYTES_MAX + 8 * MIB)
    keeper = queries(store)
    taken = []
    for _ in range(2):
        store.dispatched_offset += 1
        taken.append(await steps_of_a_tick(store, keeper))
    assert taken == [message_query.FORCED_NS // MS, message_query.FORCED_NS // MS]
    store.dispatched_offset = store.indexed_offset + message_query.BEHIND_BYTES_MAX
    assert await steps_of_a_tick(store, keeper) == message_query.BUSY_NS // MS


async def test_small_index_backlog_waits_for_a_whole_step_or_a_second():
    store = Store(behind=STEP_BYTES - 1)
    keeper = queries(store)
    assert await steps_of_a_tick(store, keeper) == 1  # the first, whenever it was before
    store.dispatched_offset += STEP_BYTES - 1
    assert await steps_of_a_tick(store, keeper) == 0
    store.dispatched_offset += 1
    assert await steps_of_a_tick(store, keeper) == 1
    store.dispatched_offset += 1
    store.now_ns += message_query.STEP_INTERVAL_NS
    assert await steps_of_a_tick(store, keeper) == 1
    assert store.indexed_offset == store.dispatched_offset
    store.now_ns += message_query.STEP_INTERVAL_NS
    assert await steps_of_a_tick(store, keeper) == 0


async def test_event_loop_runs_between_two_index_steps():
    store = Store(behind=9 * MIB)
    keeper = queries(store)
    await keeper.tick()
    seen = []

    async def watch():
        while not store.indexed_offset == store.dispatched_offset:
            seen.append(store.steps)
            await asyncio.sleep(0)

    await asyncio.gather(keeper.tick(), watch())
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert len(seen) == 4


async def test_index_pauses_after_a_disk_error(caplog):
    store = Store(behind=8 * MIB)
    keeper = queries(store)
    store.error = OSError(28, "No space left on device")
    assert [await steps_of_a_tick(store, keeper) for _ in range(5)] == [1, 0, 0, 0, 0]
    assert caplog.text.count("index_refused") == 1
    await keeper.catch_up()  # a lookup answers from what is there
    assert store.steps == 1
    store.error = None
    store.now_ns += message_query.RETRY_NS
    assert await steps_of_a_tick(store, keeper) == 8


@pytest.mark.parametrize("position", [5, 0])  # 0: the frame before it has a wrong size
async def test_index_waits_for_the_repair_of_a_damaged_record(caplog, position):
    store = Store(behind=8 * MIB)
    keeper = queries(store)
    store.error = StoreDamaged(5, "no record")
    store.damaged.add(position)
    assert [await steps_of_a_tick(store, keeper) for _ in range(3)] == [1, 0, 0]
    await keeper.catch_up()  # a lookup answers from what is there
    assert store.steps == 1
    store.error = None
    store.damaged.clear()
    store.now_ns += message_query.REPAIR_POLL_NS
    assert await steps_of_a_tick(store, keeper) == 8
    assert not caplog.text


async def test_index_skips_a_damaged_record_that_is_not_repaired(caplog):
    store = Store(behind=8 * MIB)
    keeper = queries(store)
    store.error = StoreDamaged(5, "no record")
    store.damaged.add(5)
    polls = 0
    while store.error:
        await keeper.tick()
        store.now_ns += message_query.REPAIR_POLL_NS
        polls += 1
    assert polls == pytest.approx(
        message_query.REPAIR_NS_MAX // message_query.REPAIR_POLL_NS, abs=2
    )
    assert "index_gap at=5 reason=no record" in caplog.text
    store.dispatched_offset += 8 * MIB
    store.error = StoreDamaged(7, "no record")  # of no frame that is being repaired
    await keeper.tick()
    assert store.error is None
    await keeper.catch_up()
    assert store.indexed_offset == store.dispatched_offset


async def test_query_by_key_waits_for_the_index_for_a_bounded_time():
    store = Store(behind=5 * MIB)
    await queries(store).catch_up()
    assert (store.indexed_offset, store.steps) == (store.dispatched_offset, 5)
    store = Store(behind=1 << 40)
    await queries(store).catch_up()
    assert store.steps == message_query.CATCH_UP_NS_MAX // MS


async def test_query_by_key_does_not_wait_for_later_messages():
    store = Store(behind=2 * MIB)
    keeper = queries(store)
    looking = asyncio.ensure_future(keeper.catch_up())
    await asyncio.sleep(0)
    store.dispatched_offset += 100 * MIB
    await looking
    assert store.steps == 2


@pytest.mark.parametrize(
    ("asked", "unique", "got"), [(1, False, 1), (64, False, 64), (1000, False, 1000), (1, True, 32)]
)
async def test_query_by_key_returns_at_most_the_requested_number(asked, unique, got):
    store = Store(behind=0)
    header = QueryMessageHeader("T", "k", asked, 3, 4, unique)
    request = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header.to_ext())
    response = await queries(store).query_message(None, request)
    assert store.asked == [("T", "k", got, 3, 4)]
    assert response.code == ResponseCode.QUERY_NOT_FOUND
    assert response.ext == {"indexLastUpdateTimestamp": "5", "indexLastUpdatePhyoffset": "7"}


async def query(group, broker, topic, key, count=32, start_ms=0, end_ms=FOREVER, unique=False):
    header = QueryMessageHeader(topic, key, count, start_ms, end_ms, unique)
    return await group.ask(broker, RequestCode.QUERY_MESSAGE, header.to_ext())


def bodies(response):
    records = [decode_record(response.body, at) for at, _ in walk_records(response.body)]
    return [record.body for record in records]


async def test_every_replica_answers_queries_by_key_and_again_after_a_kill(tmp_path):
    limits = {"maxHashSlotNum": 50, "maxIndexNum": 100}
    async with Group(tmp_path, count=3, **limits) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        sends = (
            group.send(leader, "T", b"m%d" % n, n % 4, f"KEYS\x01k{n % 10} all\x02UNIQ_KEY\x01u{n}")
            for n in range(120)
        )
        assert {r.code for r in await asyncio.gather(*sends)} == {0}
        await until(
            lambda: len({b.state.applied_index for b in group.brokers.values()}) == 1,
        )
        for broker in group.brokers.values():
            result = await query(group, broker, "T", "k3")
            assert result.code == 0
            assert sorted(bodies(result)) == sorted(b"m%d" % n for n in range(3, 120, 10))
            assert int(result.ext["indexLastUpdatePhyoffset"]) > 0
            assert bodies(await query(group, broker, "T", "u77", unique=True)) == [b"m77"]
            # The newest 64, in log order.
            positions = []
            newest = await query(group, broker, "T", "all", 1000)
            for at, _ in walk_records(newest.body):
                positions.append(decode_record(newest.body, at).physical_offset)
            assert len(positions) == 64
            assert positions == sorted(positions)
            for topic, key in (("T", "k33"), ("Unknown", "k3")):
                missing = await query(group, broker, topic, key)
                code, remark = ResponseCode.QUERY_NOT_FOUND, message_query.NOT_FOUND
                if broker is not leader:  # it may be behind
                    code = ResponseCode.SERVICE_NOT_AVAILABLE
                    remark = f"[NOT_LEADER] this replica is not the leader; here, {remark}"
                assert (missing.code, missing.remark) == (code, remark)
        name = next(n for n, b in group.brokers.items() if b is leader)
        await group.kill(name)
        again = await group.start(name)
        end = leader.store.derived.dispatched_offset
        await until(lambda: again.store.derived.dispatched_offset >= end)
        assert len(bodies(await query(group, again, "T", "k3"))) == 12


async def test_query_by_key_finds_nothing_with_the_index_disabled(tmp_path):
    async with Group(tmp_path, messageIndexEnable="false") as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        assert (await group.send(broker, "T", properties="KEYS\x01k\x02")).code == 0
        assert (await query(group, broker, "T", "k")).code == ResponseCode.QUERY_NOT_FOUND
    assert not (tmp_path / "n0" / "index").exists()


async def test_client_queries_every_broker_group_of_the_topic_by_key(tmp_path):
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        settings = {"namesrvAddr": namesrv, "maxHashSlotNum": 50, "maxIndexNum": 100}
        async with (
            Group(tmp_path / "a", brokerName="a", **settings) as one,
            Group(tmp_path / "b", brokerName="b", **settings) as two,
            Producer("pg", namesrv) as producer,
            Admin(namesrv) as admin,
        ):
            for group in (one, two):
                await group.create_topic(await group.leading(), "T", 1)
            groups = server.table
            await until(lambda: set(groups.queues("T") or ()) == {"a", "b"})
            sent = []
            for number in range(6):
                queue = MessageQueue("T", "ab"[number % 2], 0)
                message = Message("T", b"m%d" % number, keys=f"order extra-{number}")
                sent.append(await producer.send(message, timeout_ms=60_000, queue=queue))
            result = await admin.message.query("T", "order")
            assert sorted(m.body for m in result) == [b"m%d" % n for n in range(6)]
            assert {m.broker_name for m in result} == {"a", "b"}
            times = [m.store_timestamp_ms for m in result]
            assert times == sorted(times)
            assert len(await admin.message.query("T", "order", max_num=2)) == 2
            assert await admin.message.query("T", "order", 32, times[-1] + 1) == []
            assert len(await admin.message.query("T", "order", 32, 0, times[0])) >= 1
            (last,) = await admin.message.query("T", sent[-1].msg_id, unique_key=True)
            assert last.body == b"m5"
            assert await admin.message.query("T", "orde") == []


async def test_index_service_is_due_when_messages_are_not_indexed():
    store = Store(behind=0)
    keeper = queries(store)
    (chore,) = keeper.service().chores
    assert chore.rest_ms() == IDLE_MS
    store.dispatched_offset = STEP_BYTES
    assert chore.rest_ms() == 0
    await keeper.tick()
    assert chore.rest_ms() == IDLE_MS
    store.dispatched_offset += 1
    assert chore.rest_ms() == message_query.STEP_INTERVAL_NS / MS, "little waits for more"
    store.now_ns += message_query.STEP_INTERVAL_NS - MS
    assert chore.rest_ms() == 1
    store.now_ns += MS
    store.error = OSError("full")
    await keeper.tick()
    assert chore.rest_ms() == message_query.RETRY_NS / MS
