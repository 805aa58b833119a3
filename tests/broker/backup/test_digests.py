"""Digests of a running replica's log: which ranges, at what cost, and for how long."""

import asyncio
import hashlib

import pytest

from raftmq.broker.backup import service
from raftmq.broker.backup.digests import STEP_BYTES, Digester, Pace, frames_within, pieces_of
from raftmq.broker.backup.online_source import Overtaken, RemoteSource
from raftmq.broker.backup.protocol import (
    DIGEST_BYTES_MAX,
    RUNS_MAX,
    UNITS_MAX,
    UnitRun,
    encode_runs,
)
from raftmq.broker.backup.service import DIGESTS_WAITING_MAX
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.backup.test_backup import SEGMENT, SMALL, create_topic, fill
from tests.broker.cluster import Group
from tests.waiting import until

NAME = "0123456789abcdef"


def test_pace_spaces_reads_and_rejects_long_waits():
    pace = Pace(1000)
    assert [pace.reserve(500, 0.0, 1200.0) for _ in range(4)] == [0.0, 500.0, 1000.0, None]
    assert pace.reserve(500, 400.0, 1200.0) == 1100.0
    assert [Pace(0).reserve(1 << 40, 0.0, 0.0) for _ in range(2)] == [0.0, 0.0]


def an_index():
    """Frames at 0, 40 and 70; a blank record from 90 on; a frame in the next segment of 100."""
    index = LogIndex()
    for number, (position, size) in enumerate([(0, 40), (40, 30), (70, 20), (100, 50)], 1):
        index.add(number, 1, position, size)
    return index


@pytest.mark.parametrize(
    ("window", "frames"),
    [
        ((0, 40), (0, 40)),
        ((0, 41), (0, 70)),
        ((1, 40), (1, 1)),
        ((1, 71), (40, 98)),  # with the blank record, without what is behind it
        ((71, 100), (71, 71)),
        ((100, 200), (100, 150)),
    ],
)
def test_frames_that_start_in_a_range_are_complete(window, frames):
    assert frames_within(an_index(), *window) == frames


@pytest.mark.parametrize(
    ("bounds", "pieces"),
    [
        ((0, 150), [(0, 98), (100, 150)]),
        ((10, 95), [(10, 95)]),
        ((98, 100), []),
        ((97, 101), [(97, 98), (100, 101)]),
    ],
)
def test_bytes_behind_a_blank_record_are_not_digested(bounds, pieces):
    def segment_end(position):
        return position - position % 100 + 100

    assert [*pieces_of(an_index(), segment_end, *bounds)] == pieces


async def ask(group, broker, op, **fields):
    fields = {name: str(value) for name, value in fields.items()}
    return await group.ask(broker, RequestCode.BACKUP, {"op": op, "session": NAME} | fields)


async def digests(group, broker, end):
    """Return the digest of each MiB of a replica's log."""
    answers = [
        await ask(group, broker, "digest", position=at, end=min(at + SEGMENT, end))
        for at in range(0, end, SEGMENT)
    ]
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}, answers
    return [answer.body for answer in answers]


def put(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


async def test_damaged_range_of_one_replica_has_another_digest(tmp_path):
    async with Group(tmp_path, 3, **SMALL) as group:
        await create_topic(group)
        await fill(group, 80)
        leader = await group.leading()
        last = leader.engine.log.last_index
        ends = []
        for broker in group.brokers.values():
            begun = await ask(group, broker, "begin", atLeast=last)
            ends.append(int(begun.ext["end"]))
        end = min(ends)
        assert end > 2 * SEGMENT
        sound = [await digests(group, broker, end) for broker in group.brokers.values()]
        assert sound[0] == sound[1] == sound[2] and len({*sound[0]}) == len(sound[0])
        name, victim = next(each for each in group.brokers.items() if each[1] is not leader)
        put(group.root / name / victim.store.commitlog.segments()[1].path, 500, b"\0wrong")
        for _ in range(2):  # a session keeps its digests
            assert await digests(group, victim, end) == sound[0]
        assert (await ask(group, victim, "end")).code == ResponseCode.SUCCESS
        await ask(group, victim, "begin", atLeast=last)
        again = await digests(group, victim, end)
        assert [n for n, digest in enumerate(again) if digest != sound[0][n]] == [1]


async def test_digest_across_a_rolled_segment_is_that_of_its_frames(tmp_path):
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await create_topic(group)
        await fill(group, 30)
        begun = await ask(group, broker, "begin", atLeast=1)
        end = int(begun.ext["end"])
        await fill(group, 30)  # rolls; the session is of the log before
        log = broker.engine.log
        expected = hashlib.sha256()
        for start, stop in pieces_of(log.index, log.segment_end, 10, end):
            for at in range(start, stop, STEP_BYTES):
                expected.update(log.commitlog.read(at, min(STEP_BYTES, stop - at)))
        assert end > SEGMENT
        digest = await ask(group, broker, "digest", position=10, end=end)
        assert digest.body == expected.digest()
        frames = await ask(group, broker, "frames", position=10, end=SEGMENT)
        first = log.index.position_of(log.index.first_from(10))
        assert int(frames.ext["start"]) == first and int(frames.ext["end"]) <= SEGMENT


async def test_digest_requests_out_of_bounds_are_rejected(tmp_path, monkeypatch):
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 2)
        begun = await ask(group, broker, "begin", atLeast=1)
        assert (await ask(group, broker, "begin", atLeast=1)).ext == begun.ext
        assert (await ask(group, broker, "begin", atLeast=1, session="../x")).code == (
            ResponseCode.INVALID_PARAMETER
        )
        end = int(begun.ext["end"])
        for op, bounds in (
            ("digest", (0, end + 1)),
            ("digest", (end, end)),
            ("digest", (0, DIGEST_BYTES_MAX + 1)),
            ("frames", (0, end + 1)),
            ("frames", (0, SEGMENT + 1)),
        ):
            answer = await ask(group, broker, op, position=bounds[0], end=bounds[1])
            assert answer.code == ResponseCode.INVALID_PARAMETER, (op, bounds)
        # Retention spares the log of a shared session, whatever has been read of it.
        await ask(group, broker, "read", position=end - 1, size=1)
        assert broker.backups.needed_from() == 0


