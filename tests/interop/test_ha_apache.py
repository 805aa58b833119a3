"""Master and slave of different make: our slave copies Apache's master, Apache's slave copies ours.

The proof is the CommitLog, byte for byte, over several segments; the tables that the slave pulls;
and what each answers when the other is gone.
"""

import asyncio

import pytest
from click.testing import CliRunner

from raftmq.broker.broker import open_broker
from raftmq.broker.config import build_config
from raftmq.broker.durations import Durations
from raftmq.mqadmin.cli import main
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.ops.options import Setting
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.headers import PullHeader, SendHeader
from raftmq.store.disk import OsDisk
from raftmq.store.record import decode_record, walk_records
from tests.broker.replication.ha.pair import log_bytes
from tests.interop.apache import SETTINGS, ApacheBroker, ports
from tests.waiting import until

PATIENCE_S = 240.0  # a bound against hanging
ANSWER_MS = 120_000
pytestmark = pytest.mark.timeout(900)
NAME = "broker-mixed"


class Mixed:
    """A name server, a client, and what the test starts; everything ends with it."""

    def __init__(self, directory):
        self.directory = directory
        self.client = RemotingClient()
        self.namesrv = NameServer(NameServerConfig("127.0.0.1", 0))
        self.ours = None
        self.apache = None

    async def __aenter__(self):
        await self.namesrv.start()
        return self

    async def __aexit__(self, *_):
        if self.ours is not None:
            await self.ours.stop()
        if self.apache is not None:
            self.apache.kill()
        await self.client.close()
        await self.namesrv.stop()

    async def start_ours(self, root="", **settings):
        values = {
            "brokerName": NAME,
            "brokerClusterName": SETTINGS["brokerClusterName"],
            "namesrvAddr": self.namesrv.address,
            "bindAddress": "127.0.0.1",
            "listenPort": str(ports()),
            "httpPort": "0",
            "flushDiskType": "SYNC_FLUSH",
            "mappedFileSizeCommitLog": SETTINGS["mappedFileSizeCommitLog"],
            "mappedFileSizeConsumeQueue": SETTINGS["mappedFileSizeConsumeQueue"],
            "maxMessageSize": SETTINGS["maxMessageSize"],
            "maxHashSlotNum": SETTINGS["maxHashSlotNum"],
            "maxIndexNum": SETTINGS["maxIndexNum"],
            "diskSpaceWarningLevelRatio": "100",
            "slaveSyncMetadataIntervalMs": "500",
            "slaveReadEnable": "true",
        } | settings
        self.settings_of_ours = values
        config = build_config([Setting(key, value, "test") for key, value in values.items()])
        self.ours = await open_broker(
            config,
            OsDisk(str(root or self.directory / "ours")),
            durations=Durations(ha_heartbeat=500),
        )
        await self.ours.start()

    def forget_ours(self, name="old"):
        """The next one begins with nothing."""
        (self.directory / "ours").rename(self.directory / name)

    async def start_apache(self, root="", **settings):
        if self.apache is None or settings:
            directory = self.directory / ("apache2" if self.apache else "apache")
            settings = {"brokerName": NAME, **settings}
            self.apache = ApacheBroker(directory, self.namesrv.address, str(root), **settings)
        await asyncio.to_thread(self.apache.start)

    async def ask(self, address, code, ext=None, body=b""):
        command = RemotingCommand.request(code, ext, body)
        return await self.client.invoke(address, command, ANSWER_MS)

    async def send(self, address, topic, body, queue=0, properties=""):
        header = SendHeader("pg", topic, "TBW102", 4, queue, 0, 1_700_000_000_000, 0, properties)
        return await self.ask(address, RequestCode.SEND_MESSAGE_V2, header.to_ext(310), body)

    async def pull(self, address, topic, offset, queue=0):
        header = PullHeader("cg", topic, queue, offset, 32, 0x4, 0, 0, "*", 0)
        return await self.ask(address, RequestCode.PULL_MESSAGE, header.to_ext())

    async def end_of(self, address):
        """Where a broker's log ends; -1 while it is not ready to say."""
        answer = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        if answer.code != ResponseCode.SUCCESS:
            return -1
        return int(loads_object(answer.body)["table"]["commitLogMaxOffset"])

    async def filled(self, address, count=30, size=20_000, topic="T"):
        """Send until over two segments are full; every answer's code."""
        codes = []
        for number in range(count):
            properties = f"KEYS\x01k{number}\x02TAGS\x01TagA\x02"
            body = b"%d" % (number % 10) * size
            response = await self.send(address, topic, body, number % 4, properties)
            codes.append(response.code)
        return codes

    async def eventually(self, condition):
        def log():
            return self.apache.log_text() if self.apache is not None else "no broker of Apache's"

        await until(condition, log, patience_s=PATIENCE_S, pause_s=0.1)


