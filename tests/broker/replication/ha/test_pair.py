"""Master and slaves end to end over loopback."""

import asyncio
import errno
import logging
import shutil
import struct
from typing import Any

import orjson
import pytest

from raftmq.broker.construction import template_topic
from raftmq.broker.errors import EngineError, StateError
from raftmq.broker.health import warnings_of
from raftmq.broker.replication.ha import master
from raftmq.broker.replication.ha import metadata as metadata_module
from raftmq.broker.replication.ha.master import SlaveLink
from raftmq.broker.replication.ha.metadata import LogComparison, MetadataError
from raftmq.broker.replication.ha.slave import MasterLink
from raftmq.broker.tables.timer_wheel import Progress
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.headers import PullResponseHeader, SendResponseHeader
from raftmq.store.errors import FlushUnderWay
from raftmq.store.identity import WrongIdentity
from raftmq.store.record import decode_record, walk_records
from raftmq.store.retention import Expired
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.broker.replication.ha.pair import SEGMENT, TIMEOUT_MS, Classic, answer_as, log_bytes
from tests.instances import instances_of, transports_of
from tests.present import present
from tests.waiting import until

OK = ResponseCode.SUCCESS
LAST_RECORD = 150  # bytes that end a small record here: its body among them


def bodies(body):
    return [decode_record(body, at).body for at, _ in walk_records(body)]


async def info(pair, broker):
    answer = await pair.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    return loads_object(answer.body)["table"]


async def filled(pair, count=5, topic="T", size=10):
    if pair.master.state.topics.get(topic) is None:
        assert (await pair.create_topic(pair.master, topic)).code == OK
    return [(await pair.send(pair.master, topic, b"%d" % n * size)).code for n in range(count)]


