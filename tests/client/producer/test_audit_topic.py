"""A producer's audit topic: every acknowledgement is in it, and no send waits for it."""

from __future__ import annotations

import zlib
from datetime import timedelta

import orjson
import pytest

from raftmq.client import Message, Producer, SendFailed
from raftmq.client.compression import decompress
from raftmq.client.errors import ClientError, TooManyInFlight
from raftmq.client.message import MessageQueue, SendResult, SendStatus
from raftmq.client.producer import audit_topic
from raftmq.client.producer.audit_topic import AuditTopic
from raftmq.client.producer.pending_send import SendCallback
from raftmq.store.record import decode_record
from tests.client.fakes import FakeCluster, queue
from tests.waiting import until

Row = tuple[object, ...]


def audited(cluster: FakeCluster) -> list[Row]:
    """The rows of the audit topic, without their times."""
    records = [decode_record(data) for data in cluster.logs["g0"].records["Audit", 0]]
    tables = [
        orjson.loads(decompress(r.body, r.sys_flag) if r.sys_flag else r.body) for r in records
    ]
    return [row[:-1] for table in tables for row in zip(*table.values(), strict=True)]


def with_audit_topic(cluster: FakeCluster) -> Producer:
    cluster.name_server.topics["Audit"] = {"g0": (1, 6)}
    return Producer("p", cluster.namesrv, audit_topic="Audit")


async def test_every_acknowledged_message_is_in_the_audit_topic() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        told: list[Row] = []

        def row(result: SendResult, msg_id: str, offset: int, body: bytes) -> None:
            told.append((msg_id, *result.queue, offset, zlib.crc32(body)))

        async with with_audit_topic(cluster) as producer:
            result = await producer.send(Message("T", b"one"))
            row(result, result.msg_id, result.queue_offset, b"one")
            body = b"large " * 1000  # the CRC is of the body before compression
            result = await producer.send(Message("T", body))
            row(result, result.msg_id, result.queue_offset, body)
            batch = await producer.send_batch([Message("T", b"two"), Message("T", b"three")])
            for number, msg_id in enumerate(batch.msg_id.split(",")):
                row(batch, msg_id, batch.queue_offset + number, [b"two", b"three"][number])
            done: list[SendResult | None] = []
            producer.send_nowait(Message("T", b"four"), lambda sent, _: done.append(sent))
            await until(lambda: done)
            assert done[0] is not None
            row(done[0], done[0].msg_id, done[0].queue_offset, b"four")
        assert audited(cluster) == told
        assert producer.unaudited == 0


async def test_delayed_and_failed_sends_are_not_in_the_audit_topic() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with with_audit_topic(cluster) as producer:
            await producer.send(Message("T", b"later", delay_time=timedelta(seconds=1)))
            broker = cluster.brokers["g0"][0]
            broker.script.append((int(SendStatus.FLUSH_DISK_TIMEOUT), "slow disk"))
            await producer.send(Message("T", b"reserved"), queue=queue(0))
            broker.script.append((13, "no such message"))
            with pytest.raises(SendFailed):
                await producer.send(Message("T", b"refused"), queue=queue(0))
        assert audited(cluster) == []


async def test_acknowledgements_are_written_in_time_without_a_further_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_topic, "FLUSH_S", 0.01)
    async with FakeCluster({"g0": 1}) as cluster, with_audit_topic(cluster) as producer:
        await producer.send(Message("T", b"one"))
        await until(lambda: audited(cluster))


async def test_unwritten_acknowledgements_are_counted_and_sends_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_topic, "FINISH_S", 0.01)
    async with FakeCluster({"g0": 1}) as cluster:
        async with Producer("p", cluster.namesrv, audit_topic="Nowhere") as producer:
            for _ in range(3):
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
        assert producer.unaudited == 3
        assert "acknowledgements_not_written topic=Nowhere count=3 lost=3" in caplog.text


def test_many_acknowledgements_share_messages_of_limited_number() -> None:
    sent: list[Message] = []

    def send(message: Message, callback: SendCallback, timeout_ms: int) -> str:
        if len(sent) == 2:
            raise TooManyInFlight("full")
        sent.append(message)
        return ""

    audit = AuditTopic("Audit", send)
    for number in range(3 * audit_topic.ROWS_MAX):
        result = SendResult(SendStatus.OK, "ID", "", MessageQueue("T", "g0", 0), number, 1)
        audit.noting(Message("T", b"x"), lambda result, error: None)(result, None)
    assert [len(orjson.loads(each.body)["msg_id"]) for each in sent] == [audit_topic.ROWS_MAX] * 2
    assert audit.lost == audit_topic.ROWS_MAX
    audit.noting(Message("T", b"x"), lambda result, error: None)(None, ClientError(1, "failed"))
    audit.flush()
    assert len(sent) == 2