async def test_session_keeps_its_last_digests_only(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "DIGESTS_KEPT_MAX", 2)
    made, digest = [], Digester.digest

    async def counted(self, pieces):
        made.append(pieces[0][0])
        return await digest(self, pieces)

    monkeypatch.setattr(Digester, "digest", counted)
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        end = int((await ask(group, broker, "begin", atLeast=1)).ext["end"])
        for position in (0, 10, 20, 20, 10, 0):
            await ask(group, broker, "digest", position=position, end=end)
        assert made == [0, 10, 20, 0]


async def units(group, broker, *runs, content=False):
    """Return the answer about runs (topic, queue id, first, count) of units."""
    fields = {"op": "units", "session": NAME, "content": str(content).lower()}
    body = encode_runs([UnitRun(*run) for run in runs])
    return await group.ask(broker, RequestCode.BACKUP, fields, body)


async def test_units_are_those_of_files_and_tails(tmp_path):
    """Some are in a file, one perhaps in memory alone, and one is absent."""
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await create_topic(group)
        await fill(group, 8)
        path = tmp_path / "n0" / "consumequeue" / "T" / "1" / f"{0:020d}"
        await until(lambda: path.exists() and any(path.read_bytes()[20:40]))
        await fill(group, 2)
        end = broker.engine.log.last_index
        await ask(group, broker, "begin", atLeast=end)
        queue = broker.store.queues.queue("T", 1)
        entries = queue.entries(0, 3)
        assert len(entries) == 60
        both = ("T", 1, 0, 4), ("None", 0, 5, 1)
        expected = entries + bytes(40)
        assert (await units(group, broker, *both, content=True)).body == expected
        assert (await units(group, broker, *both)).body == hashlib.sha256(expected).digest()
        put(path, 20, b"\1")
        damaged = (await units(group, broker, *both, content=True)).body
        assert damaged == entries[:20] + b"\1" + entries[21:] + bytes(40)


async def test_units_of_delayed_messages_are_without_their_times(tmp_path):
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        entry = broker.store.queues.queue("T", 0).entries(0, 1)
        broker.store.queues.append("SCHEDULE_TOPIC_XXXX", 2, 0, entry[:12] + b"\1" * 8)
        await ask(group, broker, "begin", atLeast=1)
        answer = await units(group, broker, ("SCHEDULE_TOPIC_XXXX", 2, 0, 1), content=True)
        assert answer.body == entry[:12] + bytes(8)


async def test_unit_requests_out_of_bounds_are_rejected(tmp_path):
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        await ask(group, broker, "begin", atLeast=1)
        for runs in (
            [("T", 0, 0, UNITS_MAX + 1)],
            [("T", 0, 0, 1)] * (RUNS_MAX + 1),
            [("T", -1, 0, 1)],
            [("T", 0, -1, 1)],
        ):
            answer = await units(group, broker, *runs)
            assert answer.code == ResponseCode.INVALID_PARAMETER, runs[0]
        most = [("%RETRY%" + "g" * 255, 0, 1 << 62, 1)] * RUNS_MAX
        assert (await units(group, broker, *most)).code == ResponseCode.SUCCESS


async def test_too_many_digests_at_once_are_busy_and_asked_again(tmp_path, monkeypatch):
    held, going = asyncio.Event(), 0
    digest = Digester.digest

    async def waiting(self, pieces):
        nonlocal going
        going += 1
        await held.wait()
        return await digest(self, pieces)

    monkeypatch.setattr(Digester, "digest", waiting)
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        source = RemoteSource(group.client, broker.address, shared=NAME)
        offer = await source.start(1)
        tasks = [asyncio.create_task(source.digest(at, offer.end)) for at in range(12)]
        await until(lambda: going == DIGESTS_WAITING_MAX)
        busy = await ask(group, broker, "digest", position=20, end=offer.end)
        assert (busy.code, "[BUSY]" in busy.remark) == (ResponseCode.SYSTEM_BUSY, True)
        held.set()
        assert len({*await asyncio.gather(*tasks)}) == 12


async def test_forgotten_session_is_begun_again_under_its_name(tmp_path):
    async with Group(tmp_path, 1, **SMALL) as group:
        broker = await group.leading()
        await fill(group, 1)
        source = RemoteSource(group.client, broker.address, confirm=False, shared=NAME)
        offer = await source.start(1)
        before = await source.digest(0, offer.end)
        await ask(group, broker, "end")  # forgotten, as after a restart
        with pytest.raises(Overtaken, match="GONE"):
            await source.digest(0, offer.end)
        await source.renew(offer.facts.index)
        assert await source.digest(0, offer.end) == before
