"""The preferred leader over HTTP and from broker.conf: leadership follows, and no send fails."""

import asyncio
from contextlib import asynccontextmanager

import orjson
import pytest

from raftmq.broker.replication import engine
from raftmq.client import Message, Producer
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.codes import RequestCode
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.broker.http.test_group_api import events_until
from tests.waiting import until

PATH = "/api/v1/preferred-leader"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(engine, "PREFERRED_STEADY_MS", 100)


@asynccontextmanager
async def sending(address, topic):
    """Messages one after the other all the while; how many. One that fails, fails the test."""
    count = [0]
    async with Producer("pg", address) as producer:

        async def send():
            while True:
                await producer.send(Message(topic, b"m%d" % count[0]), timeout_ms=30_000)
                count[0] += 1

        task = asyncio.create_task(send())
        try:
            yield count
        finally:
            # Also where something was waited for in vain: then this is why.
            failed = task.exception() if task.done() else None
            task.cancel()
            await asyncio.wait([task])
            if failed is not None:
                raise failed


async def test_leadership_moves_to_the_preferred_replica_without_a_failed_send(tmp_path):
    config = NameServerConfig(bind="127.0.0.1", port=0, http_enable=False)
    async with NameServer(config) as names:
        where = f"127.0.0.1:{names.port}"
        async with Group(tmp_path, 3, namesrvAddr=where) as group:
            first = await group.leader()
            expected, third = (name for name in group.names if name != first)
            leader, chosen = group.brokers[first], group.brokers[expected]
            await group.create_topic(leader, "T")
            await until(lambda: all(b.members.watches for b in group.brokers.values()))
            async with (
                sending(where, "T") as count,
                Client(leader.http.address) as client,
                Client(chosen.http.address) as there,
                there.session.get(
                    f"{client.base}/api/v1/events", headers={"Last-Event-ID": "0-0"}
                ) as events,
            ):
                await refuses(client, there, expected)
                await until(lambda: count[0] > 20)
                put = await client.put(PATH, {"name": expected}, If_None_Match="*")
                assert put.status == 200, put.json
                assert put.json["name"] == expected
                await until(lambda: chosen.roles.leading)
                seen = await events_until(events, lambda e: e["kind"] == "transfer")
                assert seen[-1]["detail"] == {"to": expected, "by": "preferred leader"}
                chosen_now = {"name": expected, "was": None}
                assert any(
                    e["kind"] == "preferredLeaderChanged"
                    and e["detail"].items() >= chosen_now.items()
                    for e in seen
                )
                reported = {"nameServer": where, "brokerId": 0, "reason": "registered"}
                assert reported in [e["detail"] for e in seen if e["kind"] == "routeChanged"]
                seen = await events_until(events, lambda e: e["kind"] == "routeChanged")
                assert seen[-1]["detail"]["brokerId"] == 1 + int(first[1:])  # it follows now
                sent = count[0]
                await until(lambda: count[0] > sent + 20)  # there, too
                await stands(chosen, f"{expected} leads")
                await shows(client, there, expected)
                stale = await there.put(PATH, {"name": third}, If_None_Match="*")
                assert (stale.status, stale.headers["ETag"]) == (412, put.headers["ETag"])
                etag = put.headers["ETag"]
                assert (await there.delete(PATH, If_Match=etag)).status == 204
                assert (await there.delete(PATH, If_Match=etag)).status == 412
                assert (await there.delete(PATH, If_Match="*")).status == 204
                assert (await there.get(PATH)).json["name"] is None
                await stands(chosen, "nobody is preferred")


async def stands(broker, words):
    await until(lambda: broker.engine.status()["preferred_reason"] == words)


async def refuses(client, there, wanted):
    """On the leader, and (`there`) on a follower."""
    before = await client.get(PATH)
    assert (before.status, before.json["name"]) == (200, None)
    assert (await client.put(PATH, {"name": wanted})).status == 428
    wrong = await client.put(PATH, {"name": "n9"}, If_Match="*")
    assert (wrong.status, wrong.json["errors"][0]["field"]) == (422, "name")
    assert (await client.put(PATH, {"name": wanted}, If_Match='"other"')).status == 412
    assert (await there.put(PATH, {"name": wanted}, If_Match="*")).code == "NOT_LEADER"


async def shows(client, there, wanted):
    """The former leader and the new one say the same."""
    first, second = await client.get(PATH), await there.get(PATH)
    assert first.headers["ETag"] == second.headers["ETag"]
    assert second.json == {"name": wanted, "leader": wanted, "reason": f"{wanted} leads"}
    for one in (client, there):
        assert (await one.get("/api/v1/node")).json["preferredLeader"] == wanted
    peers = (await there.get("/api/v1/node")).json["peers"]
    assert all(p["bytesInFlight"] >= 0 and p["lastContactMs"] >= 0 for p in peers)
    peers = {p["id"]: p["lastContactMs"] for p in (await client.get("/api/v1/node")).json["peers"]}
    assert peers.pop(wanted) >= 0, "a follower hears its leader"
    assert list(peers.values()) == [None]


async def test_preferred_leader_from_broker_conf_applies_to_a_new_group(tmp_path):
    async with Group(tmp_path, 3, preferredLeaderId="n2") as group:
        await until(lambda: group.brokers["n2"].roles.leading)
        broker = group.brokers["n2"]
        # The first election may have put it there, before anything was said.
        configurations = broker.engine.core.membership.configurations
        await until(lambda: configurations.settled[1].preferred == "n2")
        listed = await group.ask(broker, RequestCode.CHANGE_MEMBERS, {"op": "list"})
        assert orjson.loads(listed.body)["preferred"] == "n2"
        cleared = await group.ask(broker, RequestCode.CHANGE_MEMBERS, {"op": "prefer"})
        assert cleared.code == 0 and orjson.loads(cleared.body)["preferred"] is None
        # That was said, and broker.conf says nothing against it, whoever leads.
        for name in group.names:
            await group.stop(name)
        for name in group.names:
            await group.start(name)
        leader = await group.leading()
        leader.members.preferred.poll()
        assert leader.engine.core.membership.configurations.current.preferred == ""
        body = {"op": "prefer", "memberId": "n9"}
        refused = await group.ask(leader, RequestCode.CHANGE_MEMBERS, body)
        assert "n9 is no member" in refused.remark
