"""Groups one of whose replicas has other settings than the others."""

import asyncio
import shutil
from dataclasses import replace

import orjson

from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.waiting import until

HOURS = ";".join(f"{hour:02}" for hour in range(24))
OTHER = "n2"
OFTEN = {
    "mappedFileSizeCommitLog": 1 << 18,
    "maxMessageSize": 32 << 10,
    "deleteWhen": HOURS,
    "durations": {"snapshot": 50, "retention": 50},
}


class Differing(Group):
    """The log of n2 expires at once, that of the others in three days."""

    def config(self, name):
        config = super().config(name)
        if name != OTHER:
            return config
        return replace(config, file_reserved_time=0, max_message_size=40 << 10)


async def test_replica_with_a_shorter_retention_deletes_nothing_alone(tmp_path):
    async with Differing(tmp_path, 3, **OFTEN) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")
        for number in range(60):
            answer = await group.send(leader, "T", bytes(20_000), queue=number % 4)
            assert answer.code == ResponseCode.SUCCESS
        other = group.brokers[OTHER]
        second = other.store.commitlog.segments()[1].start
        index, keeper = other.engine.log.index, other.keeper
        await until(lambda: index.end_of(min(keeper.fallback_index, index.last_index)) > second)
        # By its own time it would, and it says so to the others.
        await until(
            lambda: all(
                view["settings_differ"].keys() == {"fileReservedTime", "maxMessageSize"}
                for name, broker in group.brokers.items()
                if name != OTHER
                for view in [broker.engine.status()["peers"][OTHER]]
            )
        )
        answer = await group.ask(other, RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert answer.ext["deletedBytes"] == "0"
        assert int(answer.ext["keptBytes"]) >= second
        assert "majority" in answer.ext["keptFor"]
        assert other.retention.expired().before >= second
        assert all(broker.store.commitlog.min_offset == 0 for broker in group.brokers.values())
        answer = await group.ask(other, RequestCode.GET_BROKER_RUNTIME_INFO)
        reported = orjson.loads(answer.body)["table"]["raftDiffers"]
        assert reported == "; ".join(f"n{n}: fileReservedTime, maxMessageSize" for n in range(2))


async def test_segments_expired_on_a_majority_are_deleted(tmp_path):
    async with Group(tmp_path, 3, **OFTEN, fileReservedTime=0) as group:
        leader = await group.leading()
        await group.create_topic(leader, "T")

        async def more():
            for number in range(4):
                await group.send(leader, "T", bytes(20_000), queue=number % 4)
                await asyncio.sleep(0.02)

        logs = [broker.store.commitlog for broker in group.brokers.values()]
        async with asyncio.timeout(120):
            while not all(log.min_offset for log in logs):
                await more()


class OtherSegments(Group):
    """n2's file says another size of segments while `wrong`."""

    wrong = False

    def config(self, name):
        config = super().config(name)
        size = config.mapped_file_size_commit_log * (2 if self.wrong and name == OTHER else 1)
        return replace(config, mapped_file_size_commit_log=size)


async def test_empty_replica_with_another_segment_size_is_not_ready(tmp_path):
    async with OtherSegments(tmp_path, 3) as group:
        await group.leading()
        await group.stop(OTHER)
        shutil.rmtree(tmp_path / OTHER)
        group.wrong = True
        other = await group.start(OTHER)
        leader = await group.leading()
        await group.create_topic(leader, "T")
        await until(lambda: other.engine.leader and len(other.engine.status()["foreign"]) == 2)
        async with Client(other.http.address) as client:
            ready = await client.get("/health/ready")
            assert ready.status == 503
            assert ready.json["detail"].startswith(
                "takes no frames of its leader; its founders differ; mappedFileSizeCommitLog is"
            )
        assert other.engine.log.index.last_index == 0
        await group.stop(OTHER)
        group.wrong = False
        other = await group.start(OTHER)
        await until(lambda: other.engine.applied_index >= leader.engine.core.commit_index)
        async with Client(other.http.address) as client:
            assert (await client.get("/health/ready")).status == 200
