"""A cluster of processes with access control, its registration, failover, probe and clients."""

import asyncio
import signal
import sys

import orjson
import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.credentials import own_credentials, signing
from raftmq.chaos.cluster.restart import restart_all
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.chaos.history.files import HistoryWriter
from raftmq.chaos.workloads.consumers import ConsumerGroup
from raftmq.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    SendFailed,
)
from raftmq.client.consumer import rebalance
from tests.waiting import until

PATIENCE_S = 120.0  # a bound against hanging
PLAIN_ACL = """
accounts:
  - {accessKey: administrator, secretKey: sesame-open-1, admin: true}
"""
KEYS = {"accessKey": "administrator", "secretKey": "sesame-open-1"}
SIZES = {"mappedFileSizeCommitLog": "16777216", "maxIndexNum": "100000"}


async def health(module, address):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--address", address, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_cluster_with_access_control_fails_over(tmp_path, monkeypatch, caplog):
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    # Brokers and name servers alike, which also read the variables.
    for name, value in (
        ("ACL_ENABLE", "true"),
        ("ACL_FILE", str(tmp_path / "plain_acl.yml")),
        ("ACL_READS_NEED_ACCOUNT", "true"),
        ("INNER_CLIENT_AUTHENTICATION_CREDENTIALS", orjson.dumps(KEYS).decode()),
        ("ACCESS_KEY", KEYS["accessKey"]),
        ("SECRET_KEY", KEYS["secretKey"]),
    ):
        monkeypatch.setenv(f"RAFTMQ_{name}", value)
    own = own_credentials()
    assert own is not None and own.access_key == "administrator"
    cluster = Cluster(tmp_path / "c")
    try:
        state = await cluster.up(Shape(), SIZES, PATIENCE_S)
        async with Producer("p", state.namesrv, instance_config=signing()) as producer:
            for number in range(10):
                await producer.send(Message("T", b"%d" % number), timeout_ms=60_000)
            leader = await cluster.find("leader")
            process = cluster.signal(leader.name, signal.SIGKILL)
            await cluster.wait_dead(process)
            for number in range(10, 20):
                await producer.send(Message("T", b"%d" % number), timeout_ms=60_000)
        cluster.start(leader.name)
        await wait_recovered(cluster, PATIENCE_S)
        async with Admin(state.namesrv, instance_config=signing()) as admin:
            ends = await admin.topic.offsets("T")
            assert sum(one.max_offset for one in ends.values()) >= 20
        await _all_consumed(state.namesrv, tmp_path / "h.jsonl")
        for module, address in (
            ("raftmq.broker.health", leader.address),
            ("raftmq.namesrv.health", state.namesrv),
        ):
            assert (await health(module, address))[0] == 0
            with monkeypatch.context() as unsigned:
                unsigned.delenv("RAFTMQ_ACCESS_KEY")
                unsigned.delenv("RAFTMQ_SECRET_KEY")
                status, said = await health(module, address)
                assert status == 1 and "No accessKey is configured" in said
        for node in (*state.brokers, *state.name_servers):
            log = (tmp_path / "c" / node.name / "log.txt").read_text()
            assert "sesame" not in log
        monkeypatch.setenv("RAFTMQ_SECRET_KEY", "sesame-closed")
        wrong = signing()
        monkeypatch.setenv("RAFTMQ_SECRET_KEY", KEYS["secretKey"])
        assert await _refused(state.namesrv, wrong)
        monkeypatch.setattr(rebalance, "UNROUTED_S", 1.0)
        await _a_refused_consumer_says_so(state.namesrv, wrong, caplog)
        with monkeypatch.context() as unsigned:
            unsigned.delenv("RAFTMQ_ACCESS_KEY")
            unsigned.delenv("RAFTMQ_SECRET_KEY")
            stranger = Cluster(tmp_path / "c")
            try:
                with pytest.raises(ClusterError, match=r"No accessKey is configured.*admin's"):
                    await restart_all(stranger)  # and nothing was stopped
                with pytest.raises(ClusterError, match=r"no leader yet: n. does not tell: .*No"):
                    await stranger.wait_serving(0.1)
            finally:
                await stranger.close()
        assert all(status.view is not None for status in await brokers_of(cluster))
    finally:
        await cluster.down()
        await cluster.close()


async def _all_consumed(namesrv, path):
    """Return once a consumer of the harness was given every message."""
    seen: set[str] = set()

    async def take(messages):
        seen.update(message.body for message in messages)

    with HistoryWriter(path) as history:
        async with ConsumerGroup(namesrv, history, "T", "g", listener=lambda _: take) as group:
            await group.join("one")
            await until(lambda: seen >= {b"%d" % number for number in range(20)})


async def _a_refused_consumer_says_so(namesrv, config, caplog):
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("g", namesrv, listen, config=first, instance_config=config)
    consumer.subscribe("T")
    async with consumer:
        await until(lambda: "rebalance_without_route topic=T " in caplog.text)
        assert not consumer.queues


async def listen(messages):
    raise AssertionError("it was given messages")


async def brokers_of(cluster):
    return [status for status in await cluster.status() if status.node.kind == "broker"]


async def _refused(namesrv, config):
    """Whether a send as somebody else is certainly not stored."""
    async with Producer("p", namesrv, instance_config=config) as producer:
        try:
            await producer.send(Message("T", b"no"), timeout_ms=1_000)
        except SendFailed:
            return True
    return False
