"""Timer messages in brokers: leaders die, all restart, old log goes, messages are recalled."""

import asyncio

import orjson

from raftmq.broker.delayed import timers
from raftmq.broker.errors import OutcomeUnknown, busy
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.store.dispatch import TIMER_TOPIC
from raftmq.store.properties import decode_properties
from raftmq.store.retention import Expired
from tests.broker.cluster import PATIENCE_S, Group
from tests.broker.delayed.test_delay_group import PATIENT, TOPIC, everything, keys_of
from tests.broker.replication.ha.pair import Classic
from tests.broker.replication.test_refill import start_again
from tests.waiting import until

KIB = 1 << 10
UNKNOWN = OutcomeUnknown("planted")


async def are_stored(group, broker, keys, *where):
    """Return whether the topic has just these keys. A delivery that is under way counts as waiting
    no more, before its messages are in their topic."""
    return keys_of(await everything(group, broker, *where)) == keys


async def send_timed(group, broker, key, topic=TOPIC, body=b"x", number=0, **asked):
    text = "".join(f"{name}\x01{value}\x02" for name, value in asked.items())
    answer = await group.send(broker, topic, body, number % 4, f"UNIQ_KEY\x01{key}\x02{text}")
    assert answer.code == 0, answer
    return answer.ext


async def recall(group, broker, handle, topic=TOPIC):
    ext = {"producerGroup": "pg", "topic": topic, "recallHandle": handle}
    return await group.ask(broker, RequestCode.RECALL_MESSAGE, ext)


async def until_it_leads(group, name):
    """A hand-over that takes too long is given up: then it is asked for again."""
    target = group.brokers[name]
    async with asyncio.timeout(PATIENCE_S):
        while not target.roles.leading:
            leader = await group.leading()
            if leader is not target:
                await group.transfer(leader, name)
            await asyncio.sleep(0.05)


def asked_of(record):
    return int(decode_properties(record.properties)["TIMER_DELIVER_MS"])


async def test_leaders_killed_around_timer_delivery_lose_and_repeat_none(tmp_path, monkeypatch):
    """Every message once, none early, none lost, in the order of their times, on all replicas."""
    monkeypatch.setattr(timers, "COUNT_MAX", 3)
    async with Group(tmp_path, 3, **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, TOPIC, 1)
        shift = [0]  # by which the clock is put on when all are sent
        for each in group.brokers.values():
            each.timers.timing.wall_ms = lambda: leader.context.wall_ms() + shift[0]
        base = leader.context.wall_ms() + 3_600_000
        times = {f"K{n}": base + (n * 7 % 40) * 20 for n in range(40)}
        for key, at in times.items():
            ext = await send_timed(group, leader, key, TIMER_DELIVER_MS=at)
            assert ext["recallHandle"]
        await until(lambda: leader.timers.view().waiting + leader.timers.delivered_count == 40)
        shift[0] = base - leader.context.wall_ms() - 300
        follower = next(b for name, b in group.brokers.items() if name != first)
        await until(lambda: leader.timers.delivered_count > 5)
        await until(lambda: follower.timers.wheel.next_offset)  # it follows without leading
        await group.kill(first)
        second = await group.leading()
        await until(lambda: second.timers.view().waiting == 0)
        await until(lambda: are_stored(group, second, sorted(times), TOPIC, 1))
        records = await everything(group, second, TOPIC, 1)
        assert all(record.store_timestamp_ms + shift[0] >= asked_of(record) for record in records)
        assert [asked_of(record) for record in records] == sorted(times.values())
        rejoined = await group.start(first)  # from its snapshot and log: the same table
        await until(lambda: rejoined.state.delays.timer == second.state.delays.timer)
        await until(lambda: rejoined.timers.wheel.next_offset == 40)
        await until(lambda: rejoined.timers.view().waiting == 0)  # the next tick knows


