"""The id of a Raft group: who proposes it and when, that it stays, and that two groups which share
all their names never mix."""

import asyncio
import logging
from typing import cast

import orjson
import pytest

from raftmq.broker.broker import Broker
from raftmq.broker.errors import StateError
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.broker_group import BrokerGroupTable, group_id
from raftmq.broker.tables.state import BrokerState, announce
from raftmq.dledger.node.node import RaftMember
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from raftmq.store.disk import OsDisk
from tests.broker.cluster import Group
from tests.waiting import until

ONE, TWO = bytes(range(16)), bytes(range(16, 32))


def id_of(broker):
    """As its links and its tables have it, once both agree."""
    identity = broker.engine.identity.group_id
    return identity if identity == broker.state.group.value else b""


async def agreed(brokers):
    brokers = list(brokers)
    await until(lambda: all(map(id_of, brokers)))
    result = {id_of(broker) for broker in brokers}
    assert len(result) == 1, result
    return result.pop()


async def runtime(group, broker):
    answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    return loads_object(answer.body)["table"]


def applied(*payloads):
    state = BrokerState()
    for index, payload in enumerate(payloads, 1):
        state.apply(index, 1_000, payload)
    return state


def test_first_group_id_is_kept_and_a_restore_replaces_it():
    assert applied(announce("n0", "h:1")).group.value == b""
    assert applied(group_id(ONE), group_id(TWO)).group.value == ONE
    assert applied(group_id(ONE), group_id(TWO, if_absent=False)).group.value == TWO
    for wrong in (b'{"op":"group_id","id":"00","if_absent":true}', b'{"op":"group_id"}'):
        with pytest.raises(StateError):
            applied(wrong)


def test_group_id_is_in_snapshots(tmp_path):
    disk = OsDisk(str(tmp_path))
    state = applied(group_id(ONE), announce("n0", "h:1"))
    copies = snapshot.capture(state)
    again = snapshot.from_json(copies.to_json())
    table = dict(again.tables)[snapshot.GROUP_ID]
    assert isinstance(table, BrokerGroupTable) and table.value == ONE
    snapshot.write(disk, copies)
    loaded = BrokerState()
    assert snapshot.load(disk, loaded) == 2 and loaded.group.value == ONE


async def test_group_id_is_stable_over_failovers_and_restarts(tmp_path):
    async with Group(tmp_path, 3) as group:
        made = await agreed(group.brokers.values())
        leader = await group.leading()
        table = await runtime(group, leader)
        assert table["raftGroupId"] == made.hex()
        await group.kill(leader.config.dleger_self_id)
        await group.leader()
        assert await agreed(group.brokers.values()) == made
        killed = await group.start(leader.config.dleger_self_id)
        assert killed.engine.identity.group_id == made  # noted, before anything is applied
        assert await agreed(group.brokers.values()) == made


async def test_group_id_is_proposed_by_a_later_leader_if_the_first_is_gone(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        propose = RaftMember.propose_command

        def propose_no_group_id(member, payload):
            if orjson.loads(payload)["op"] == "group_id":
                return asyncio.get_running_loop().create_future()
            return propose(member, payload)

        before.setattr(RaftMember, "propose_command", propose_no_group_id)
        async with Group(tmp_path, 3) as group:
            first = await group.leading()
            await group.create_topic(first, "T")
            assert first.state.group.value == first.engine.identity.group_id == b""
            before.undo()  # the first leader still waits for the outcome
            gone = first.config.dleger_self_id
            await group.kill(gone)
            made = await agreed(group.brokers.values())
            await group.start(gone)
            assert await agreed(group.brokers.values()) == made


class Astray(Group):
    """Its n2 can be given the addresses of another group's replicas."""

    astray: Group | None = None

    def config(self, name):
        own = self.ports
        if self.astray is not None and name == "n2":
            self.ports = {**self.astray.ports, name: own[name]}
        try:
            return super().config(name)
        finally:
            self.ports = own


async def test_groups_with_the_same_name_and_ids_never_mix(tmp_path, caplog):
    caplog.set_level(logging.ERROR, "raftmq.dledger.transport.group_id")
    async with Group(tmp_path / "one", 3) as one, Astray(tmp_path / "two", 3) as two:
        first, second = await agreed(one.brokers.values()), await agreed(two.brokers.values())
        assert first != second
        for group, body in ((one, b"one"), (two, b"two")):
            leader = await group.leading()
            assert (await group.create_topic(leader, "T")).code == ResponseCode.SUCCESS
            assert (await group.send(leader, "T", body)).code == ResponseCode.SUCCESS
        await two.stop("n2")
        two.astray = one
        lost: Broker = await two.start("n2")
        await until(lambda: len(cast(list[str], lost.engine.status()["foreign"])) >= 2)
        # They may have been heard first, and dialled anew a moment ago.
        peers = {}

        def refused():
            peers.update(cast(dict, lost.engine.status()["peers"]))
            return all(peers[name]["error"] for name in ("n0", "n1"))

        await until(refused)
        for name in ("n0", "n1"):
            assert not peers[name]["connected"]
            for text in (first.hex(), second.hex(), f"127.0.0.1:{one.ports[name]}", "dLegerPeers"):
                assert text in peers[name]["error"], peers[name]
        for name in ("n0", "n1"):
            status = one.brokers[name].engine.status()["foreign"]
            assert status and second.hex() in status[0] and first.hex() in status[0]
        # Both go on; the one with what it has left, a majority.
        for group, body in ((one, b"one"), (two, b"two")):
            leader = await group.leading()
            assert (await group.send(leader, "T", body)).code == ResponseCode.SUCCESS
        assert len(caplog.records) <= 6  # once for each pair and direction
        await two.kill("n2")
        two.astray = None
        await two.start("n2")
        for group in (one, two):
            leader = await group.leading()
            last = leader.engine.log.index.last_index
            await until(
                lambda group=group, last=last: all(
                    b.engine.applied_index >= last for b in group.brokers.values()
                )
            )
            bodies = {b.store.queues.queue("T", 0).max_offset for b in group.brokers.values()}
            assert bodies == {2}
        assert await agreed(one.brokers.values()) == first
        assert await agreed(two.brokers.values()) == second
