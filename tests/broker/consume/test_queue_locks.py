"""Locks of ordered consumption: in an imagined world, in a group of brokers, in classic mode."""

import asyncio

import orjson
import pytest

from raftmq.broker.consume.queue_locks import (
    GONE,
    LOGGED,
    QUEUES_PER_REQUEST_MAX,
    LockService,
    local_propose,
)
from raftmq.broker.errors import Refused
from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.queue_locks import LockTable, OwnerChange, Renewals
from raftmq.broker.tables.state import lock_queues
from raftmq.dledger.raft.errors import OutcomeUnknown
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from tests.broker.cluster import Group
from tests.broker.consume.lockworld import TURNS, LockRequest, World, settle
from tests.waiting import until

STEPS = 1_500
# Leaders stay, however busy the machine is; who loses its leader's connection stands at once.
STEADY = {"electionTimeoutMinMs": 2_000, "electionTimeoutMaxMs": 4_000}


@pytest.mark.parametrize(("old", "seeds"), [((), 16), ((1,), 8), ((0, 1), 8)])
async def test_queue_lock_never_has_two_holders(old, seeds):
    grants = 0
    for seed in range(seeds):
        world = World(seed, old=old)
        await world.run(STEPS)
        assert world.overlaps == [], f"seed {seed}"
        grants += world.grants
    assert grants > seeds * 15


def with_ages(payload, change):
    """Return the command with the ages of its renewals changed by `change(ages)`."""
    command = orjson.loads(payload)
    if "renewals" in command:
        command["renewals"]["ages"] = change(command["renewals"]["ages"])
    return orjson.dumps(command)


def ages_that_are_too_great(payload):
    return with_ages(payload, lambda ages: [(ms + 30_000, *rest) for ms, *rest in ages])


