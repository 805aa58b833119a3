"""Moving a group: exact whether its consumer runs, is away, or a failover comes in between."""

import asyncio
import random

import orjson
import pytest

from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.snapshot import capture, from_json
from raftmq.broker.tables.state import BrokerState, commit_offsets, reset_offsets, reset_taken
from raftmq.client.admin.bodies import consume_stats
from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import MessageQueue, loads_object
from raftmq.remoting.headers import ConsumerOffsetHeader, PullResponseHeader
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.waiting import until

OLDEST, END = 0, -1  # timestamps
DEEDS = ("send", "pop", "pop", "15", "15 of a consumer", "222", "222 by time", "both")


@pytest.fixture
async def three(tmp_path):
    async with Group(tmp_path, count=3) as replicas:
        yield replicas


async def prepared(group, messages=10):
    """A leader with topic T of one queue, and a group that committed all of it but one."""
    broker = await group.leading()
    await group.create_topic(broker, "T", 1)
    for number in range(messages):
        await group.send(broker, "T", b"m%d" % number)
    body = orjson.dumps({"groupName": "cg"})
    await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert (await group.commit(broker, "T", 0, messages - 1)).code == 0
    return broker


async def reset(group, broker, timestamp_ms, **options):
    header = ResetOffsetHeader("T", "cg", timestamp_ms, **options)
    ext = header.to_ext()
    response = await group.ask(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    return response.code, loads_object(response.body or b"{}").get("offsetTable")


async def committed(group, broker):
    return int((await group.committed(broker, "T", 0)).ext["offset"])


async def join(group, broker, **data):
    """From now on our connection is a consumer's."""
    data = {"groupName": "cg", "subscriptionDataSet": [], **data}
    beat = orjson.dumps({"clientID": "c1", "consumerDataSet": [data]})
    assert (await group.ask(broker, RequestCode.HEART_BEAT, None, beat)).code == 0


def blind_commit(group, broker, offset):
    ext = ConsumerOffsetHeader("cg", "T", 0, offset).to_ext()
    command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    return group.client.invoke_oneway(broker.address, command)


async def test_reset_to_an_offset_outside_of_the_queue_is_rejected(group):
    broker = await prepared(group)
    queue = MessageQueue("T", "group-a", 0)
    end = broker.store.queues.queue("T", 0).max_offset
    before = await committed(group, broker)
    for offset in (end + 1, 1 << 60):
        code, table = await reset(group, broker, OLDEST, queue_id=0, offset=offset, force=True)
        assert (code, table) == (ResponseCode.SYSTEM_ERROR, None)
    assert await committed(group, broker) == before
    result = await reset(group, broker, OLDEST, queue_id=0, offset=end, force=True)
    assert result == (0, {queue: end})


async def test_offset_reset_overrides_commits_until_the_consumer_confirms_it(group):
    broker = await prepared(group)
    queue = MessageQueue("T", "group-a", 0)
    assert await reset(group, broker, OLDEST) == (0, {queue: 0})
    assert await committed(group, broker) == 0
    await blind_commit(group, broker, 9)  # of before: the consumer has not heard yet
    assert await committed(group, broker) == 0
    await join(group, broker)
    confirmed = await group.commit(broker, "T", 0, 9)
    assert confirmed.code == ResponseCode.SYSTEM_ERROR
    assert confirmed.remark.startswith("[RESET_PENDING]")
    reported = await group.pull(broker, "T", 9)
    assert (reported.code, reported.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert PullResponseHeader.parse(reported.ext).next_offset == 0
    await blind_commit(group, broker, 9)
    assert await committed(group, broker) == 0
    result = await group.pull(broker, "T", 0)
    assert (result.code, PullResponseHeader.parse(result.ext).next_offset) == (0, 10)
    assert broker.state.offsets.resets == {}
    assert (await group.commit(broker, "T", 0, 4)).code == 0
    assert await committed(group, broker) == 4


async def test_held_pull_is_released_by_an_offset_reset(group):
    broker = await prepared(group)
    held = asyncio.ensure_future(group.pull(broker, "T", 10, flags=0x4 | 0x2, wait_ms=60_000))
    await until(lambda: broker.pulls.holds.count == 1)
    assert (await reset(group, broker, END))[0] == 0
    # Even to where it stands: what it holds in its hands is not wanted any more.
    reported = await held
    assert (reported.code, reported.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert PullResponseHeader.parse(reported.ext).next_offset == 10
    assert (await group.pull(broker, "T", 10)).code == ResponseCode.PULL_NOT_FOUND
    assert broker.state.offsets.resets == {}


async def test_new_leader_keeps_a_pending_offset_reset(three):
    broker = await prepared(three)
    old = await three.leader()
    assert (await reset(three, broker, OLDEST))[0] == 0
    assert (await three.pull(broker, "T", 9)).remark == "OFFSET_RESET"
    await three.kill(old)
    broker = await three.leading()
    await blind_commit(three, broker, 9)
    assert await committed(three, broker) == 0
    # The new leader cannot know whom the old one told.
    assert (await three.pull(broker, "T", 0)).remark == "OFFSET_RESET"
    assert (await three.pull(broker, "T", 0)).code == 0
    assert broker.state.offsets.resets == {}
    await three.start(old)
    last = broker.state.applied_index
    await until(lambda: all(b.state.applied_index >= last for b in three.brokers.values()))
    tables = [b.state.offsets.to_json() for b in three.brokers.values()]
    assert tables[0] == tables[1] == tables[2]


async def test_follower_neither_resets_offsets_nor_serves_a_reset_queue(three):
    broker = await prepared(three)
    follower = next(b for b in three.brokers.values() if b is not broker)
    assert (await reset(three, follower, OLDEST))[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await reset(three, broker, OLDEST))[0] == 0
    await until(lambda: follower.state.offsets.resets)
    assert (await three.pull(follower, "T", 9)).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_offset_reset_targets_and_errors(group):
    broker = await prepared(group)
    queue = MessageQueue("T", "group-a", 0)
    assert await reset(group, broker, END, force=False) == (0, {queue: 9})  # ahead: not without
    assert await reset(group, broker, END) == (0, {queue: 10})
    assert await reset(group, broker, 0, queue_id=0, offset=3) == (0, {queue: 3})
    assert (await reset(group, broker, 0, queue_id=1))[0] == ResponseCode.SYSTEM_ERROR
    for topic, name, code in (
        ("None", "cg", ResponseCode.TOPIC_NOT_EXIST),
        ("T", "nobody", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ):
        ext = ResetOffsetHeader(topic, name, 0).to_ext()
        answer = await group.ask(broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        assert answer.code == code


async def test_commit_by_a_tool_moves_a_pending_offset_reset(group):
    broker = await prepared(group)
    assert (await reset(group, broker, OLDEST))[0] == 0
    assert (await group.commit(broker, "T", 0, 7)).code == 0
    assert await committed(group, broker) == 7
    assert broker.state.offsets.reset_of("T", "cg", 0) == 7


async def test_consumer_without_a_heartbeat_does_not_undo_an_offset_reset(group):
    """As after a failover: the new leader has heard of no consumer, and they commit."""
    broker = await prepared(group)
    assert (await reset(group, broker, OLDEST))[0] == 0
    ext = ConsumerOffsetHeader("cg", "T", 0, 9, client_id="c1").to_ext()
    refused = await group.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert refused.remark.startswith("[RESET_PENDING]")
    assert await committed(group, broker) == 0
    assert broker.state.offsets.reset_of("T", "cg", 0) == 0


async def test_clone_group_offset_moves_the_target_group(group):
    broker = await prepared(group)
    ext = {"srcGroup": "cg", "destGroup": "other", "topic": "T"}
    assert (await group.ask(broker, RequestCode.CLONE_GROUP_OFFSET, ext)).code == 0
    assert (await group.committed(broker, "T", 0, group="other")).ext["offset"] == "9"


async def test_broadcasting_consumers_get_an_offset_reset_by_request_220(group):
    broker = await prepared(group)
    heard = asyncio.get_running_loop().create_future()
    group.client.register(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, lambda _, request: heard.set_result(request)
    )
    await join(group, broker, messageModel="BROADCASTING")
    assert (await reset(group, broker, OLDEST))[0] == 0
    async with asyncio.timeout(60):
        request = await heard
    table = loads_object(request.body)["offsetTable"]
    assert table == {MessageQueue("T", "group-a", 0): 0}
    assert broker.state.offsets.resets == {}


def test_offset_resets_are_in_snapshots():
    state = BrokerState()
    state.apply(1, 0, reset_offsets([("T", "g", 0, 5), ("T", "g", 1, 7)]))
    state.apply(2, 0, commit_offsets([("T", "g", 0, 99), ("T", "g", 2, 1)]))
    assert state.offsets.offsets == {("T", "g"): {0: 5, 1: 7, 2: 1}}
    twin = from_json(capture(state).to_json())
    copied = dict(twin.tables)["consumerOffset.json"]
    assert isinstance(copied, OffsetTable)
    assert copied.resets == {("T", "g"): {0: 5, 1: 7}}
    state.apply(3, 0, reset_taken(("T", "g", 0, 4)))  # of a reset before the last
    assert state.offsets.reset_of("T", "g", 0) == 5
    state.apply(4, 0, reset_taken(("T", "g", 0, 5)))
    state.apply(5, 0, commit_offsets([("T", "g", 0, 6), ("T", "g", 1, 8)]))
    assert state.offsets.offsets[("T", "g")] == {0: 6, 1: 7, 2: 1}
    assert copied.resets == {("T", "g"): {0: 5, 1: 7}}  # the snapshot shares nothing
    state.offsets.delete_group("g")
    assert not state.offsets.resets


class GroupMembership:
    """The model: the one offset that a group has in a queue, whoever moves it and asks for it."""

    def __init__(self, end):
        self.end, self.offset, self.mark, self.pops = end, None, None, False

    def told(self):
        return self.end if self.offset is None and not self.end else self.offset

    def reset(self, offset):
        self.offset = self.mark = offset

    def commit(self, offset, tool):
        """Return whether it is taken."""
        if tool and (self.pops or self.mark is not None):
            self.reset(offset)
        elif self.mark is not None:
            return offset == self.mark
        else:
            self.offset = max(offset, self.offset) if self.pops else offset
        return True

    def pop(self, count):
        result = range(self.offset or 0, self.end)[:count]
        if result:
            self.offset, self.mark, self.pops = result[-1] + 1, None, True
        return list(result)


@pytest.mark.parametrize("seed", range(6))
async def test_requests_14_15_222_208_and_pops_agree_on_the_offset(group, seed):
    rng = random.Random(seed)
    broker, popper = await group.leading(), Popper(group)
    await group.create_topic(broker, "T", 1)
    body = orjson.dumps({"groupName": "cg"})
    await group.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    position, done = GroupMembership(0), []
    for _ in range(50):
        do = rng.choice(DEEDS)
        offset = rng.randint(0, position.end)
        done.append((do, offset))
        if do == "send":
            await group.send(broker, "T", b"%d" % position.end)
            position.end += 1
        elif do == "pop":
            popped = await popper.pop(broker, count=offset + 1)
            assert [int(message.body) for message in popped] == position.pop(offset + 1), done
        elif do == "15 of a consumer":
            ext = ConsumerOffsetHeader("cg", "T", 0, offset, client_id="c1").to_ext()
            answer = await group.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            assert (answer.code == 0) == position.commit(offset, tool=False), done
        if do in ("15", "both"):
            assert (await group.commit(broker, "T", 0, offset)).code == 0
            position.commit(offset, tool=True)
        if do in ("222", "both"):  # Java's resetOffsetByQueueId does both
            code, _ = await reset(group, broker, 0, queue_id=0, offset=offset, force=False)
            assert code == 0
            position.reset(offset)
        elif do == "222 by time":
            force = rng.random() < 0.5
            target = rng.choice((OLDEST, END))
            assert (await reset(group, broker, target, force=force))[0] == 0
            to = 0 if target == OLDEST else position.end
            if force or position.offset is None or to < position.offset:
                position.reset(to)
        answer = await group.committed(broker, "T", 0)
        reported = (
            None if answer.code == ResponseCode.QUERY_NOT_FOUND else int(answer.ext["offset"])
        )
        assert reported == position.told(), done
        ext = {"topic": "T", "consumerGroup": "cg"}
        answer = await group.ask(broker, RequestCode.GET_CONSUME_STATS, ext)
        stats = consume_stats(loads_object(answer.body))
        (queue,) = stats.queues.values()
        assert (queue.broker_offset, queue.pull_offset) == (position.end, position.offset or 0), (
            done
        )
