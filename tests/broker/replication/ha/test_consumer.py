"""Our client and a classic group: it reads at the slave while the master is away and goes back by
itself, reads cold data where the master sends it; a producer is told statuses, not errors."""

import random
from contextlib import closing

from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.client import (
    ConsumeFrom,
    ConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    SendConfig,
    SendStatus,
)
from raftmq.client.instance import InstanceConfig
from raftmq.namesrv.server import NameServer, NameServerConfig
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until


class Seen:
    """The messages that a listener was given, by body."""

    def __init__(self):
        self.bodies = []

    def __call__(self, messages):
        self.bodies += [message.body for message in messages]


def consumer_of(namesrv, seen):
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        rebalance_interval_ms=500,
        commit_interval_ms=100,
    )
    instance = InstanceConfig(route_interval_ms=200)
    consumer = PushConsumer("cg", namesrv, seen, config=config, instance_config=instance)
    consumer.subscribe("T", "*")
    return consumer


def committed(broker):
    """Of all queues together."""
    return sum(broker.state.offsets.offsets.get(("T", "cg"), {}).values())


def producer_of(namesrv):
    """Return a producer that sends each message once, however slow the machine is."""
    config = SendConfig(attempt_timeout_ms=60_000, scout_timeout_ms=60_000, silence_ms=60_000)
    return Producer("pg", namesrv, config=config)


async def send(producer, bodies):
    sent = [await producer.send(Message("T", body), timeout_ms=60_000) for body in bodies]
    return {result.status for result in sent}


async def test_consumer_switches_to_the_slave_and_back(tmp_path):
    with closing(HeldPorts("127.0.0.1")) as held:
        async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
            await turns_and_returns(tmp_path, server, held)


async def turns_and_returns(tmp_path, server, held):
    seen = Seen()
    namesrv = f"127.0.0.1:{server.port}"
    (port,) = held.choose(1, random.Random())
    own = {"master": {"listenPort": port}}  # the master comes back at the same address
    async with Classic(tmp_path, names=own, namesrvAddr=namesrv) as pair:
        await pair.followed()
        await pair.create_topic(pair.master, "T")
        async with producer_of(namesrv) as producer:
            first = [b"a%d" % n for n in range(20)]
            assert await send(producer, first) == {SendStatus.OK}
            consumer = consumer_of(namesrv, seen)
            async with consumer:
                await until(lambda: set(seen.bodies) >= set(first))
                await until(lambda: pair.slave.state.groups.get("cg") is not None)
                await until(lambda: pair.slave.state.topics.get("%RETRY%cg") is not None)
                await pair.kill("master")
                pulls = pair.slave.pulls
                await until(
                    lambda: pulls.holds.count == 5
                )  # every queue waits at the slave, the retry queue too
                await until(lambda: committed(pair.slave) == 20)
                await pair.start("master")
                second = [b"b%d" % n for n in range(20)]
                await until(lambda: pair.master.pulls.holds.count == 5)
                await pair.followed()
                await until(lambda: pulls.holds.count == 0)
                await send(producer, second)
                await until(lambda: set(seen.bodies) >= set(second))
                await until(lambda: committed(pair.master) == 40)
            assert len(seen.bodies) == 40


async def test_consumer_reads_from_the_slave_while_the_master_is_down(tmp_path):
    """The consumer starts when the master is dead already."""
    seen = Seen()
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        async with Classic(tmp_path, namesrvAddr=namesrv) as pair:
            await pair.followed()
            await pair.create_topic(pair.master, "T")
            bodies = [b"a%d" % n for n in range(20)]
            async with producer_of(namesrv) as producer:
                await send(producer, bodies)
            await pair.caught_up()
            await until(lambda: pair.slave.state.topics.get("T") is not None)
            await pair.kill("master")
            async with consumer_of(namesrv, seen):
                await until(lambda: sorted(seen.bodies) == sorted(bodies))


async def test_cold_data_are_consumed_from_the_slave(tmp_path):
    seen = Seen()
    settings = {"slaveReadEnable": "true", "accessMessageInMemoryMaxRatio": 0}
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        async with Classic(tmp_path, namesrvAddr=namesrv, **settings) as pair:
            await pair.followed()
            await pair.create_topic(pair.master, "T", queues=1)
            bodies = [b"a%d" % n * 100 for n in range(100)]
            async with producer_of(namesrv) as producer:
                await send(producer, bodies)
            await pair.caught_up()
            await until(lambda: pair.slave.state.topics.get("T") is not None)
            async with consumer_of(namesrv, seen):
                await until(lambda: set(seen.bodies) == set(bodies))
            assert pair.slave.pulls.get_count > 0
            assert len(seen.bodies) == 100


async def test_producer_gets_slave_not_available_without_a_slave(tmp_path):
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        async with Classic(tmp_path, 0, namesrvAddr=namesrv) as pair:
            await pair.create_topic(pair.master, "T")
            async with producer_of(namesrv) as producer:
                result = await producer.send(Message("T", b"x"), timeout_ms=60_000)
            assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
            assert result.queue_offset == 0
            assert pair.master.sends.put_count == 1 + 2  # once: it was not sent again
