"""Classic mode on disks that lack room for a moment, or sync late."""

import asyncio
import errno

import orjson
import pytest

from raftmq.broker.tables import snapshot
from raftmq.broker.tables.state import delete_topic, put_topic
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.headers import SendResponseHeader
from raftmq.store.transient_errors import RETRY_S
from tests.broker.replication.ha.pair import SEGMENT, TIMEOUT_MS, Classic, log_bytes
from tests.broker.replication.ha.test_pair import SlowSync
from tests.steadydisk import SteadyDisk
from tests.waiting import until

OK = ResponseCode.SUCCESS
BODY = b"x" * 20_000
SHORTAGES = [errno.ENOSPC, errno.EMFILE]


class ShortDisk(SteadyDisk):
    """A disk that makes no segment while it `lacks` something."""

    lacks = 0

    def open(self, path, *, allocate_bytes=None):
        if self.lacks and path.startswith("commitlog/") and not self.exists(path):
            raise OSError(self.lacks, "says the test")
        return super().open(path, allocate_bytes=allocate_bytes)


def short(tmp_path, slaves=0, role="ASYNC_MASTER", **settings):
    pair = Classic(tmp_path, slaves, role, **{"waitTimeMillsInSendQueue": TIMEOUT_MS, **settings})
    pair.disk = ShortDisk
    return pair


async def fill(pair, lacks=0, name="master"):
    """Send until the first segment is all but full, while this broker lacks what the next needs;
    return how many sends that were."""
    assert (await pair.create_topic(pair.master, "T")).code == OK
    await pair.caught_up()
    pair.brokers[name].disk.lacks = lacks
    log = pair.master.store.commitlog
    while log.max_offset + len(BODY) + 1_000 < SEGMENT:
        assert (await pair.send(pair.master, "T", BODY)).code == OK
    return pair.master.store.queues.end_of("T", 0)


def waiting(pair, count):
    return [asyncio.create_task(pair.send(pair.master, "T", BODY)) for _ in range(count)]


async def offsets(tasks):
    """The queue offsets of sends that are stored."""
    answers = [await task for task in tasks]
    assert [answer.code for answer in answers] == [OK] * len(tasks)
    return sorted(SendResponseHeader.parse(answer.ext).queue_offset for answer in answers)


@pytest.mark.parametrize("lacks", SHORTAGES)
async def test_sends_wait_until_the_master_has_space_for_a_segment(tmp_path, lacks):
    async with short(tmp_path) as pair:
        end = await fill(pair, lacks)
        tasks = waiting(pair, 5)
        await until(lambda: pair.master.sends.held_bytes > 5 * len(BODY))
        assert pair.master.store.queues.end_of("T", 0) == end
        pair.master.disk.lacks = 0
        assert await offsets(tasks) == list(range(end, end + 5))
        before = log_bytes(pair.master)
        await pair.kill("master")
        await pair.start("master")
        assert log_bytes(pair.master) == before
        assert await offsets(waiting(pair, 1)) == [end + 5]


async def test_sends_wait_until_the_master_can_write_its_consume_queues(tmp_path, monkeypatch):
    async with short(tmp_path) as pair:
        end = await fill(pair)

        def full():
            raise OSError(errno.ENOSPC, "says the test")

        with monkeypatch.context() as patch:
            patch.setattr(pair.master.store.derived, "write_full_tails", full)
            tasks = waiting(pair, 2)
            await until(lambda: pair.master.sends.held_bytes > 2 * len(BODY))
            assert pair.master.store.queues.end_of("T", 0) == end
        assert await offsets(tasks) == [end, end + 1]


async def test_send_that_waits_too_long_for_space_is_rejected_and_not_stored(tmp_path):
    async with short(tmp_path, waitTimeMillsInSendQueue=100) as pair:
        end = await fill(pair, errno.ENOSPC)
        for _ in range(2):
            answer = await pair.send(pair.master, "T", BODY)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert answer.remark.startswith("[BUSY]")
        assert pair.master.sends.held_bytes == 0
        pair.master.disk.lacks = 0
        await asyncio.sleep(RETRY_S)
        assert await offsets(waiting(pair, 1)) == [end]


async def test_send_that_waits_for_space_is_rejected_when_the_master_stops(tmp_path):
    async with short(tmp_path) as pair:
        end = await fill(pair, errno.ENOSPC)
        tasks = waiting(pair, 3)
        await until(lambda: pair.master.sends.held_bytes > 3 * len(BODY))
        await pair.stop("master")
        remarks = [(await task).remark for task in tasks]
        assert all(remark.startswith("[NOT_LEADER]") for remark in remarks), remarks
        await pair.start("master")
        assert await offsets(waiting(pair, 1)) == [end]