async def test_slave_log_equals_the_masters_byte_for_byte(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert (await pair.create_topic(pair.master, "T")).code == OK
        for number in range(40):  # 40 times 20 kB: over three segments
            response = await pair.send(pair.master, "T", b"%d" % number * 10_000, queue=number % 4)
            assert response.code == OK
            assert SendResponseHeader.parse(response.ext).queue_offset == number // 4
        await pair.caught_up()
        assert len(pair.master.store.commitlog.segments()) > 2
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        for queue in range(4):
            mine = pair.slave.store.queues.queue("T", queue)
            assert mine.max_offset == 10
            assert mine.entries(0, 10) == pair.master.store.queues.queue("T", queue).entries(0, 10)


# ---- what a sender hears ----------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_async_master_needs_no_slave(tmp_path, flush):
    async with Classic(tmp_path, 0, "ASYNC_MASTER", flushDiskType=flush) as pair:
        assert await filled(pair) == [OK] * 5
        log = pair.master.store.commitlog
        assert flush == "ASYNC_FLUSH" or log.durable_offset == log.max_offset


async def test_sync_master_without_a_slave_stores_with_slave_not_available(tmp_path):
    async with Classic(tmp_path, 0) as pair:
        assert await filled(pair, 2) == [ResponseCode.SLAVE_NOT_AVAILABLE] * 2
        response = await pair.send(pair.master, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 2
        assert len(bodies((await pair.pull(pair.master, "T", 0)).body)) == 3
        unwaiting = await pair.send(pair.master, "T", properties="WAIT\x01false\x02")
        assert unwaiting.code == OK


async def test_slave_too_far_behind_does_not_count(tmp_path):
    async with Classic(tmp_path, haSlaveFallbehindMax=0) as pair:
        await pair.followed()
        assert await filled(pair, 1) == [ResponseCode.SLAVE_NOT_AVAILABLE]
        await pair.caught_up()


async def test_silent_slave_delays_only_sends_that_wait_for_it(tmp_path):
    """A connection that follows and never acknowledges: 12 after slaveTimeout. Meanwhile sends
    with WAIT=false are answered, and everything is stored in order."""
    async with Classic(tmp_path, 0) as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write(bytes(8))
        await pair.master_serves(1)
        waiting = [asyncio.create_task(pair.send(pair.master, "T", b"%d" % n)) for n in range(3)]
        await until(lambda: len(pair.master.log.classic.acks) > 0)
        for n in range(3):
            response = await pair.send(pair.master, "T", b"f%d" % n, properties="WAIT\x01false\x02")
            assert response.code == OK
            assert SendResponseHeader.parse(response.ext).queue_offset == 3 + n
        assert not any(task.done() for task in waiting)
        assert len(bodies((await pair.pull(pair.master, "T", 0)).body)) == 6  # dispatched already
        pair.clock.skip(TIMEOUT_MS)
        codes = [(await task).code for task in waiting]
        assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
        writer.close()
        await reader.read(-1)


async def test_slave_acknowledgement_answers_all_earlier_sends(tmp_path):
    async with Classic(tmp_path, 0) as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write(bytes(8))
        await pair.master_serves(1)
        log, waiting = pair.master.store.commitlog, []
        ends = [log.max_offset]  # behind the records of the topic's creation
        for n in range(4):  # one after the other: they are batches of their own
            waiting.append(asyncio.create_task(pair.send(pair.master, "T", b"%d" % n)))
            await until(lambda: log.max_offset > ends[-1])
            ends.append(log.max_offset)
        header = await reader.readexactly(12)
        assert header[:8] == bytes(8)  # from the log's first byte on
        writer.write((ends[2] + 1).to_bytes(8, "big"))
        await until(lambda: sum(task.done() for task in waiting) == 2)
        writer.write(log.max_offset.to_bytes(8, "big"))
        assert [(await task).code for task in waiting] == [OK] * 4
        writer.close()


class SlowSync:
    """A disk whose CommitLog is not synced until told."""

    def __init__(self, log):
        self.log = log
        self.begin = log.start_sync
        self.asked = 0
        log.start_sync = self.start_sync

    def start_sync(self):
        self.asked += 1

    def let_go(self, flushers=()):
        """Sync from now on; `flushers` are asked at once for what they could not begin."""
        self.log.start_sync = self.begin
        for flusher in flushers:
            flusher.request()


@pytest.fixture
def transports(monkeypatch):
    """The transports of the slaves' links to their master, and of the master's to slaves."""
    return [transports_of(monkeypatch, kind) for kind in (MasterLink, SlaveLink)]


async def test_late_sync_on_the_master_answers_with_flush_time_out(tmp_path):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        slow = SlowSync(pair.master.store.commitlog)
        waiting = asyncio.create_task(pair.send(pair.master, "T"))
        await until(lambda: len(pair.master.log.classic.acks) == 1)
        pair.clock.skip(TIMEOUT_MS)
        assert (await waiting).code == ResponseCode.FLUSH_DISK_TIMEOUT
        slow.let_go()
        assert (await pair.send(pair.master, "T")).code == OK


async def test_waiting_send_gets_the_known_status_when_the_master_stops(tmp_path):
    async with Classic(tmp_path, 0) as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        _, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write(bytes(8))
        await pair.master_serves(1)
        waiting = asyncio.create_task(pair.send(pair.master, "T"))
        await until(lambda: len(pair.master.log.classic.acks) == 1)
        await pair.stop("master")
        assert (await waiting).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        writer.close()


# ---- slaves -----------------------------------------------------------------------------------


async def test_two_slaves_follow_and_the_late_one_catches_up(tmp_path):
    async with Classic(tmp_path, 2) as pair:
        await pair.followed()
        await pair.stop("slave2")
        assert await filled(pair, 30, size=20_000) == [OK] * 30
        await pair.start("slave2")
        await pair.caught_up()
        assert log_bytes(pair.brokers["slave2"]) == log_bytes(pair.master)
        assert log_bytes(pair.slave) == log_bytes(pair.master)


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_restarted_slave_continues_at_its_end(tmp_path, end):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert await filled(pair, 20, size=20_000) == [OK] * 20
        await getattr(pair, end)("slave1")
        await filled(pair, 20, size=20_000)
        await pair.start("slave1")
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        assert await filled(pair, 1) == [OK]


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_slave_follows_a_restarted_master(tmp_path, end):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert await filled(pair, 20, size=20_000) == [OK] * 20
        await getattr(pair, end)("master")
        await pair.start("master")
        response = await pair.send(pair.master, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 20  # nothing acked is lost
        await pair.followed()
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        assert await filled(pair, 1) == [OK]


async def test_new_slave_gets_the_full_log_or_only_the_last_segment(tmp_path):
    own = {"master": {"syncFromLastFile": "true"}}
    async with Classic(tmp_path, 0, "ASYNC_MASTER", names=own) as pair:
        await filled(pair, 30, size=20_000)
        start = pair.master.store.commitlog.segments()[-1].start
        assert start > 0
        pair.names.append("slave1")
        await pair.start("slave1")
        await pair.caught_up()
        log = pair.slave.store.commitlog
        assert (log.min_offset, log.max_offset) == (start, pair.master.store.commitlog.max_offset)
        first = pair.slave.store.queues.queue("T", 0).min_offset
        assert 0 < first < 30
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        pulled = await pair.pull(pair.slave, "T", first)
        assert pulled.code == OK
        await pair.stop("slave1")
        await pair.start("slave1")  # and finds its beginning again
        assert pair.slave.store.queues.queue("T", 0).min_offset == first
        await filled(pair, 1)
        await pair.caught_up()


@pytest.mark.parametrize("known", [True, False])
async def test_new_slave_of_apaches_master_gets_every_segment(tmp_path, monkeypatch, known):
    """Apache's master sends its last segment to a slave that requests offset 0. A slave that cannot
    ask the master where its log begins gets no more, and reports that."""
    look = LogComparison.poll

    async def of_apaches(comparison):
        await look(comparison)
        comparison.own_from = None

    monkeypatch.setattr(LogComparison, "poll", of_apaches)
    if not known:
        monkeypatch.setattr(LogComparison, "first_request", lambda _: asyncio.sleep(0, 0))
    own = {"master": {"syncFromLastFile": "true"}}
    async with Classic(tmp_path, 0, "ASYNC_MASTER", names=own) as pair:
        await filled(pair, 30, size=20_000)
        pair.names.append("slave1")
        await pair.start("slave1")
        await pair.caught_up()
        start = pair.master.store.commitlog.segments()[-1].start
        assert start > 0
        assert pair.slave.store.commitlog.min_offset == (0 if known else start)
        if known:
            assert log_bytes(pair.slave) == log_bytes(pair.master)
        missing = "" if known else f"the log begins at {start}, the master's at 0"
        await until(lambda: pair.slave.log.classic.follower.comparison.log_start == missing)
        await filled(pair, 1)
        await pair.caught_up()
        await pair.stop("slave1")
        await pair.start("slave1")
        await filled(pair, 1)
        await pair.caught_up()
        seen = await info(pair, pair.slave)
        assert seen["logStart"] == missing
        assert ("older messages" in "".join(warnings_of(seen))) is not known


async def test_slaves_are_limited_in_number_and_silence_ends_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr(master, "SLAVES_MAX", 1)
    async with Classic(tmp_path, 0, durations={"ha_silence": 300}) as pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write(bytes(8))
        await pair.master_serves(1)
        second, other = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        assert await closed(second)
        assert await closed(reader)  # it never says another word
        writer.close()
        other.close()


async def test_slave_cannot_acknowledge_bytes_that_were_not_sent(tmp_path):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        await filled(pair, 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write(bytes(8))
        await pair.master_serves(1)
        master = pair.master.log.classic.master
        (link,) = master.links
        link.pause_writing()
        await filled(pair, 1)
        writer.write(pair.master.store.commitlog.max_offset.to_bytes(8, "big"))
        await until(lambda: not master.links or link.acknowledged)
        assert master.acknowledged == 0
        assert await closed(reader)
        writer.close()


async def test_slave_without_a_report_does_not_count(tmp_path):
    async with Classic(tmp_path, 0) as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        _, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        master = pair.master.log.classic.master
        await until(lambda: master.links)
        assert not master.available(1)
        answer = await pair.send(pair.master, "T")
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
        writer.close()


async def test_slave_that_does_not_read_uses_no_memory_of_the_master(tmp_path, transports):
    """The part of the log that a slow slave has not taken stays in the log, not in memory."""
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        _, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"], limit=1)
        writer.write(bytes(8))
        await pair.master_serves(1)
        (link,) = pair.master.log.classic.master.links
        await filled(pair, 300, size=20_000)
        assert pair.master.store.commitlog.max_offset > 20 * SEGMENT
        assert transports[1][link].get_write_buffer_size() < 6 << 20
        writer.close()


async def test_slave_acknowledges_only_durable_bytes(tmp_path):
    """flushDiskType=SYNC_FLUSH holds on the slave, too: no report before fdatasync."""
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert await filled(pair, 1) == [OK]
        slave, master = pair.slave.store.commitlog, pair.master.store.commitlog
        end, slow = master.max_offset, SlowSync(slave)
        waiting = asyncio.create_task(pair.send(pair.master, "T"))
        await until(lambda: slave.max_offset == master.max_offset > end)
        pair.clock.skip(TIMEOUT_MS)
        assert (await waiting).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        (link,) = pair.master.log.classic.master.status()
        assert link["diff"] > 0
        slow.let_go()
        assert await filled(pair, 1) == [OK]


async def test_slave_reconnects_only_after_its_log_is_durable(tmp_path, flushers):
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 1)
        await pair.caught_up()
        slow = SlowSync(pair.slave.store.commitlog)
        await pair.send(pair.master, "T")
        end = pair.master.store.commitlog.max_offset
        await until(lambda: pair.slave.store.commitlog.max_offset == end)
        links = pair.master.log.classic.master.links
        (link,) = links
        link.close("says the test")
        await until(lambda: not links)
        asked = slow.asked
        await until(lambda: slow.asked > asked or links)  # it waits for that before it connects
        assert not links
        slow.let_go(flushers)
        await pair.caught_up()
        await pair.followed()


async def test_ha_status_of_master_and_slave(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 2)
        await pair.caught_up()
        result = {}
        for name in ("master", "slave"):
            broker = getattr(pair, name)
            answer = await pair.ask(broker, RequestCode.GET_BROKER_HA_STATUS)
            result[name] = loads_object(answer.body)
        end = pair.master.store.commitlog.max_offset
        assert result["master"]["inSyncSlaveNums"] == 1
        assert result["master"]["masterCommitLogMaxOffset"] == end
        assert result["master"]["haConnectionInfo"][0]["slaveAckOffset"] == end
        client = result["slave"]["haClientRuntimeInfo"]
        assert (result["slave"]["master"], client["isActivated"]) == (False, True)
        assert client["maxOffset"] == end


# ---- logs that differ --------------------------------------------------------------------------


async def test_slave_ahead_of_its_master_is_rejected(tmp_path, caplog):
    """The master lost its tail: what the slave has more stays, and nothing is merged."""
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 10)
        await pair.caught_up()
        before = log_bytes(pair.slave)
        await pair.kill("master")
        cut_tail(tmp_path / "master", LAST_RECORD)
        await pair.start("master")
        await until(lambda: pair.slave.log.classic.slave.refused)
        assert "lost its tail" in pair.slave.log.classic.slave.refused
        assert "Nothing was changed here" in caplog.text
        assert (await info(pair, pair.slave))["haRefused"]
        # The master goes on, over the place where the slave ends: still refused, by content.
        await filled(pair, 10, size=30)
        await until(lambda: "another one" in pair.slave.log.classic.slave.refused)
        assert log_bytes(pair.slave) == before


async def test_master_rejects_a_slave_that_is_ahead(tmp_path, caplog):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        await filled(pair, 1)
        end = pair.master.store.commitlog.max_offset
        for offset in (end + 1, 1 << 40):
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
            writer.write(offset.to_bytes(8, "big"))
            assert await closed(reader)
            writer.close()
        assert "this master lost its tail" in caplog.text


async def test_slave_that_ends_before_the_masters_first_byte_reports_the_gap(tmp_path):
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        await pair.stop("slave1")
        await filled(pair, 40, size=20_000)
        pair.master.store.delete_before(pair.master.store.commitlog.segments()[-1].start)
        await pair.start("slave1")
        await until(lambda: "what lies between is gone" in pair.slave.log.classic.slave.refused)


async def test_raft_store_is_not_opened_in_classic_mode(tmp_path):
    async with Group(tmp_path) as group:
        await group.leader()
    pair = Classic(tmp_path, 0)
    (tmp_path / "n0").rename(tmp_path / "master")
    for error, text in ((WrongIdentity, "node n0 of the Raft group"), (EngineError, "a Raft rep")):
        with pytest.raises(error, match=text):
            await pair.start("master")
        (tmp_path / "master" / "identity").unlink(missing_ok=True)  # as before there were such
    assert not (tmp_path / "master" / "identity").exists()
    pair.let_go()


async def test_slaves_find_their_master_through_the_name_server(tmp_path):
    """Two groups; the slaves know nothing but the name server, and start first."""
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        own = {"slave1": {"haMasterAddress": ""}}
        pairs = [
            Classic(tmp_path / name, names=own, namesrvAddr=namesrv, brokerName=name)
            for name in ("broker-a", "broker-b")
        ]
        for pair in pairs:
            pair.introduce = lambda: None  # type: ignore[method-assign]
            await pair.start("slave1")
            await pair.start("master")
        try:
            for pair in pairs:
                await pair.followed()
                pair.client = RemotingClient(connect_timeout_ms=60_000)
                assert await filled(pair, 1) == [OK]
                assert pair.slave.roles.leader_address == pair.master.address
            addresses = {
                name: dict(present(server.table.group(name)).addresses)
                for name in ("broker-a", "broker-b")
            }
            assert addresses == {
                pair.settings["brokerName"]: {0: pair.master.address, 1: pair.slave.address}
                for pair in pairs
            }
        finally:
            for pair in pairs:
                await pair.__aexit__()


async def test_stream_that_does_not_continue_the_slaves_log_is_rejected(tmp_path):
    """What the comparison before the link has missed, the bytes themselves tell."""

    async def miss():
        pass

    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        await pair.stop("slave1")
        cut_tail(tmp_path / "slave1", LAST_RECORD)
        await pair.start("slave1")
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        # Another master's log of another length.
        await pair.stop("slave1")
        await pair.stop("master")
        (tmp_path / "master").rename(tmp_path / "old")
        await pair.start("master")
        await filled(pair, 20, topic="Other", size=77)
        pair.introduce = lambda: None
        await pair.start("slave1")
        pair.slave.log.classic.follower.comparison.verify = miss
        await until(lambda: pair.slave.log.classic.slave.refused)
        assert pair.slave.store.queues.queue("Other", 0) is None


async def test_slave_does_not_follow_a_master_that_it_cannot_compare_with(tmp_path, caplog):
    """It knows the HA port, and no name server has said where the master takes requests. Messages
    of equal size were stored on both meanwhile: only a comparison can tell."""
    caplog.set_level(logging.INFO)
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        await pair.stop("slave1")
        await pair.stop("master")
        pair.own["slave1"] = {"brokerRole": "ASYNC_MASTER", "brokerId": 0, "haMasterAddress": ""}
        promoted = await pair.start("slave1")
        for number in range(2):
            assert (await pair.send(promoted, "T", b"promoted%d" % number)).code == OK
        before = log_bytes(promoted)
        await pair.stop("slave1")
        pair.own.clear()
        pair.introduce = lambda: None
        await pair.start("master")
        for number in range(5):
            assert (await pair.send(pair.master, "T", b"an older%d" % number)).code == OK
        await pair.start("slave1")
        slave = pair.slave.log.classic.slave
        await until(lambda: "masterAddress is not set" in said(caplog, "master_not_reached"))
        assert (slave.connected, slave.refused) == (False, "")
        Classic.introduce(pair)
        await until(lambda: "the logs have parted" in slave.refused)
        assert said(caplog, "master_not_reached").count("masterAddress is not set") == 1
        assert log_bytes(pair.slave) == before


async def test_slave_follows_again_while_no_name_server_answers(tmp_path):
    """What it was told of its master stays known; a new slave needs nothing to compare."""
    own = {"master": {"listenPort": "0"}}
    async with Classic(tmp_path, role="ASYNC_MASTER", names=own) as pair:
        pair.introduce = lambda: None
        await pair.followed()  # with an empty log
        await filled(pair, 1)
        await pair.caught_up()
        Classic.introduce(pair)
        own["master"]["listenPort"] = pair.master.address.rpartition(":")[2]
        await pair.stop("master")
        await pair.start("master")
        await filled(pair, 1)
        await pair.caught_up()


async def test_slave_reports_each_new_reason_for_not_following(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 1)
        await pair.caught_up()
        pair.introduce = lambda: None
        await pair.stop("slave1")
        await pair.start("slave1")
        await until(lambda: "masterAddress is not set" in said(caplog, "master_not_reached"))
        address = pair.master.address
        await pair.stop("master")
        pair.slave.roles.hint_master(address, "")
        await until(lambda: address in said(caplog, "master_not_reached"))


async def test_master_with_an_unreadable_record_is_asked_again(tmp_path, monkeypatch, caplog):
    """It has not said that the logs differ."""
    caplog.set_level(logging.INFO)
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 1)
        await pair.caught_up()
        await pair.stop("slave1")
        await filled(pair, 1)

        def unreadable(offset):
            raise OSError(errno.EIO, "cannot read, says the test")

        with monkeypatch.context() as patch:
            patch.setattr(pair.master.store.reads, "message_at", unreadable)
            await pair.start("slave1")
            await until(lambda: "cannot read, says the test" in said(caplog, "master_not_reached"))
            assert pair.slave.log.classic.slave.refused == ""
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)


