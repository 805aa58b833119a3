"""Delayed messages in a group of three whose leader dies in the middle, and in classic mode."""

import asyncio
from dataclasses import replace

import orjson
import pytest

import raftmq.broker.delayed.delay_levels
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.remoting.codes import RequestCode
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC
from raftmq.store.properties import decode_properties
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import Group
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until

LEVELS = "50ms 400ms 1h"
# Who leads is to change when a test says so, however busy the machine is; a killed leader's
# connections end, so its followers do not wait for this.
PATIENT = {"electionTimeoutMinMs": 2_000, "electionTimeoutMaxMs": 4_000}
TOPIC = "Delayed"


async def everything(group, broker, topic=TOPIC, queues=4):
    """All messages of a topic, in the order of their queues."""
    result = []
    for queue in range(queues):
        offset = 0
        while True:
            answer = await group.pull(broker, topic, offset, queue)
            offset = int(answer.ext["nextBeginOffset"])
            if answer.code:
                break
            result += [decode_record(answer.body, at) for at, _ in walk_records(answer.body)]
    return result


async def send_delayed(group, broker, keys, level, topic=TOPIC):
    """All at once: they are due at once, too, however slow the machine is."""

    async def sent(number):
        properties = f"UNIQ_KEY\x01K{number}\x02DELAY\x01{level}\x02"
        answer = await group.send(broker, topic, b"%d" % number, number % 4, properties)
        assert answer.code == 0
        return f"K{number}", int(answer.ext["queueOffset"])

    return dict(await asyncio.gather(*map(sent, keys)))


def keys_of(records):
    return sorted(decode_properties(record.properties)["UNIQ_KEY"] for record in records)


async def test_leader_killed_during_delayed_delivery_loses_and_repeats_none(tmp_path, monkeypatch):
    """Every message once, none early, none lost, and the next leader goes on."""
    monkeypatch.setattr(raftmq.broker.delayed.delay_levels, "COUNT_MAX", 3)
    async with Group(tmp_path, 3, messageDelayLevel=LEVELS, **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, TOPIC)
        sent = await send_delayed(group, leader, range(60), 2)
        assert sorted(sent.values()) == list(range(60))
        await until(lambda: leader.state.delays.get(2) > 5)
        await group.kill(first)
        assert leader.state.delays.get(2) < 60
        second = await group.leading()
        await until(lambda: second.state.delays.get(2) == 60)
        records = await everything(group, second)
        assert keys_of(records) == sorted(sent)
        parked = {
            decode_properties(record.properties)["UNIQ_KEY"]: record
            for record in await everything(group, second, SCHEDULE_TOPIC, 3)
        }
        for record in records:
            key = decode_properties(record.properties)["UNIQ_KEY"]
            waited_ms = record.store_timestamp_ms - parked[key].store_timestamp_ms
            assert waited_ms >= 400
        rejoined = await group.start(first)  # from its snapshot and log: the same table
        await until(lambda: rejoined.state.delays.offsets == second.state.delays.offsets)
        assert keys_of(await everything(group, second)) == sorted(sent)


async def test_continued_leadership_keeps_deliveries_in_flight(tmp_path):
    """A transfer that was given up is a role event, too."""
    async with Group(tmp_path, messageDelayLevel=LEVELS) as group:
        leader = await group.leading()
        started = leader.halves.book  # a new one in each leadership, like the services' numbers
        term, changed = leader.roles.term, leader.application.role_changed
        event = RoleEvent(Role.LEADER, term, "n0", True, "transfer to n1 given up: no answer")
        changed(event)
        assert leader.halves.book is started
        changed(replace(event, leader_ready=False))
        assert leader.halves.book is None
        changed(event)
        assert leader.halves.book not in (None, started)