async def test_space_is_checked_twice_per_second_for_any_number_of_sends(tmp_path):
    async with short(tmp_path) as pair:
        await fill(pair, errno.ENOSPC)
        log, checks = pair.master.store.commitlog, []
        make_room = log.prepare_segment

        def counted(position):
            checks.append(position)
            return make_room(position)

        log.prepare_segment = counted
        tasks = []
        for count in range(1, 6):
            tasks += waiting(pair, 1)
            await until(lambda n=count: pair.master.sends.held_bytes > n * len(BODY))
        assert len(checks) <= 2  # the second, if this machine is slow
        pair.master.disk.lacks = 0
        await offsets(tasks)


async def test_segment_preparation_is_retried_after_a_pause(tmp_path, caplog):
    async with short(tmp_path) as pair:
        await fill(pair, errno.ENOSPC)
        await until(lambda: "prepare_next failed" in caplog.text)
        begun_ms = pair.clock.now_ms()
        await asyncio.sleep(0.3)  # some ticks
        passed_s = (pair.clock.now_ms() - begun_ms) / 1000
        assert caplog.text.count("prepare_next failed") <= 2 + passed_s / RETRY_S
        pair.master.disk.lacks = 0
        await until(lambda: not pair.master.store.commitlog.wants_next)


@pytest.mark.parametrize("lacks", SHORTAGES)
async def test_slave_without_space_ends_its_link_and_follows_again(tmp_path, caplog, lacks):
    async with short(tmp_path, 1) as pair:
        await pair.followed()
        end = await fill(pair, lacks, "slave1")
        slave = pair.slave.store.commitlog
        caplog.clear()
        await offsets(waiting(pair, 5))
        await until(lambda: caplog.text.count("master_lost") >= 2)
        assert not pair.slave.failed.done()
        assert slave.max_offset <= SEGMENT
        pair.slave.disk.lacks = 0
        await pair.caught_up()
        assert log_bytes(pair.slave) == log_bytes(pair.master)
        assert pair.slave.store.queues.end_of("T", 0) == end + 5
        assert not pair.slave.log.classic.slave.refused


async def test_shortage_after_the_write_ends_the_slave(tmp_path):
    """What is written cannot be written again: its messages would be in no queue."""
    async with short(tmp_path, 1) as pair:
        await pair.followed()
        follower = pair.slave.log.classic.slave
        append = follower.append

        def append_and_fail(run):
            append(run)
            raise OSError(errno.ENOSPC, "says the test")

        follower.append = append_and_fail
        assert (await pair.create_topic(pair.master, "T")).code == OK
        assert "says the test" in await pair.slave.failed