async def test_slave_that_cannot_append_yet_requests_again(tmp_path):
    """A topic that Apache's master made again may come while its queues are flushed."""
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        follower = pair.slave.log.classic.slave
        append = follower.append
        refusals: list[Any] = []

        def append_later(run):
            if not refusals:
                refusals.append(run)
                raise FlushUnderWay("T/0 begins anew")
            append(run)

        follower.append = append_later
        assert (await filled(pair, 3)) == [OK] * 3
        await pair.caught_up()
        assert len(refusals) == 1
        assert follower.refused == ""
        assert log_bytes(pair.slave) == log_bytes(pair.master)


def said(caplog, event):
    """What was logged so far of that event, a line each."""
    lines = [record.getMessage() for record in caplog.records]
    return "\n".join(line for line in lines if line.startswith(event))


def cut_tail(directory, count):
    """As if the last bytes of the log had never reached the disk."""
    path = sorted((directory / "commitlog").iterdir())[0]
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - count] + bytes(len(data) - end + count))


async def closed(reader):
    async with asyncio.timeout(60):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass  # aborted, which is closed
    return True


# ---- metadata, and reads at the slave -----------------------------------------------------------


async def test_slave_metadata_are_synchronized_periodically(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 3)
        assert (await pair.pull(pair.master, "T", 0)).code == OK  # creates group cg
        assert (await pair.commit(pair.master, "T", 0, 2)).code == OK
        slave = pair.slave
        await until(lambda: slave.state.offsets.get("T", "cg", 0) == 2)
        await until(lambda: slave.state.groups.get("cg") is not None)
        topics = pair.master.state.topics
        template = template_topic(slave.config)
        expected = topics.entries | topics.internal | {present(template).name: template}
        assert slave.state.topics.entries == expected
        await until(lambda: slave.log.classic.follower.metadata.rounds > 0)
        table = await info(pair, slave)
        assert int(table["lastMetadataSyncMs"]) > 0
        assert table["slaveAckOffset"] == str(pair.master.store.commitlog.max_offset)
        await until(lambda: slave.log.classic.follower.comparison.master_end > 0)
        table = await info(pair, pair.master)
        assert (table["slaveFallBehindBytes"], table["haSlaveCount"]) == ("0", "1")
        assert table["brokerRole"] == "SYNC_MASTER"
        # What was copied survives the slave's restart, without a master.
        await pair.stop("master")
        await pair.kill("slave1")
        await pair.start("slave1")
        assert pair.slave.state.offsets.get("T", "cg", 0) == 2
        assert pair.slave.state.topics.get("T") is not None