async def test_delay_levels_are_reported_and_restored_after_a_restart(tmp_path, caplog):
    async with Group(tmp_path, messageDelayLevel=LEVELS, fileReservedTime="1") as group:
        leader = await group.leading()
        assert "delay_longer_than_kept ms=3600000 kept=3600000" in caplog.text
        await group.create_topic(leader, TOPIC)
        await send_delayed(group, leader, range(2), 1)
        await send_delayed(group, leader, range(2, 5), 3)
        await until(lambda: leader.state.delays.get(1) == 2)
        answer = await group.ask(leader, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = orjson.loads(answer.body)["table"]
        assert table["scheduleMessageOffset_1"] == "2,2"
        assert table["scheduleMessageOffset_3"] == "0,3"
        assert "scheduleMessageOffset_2" not in table
        text = leader.metrics.render()[0].decode()
        assert any(
            line.startswith("rocketmq_delayed_messages{")
            and 'level="3"' in line
            and line.endswith(" 3.0")
            for line in text.splitlines()
        )
        answer = await group.ask(leader, RequestCode.GET_ALL_DELAY_OFFSET)
        assert orjson.loads(answer.body)["offsetTable"] == {"1": 2}
        topics = await group.ask(leader, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = orjson.loads(topics.body)["topicConfigTable"]
        assert table[SCHEDULE_TOPIC]["writeQueueNums"] == 3
        await group.stop("n0")
        leader = await group.start("n0")
        await group.leader()
        assert leader.state.delays.offsets == {1: 2}
        await send_delayed(group, leader, range(5, 6), 1)
        await until(lambda: leader.state.delays.get(1) == 3)
        assert keys_of(await everything(group, leader)) == ["K0", "K1", "K5"]


async def test_delayed_messages_of_a_deleted_topic_are_delivered_as_in_apache(tmp_path):
    async with Group(tmp_path, messageDelayLevel=LEVELS) as group:
        leader = await group.leading()
        await group.create_topic(leader, TOPIC)
        await send_delayed(group, leader, range(4), 3)
        await group.ask(leader, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
        assert leader.state.delays.get(3) == 0
        group.ahead_ms["n0"] = 3_600_000  # all are due
        await until(lambda: leader.state.delays.get(3) == 4)
        await group.create_topic(leader, TOPIC, 4)
        assert len(await everything(group, leader)) == 4


@pytest.mark.parametrize("restart", [False, True])
async def test_classic_master_delivers_and_writes_apaches_delay_offset_file(tmp_path, restart):
    async with Group(tmp_path, messageDelayLevel=LEVELS, enableDLegerCommitLog="false") as group:
        master = group.brokers["n0"]
        await group.create_topic(master, TOPIC)
        await send_delayed(group, master, range(3), 1)
        await until(lambda: master.state.delays.get(1) == 3)
        if restart:
            await send_delayed(group, master, range(3, 5), 2)
            await group.stop("n0")
            saved = orjson.loads((tmp_path / "n0/config/delayOffset.json").read_bytes())
            assert saved["offsetTable"]["1"] == 3
            master = await group.start("n0")
            await until(lambda: master.state.delays.get(2) == 2)
        keys = [f"K{number}" for number in range(5 if restart else 3)]
        assert keys_of(await everything(group, master)) == keys


async def test_classic_slave_follows_delay_progress_and_delivers_nothing(tmp_path):
    async with Classic(tmp_path, messageDelayLevel=LEVELS) as pair:
        await pair.followed()
        master, slave = pair.master, pair.slave
        await pair.create_topic(master, TOPIC)
        await send_delayed(pair, master, range(3), 1)
        await until(lambda: slave.state.delays.get(1) == 3)
        await pair.caught_up()
        assert keys_of(await everything(pair, slave)) == ["K0", "K1", "K2"]
        entries = [b.store.queues.queue(SCHEDULE_TOPIC, 0).entries(0, 9) for b in (master, slave)]
        assert entries[0] == entries[1]
        assert len(entries[0]) == 3 * QUEUE_ENTRY_BYTES
        await send_delayed(pair, master, range(3, 5), 3)
        await pair.caught_up()
        await pair.kill("master")
        end = slave.store.commitlog.max_offset
        pair.ahead_ms["slave1"] = 86_400_000  # all are due
        slave.delays.tick()
        assert slave.sends.held_bytes == 0
        assert slave.store.commitlog.max_offset == end


async def test_delayed_message_of_a_removed_queue_is_stored_in_another(tmp_path):
    """Consumers read only the topic's queues; the message has chosen its queue at its send."""
    async with Group(tmp_path, messageDelayLevel="300ms") as group:
        broker = await group.leading()
        await group.create_topic(broker, "Shrinks", 4)
        answer = await group.send(broker, "Shrinks", queue=3, properties="DELAY\x011\x02")
        assert answer.code == 0
        await group.create_topic(broker, "Shrinks", 2)
        queue = broker.store.queues
        await until(lambda: queue.end_of("Shrinks", 1) + queue.end_of("Shrinks", 3) == 1)
        assert queue.end_of("Shrinks", 1) == 1