@pytest.fixture
async def mixed(tmp_path):
    async with Mixed(tmp_path) as both:
        yield both


def bodies(body):
    return [decode_record(body, at).body for at, _ in walk_records(body)]


async def tables(mixed, address):
    """Topic names, and the offsets of T in group cg, as one broker tells them."""
    topics = loads_object((await mixed.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    offsets = loads_object((await mixed.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    result = offsets["offsetTable"].get("T@cg", {})
    return set(topics["topicConfigTable"]), {int(q): offset for q, offset in result.items()}


async def commit(mixed, address, queue, offset):
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": str(queue)}
    ext["commitOffset"] = str(offset)
    return (await mixed.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code


async def compared(mixed):
    """What `mqadmin compare` finds in T of Apache's master and our slave: its exit status, and by
    what it knows messages, how many the master has, how many of them are missing."""
    sides = "--from", mixed.apache.address, "--to", mixed.ours.address
    arguments = "compare", "-n", mixed.namesrv.address, "-t", "T", *sides, "--json"
    done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    (row,) = loads_object(done.stdout_bytes)["topics"]
    return done.exit_code, row["by"], row["from"], row["missing"]


def logs_agree(mixed):
    """Byte for byte: whole segments, blank records and what is behind them too."""
    log = mixed.ours.store.commitlog
    theirs = mixed.apache.log_bytes(log.min_offset)
    mine = log_bytes(mixed.ours)
    assert len(mine) > 0
    return mine == theirs[: len(mine)] and not any(theirs[len(mine) :])


@pytest.mark.long
async def test_our_slave_copies_apaches_master(mixed):
    await mixed.start_apache(brokerRole="SYNC_MASTER", brokerId="0", inSyncReplicas="2")
    master = mixed.apache.address
    await mixed.start_ours(brokerRole="SLAVE", brokerId="1")

    async def followed():
        return mixed.ours.log.classic.slave.connected

    async def caught_up():
        return mixed.ours.store.commitlog.max_offset == await mixed.end_of(master)

    async def copied():
        topics, offsets = await tables(mixed, mixed.ours.address)
        return "T" in topics and offsets == {1: 5}

    await mixed.eventually(followed)
    # inSyncReplicas=2: the master answers when we have reported the record, else it fails.
    assert await mixed.filled(master) == [ResponseCode.SUCCESS] * 30
    await mixed.eventually(caught_up)
    assert logs_agree(mixed)
    assert len(mixed.ours.store.commitlog.segments()) == 3
    for queue in range(4):
        assert mixed.ours.store.queues.queue("T", queue).entries(0, 99) == mixed.apache.units(
            "T", queue
        )
    assert (await mixed.pull(master, "T", 0, 1)).code == ResponseCode.SUCCESS
    assert await commit(mixed, master, 1, 5) == ResponseCode.SUCCESS
    await mixed.eventually(copied)

    assert await compared(mixed) == (0, "offset", 30, 0)

    # The master dies; the slave serves what it has, and takes commits, and no sends.
    mixed.apache.kill()
    result = await mixed.pull(mixed.ours.address, "T", 5, 1)
    assert [body[:1] for body in bodies(result.body)] == [b"1", b"5", b"9"]
    assert await commit(mixed, mixed.ours.address, 1, 7) == ResponseCode.SUCCESS
    refused = await mixed.send(mixed.ours.address, "T", b"x")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE

    # The master is back: we go on where we were.
    await mixed.start_apache()
    await mixed.eventually(followed)
    assert (await mixed.send(master, "T", b"after")).code == ResponseCode.SUCCESS
    await mixed.eventually(caught_up)
    assert logs_agree(mixed)

    assert await commit(mixed, master, 1, 5) == ResponseCode.SUCCESS  # 5 s: too late for the kill

    # What a slave of the last segment lacks is counted.
    await mixed.ours.stop()
    mixed.forget_ours("of all")
    ha_address = f"127.0.0.1:{mixed.apache.port + 1}"
    last = {"haMasterAddress": ha_address, "syncFromLastFile": "true"}
    await mixed.start_ours(brokerRole="SLAVE", brokerId="1", **last)
    await mixed.eventually(followed)
    await mixed.eventually(caught_up)
    status, by, _, missing = await compared(mixed)
    assert mixed.ours.store.commitlog.min_offset > 0
    assert (status, by) == (1, "offset") and 0 < missing < 31
    start = mixed.ours.store.commitlog.min_offset
    answer = await mixed.client.invoke(
        mixed.ours.address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO), ANSWER_MS
    )
    seen = loads_object(answer.body)["table"]["logStart"]
    assert seen == f"the log begins at {start}, the master's at 0"

    # A new slave gets all of Apache's segments; then we open Apache's directory as the master.
    await mixed.ours.stop()
    mixed.forget_ours("of the last segment")
    await mixed.start_ours(brokerRole="SLAVE", brokerId="1", haMasterAddress=ha_address)
    await mixed.eventually(followed)
    assert (await mixed.send(master, "T", b"more")).code == ResponseCode.SUCCESS
    await mixed.eventually(caught_up)
    assert mixed.ours.store.commitlog.min_offset == 0
    assert logs_agree(mixed)
    await mixed.ours.stop()
    mixed.apache.save_offsets()
    mixed.apache.kill()
    await mixed.start_ours(mixed.apache.store, brokerRole="ASYNC_MASTER", brokerId="0")
    address = mixed.ours.address
    assert (await commit_of(mixed, address, 1)) == 5
    result = await mixed.pull(address, "T", 7, 0)
    assert [body[:5] for body in bodies(result.body)] == [b"88888", b"after", b"more"]
    sent = await mixed.send(address, "T", b"ours now")
    assert (sent.code, sent.ext["queueOffset"]) == (ResponseCode.SUCCESS, "10")


@pytest.mark.long
async def test_our_slave_knows_timer_messages_delivered_by_apaches_master(mixed):
    wheel = {"timerWheelEnable": "true", "timerPrecisionMs": "100"}
    await mixed.start_apache(brokerRole="ASYNC_MASTER", brokerId="0", **wheel)
    master = mixed.apache.address
    await mixed.start_ours(brokerRole="SLAVE", brokerId="1")
    assert (await mixed.send(master, "T", b"at once")).code == ResponseCode.SUCCESS
    for number in range(3):
        properties = "TIMER_DELAY_MS\x01500\x02"
        sent = await mixed.send(master, "T", b"timer %d" % number, 0, properties)
        assert sent.code == ResponseCode.SUCCESS

    async def settled():
        queue, timers = mixed.ours.store.queues.queue("T", 0), mixed.ours.timers
        return queue is not None and queue.max_offset == 4 and timers.wheel.count == 0

    await mixed.eventually(settled)
    assert mixed.ours.state.delays.timer.end == 3
    await mixed.ours.stop()
    mixed.apache.kill()
    await mixed.start_ours(brokerRole="ASYNC_MASTER", brokerId="0")
    address = mixed.ours.address
    later = await mixed.send(address, "T", b"ours", 0, "TIMER_DELAY_MS\x01500\x02")
    assert later.code == ResponseCode.SUCCESS

    async def delivered():
        return mixed.ours.store.queues.end_of("T", 0) > 4

    await mixed.eventually(delivered)
    result = bodies((await mixed.pull(address, "T", 0)).body)
    assert sorted(result) == [b"at once", b"ours", b"timer 0", b"timer 1", b"timer 2"]


async def commit_of(mixed, address, queue):
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": str(queue)}
    answer = await mixed.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
    assert answer.code == ResponseCode.SUCCESS
    return int(answer.ext["offset"])


async def test_apaches_slave_copies_our_master(mixed):
    await mixed.start_ours(brokerRole="SYNC_MASTER", brokerId="0", slaveTimeout=str(ANSWER_MS))
    master = mixed.ours.address
    # It comes late and still gets everything: our master begins where its log does.
    assert await mixed.filled(master) == [ResponseCode.SLAVE_NOT_AVAILABLE] * 30
    await mixed.start_apache(brokerRole="SLAVE", brokerId="1")
    slave = mixed.apache.address

    async def caught_up():
        return mixed.ours.store.commitlog.max_offset == await mixed.end_of(slave)

    await mixed.eventually(caught_up)
    assert logs_agree(mixed)
    # From now on it counts, and is waited for.
    assert await mixed.filled(master, 15) == [ResponseCode.SUCCESS] * 15
    await mixed.eventually(caught_up)
    assert logs_agree(mixed)
    (link,) = mixed.ours.log.classic.master.status()
    assert (link["diff"], link["inSync"]) == (0, True)
    assert (await mixed.pull(master, "T", 0, 1)).code == ResponseCode.SUCCESS  # makes the group
    assert await commit(mixed, master, 1, 5) == ResponseCode.SUCCESS

    async def synced():
        await asyncio.to_thread(mixed.apache.sync_metadata)  # gives its master 3 s, or goes without
        topics, offsets = await tables(mixed, slave)
        return "T" in topics and offsets == {1: 5}

    await mixed.eventually(synced)

    async def same_at_slave():
        theirs = await mixed.pull(slave, "T", 0, 2)
        return theirs.body == (await mixed.pull(master, "T", 0, 2)).body

    await mixed.eventually(same_at_slave)
    refused = await mixed.send(slave, "T", b"x")
    assert refused.code == ResponseCode.SYSTEM_BUSY  # ours answer 14: certainly not stored

    # Our master is killed and comes back; Apache's slave follows again.
    mixed.ours.abandon("killed by the test")
    await mixed.ours.stop()
    pulled = await mixed.pull(slave, "T", 9, 2)
    assert len(bodies(pulled.body)) == 2
    await mixed.start_ours(mixed.ours.disk.root, **mixed.settings_of_ours)
    master = mixed.ours.address
    await mixed.eventually(lambda: answered_ok(mixed, master))
    await mixed.eventually(caught_up)
    assert logs_agree(mixed)

    assert await commit(mixed, master, 1, 5) == ResponseCode.SUCCESS

    # Apache opens our directory as the master.
    mixed.apache.kill()
    end = mixed.ours.store.queues.queue("T", 3).max_offset
    await mixed.ours.stop()
    root, mixed.ours = mixed.ours.disk.root, None
    await mixed.start_apache(root, brokerRole="ASYNC_MASTER", brokerId="0")
    slave = mixed.apache.address
    assert await commit_of(mixed, slave, 1) == 5
    assert len(bodies((await mixed.pull(slave, "T", end - 2, 3)).body)) == 2
    sent = await mixed.send(slave, "T", b"theirs now", 3)
    assert (sent.code, sent.ext["queueOffset"]) == (ResponseCode.SUCCESS, str(end))


async def answered_ok(mixed, master):
    return (await mixed.send(master, "T", b"again")).code == ResponseCode.SUCCESS