async def test_restarted_group_restores_waiting_and_delivered_timer_messages(tmp_path):
    async with Group(tmp_path) as group:
        leader = await group.leading()
        await group.create_topic(leader, TOPIC)
        await send_timed(group, leader, "now", TIMER_DELAY_MS=5)
        for number in range(3):
            await send_timed(group, leader, f"K{number}", TIMER_DELAY_SEC=3_600, number=number)
        await until(lambda: leader.timers.delivered_count == 1)
        await until(lambda: leader.timers.view()[:2] == (3, 0))
        text = leader.metrics.render()[0].decode()
        assert [
            line.split("}")[1]
            for line in text.splitlines()
            if line.startswith(("rocketmq_timer_messages{", "rocketmq_timer_late_seconds{"))
        ] == [" 3.0", " 0.0"]
        answer = await group.ask(leader, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = orjson.loads(answer.body)["table"]
        assert (table["timerWaiting"], table["timerLateMs"]) == ("3", "0")
        await group.stop("n0")
        leader = await group.start("n0")
        await group.leader()
        assert leader.state.delays.timer.due_ms
        await until(lambda: leader.timers.view().waiting == 3)
        leader.timers.timing.wall_ms = lambda: leader.context.wall_ms() + 3_700_000
        await until(lambda: leader.timers.view().waiting == 0)
        await until(lambda: are_stored(group, leader, ["K0", "K1", "K2", "now"]))
        records = await everything(group, leader)
        properties = decode_properties(records[-1].properties)
        assert properties["TIMER_OUT_MS"]
        assert properties["REAL_TOPIC"] == TOPIC


async def test_recalled_timer_message_is_not_delivered_by_any_leader(tmp_path):
    async with Group(tmp_path, 3, **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, TOPIC)
        at = leader.context.wall_ms() + 3_600_000
        handles = {}
        for key in ("stays", "goes", "goes-too"):
            ext = await send_timed(group, leader, key, TIMER_DELIVER_MS=at)
            handles[key] = ext["recallHandle"]
        plain = await group.send(leader, TOPIC, b"x", 0, "UNIQ_KEY\x01P\x02")
        assert "recallHandle" not in plain.ext
        answer = await recall(group, leader, handles["goes"])
        assert (answer.code, answer.ext) == (0, {"msgId": "goes", "MSG_REGION": "DefaultRegion"})
        await group.kill(first)
        second = await group.leading()
        assert (await recall(group, second, handles["goes-too"])).code == 0
        follower = next(b for b in group.brokers.values() if b is not second)
        assert (await recall(group, follower, handles["stays"])).code == 14
        for handle, topic in ((handles["stays"], "Other"), ("no handle", TOPIC)):
            await group.create_topic(second, "Other")
            answer = await recall(group, second, handle, topic)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
        second.timers.timing.wall_ms = lambda: second.context.wall_ms() + 3_700_000
        await until(lambda: second.timers.view().waiting == 0)
        await until(lambda: are_stored(group, second, ["P", "stays"]))
        answer = await recall(group, second, handles["stays"])
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "timestamp" in answer.remark


async def test_timer_message_with_a_failed_recall_is_delivered(tmp_path):
    """Or of unknown outcome: its sender was told so, and the message was acknowledged."""
    async with Group(tmp_path, 1, **PATIENT) as group:
        broker = await group.leading()
        await group.create_topic(broker, TOPIC)
        at = broker.context.wall_ms() + 3_600_000
        keys = ("refused", "refused-once", "unknown")
        requested = {"TIMER_DELIVER_MS": at}
        handles = {
            k: (await send_timed(group, broker, k, **requested))["recallHandle"] for k in keys
        }
        real, outcomes = broker.sends.store, [busy("planted"), busy("planted"), None, UNKNOWN]

        def store(messages, command, done):
            outcome = outcomes.pop(0)
            if outcome is None:
                real(messages, command, done)
            else:
                asyncio.get_running_loop().call_soon(done, outcome)

        broker.sends.store = store
        answers = [
            await recall(group, broker, handles[key])
            for key in ("refused", "refused-once", "refused-once", "unknown")
        ]
        assert [answer.code == 0 for answer in answers] == [False, False, True, False]
        broker.sends.store = real
        broker.timers.timing.wall_ms = lambda: broker.context.wall_ms() + 3_700_000
        await until(lambda: broker.timers.view().waiting == 0)
        await until(lambda: are_stored(group, broker, ["refused", "unknown"]))


async def test_waiting_timer_message_survives_retention_and_a_snapshot_install(tmp_path):
    """Retention waits until it is stored once more; a replica that was away all the time is
    refilled, leads, and delivers it."""
    settings = {
        "mappedFileSizeCommitLog": 256 * KIB,
        "maxMessageSize": 64 * KIB,
        "durations": {"snapshot": 100, "retention": 100},
    }
    async with Group(tmp_path, 3, **(PATIENT | settings)) as group:
        leader = await group.leading()
        await group.create_topic(leader, TOPIC)
        await group.create_topic(leader, "Filler")
        away = next(name for name, b in group.brokers.items() if b is not leader)
        await group.stop(away)
        for number in range(5):
            await send_timed(group, leader, f"K{number}", TIMER_DELAY_SEC=3_600, number=number)
        log, wheel = leader.store.commitlog, leader.timers.wheel
        queue = leader.store.queues.queue(TIMER_TOPIC, 0)
        assert log.min_offset == queue.min_offset == 0
        # Retention is asked ten times a second, and goes as far as snapshots and timers let it.
        for broker in group.brokers.values():  # a majority has to agree
            broker.retention.expired = lambda at_once=False: Expired(log.max_offset, log.max_offset)
        while log.max_offset < 1024 * KIB:
            answer = await group.send(leader, "Filler", bytes(60 * KIB))
            assert answer.code == 0
        await until(lambda: log.min_offset > 512 * KIB)
        # Their outcomes come after what they did, and queues are not cut while they are flushed.
        await until(lambda: leader.timers.rolled_count >= 5 and wheel.first_offset >= 5)
        await until(lambda: queue.min_offset >= 5)
        # Nothing more may go: who is refilled would be too late for it again.
        leader.retention.expired = lambda at_once=False: Expired(log.min_offset, 0)
        await start_again(group, away)
        other = group.brokers[away]
        await until(lambda: other.state.applied_index >= leader.state.applied_index)
        await until_it_leads(group, away)
        other.timers.timing.wall_ms = lambda: other.context.wall_ms() + 3_700_000
        await until(lambda: other.timers.view().waiting == 0 and other.timers.delivered_count)
        await until(lambda: are_stored(group, other, [f"K{number}" for number in range(5)]))
        records = await everything(group, other)
        assert "TIMER_ROLL_TIMES" in decode_properties(records[0].properties)


async def test_timer_messages_are_limited_in_number_and_delay(tmp_path):
    async with Group(tmp_path, timerMessagesMax=2, timerMaxDelaySec=60) as group:
        leader = await group.leading()
        await group.create_topic(leader, TOPIC)
        await send_timed(group, leader, "K0", TIMER_DELAY_SEC=60)
        await send_timed(group, leader, "K1", TIMER_DELAY_SEC=60)
        await until(lambda: leader.timers.view().waiting == 2)
        properties = "TIMER_DELAY_SEC\x0150\x02"
        answer = await group.send(leader, TOPIC, b"x", 0, properties)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "timerMessagesMax" in answer.remark
        answer = await group.send(leader, TOPIC, b"x", 0, "TIMER_DELAY_SEC\x0161\x02")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "timerMaxDelaySec" in answer.remark
        leader.timers.timing.wall_ms = lambda: leader.context.wall_ms() + 70_000
        await until(lambda: leader.timers.view().waiting == 0)
        leader.timers.timing.wall_ms = leader.context.wall_ms
        assert (await group.send(leader, TOPIC, b"x", 0, properties)).code == 0


async def test_classic_master_delivers_timer_messages_and_its_slave_follows(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        master, slave = pair.master, pair.slave
        await pair.create_topic(master, TOPIC)
        await send_timed(pair, master, "K0", TIMER_DELAY_MS=10)
        ext = await send_timed(pair, master, "K1", TIMER_DELAY_SEC=3_600)
        await send_timed(pair, master, "K2", TIMER_DELAY_SEC=3_600)
        assert (await recall(pair, master, ext["recallHandle"])).code == 0
        await until(lambda: master.timers.delivered_count == 1)
        await until(lambda: slave.state.delays.timer == master.state.delays.timer)
        await pair.caught_up()
        await until(lambda: slave.timers.view().waiting == 3)
        await until(lambda: slave.state.topics.get(TOPIC) is not None)
        assert keys_of(await everything(pair, slave)) == ["K0"]
        end = slave.store.commitlog.max_offset
        slave.timers.timing.wall_ms = lambda: slave.context.wall_ms() + 3_700_000
        slave.timers.tick()  # it does not deliver
        assert slave.sends.held_bytes == 0
        assert slave.store.commitlog.max_offset == end
        master.timers.timing.wall_ms = lambda: master.context.wall_ms() + 3_700_000
        await until(lambda: master.timers.view().waiting == 0)
        await until(lambda: are_stored(pair, master, ["K0", "K2"]))
