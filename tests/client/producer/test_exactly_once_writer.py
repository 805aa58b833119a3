"""The exactly-once writer against brokers: repeats, failovers, fencing, and brokers without it."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from raftmq.client import (
    BrokerRefused,
    ExactlyOnceWriter,
    InvalidMessage,
    Message,
    NoRoute,
    WriterFenced,
)
from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.server import NameServer
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode
from tests.broker.cluster import Group
from tests.broker.delayed.test_delay_group import PATIENT, everything
from tests.waiting import until


@asynccontextmanager
async def serving(root, count=1, **settings):
    """A group with topic T, and its name server's address."""
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    async with NameServer(config) as names:
        where = f"127.0.0.1:{names.port}"
        async with Group(root, count, namesrvAddr=where, **settings) as group:
            await group.create_topic(await group.leading(), "T")
            yield group, where


def messages(*texts):
    return [Message("T", text.encode()) for text in texts]


async def bodies(group, queue):
    records = await everything(group, await group.leading(), "T")
    return [bytes(record.body).decode() for record in records if record.queue_id == queue]


async def test_restarted_writer_batch_is_stored_once(tmp_path):
    async with serving(tmp_path) as (group, where):
        async with ExactlyOnceWriter("w", "T", where) as writer:
            first, second = writer.queues[:2]
            assert writer.last(first) == (-1, -1)
            assert await writer.write(first, 1, 0, messages("a", "b"))
            assert await writer.write(first, 1, 1, messages("c"))
            assert not await writer.write(first, 1, 1, messages("c"))
        async with ExactlyOnceWriter("w", "T", where) as again:
            assert again.last(first) == (1, 1) and again.last(second) == (-1, -1)
            for sequence, texts in enumerate((("a", "b"), ("c",), ("d",))):
                assert await again.write(first, 1, sequence, messages(*texts)) is (sequence == 2)
            assert await again.write(second, 1, 0, messages("e"))
            with pytest.raises(BrokerRefused, match="OUT_OF_SEQUENCE"):
                await again.write(second, 1, 2, messages("f"))
            with pytest.raises(InvalidMessage):
                await again.write(second, 1, 1, [Message("U", b"x")])
        assert await bodies(group, 0) == ["a", "b", "c", "d"]
        assert await bodies(group, 1) == ["e"]
        records = await everything(group, await group.leading(), "T")
        assert len({record.properties for record in records}) == 5  # each with its own UNIQ_KEY


async def test_second_writer_fences_the_first(tmp_path):
    async with serving(tmp_path) as (group, where):
        async with ExactlyOnceWriter("w", "T", where) as old:
            queue = old.queues[0]
            await old.write(queue, 1, 0, messages("a"))
            async with ExactlyOnceWriter("w", "T", where) as new:
                with pytest.raises(WriterFenced):
                    await old.write(queue, 1, 1, messages("b"))
                assert await new.write(queue, 1, 1, messages("b"))
                async with ExactlyOnceWriter("v", "T", where) as other:
                    assert await other.write(queue, 1, 0, messages("c"))
                await new.delete()
                with pytest.raises(BrokerRefused, match="UNKNOWN_WRITER"):
                    await new.write(queue, 2, 0, messages("d"))
        assert await bodies(group, 0) == ["a", "b", "c"]


async def test_concurrent_openings_leave_one_unfenced_writer(tmp_path):
    async with serving(tmp_path) as (group, where):
        writers = [ExactlyOnceWriter("w", "T", where) for _ in range(4)]
        reported = await asyncio.gather(*(w.start() for w in writers), return_exceptions=True)
        opened = [w for w, result in zip(writers, reported, strict=True) if result is None]
        queue = opened[0].queues[0]

        async def wrote(writer):
            try:
                return await writer.write(queue, 1, 0, messages("a"))
            except WriterFenced:
                return None

        assert [await wrote(w) for w in opened].count(True) == 1
        for writer in opened:
            await writer.stop()
        assert await bodies(group, 0) == ["a"]


async def test_writer_continues_over_a_failover(tmp_path):
    async with serving(tmp_path, 3, **PATIENT) as (group, where):
        async with ExactlyOnceWriter("w", "T", where) as writer:
            queue = writer.queues[0]

            async def fill():
                for sequence in range(60):
                    await writer.write(queue, 1, sequence, messages(str(sequence)))

            filling = asyncio.create_task(fill())
            name = await group.leader()
            await until(lambda: group.brokers[name].sends.put_count >= 10)
            await group.kill(name)
            await filling
        assert await bodies(group, 0) == [str(n) for n in range(60)]


async def test_writer_for_a_read_only_topic_raises_no_route(tmp_path):
    async with serving(tmp_path) as (group, where):
        header = TopicHeader("T", 4, 4, 4)
        leader = await group.leading()
        await group.ask(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        with pytest.raises(NoRoute, match="may be written to"):
            await ExactlyOnceWriter("w", "T", where, patience_ms=500).start()


async def test_writer_on_classic_brokers_needs_exactly_once_disabled(tmp_path):
    async with serving(tmp_path, enableDLegerCommitLog="false") as (group, where):
        with pytest.raises(BrokerRefused, match="Raft mode"):
            await ExactlyOnceWriter("w", "T", where).start()
        async with ExactlyOnceWriter("w", "T", where, exactly_once=False) as writer:
            for _ in range(2):
                await writer.write(writer.queues[0], 1, 0, messages("a"))
        async with ExactlyOnceWriter("w", "T", where, exactly_once=False) as writer:
            await writer.write(writer.queues[0], 1, 0, messages("a"))
        assert await bodies(group, 0) == ["a", "a"]