@pytest.mark.parametrize(
    ("seed", "settings", "broken"),
    [
        (0, {"lifetime_ms": 20_000}, None),
        (37, {"barrier_proves": False}, None),
        (50, {"old": (0, 1), "trusts": True}, None),
        (32, {"logged": 1e9}, None),
        (0, {}, ages_that_are_too_great),
        (0, {"gone": 1 / 3}, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_simulated_lock_world_finds_planted_double_locks(monkeypatch, seed, settings, broken):
    """`seed` finds it today; when the world changes, another one does."""
    monkeypatch.setattr("raftmq.broker.consume.queue_locks.GONE", settings.get("gone", GONE))
    monkeypatch.setattr("raftmq.broker.consume.queue_locks.LOGGED", settings.get("logged", LOGGED))
    settings = {name: settings[name] for name in settings.keys() - {"gone", "logged"}}
    for number in range(seed, seed + 200):
        world = World(number, **settings)
        for replica in world.replicas:
            replica.spoil = broken
        await world.run(STEPS)
        if world.overlaps:
            return
    raise AssertionError("not found")


def without_a_fresh_start(payload):
    """Break it so that a new leader trusts the table's times of renewals."""
    return payload.replace(b'"fresh":true', b'"fresh":false')


@pytest.mark.parametrize("broken", [False, True])
async def test_lock_renewals_after_an_older_leader_start_at_the_next_one(broken):
    """It renewed A's lock all the time, and none of that is in the log."""
    world = World(0, rates=(1, 1), present=False, old=(1,))
    if broken:
        world.replicas[2].spoil = without_a_fresh_start

    async def asks(client):
        request = LockRequest("g", client, [("T", 0)])
        task = asyncio.ensure_future(world.settled(world.leader, request))
        await world.settle_all(world.replicas)
        return await task

    for number, renewals in ((0, 1), (1, 5), (2, 0), (0, 0)):
        if world.leader.leading:
            world.leader.notice()
        world.leader = world.replicas[number]
        world.leader.lead()
        await world.settle_all(world.replicas)
        for _ in range(renewals):
            assert await asks("A") == [("T", 0)]
            world.now_ms += 20_000
    assert await asks("B") == ([("T", 0)] if broken else [])
    for replica in world.replicas:
        await replica.service.stop()


async def first_grant_after(world, leads_ms, restarts_ms, give_up_ms=400_000):
    """A is granted a queue and dies; B asks twice a second. Leaders last `leads_ms`, and the former
    one restarts `restarts_ms` later. When B is granted the queue."""
    world.leader.lead()
    task = asyncio.ensure_future(world.settled(world.leader, LockRequest("g", "A", [("T", 0)])))
    await world.settle_all()
    assert await task == [("T", 0)]
    down = None
    while world.now_ms < give_up_ms:
        world.now_ms += 500
        for replica in world.replicas:
            if replica is not down:
                replica.apply_committed()
        if down is not None and world.now_ms % leads_ms == restarts_ms:
            down.restart()
            down = None
        if world.now_ms % leads_ms == 0:
            down = world.leader
            world.leader = world.replicas[(world.replicas.index(down) + 1) % 3]
            world.leader.lead()
            down.notice()
        if world.now_ms % leads_ms == 2_000:
            world.leader.service.sweep()
        task = asyncio.ensure_future(world.settled(world.leader, LockRequest("g", "B", [("T", 0)])))
        await world.settle_all()
        if await task:
            break
    for replica in world.replicas:
        await replica.service.stop()
    return world.now_ms


@pytest.mark.parametrize(
    ("leads_ms", "restarts_ms"), [(500_000, 500), (25_000, 3_000), (6_000, 2_500)]
)
async def test_lock_holder_that_dies_with_leaders_expires_as_without_failover(
    leads_ms, restarts_ms
):
    """Gone at 45 s. What nobody counted is the time from a word on ages to a restart after it."""
    world = World(0, rates=(1, 1), present=False)
    granted_ms = await first_grant_after(world, leads_ms, restarts_ms)
    assert 45_000 < granted_ms <= 47_000 + (20_000 if leads_ms < 10_000 else 0)


async def test_lock_expiry_without_logged_ages_restarts_at_each_leader():
    world = World(0, rates=(1, 1), present=False)
    for replica in world.replicas:
        replica.spoil = lambda payload: with_ages(payload, lambda ages: [])
    assert await first_grant_after(world, 6_000, 2_500) >= 400_000


def queues(*numbers, topic="T"):
    return [{"brokerName": "group-a", "queueId": n, "topic": topic} for n in numbers]


async def ask(group, broker, client, *numbers, unlock=False, timeout_ms=10_000, **options):
    code = RequestCode.UNLOCK_BATCH_MQ if unlock else RequestCode.LOCK_BATCH_MQ
    body = {"clientId": client, "consumerGroup": "cg", "mqSet": queues(*numbers, **options)}
    return await group.ask(broker, code, None, orjson.dumps(body), timeout_ms)


async def granted(group, broker, client, *numbers, **options):
    answer = await ask(group, broker, client, *numbers, **options)
    assert answer.code == 0, answer.remark
    reported = orjson.loads(answer.body)["lockOKMQSet"]
    assert all(queue.keys() == {"brokerName", "queueId", "topic"} for queue in reported)
    return sorted(queue["queueId"] for queue in reported)


async def test_lock_renew_and_unlock(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 9)
        await until(lambda: broker.state.group.value)  # nothing more is applied by itself
        assert await granted(group, broker, "A", 0, 1) == [0, 1]
        assert await granted(group, broker, "B", 0, 1, 2) == [2]
        service = broker.locks
        now_ms = service.clock_ms()
        service.clock_ms = lambda: now_ms  # however busy the machine is
        assert await granted(group, broker, "A", 0, 1) == [0, 1]  # whenever the last was
        before = broker.state.applied_index
        assert await granted(group, broker, "A", 0, 1) == [0, 1]
        assert await granted(group, broker, "B", 0) == []
        assert broker.state.applied_index == before, (
            "early renewals and refusals are not in the log"
        )
        now_ms += 3_000
        assert await granted(group, broker, "A", 0, 1) == [0, 1]
        assert broker.state.applied_index == before + 1
        assert (await ask(group, broker, "B", 0, 1, unlock=True)).code == 0  # not its own
        assert await granted(group, broker, "B", 0) == []
        assert (await ask(group, broker, "A", 0, unlock=True)).code == 0
        assert await granted(group, broker, "B", 0, 1) == [0]
        # Many at a time, decided together: each queue has one owner.
        names = [f"c{n}" for n in range(20)]
        answers = await asyncio.gather(*(granted(group, broker, n, 7, 8) for n in names))
        assert sorted(q for answer in answers for q in answer) == [7, 8]


async def test_new_leader_knows_the_lock_owner(tmp_path):
    async with Group(tmp_path, 3, **STEADY) as group:
        first = await group.leader()
        broker = group.brokers[first]
        await group.create_topic(broker, "T")
        assert await granted(group, broker, "A", 0, 1) == [0, 1]
        follower = next(b for name, b in group.brokers.items() if name != first)
        refused = await ask(group, follower, "B", 0)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark.startswith("[NOT_LEADER]")
        await group.kill(first)
        broker = await group.leading()
        service = broker.locks
        assert await granted(group, broker, "B", 0, 1) == []
        assert await granted(group, broker, "A", 0) == [0]
        noted_ms = broker.state.offsets.locks.renewed["T", "cg", 1]
        late = 40_000  # A renewed the first queue only, and 45 s are over for neither
        service.clock_ms = lambda: noted_ms + late  # however long it took until now
        assert await granted(group, broker, "B", 0, 1) == []
        assert await granted(group, broker, "A", 0) == [0]
        late = 61_000  # counted from what the former leader granted, and this one renewed
        assert await granted(group, broker, "B", 0, 1) == [1]
        # A snapshot and a restart keep it.
        await group.start(first)
        broker = await group.leading()
        assert await granted(group, broker, "C", 0, 1) == []


async def test_lock_expiry_does_not_restart_with_a_new_leader(tmp_path):
    gone_ms = int(4_000 * GONE)
    async with Group(tmp_path, 3, {"queue_lock": 4_000}, **STEADY) as group:
        first = await group.leader()
        await group.create_topic(group.brokers[first], "T")
        assert await granted(group, group.brokers[first], "A", 0) == [0]
        key = ("T", "cg", 0)
        others = [broker for name, broker in group.brokers.items() if name != first]
        await until(lambda: all(key in b.state.offsets.locks.renewed for b in others))
        noted = {b: b.state.offsets.locks.renewed[key] for b in others}
        await group.kill(first)  # and A asks no more
        broker = await group.leading()
        ready_ms = broker.context.clock_ms()
        assert noted[broker] < ready_ms
        while True:
            asked_ms = broker.context.clock_ms()
            reported = await granted(group, broker, "B", 0)
            if reported:
                break
            assert asked_ms - noted[broker] <= gone_ms, "it is over, and still nobody gets it"
            await asyncio.sleep(0.05)
        assert broker.context.clock_ms() - noted[broker] > gone_ms


async def test_leader_without_a_majority_grants_no_lock(tmp_path):
    async with Group(tmp_path, 3, **STEADY) as group:
        name = await group.leader()
        broker = group.brokers[name]
        await group.create_topic(broker, "T")
        assert await granted(group, broker, "A", 0) == [0]
        for other in [n for n in group.names if n != name]:
            await group.kill(other)
        answers = await asyncio.gather(
            ask(group, broker, "A", 0, timeout_ms=2_000),
            ask(group, broker, "B", 1, timeout_ms=2_000),
            return_exceptions=True,
        )
        for answer in answers:
            assert getattr(answer, "code", None) != 0, answer


async def test_expired_locks_are_removed_from_the_table(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        service, real = broker.locks, broker.context.clock_ms
        assert await granted(group, broker, "A", 0, 1) == [0, 1]
        service.clock_ms = lambda: real() + 59_000
        assert await granted(group, broker, "A", 1) == [1]
        service.clock_ms = lambda: real() + 61_000
        service.sweep()
        await until(lambda: len(broker.state.offsets.locks) == 1)
        assert await granted(group, broker, "B", 0, 1) == [0]


async def test_restarted_single_replica_keeps_locks(tmp_path):
    async with Group(tmp_path) as group:
        await group.create_topic(await group.leading(), "T")
        assert await granted(group, await group.leading(), "A", 0) == [0]
        for end in (group.stop, group.kill):  # by the snapshot, and by the log
            await end("n0")
            await group.start("n0")
            assert await granted(group, await group.leading(), "B", 0) == []


async def test_malformed_lock_requests_are_rejected(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", QUEUES_PER_REQUEST_MAX)
        code = RequestCode.LOCK_BATCH_MQ
        good = {"clientId": "A", "consumerGroup": "cg", "mqSet": []}
        for change in (
            {"clientId": ""},
            {"clientId": "x" * 256},
            {"clientId": "a\nb"},
            {"consumerGroup": None},
            {"consumerGroup": "a@b"},
            {"mqSet": None},
            {"mqSet": [7]},
            {"mqSet": [{"topic": "T", "queueId": "0"}]},
            {"mqSet": [{"topic": "T@U", "queueId": 0}]},
            {"mqSet": [{"topic": "T", "queueId": -1}]},
            {"mqSet": queues(*range(QUEUES_PER_REQUEST_MAX + 1))},
        ):
            answer = await group.ask(broker, code, None, orjson.dumps(good | change))
            assert answer.code == ResponseCode.SYSTEM_ERROR, change
        assert await granted(group, broker, "A") == []
        assert len(await granted(group, broker, "A", *range(QUEUES_PER_REQUEST_MAX))) == 5_000
        assert await granted(group, broker, "A", 0, topic="Nobody's") == []
        await group.create_topic(broker, "T2", 2)
        assert await granted(group, broker, "A", 0, 1, 2, topic="T2") == [0, 1]


def service_of(table, clock=lambda: 0, **replaced):
    async def barrier():
        return None

    parts = {
        "propose": local_propose(table),
        "barrier": barrier,
        "leading": lambda: True,
        "terms": lambda: (1, None),
        "present": lambda group, client: True,
        "exists": lambda topic, queue_id: True,
        "clock_ms": clock,
        "lifetime_ms": 60_000,
    }
    return LockService(lambda: table, **(parts | replaced))


async def turns():
    """Of the loop: whoever can go on has."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_lock_request_of_an_earlier_leadership_is_rejected():
    """The client may have asked the leader in between for the same queue, and hold it."""
    table, gate = LockTable(), asyncio.Event()
    local = local_propose(table)

    lost = [OutcomeUnknown("no outcome in time")]

    async def propose(payload):
        if lost:
            raise lost.pop()
        await gate.wait()
        return await local(payload)

    service = service_of(table, propose=propose)
    await local(lock_queues([OwnerChange("g", "A", {"T": [0]})]))
    with pytest.raises(OutcomeUnknown):  # so the next command is preceded by an empty one
        await settle(service, LockRequest("g", "A", [("U", 0)]))
    late = asyncio.ensure_future(settle(service, LockRequest("g", "A", [("T", 0)], unlock=True)))
    await turns()
    service.leadership_changed()
    gate.set()
    with pytest.raises(Exception, match=r"\[NOT_LEADER\]"):
        await late
    assert table.owner(("T", "g", 0)) == "A"


async def test_first_lock_renewal_of_a_leadership_is_logged():
    now = [0]
    table = LockTable(clock_ms=lambda: now[0])
    service = service_of(table, clock_ms=lambda: now[0], terms=lambda: (1, 0))
    for moment in (0, 1, 2):
        now[0] = moment
        await settle(service, LockRequest("g", "A", [("T", 0)]))
    assert table.renewed["T", "g", 0] == 0, "an early one is not logged"
    service.leadership_changed()  # another leader may have granted it meanwhile
    await settle(service, LockRequest("g", "A", [("T", 0)]))
    assert table.renewed["T", "g", 0] == 2


async def test_full_lock_table_grants_no_locks(monkeypatch):
    monkeypatch.setattr("raftmq.broker.consume.queue_locks.OWNED_MAX", 2)
    service = service_of(LockTable())
    request = LockRequest("g", "A", [("T", n) for n in range(4)])
    await settle(service, request)
    assert request.granted == [("T", 0), ("T", 1)]
    again = LockRequest("g", "A", [("T", n) for n in range(4)])
    await settle(service, again)
    assert again.granted == [("T", 0), ("T", 1)]
    body = orjson.dumps({"clientId": "A", "consumerGroup": "g", "mqSet": queues(2, 3)})
    with pytest.raises(Refused, match="BUSY"):
        await service.lock(None, RemotingCommand.request(RequestCode.LOCK_BATCH_MQ, None, body))


async def test_clients_outside_of_the_group_cannot_exhaust_locks(monkeypatch):
    monkeypatch.setattr("raftmq.broker.consume.queue_locks.OWNED_MAX", 4)
    service = service_of(LockTable(), present=lambda group, client: client == "member")
    for client, granted in (("A", [0, 1]), ("B", []), ("member", [2, 3])):
        request = LockRequest("g", client, [("T", n) for n in range(5)])
        if granted:
            await settle(service, request)
        else:
            with pytest.raises(Refused, match="BUSY"):
                await settle(service, request)
        assert request.granted == [("T", n) for n in granted], client


async def test_waiting_lock_requests_are_limited_and_may_be_cancelled(monkeypatch):
    monkeypatch.setattr("raftmq.broker.consume.queue_locks.WAITING_MAX", 2)
    table = LockTable()
    gate = asyncio.Event()
    local = local_propose(table)

    async def propose(payload):
        await gate.wait()
        return await local(payload)

    service = service_of(table, propose=propose)
    requests = [LockRequest("g", name, [("T", 0)]) for name in "ABC"]
    tasks = [asyncio.ensure_future(settle(service, requests[0]))]
    await turns()  # the first is in a round of its own
    tasks += [asyncio.ensure_future(settle(service, request)) for request in requests[1:]]
    await turns()
    with pytest.raises(Exception, match=r"\[BUSY\]"):
        await settle(service, LockRequest("g", "D", [("T", 0)]))
    tasks[0].cancel()
    gate.set()
    await asyncio.gather(*tasks[1:])
    assert table.owner(("T", "g", 0)) == "A"
    assert [request.granted for request in requests[1:]] == [[], []]


async def test_group_holds_locks_until_unlock_or_expiry():
    now = [0]
    table = LockTable(clock_ms=lambda: now[0])
    service = service_of(table, clock_ms=lambda: now[0])
    assert not service.are_held("g")
    await settle(service, LockRequest("g", "A", [("T", 0), ("U", 0)]))
    assert [service.are_held(group) for group in ("g", "other")] == [True, False]
    await settle(service, LockRequest("g", "A", [("T", 0)], unlock=True))
    now[0] = 60_000
    assert service.are_held("g")
    now[0] += 1
    assert not service.are_held("g")


async def test_stopped_lock_service_ends_a_waiting_round():
    table = LockTable()

    async def propose(payload):
        await asyncio.Event().wait()

    service = service_of(table, propose=propose)
    waiting = asyncio.ensure_future(settle(service, LockRequest("g", "A", [("T", 0)])))
    await turns()
    await service.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_lock_table_round_trip_and_independent_copy():
    offsets = OffsetTable()
    assert "lockTable" not in offsets.to_json()
    offsets.locks.change([OwnerChange("%g", "10.0.0.1@x", {"T": [1, 0], "U": [2]})])
    reported = Renewals(7, False, [(31_000, "%g", {"T": [1, 5]}), (2_000, "other", {"T": [0]})])
    offsets.locks.apply(orjson.loads(lock_queues([], reported)))
    saved = orjson.loads(orjson.dumps(offsets.to_json()))
    assert saved["lockTable"]["T@%g"] == {"0": "10.0.0.1@x", "1": "10.0.0.1@x"}
    assert saved["lockRenewals"] == {"term": 7, "aged": {"T@%g": {"1": 31_000}}}
    other = OffsetTable()
    other.locks.use_clock(lambda: 100_000)
    other.load(saved, 5)
    assert other.locks == offsets.locks
    assert other.locks.renewed[("T", "%g", 1)] == 69_000
    assert other.locks.renewed[("T", "%g", 0)] == 100_000
    offsets.own()
    offsets.locks.change([OwnerChange("%g", None, {"T": [0, 9], "V": [1]})])
    assert (len(offsets.locks), len(other.locks)) == (2, 3)


def test_lock_renewal_clears_the_recorded_age():
    offsets = OffsetTable()
    change = OwnerChange("g", "A", {"T": [0]})
    offsets.locks.change([change])
    reported = Renewals(7, False, [(50_000, "g", {"T": [0]})])
    offsets.locks.apply(orjson.loads(lock_queues([], reported)))
    offsets.locks.change([change])
    other = OffsetTable()
    other.load(offsets.to_json(), 5)
    other.locks.use_clock(lambda: 100_000)
    assert other.locks.renewed == {("T", "g", 0): 100_000}


@pytest.mark.parametrize(("role", "identity"), [("ASYNC_MASTER", 0), ("SLAVE", 1)])
async def test_classic_master_keeps_locks_in_memory_and_a_slave_rejects_them(
    tmp_path, role, identity
):
    settings = {"enableDLegerCommitLog": "false", "brokerRole": role, "brokerId": identity}
    async with Group(tmp_path, **settings, haListenPort="0") as group:
        broker = group.brokers["n0"]
        if role != "SLAVE":
            await group.create_topic(broker, "T")
        answer = await ask(group, broker, "A", 0)
        if role == "SLAVE":
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            return
        assert await granted(group, broker, "B", 0) == []
        assert "lockTable" not in broker.state.offsets.to_json()
        await group.stop("n0")
        broker = await group.start("n0")
        assert await granted(group, broker, "B", 0) == [0]