@pytest.mark.parametrize("name", ["master", "slave1"])
async def test_disk_error_other_than_full_ends_a_classic_broker(tmp_path, name):
    async with short(tmp_path, 1) as pair:
        await pair.followed()
        broker = pair.brokers[name]
        await fill(pair, errno.EIO, name)
        tasks = waiting(pair, 1)
        assert "says the test" in await broker.failed
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("error", "tag"), [(errno.ENOSPC, "[DISK_FULL]"), (errno.EROFS, "[DISK_ERROR]")]
)
async def test_change_that_cannot_be_saved_is_rejected_before_it_is_in_force(tmp_path, error, tag):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        broker = pair.master
        assert (await pair.create_topic(broker, "T")).code == OK
        with pytest.MonkeyPatch.context() as patch:
            open_file = type(broker.disk).open

            def fail(disk, path, **options):
                if path.startswith("config/"):
                    raise OSError(error, "says the test")
                return open_file(disk, path, **options)

            patch.setattr(type(broker.disk), "open", fail)
            for code, ext in (
                (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
                (RequestCode.UPDATE_AND_CREATE_TOPIC, TopicHeader("U", 1, 1, 6).to_ext()),
            ):
                refused = await pair.ask(broker, code, ext)
                assert refused.code != OK and refused.remark.startswith(tag), refused.remark
                assert "nothing was changed" in refused.remark
            assert "T" in broker.state.topics.entries and "U" not in broker.state.topics.entries
        deleted = await pair.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == OK and "T" not in broker.state.topics.entries


async def test_change_with_a_failed_save_is_reported_as_in_force(tmp_path):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        broker = pair.master
        with pytest.MonkeyPatch.context() as patch:

            def fail(*_):
                raise OSError(errno.EIO, "says the test")

            patch.setattr(snapshot, "write_changed", fail)
            answer = await pair.create_topic(broker, "T")
            assert answer.code != OK
            assert "[OUTCOME_UNKNOWN] the change is in force" in answer.remark
            assert "T" in broker.state.topics.entries


# ---- what the files say of the log --------------------------------------------------------------


def file_of(tmp_path, name, file):
    path = tmp_path / name / "config" / file
    return orjson.loads(path.read_bytes()) if path.exists() else {}


async def some_rounds():
    """Files of offsets are written ten times a second."""
    await asyncio.sleep(0.3)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_power_cut_keeps_a_delayed_message_with_its_delivery(tmp_path, flush):
    settings = {"messageDelayLevel": "300ms", "flushDiskType": flush, "flushIntervalCommitLog": 20}
    async with Classic(tmp_path, 0, "ASYNC_MASTER", **settings) as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        log = pair.master.store.commitlog
        answer = await pair.send(pair.master, "T", properties="DELAY\x011\x02")
        assert answer.code == OK
        await until(lambda: log.durable_offset == log.max_offset)
        durable = log.durable_offset
        SlowSync(log)
        await until(lambda: pair.master.state.delays.offsets.get(1) == 1)  # it is delivered
        assert log.durable_offset == durable < log.max_offset
        await some_rounds()
        assert not file_of(tmp_path, "master", "delayOffset.json").get("offsetTable")
        await pair.kill("master")
        first = min((tmp_path / "master" / "commitlog").iterdir())
        with first.open("r+b") as segment:
            segment.seek(durable)
            segment.write(bytes(SEGMENT - durable))
        master = await pair.start("master")
        await until(lambda: master.store.queues.end_of("T", 0) == 1)


async def test_only_deletions_of_topics_and_groups_wait_for_a_sync(tmp_path, flushers):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        assert (await pair.send(pair.master, "T")).code == OK
        slow = SlowSync(pair.master.store.commitlog)
        sent = asyncio.create_task(pair.send(pair.master, "T"))
        await until(lambda: pair.master.store.queues.end_of("T", 0) == 2)
        classic, topic = pair.master.log.classic, TopicConfig("New")
        await classic.propose_command(put_topic(topic, if_absent=False))
        assert "New" in file_of(tmp_path, "master", "topics.json")["topicConfigTable"]
        deleted = classic.propose_command(delete_topic("New"))
        await some_rounds()
        assert not deleted.done()
        slow.let_go(flushers)
        await deleted
        assert "New" not in file_of(tmp_path, "master", "topics.json")["topicConfigTable"]
        assert (await sent).code == OK


async def test_slave_saves_no_progress_before_its_log_is_durable(tmp_path, flushers):
    async with Classic(
        tmp_path, role="ASYNC_MASTER", slaveSyncMetadataIntervalMs=3_600_000
    ) as pair:
        await pair.followed()
        assert (await pair.create_topic(pair.master, "T")).code == OK
        await pair.caught_up()
        metadata = pair.slave.log.classic.follower.metadata
        await until(lambda: metadata.rounds)
        slow = SlowSync(pair.slave.store.commitlog)
        assert (await pair.send(pair.master, "T")).code == OK
        assert (await pair.pull(pair.master, "T", 0)).code == OK  # creates group cg
        assert (await pair.commit(pair.master, "T", 0, 1)).code == OK
        synced = asyncio.create_task(metadata.sync())
        await until(lambda: pair.slave.state.offsets.get("T", "cg", 0) == 1)
        await some_rounds()
        assert not file_of(tmp_path, "slave1", "consumerOffset.json").get("offsetTable")
        slow.let_go(flushers)
        await synced
        written = file_of(tmp_path, "slave1", "consumerOffset.json")["offsetTable"]
        assert written == {"T@cg": {"0": 1}}


async def test_classic_broker_without_a_durable_log_still_stops(tmp_path, caplog):
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        SlowSync(pair.master.store.commitlog)
        sent = asyncio.create_task(pair.send(pair.master, "T"))
        await until(lambda: pair.master.store.queues.end_of("T", 0) == 1)
        saved = pair.master.application.files.saved()
        await pair.kill("master")
        with pytest.raises(TimeoutError):
            await saved
        sent.cancel()


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
async def test_missing_table_of_a_store_with_messages_is_reported(tmp_path, caplog, name):
    """No log has it: whoever removed it has to learn of it."""
    async with Classic(tmp_path, 0, "ASYNC_MASTER") as pair:
        assert (await pair.create_topic(pair.master, "T")).code == OK
        assert (await pair.send(pair.master, "T")).code == OK
    assert "snapshot_missing" not in caplog.text
    for path in (tmp_path / "master" / "config").glob(f"{name}*"):
        path.unlink()
    async with Classic(tmp_path, 0, "ASYNC_MASTER"):
        assert caplog.text.count("snapshot_missing") == 1
        assert f"snapshot_missing path=config/{name}" in caplog.text
