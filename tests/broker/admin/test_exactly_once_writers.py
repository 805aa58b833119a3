"""Writers of a group: opened, fenced, bounded, deleted; over a failover, and while a replica of an
older program is there."""

import asyncio

from raftmq.broker.admin import exactly_once_writers
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from tests.broker.cluster import Group
from tests.broker.delayed.test_delay_group import PATIENT, everything
from tests.broker.send.test_frame_builder import batch_body, fields
from tests.waiting import until


async def ask(group, broker, op, writer="w", epoch=0, topic="T"):
    ext = {"op": op, "topic": topic, "writer": writer, "epoch": str(epoch)}
    answer = await group.ask(broker, RequestCode.WRITERS, ext)
    if answer.code:
        return (answer.remark or "").partition(" ")[0] or answer.code
    return loads_object(answer.body)["writers"]


async def write(group, broker, batch, sequence=0, *, epoch=1, queue=0, writer="w", **options):
    body = batch_body(*[(b"%d/%d/%d" % (batch, sequence, n), b"", 0) for n in range(3)])
    ext = fields(properties="", e=str(queue), m="true")
    ext |= {"writer": writer, "epoch": str(epoch), "batch": str(batch), "sequence": str(sequence)}
    answer = await group.ask(broker, RequestCode.SEND_WRITER_BATCH, ext, body, **options)
    return (answer.remark or "").partition(" ")[0] if answer.code else 0


async def test_writer_continues_over_failovers_and_restarts(tmp_path):
    async with Group(tmp_path, 3, {"snapshot": 200}, **PATIENT) as group:
        first = await group.leader()
        leader = group.brokers[first]
        await group.create_topic(leader, "T")
        assert await ask(group, leader, "list") == []
        (made,) = await ask(group, leader, "open", epoch=1)
        assert (made["topic"], made["writer"], made["watermarks"]) == ("T", "w", {})
        for sequence in range(3):
            assert await write(group, leader, 7, sequence) == 0
        assert await write(group, leader, 7, 0, queue=2) == 0
        await group.kill(first)
        leader = await group.leading()
        for _ in range(2):
            for sequence in range(4):
                assert await write(group, leader, 7, sequence) == 0
        (result,) = await ask(group, leader, "open", epoch=2)
        assert result["watermarks"] == {"0": [7, 3], "2": [7, 0]}
        assert await write(group, leader, 8) == "[FENCED]"
        assert await ask(group, leader, "open", epoch=2) == "[STALE_EPOCH]"
        await group.start(first)
        same = leader.state.writers.writers
        await until(lambda: group.brokers[first].state.writers.writers == same)
        bodies = [bytes(r.body) for r in await everything(group, leader, "T") if r.queue_id == 0]
        assert bodies == [b"7/%d/%d" % (s, n) for s in range(4) for n in range(3)]
        assert await ask(group, leader, "delete") == []
        assert await ask(group, leader, "delete") == []
        assert await write(group, leader, 8, epoch=2) == "[UNKNOWN_WRITER]"


async def test_batches_in_flight_during_leader_crashes_are_stored_once(tmp_path):
    async with Group(tmp_path, 3, **PATIENT) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await ask(group, leader, "open", epoch=1)

        async def lane(queue):
            for sequence in range(30):
                reported = None
                while reported != 0:
                    broker = await group.leading()
                    try:
                        reported = await write(
                            group, broker, 1, sequence, queue=queue, timeout_ms=3_000
                        )
                    except Exception:
                        continue
                    assert reported in (0, "[BUSY]", "[NOT_LEADER]", "[OUTCOME_UNKNOWN]"), reported

        lanes = [asyncio.create_task(lane(queue)) for queue in range(4)]
        for _ in range(2):
            name = await group.leader()
            count = group.brokers[name].sends.put_count
            await until(lambda n=name, c=count: group.brokers[n].sends.put_count >= c + 30)
            await group.kill(name)
            await group.leader()
            await group.start(name)
        await asyncio.gather(*lanes)
        records = await everything(group, await group.leading(), "T")
        for queue in range(4):
            bodies = [bytes(record.body) for record in records if record.queue_id == queue]
            assert bodies == [b"1/%d/%d" % (s, n) for s in range(30) for n in range(3)]


async def test_writer_limit_rejects_new_writers_and_not_existing_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(exactly_once_writers, "WRITERS_MAX", 2)
    async with Group(tmp_path, 1) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        for name in ("a", "b"):
            assert len(await ask(group, broker, "open", name, 1)) == 1
        assert await ask(group, broker, "open", "c", 1) == "[BUSY]"
        assert len(await ask(group, broker, "open", "a", 2)) == 1
        await ask(group, broker, "delete", "b")
        assert len(await ask(group, broker, "open", "c", 1)) == 1
        assert [result["writer"] for result in await ask(group, broker, "list")] == ["a", "c"]
        assert await ask(group, broker, "list", topic="U") == []
        assert await ask(group, broker, "close") != []


async def test_malformed_writer_openings_are_rejected(tmp_path):
    async with Group(tmp_path, 1) as group:
        broker = await group.leading()
        for changes in (
            {"epoch": "x"},
            {"epoch": "-1"},
            {"writer": ""},
            {"op": "?"},
            {"topic": ""},
        ):
            ext = {"op": "open", "topic": "T", "writer": "w", "epoch": "1"} | changes
            assert (await group.ask(broker, RequestCode.WRITERS, ext)).code != 0, changes
        assert not broker.state.writers.writers


async def test_writers_are_unavailable_where_a_failover_may_lose_watermarks(tmp_path):
    async with Group(tmp_path, 1, enableDLegerCommitLog="false") as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        ext = {"op": "open", "topic": "T", "writer": "w", "epoch": "1"}
        answer = await group.ask(broker, RequestCode.WRITERS, ext)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert await write(group, broker, 1) == "[UNKNOWN_WRITER]"