async def test_unacknowledged_pops_are_redelivered_by_the_slave(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await pair.create_topic(pair.master, "T", 1)
        await filled(pair, 10)
        popper = Popper(pair)
        popped = await popper.pop(pair.master, count=10, invisible_ms=1_000)
        assert len(popped) == 10
        assert await popper.batch_ack(pair.master, popped[:4]) == 0
        await pair.caught_up()
        await synced(pair)
        assert pair.slave.state.pops.in_flight("T", "cg") == 6
        await pair.kill("master")
        await pair.stop("slave1")
        pair.own["slave1"] = {"brokerRole": "ASYNC_MASTER", "brokerId": 0, "haMasterAddress": ""}
        promoted = await pair.start("slave1")
        again = []

        async def all_again():
            again.extend(await popper.pop(promoted))
            return len(again) == 6

        await until(all_again)
        assert sorted(one.body for one in again) == [b"%d" % n * 10 for n in range(4, 10)]


async def test_slave_keeps_a_queue_that_its_master_has_lost(tmp_path):
    """With the manifest: else the master would have made it again."""
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await pair.create_topic(pair.master, "T")
        await filled(pair, 5)
        await pair.send(pair.master, "T", b"newest", queue=1)
        await pair.caught_up()
        await pair.stop("master")
        shutil.rmtree(tmp_path / "master/consumequeue/T/0")
        (tmp_path / "master/consumequeue.manifest").unlink()
        await pair.start("master")
        await pair.followed()
        await pair.send(pair.master, "T", b"new")
        await until(lambda: "begins at 0 again" in pair.slave.log.classic.slave.refused)
        queue = pair.slave.store.queues.queue("T", 0)
        assert (queue.min_offset, queue.max_offset) == (0, 5)


@pytest.mark.parametrize("from_last_file", ["false", "true"])
async def test_queue_older_than_the_slaves_log_continues_at_its_end(tmp_path, from_last_file):
    async with Classic(tmp_path, role="ASYNC_MASTER", syncFromLastFile=from_last_file) as pair:
        await pair.stop("slave1")
        shutil.rmtree(tmp_path / "slave1")
        master, log = pair.master, pair.master.store.commitlog
        for topic in ("Idle", "Busy"):
            await pair.create_topic(master, topic)
        for n in range(5):
            await pair.send(master, "Idle", b"%d" % n)
        assert (await pair.commit(master, "Idle", 0, 5)).code == OK
        while len(log.segments()) < 3:
            await pair.send(master, "Busy", bytes(60_000))
        if from_last_file == "false":
            await master.log.classic.delete_before(log.segments()[1].start)
        await pair.start("slave1")
        await pair.caught_up()
        await synced(pair)
        assert pair.slave.store.commitlog.min_offset > 0
        await pair.kill("master")
        await pair.stop("slave1")
        pair.own["slave1"] = {"brokerRole": "ASYNC_MASTER", "brokerId": 0, "haMasterAddress": ""}
        promoted = await pair.start("slave1")
        assert promoted.state.offsets.get("Idle", "cg", 0) == 5
        await pair.send(promoted, "Idle", b"new")
        assert promoted.store.queues.end_of("Idle", 0) == 6
        assert (await pair.pull(promoted, "Idle", 5)).code == OK


async def test_former_masters_pops_are_replaced_by_its_new_masters_table(tmp_path, monkeypatch):
    """With a master that tells of no pops, an Apache broker, it has none; modes stay."""
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await pair.create_topic(pair.master, "T", 1)
        await filled(pair, 10)
        await pair.caught_up()
        own = [*TAKEN, ("mode", "T", "old", "POP", 4)]
        pair.slave.state.pops.apply({"steps": own})
        popper = Popper(pair)
        assert len(await popper.pop(pair.master, count=5)) == 5
        await synced(pair)
        assert pair.slave.state.pops.to_json() == pair.master.state.pops.to_json()
        assert pair.slave.state.offsets.get("T", "cg", 0) == 5

        async def ask_an_apache_broker(ask, code):
            answer = await ask(code)
            if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
                table = loads_object(answer.body)
                del table["popTable"]
                answer.body = orjson.dumps(table)
            return answer

        answer_as(monkeypatch, ask_an_apache_broker)
        await synced(pair)
        pair.slave.state.pops.apply({"steps": own})
        await synced(pair)
        pops = pair.slave.state.pops
        assert (pops.queues, pops.batch_count) == ({}, 0)
        assert pops.modes == {("T", "old"): ("POP", 4)}


TAKEN = [("take", "T", "cg", 0, 0, 9, 0, 1_000, 2_000, 9, "", "", False)]


async def synced(pair):
    """A round has begun and ended."""
    metadata = pair.slave.log.classic.follower.metadata
    rounds = metadata.rounds
    await until(lambda: metadata.rounds >= rounds + 2)


async def test_slave_gets_a_group_only_with_its_retry_topic(tmp_path, monkeypatch):
    """Consumers begin between the questions of one round; the master may be gone after it."""
    async with Classic(tmp_path, slaveSyncMetadataIntervalMs=3_600_000) as pair:
        await pair.followed()
        metadata = pair.slave.log.classic.follower.metadata
        await until(lambda: metadata.rounds > 0)

        async def ask_while_a_group_begins(ask, code):
            answer = await ask(code)
            name = f"cg-{code.name}"
            beat = {"clientID": name, "consumerDataSet": [{"groupName": name}]}
            body = orjson.dumps(beat)
            assert (await pair.ask(pair.master, RequestCode.HEART_BEAT, None, body)).code == OK
            await until(lambda: pair.master.state.groups.get(name) is not None)
            return answer

        answer_as(monkeypatch, ask_while_a_group_begins)
        for _ in range(2):
            await metadata.sync()
            groups = [name for name in pair.slave.state.groups.entries if name.startswith("cg-")]
            missing = [n for n in groups if pair.slave.state.topics.get(f"%RETRY%{n}") is None]
            assert missing == []
        assert "cg-GET_ALL_TOPIC_CONFIG" in groups


async def test_slave_takes_no_progress_beyond_its_log(tmp_path, transports, monkeypatch):
    monkeypatch.setattr(metadata_module, "REACH_S", 0.1)
    async with Classic(
        tmp_path, role="ASYNC_MASTER", slaveSyncMetadataIntervalMs=3_600_000
    ) as pair:
        await pair.followed()
        await filled(pair, 3)
        assert (await pair.pull(pair.master, "T", 0)).code == OK  # creates group cg
        assert (await pair.commit(pair.master, "T", 0, 2)).code == OK
        await pair.caught_up()
        classic = pair.slave.log.classic
        metadata, offsets = classic.follower.metadata, pair.slave.state.offsets
        await metadata.sync()
        assert offsets.get("T", "cg", 0) == 2
        # Metadata come by another connection.
        for transport in transports[0].values():
            transport.pause_reading()
        await filled(pair, 3)
        assert (await pair.commit(pair.master, "T", 0, 5)).code == OK
        await pair.create_topic(pair.master, "New")
        with pytest.raises(MetadataError, match="bytes behind"):
            await metadata.sync()
        assert offsets.get("T", "cg", 0) == 2
        assert pair.slave.state.topics.get("New") is not None


def tables(slave):
    state = slave.state
    tables = (state.topics, state.groups, state.offsets, state.pops, state.delays)
    return orjson.dumps([table.to_json() for table in tables])


async def test_rejected_slave_takes_no_tables(tmp_path, monkeypatch):
    """Its master has lost its disk, and a supervisor has started it again."""
    monkeypatch.setattr(metadata_module, "RETRY_MS", 20)
    async with Classic(tmp_path, role="ASYNC_MASTER") as pair:
        await pair.followed()
        await filled(pair, 3)
        assert (await pair.pull(pair.master, "T", 0)).code == OK  # creates group cg
        assert (await pair.commit(pair.master, "T", 0, 2)).code == OK
        pair.master.state.delays.advance(1, 7)
        await pair.caught_up()
        await synced(pair)
        requested = []

        async def noted(ask, code):
            requested.append(code)
            return await ask(code)

        await pair.kill("master")
        await until(lambda: not pair.slave.log.classic.slave.connected)
        (tmp_path / "master").rename(tmp_path / "lost")
        before = tables(pair.slave)
        answer_as(monkeypatch, noted)
        await pair.start("master")
        await until(lambda: pair.slave.log.classic.slave.refused)
        await until(lambda: requested.count(RequestCode.GET_BROKER_RUNTIME_INFO) > 2)
        assert set(requested) == {RequestCode.GET_BROKER_RUNTIME_INFO}  # compared again and again
        assert tables(pair.slave) == before
        saved = loads_object((tmp_path / "slave1/config/topics.json").read_bytes())
        assert "T" in saved["topicConfigTable"]


@pytest.mark.parametrize(
    ("last", "taken"),
    [(RequestCode.GET_ALL_TOPIC_CONFIG, False), (RequestCode.GET_ALL_DELAY_OFFSET, True)],
)
async def test_metadata_answer_of_an_ended_link_is_ignored(tmp_path, monkeypatch, last, taken):
    """Also if another one has begun: it may be to another master."""
    slave_links = instances_of(monkeypatch, MasterLink)
    async with Classic(tmp_path, slaveSyncMetadataIntervalMs=3_600_000) as pair:
        await pair.followed()
        await filled(pair, 3)
        classic = pair.slave.log.classic
        metadata, link = classic.follower.metadata, slave_links[-1]
        await until(lambda: metadata.rounds > 0)

        async def ask_and_lose_the_link(ask, code):
            answer = await ask(code)
            if code == last and not link.ended.done():
                link.close("the test")
                await until(lambda: slave_links[-1] is not link and classic.slave.connected)
            return answer

        await pair.create_topic(pair.master, "New")
        pair.master.state.delays.advance(1, 7)
        answer_as(monkeypatch, ask_and_lose_the_link)
        monkeypatch.setattr(metadata, "_due", asyncio.Event())  # no round but this one
        with pytest.raises(MetadataError, match="the link to the master has ended"):
            await metadata.sync()
        assert (pair.slave.state.topics.get("New") is not None) == taken
        assert pair.slave.state.delays.offsets == {}


@pytest.mark.parametrize(
    ("asked", "taken"), [(1, False), (2, True)], ids=["before the topics", "before the offsets"]
)
async def test_metadata_of_a_master_with_a_shorter_log_are_ignored(
    tmp_path, monkeypatch, asked, taken
):
    """Its machine was started anew without its disk, and the old link seems to be up."""
    async with Classic(tmp_path, slaveSyncMetadataIntervalMs=3_600_000) as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        metadata = pair.slave.log.classic.follower.metadata
        await until(lambda: metadata.rounds > 0)
        ends = []

        async def ask_the_new_one(ask, code):
            answer = await ask(code)
            if code == RequestCode.GET_BROKER_RUNTIME_INFO:
                ends.append(answer)
                if len(ends) == asked:
                    table = loads_object(answer.body)
                    table["table"]["commitLogMaxOffset"] = "0"
                    answer.body = orjson.dumps(table)
            return answer

        await pair.create_topic(pair.master, "New")
        pair.master.state.delays.advance(1, 7)
        answer_as(monkeypatch, ask_the_new_one)
        with pytest.raises(MetadataError, match="the master's has 0"):
            await metadata.sync()
        assert (pair.slave.state.topics.get("New") is not None) == taken
        assert pair.slave.state.delays.offsets == {}


async def test_slave_reads_delivered_timer_messages_from_apaches_master(tmp_path, monkeypatch):
    async with Classic(tmp_path, slaveSyncMetadataIntervalMs=3_600_000) as pair:
        await pair.followed()
        metadata, state = pair.slave.log.classic.follower.metadata, pair.slave.state
        await until(lambda: metadata.rounds > 0)
        reported: list[Any] = []

        async def ask_apaches(ask, code):
            if code == RequestCode.GET_TIMER_CHECK_POINT and reported:
                return RemotingCommand(OK, body=reported.pop())
            return await ask(code)  # ours has no `timer` either, and does not know 60

        answer_as(monkeypatch, ask_apaches)
        check_point = struct.pack(">7q", 1_900_000_000_000, 104, 2, 2, 0, 0, 1)
        for answers in ([check_point], [], [bytes(56)]):  # what is not told stays known
            reported[:] = answers
            await metadata.sync()
            assert state.delays.timer == Progress(1_900_000_000_000, -1, 2, 0)
        pair.master.state.delays.advance(1, 7)
        pair.master.state.delays.advance_timer(Progress(1_900_000_000_001, 5, 6, 3))
        await metadata.sync()
        assert (state.delays.timer.end, state.delays.offsets) == (6, {1: 7})
        await pair.kill("slave1")
        await pair.start("slave1")
        assert pair.slave.state.delays.timer.end == 6


async def test_slave_rejects_sends_and_topic_changes(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 1)
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        for refused in (
            await pair.send(pair.slave, "T"),
            await pair.create_topic(pair.slave, "T2"),
        ):
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert refused.remark.startswith("[NOT_LEADER]")
            assert refused.ext["leaderAddr"] == pair.master.address


async def test_slave_serves_reads_after_the_master_died(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        assert await filled(pair, 3) == [OK] * 3
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        await pair.caught_up()
        await pair.kill("master")
        pulled = await pair.pull(pair.slave, "T", 1)
        assert bodies(pulled.body) == [b"1" * 10, b"2" * 10]
        assert pulled.ext["suggestWhichBrokerId"] == "0"
        assert (await pair.commit(pair.slave, "T", 0, 3)).code == OK
        assert (await pair.committed(pair.slave, "T", 0)).ext["offset"] == "3"
        ext = {"topic": "T", "queueId": "0"}
        assert (await pair.ask(pair.slave, RequestCode.GET_MAX_OFFSET, ext)).ext["offset"] == "3"
        # Held at the slave; when the master is back the consumer is sent there.
        held = asyncio.create_task(pair.pull(pair.slave, "T", 3, flags=0x6, wait_ms=60_000))
        await until(lambda: pair.slave.pulls.holds.count == 1)
        await pair.start("master")
        answer = await held
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (
            ResponseCode.PULL_NOT_FOUND,
            "0",
        )
        assert answer.ext["nextBeginOffset"] == "3"


async def test_slave_redirects_consumers_to_its_master(tmp_path):
    async with Classic(tmp_path, shortPollingTimeMills=50) as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        answer = await pair.pull(pair.slave, "T", 3, flags=0x6, wait_ms=60_000)  # asks for 60 s
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext["suggestWhichBrokerId"] == "0"


async def test_slave_leaves_an_offset_beyond_its_log_to_the_master(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.followed()
        await filled(pair, 3)
        await pair.caught_up()
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        beyond = await pair.pull(pair.slave, "T", 9, flags=0x6)
        assert beyond.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert PullResponseHeader.parse(beyond.ext).next_offset == 9
        await pair.kill("master")
        await until(lambda: not pair.slave.log.classic.slave.connected)
        kept = await pair.pull(pair.slave, "T", 9)
        assert kept.code == ResponseCode.PULL_NOT_FOUND
        assert PullResponseHeader.parse(kept.ext).next_offset == 9


@pytest.mark.parametrize(("enabled", "wanted"), [("true", "1"), ("false", "0")])
async def test_cold_data_are_read_at_the_slave(tmp_path, enabled, wanted):
    settings = {"slaveReadEnable": enabled, "accessMessageInMemoryMaxRatio": 0}
    async with Classic(tmp_path, **settings) as pair:
        await pair.followed()
        await filled(pair, 3)
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        await pair.caught_up()
        at_master = await pair.pull(pair.master, "T", 0)
        assert at_master.ext["suggestWhichBrokerId"] == wanted
        at_slave = await pair.pull(pair.slave, "T", 0)
        assert at_slave.body == at_master.body


# ---- restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_acknowledged_messages_and_offsets_survive_a_restart(tmp_path, end):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert await filled(pair, 20, size=20_000) == [OK] * 20
        assert (await pair.commit(pair.master, "T", 0, 7)).code == OK
        offsets = tmp_path / "master" / "config" / "consumerOffset.json"
        await until(lambda: offsets.exists() and b'"0":7' in offsets.read_bytes())
        before = log_bytes(pair.master)
        await getattr(pair, end)("master")
        assert (tmp_path / "master" / "abort").exists() is (end == "kill")
        await pair.start("master")
        assert log_bytes(pair.master) == before
        assert pair.master.state.topics.get("T").write_queue_count == 4
        assert (await pair.committed(pair.master, "T", 0)).ext["offset"] == "7"
        response = await pair.send(pair.master, "T")
        assert SendResponseHeader.parse(response.ext).queue_offset == 20


async def test_topic_is_in_its_file_before_its_creation_is_answered(tmp_path):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        await pair.kill("master")
        await pair.start("master")
        assert pair.master.state.topics.get("T") is not None


async def test_store_with_a_topic_named_like_its_host_is_adopted(tmp_path):
    """Apache's brokers make a topic of their name, which is the host's, with dots in it."""
    bean = {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicFilterType": "SINGLE_TAG"}
    names = ("orders", "mq1.corp.example.com")
    table = {name: bean | {"topicName": name} for name in names}
    version = {"counter": 2, "stateVersion": 0, "timestamp": 5}
    config = tmp_path / "master" / "config"
    config.mkdir(parents=True)
    said = orjson.dumps({"topicConfigTable": table, "dataVersion": version})
    (config / "topics.json").write_bytes(said)
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert set(names) <= pair.master.state.topics.entries.keys()
        assert (await pair.send(pair.master, "orders")).code == OK
        for _ in range(2):
            await pair.stop("master")
            await pair.start("master")
        assert set(names) <= pair.master.state.topics.entries.keys()
        refused = await pair.create_topic(pair.master, "a.new.one")
        assert refused.code != OK


@pytest.mark.parametrize("before", [b"{", None])
async def test_unreadable_tables_are_not_overwritten(tmp_path, before):
    config = tmp_path / "master" / "config"
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        await filled(pair)
        await pair.stop("master")
        (config / "topics.json").write_bytes(b"{")
        if before is None:
            (config / "topics.json.bak").unlink(missing_ok=True)
        else:
            (config / "topics.json.bak").write_bytes(before)
        with pytest.raises(StateError, match=r"topics.json under config/ cannot be read"):
            await pair.start("master")
        assert (config / "topics.json").read_bytes() == b"{"
        (config / "topics.json").unlink()  # to begin without is asked for by name
        (config / "topics.json.bak").unlink(missing_ok=True)
        await pair.start("master")
        assert pair.master.state.topics.get("T") is None


async def test_slave_follows_a_cluster_with_dots_in_its_name(tmp_path):
    async with Classic(tmp_path, brokerClusterName="prod.eu") as pair:
        await pair.followed()
        await filled(pair, 1)
        await until(lambda: pair.slave.state.topics.get("T") is not None)
        assert pair.slave.state.topics.get("prod.eu_REPLY_TOPIC") is not None


async def test_unreadable_log_position_ends_only_the_slaves_link(tmp_path, monkeypatch, caplog):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        await filled(pair, 20, size=20_000)
        log = pair.master.store.commitlog
        read, bad = log.read, log.segments()[1].start

        def unreadable(position, size):
            if position <= bad < position + size:
                raise OSError(errno.EIO, "cannot read, says the test")
            return read(position, size)

        pair.names.append("slave1")
        with monkeypatch.context() as patch:
            patch.setattr(log, "read", unreadable)
            await pair.start("slave1")
            await until(lambda: "cannot be read: " in caplog.text)
            assert await filled(pair, 3) == [OK] * 3
            assert not pair.master.failed.done()
        await pair.caught_up()


async def test_classic_retention_moves_master_and_slave(tmp_path):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        await filled(pair, 40, size=20_000)
        broker = pair.master
        broker.store.expiry.expired = lambda *_, **__: Expired(
            broker.store.commitlog.segments()[-1].start, 0
        )
        await broker.keeper.retain()
        low = broker.store.commitlog.min_offset
        assert low == broker.store.commitlog.segments()[0].start > 0
        assert (await pair.pull(broker, "T", 0)).code == ResponseCode.PULL_OFFSET_MOVED
        # A slave that ends below is told that it cannot go on; a new one begins where the log does.
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ports["master"])
        writer.write((100).to_bytes(8, "big"))
        assert await closed(reader)
        writer.close()
        pair.names.append("slave1")
        await pair.start("slave1")
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(broker)
