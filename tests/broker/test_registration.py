"""A name server that loses our connection is told again soon, not only a period later."""

import asyncio
import time
from typing import Any

import pytest

from raftmq.broker import registration
from raftmq.broker.config import build_config
from raftmq.broker.construction import topics_of_names
from raftmq.broker.events import NodeEvents
from raftmq.broker.health import why_not
from raftmq.broker.registeredtopics import RegisteredTopics
from raftmq.broker.tables import versioned
from raftmq.broker.tables.broker_group import BrokerGroupTable
from raftmq.broker.tables.topics import TopicConfig, TopicTable
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.namesrv.registrations import SMALL_BYTES, WaitingList
from raftmq.namesrv.server import NameServer as RealNameServer
from raftmq.namesrv.server import NameServerConfig
from raftmq.ops.settings import parse_properties
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import SendTimeout
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.registration import NO_LEADER, DataVersion
from raftmq.remoting.registration_proof import load_registration_keys
from raftmq.remoting.server import RemotingServer
from tests.broker.cluster import Group
from tests.instances import instances_of
from tests.ports import bound
from tests.present import present
from tests.waiting import until


class NameServer:
    """Counts registrations; may close each connection behind its answer."""

    def __init__(self):
        self.heard = 0
        self.closing = False
        self.silent = False
        self.refusing = False
        self.server = RemotingServer(
            {103: self._register, 104: lambda _, c: RemotingCommand.response_to(c)}
        )

    def _register(self, connection, command):
        self.heard += 1
        if self.silent:
            return None
        if self.closing:
            connection.abort("test")
            return None
        if self.refusing:
            return RemotingCommand.response_to(command, code=1, remark="a wrong secret")
        return RemotingCommand.response_to(command)

    async def quiet(self):
        """Return once the broker waits, and no registration is under way: at its start several
        things change, and each is told."""
        heard = -1
        while heard != self.heard:
            heard = self.heard
            await asyncio.sleep(0.2)

    def cut(self):
        for connection in list(self.server.connections):
            connection.abort("test")


async def test_registrar_handles_a_change_and_a_stop_at_once(tmp_path):
    """The registrar is woken and cancelled in one turn of the loop: it ends all the same."""
    names = NameServer()
    await names.server.start("127.0.0.1", 0)
    try:
        async with Group(tmp_path, namesrvAddr=f"127.0.0.1:{names.server.port}") as group:
            broker = await group.leading()
            await until(lambda: broker.registrar.registered != {})
            await names.quiet()
            async with asyncio.timeout(60):
                broker.registrar.trigger()
                await asyncio.sleep(0)  # the waiter is woken, its task not yet
                await broker.registrar.stop()
    finally:
        await names.server.stop()


async def test_registrar_changes_its_name_servers_at_run_time(tmp_path):
    config = NameServerConfig(bind="127.0.0.1", port=0)
    async with RealNameServer(config) as first, RealNameServer(config) as second:
        here = {server.address: server for server in (first, second)}
        async with Group(tmp_path, namesrvAddr=first.address) as group:
            broker = await group.leading()

            def are_told(names):
                listed = {at for at, server in here.items() if server.table.broker_count}
                return listed == set(broker.registrar.registered) == set(names)

            async def told(names):
                body = f"namesrvAddr={names}\n".encode()
                return await group.ask(broker, RequestCode.UPDATE_BROKER_CONFIG, {}, body)

            await until(lambda: are_told([first.address]))
            steps = (second.address,), (first.address, second.address), (first.address,), ()
            for names in steps:
                answer = await told(";".join(names))
                assert answer.code == 0, answer.remark
                await until(lambda names=names: are_told(names))
                assert broker.context.config.name_servers == names
            assert (await told("no address")).code == 1
            for name in (first.address, second.address) * 5:  # faster than it unregisters
                assert (await told(name)).code == 0
            await until(lambda: are_told([second.address]))


async def test_lost_name_server_connection_is_followed_by_a_registration(tmp_path, monkeypatch):
    names, routes = NameServer(), []
    await names.server.start("127.0.0.1", 0)
    monkeypatch.setattr(registration, "RETRY_MS", 60_000)  # not what brings it back
    monkeypatch.setattr(NodeEvents, "route_changed", lambda self, *what: routes.append(what))
    try:
        async with Group(tmp_path, namesrvAddr=f"127.0.0.1:{names.server.port}") as group:
            broker = await group.leading()
            await until(lambda: broker.log.identity in broker.registrar.registered.values())
            await names.quiet()
            routes.clear()
            for _ in range(3):
                before = names.heard
                names.cut()
                await until(lambda b=before: names.heard > b and broker.registrar.registered != {})
            names.closing = True  # an attempt that fails waits for its time
            before = names.heard
            names.cut()
            await until(lambda: names.heard > before)
            await until(lambda: not names.server.connections)
            assert broker.registrar.registered == {} and names.heard == before + 1
            assert {server for server, _, _ in routes} == {f"127.0.0.1:{names.server.port}"}
            assert [broker_id for _, broker_id, _ in routes] == [None, 0] * 3 + [None]
    finally:
        await names.server.stop()


async def test_replica_started_from_a_snapshot_looks_up_its_leaders_address(tmp_path):
    """The leader told it in a command that the snapshot is behind. Nobody's period passes here."""
    settings = {"registerNameServerPeriod": 60_000}
    async with RealNameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        names = f"127.0.0.1:{server.port}"
        async with Group(tmp_path, 3, namesrvAddr=names, **settings) as group:
            leader = await group.leading()
            await until(lambda: leader.log.identity in leader.registrar.registered.values())
            name = next(name for name in group.names if group.brokers[name] is not leader)
            await until(lambda: group.brokers[name].roles.leader_address == leader.address)
            await group.create_topic(leader, "T")
            last = leader.engine.log.index.last_index
            await until(lambda: group.brokers[name].state.applied_index >= last)
            await group.stop(name)
            again = await group.start(name)
            assert again.state.addresses == {}
            await until(lambda: again.roles.leader_address == leader.address)
            # Even if all that it was to register was registered before it knew who leads.
            roles = again.roles
            for known in (None, roles.leader):
                again.application.role_changed(
                    RoleEvent(Role.FOLLOWER, roles.term, known, False, "")
                )
            assert again.roles.leader_address == ""
            began = time.monotonic()
            await until(lambda: again.roles.leader_address == leader.address)
            assert time.monotonic() - began < 30


async def test_group_with_a_registered_name_is_rejected_and_reports_it(tmp_path, caplog):
    async with RealNameServer(NameServerConfig("127.0.0.1", 0, http_enable=False)) as server:
        settings = {"namesrvAddr": server.address, "registerNameServerPeriod": 60_000}
        async with Group(tmp_path / "own", **settings) as own:
            broker = await own.leading()
            # Once the id is in the log, and not when the period is over.
            result = server.table.group
            await until(lambda: (known := result("group-a")) is not None and known.group_id)
            held = broker.log.identity.group_id
            assert present(server.table.group("group-a")).group_id == held
            async with Group(tmp_path / "other", **settings) as other:
                stranger = await other.leading()
                refused = f"remark=[OTHER_GROUP] {stranger.address} "
                await until(lambda: f"{refused}is of group id " in caplog.text)
                said = f"is of group id {stranger.log.identity.group_id}; {broker.address} holds"
                assert f"{refused}{said} the name group-a for group id {held}: " in caplog.text
                assert present(server.table.group("group-a")).addresses == {0: broker.address}
                assert stranger.registrar.registered == {}
                await own.stop("n0")
                await until(lambda: stranger.registrar.registered != {})
                assert present(server.table.group("group-a")).addresses == {0: stranger.address}


def told(topics):
    return [(t.topic, t.read_queue_count) for t in topics]


def test_registered_topics_since_a_version(monkeypatch):
    table = TopicTable()
    group = BrokerGroupTable()
    topics = RegisteredTopics(table, TopicConfig("TBW102", 8, 8, 7), group)
    start = topics.version
    for name in ("a", "b", "c"):
        table.put(TopicConfig(name, 4, 4), 100)
    after = topics.version
    assert topics.since(after) == []
    assert told(topics.since(start)) == [("a", 4), ("b", 4), ("c", 4)]
    assert told(topics.all()) == [("a", 4), ("b", 4), ("c", 4), ("TBW102", 8)]
    table.put(TopicConfig("b", 9, 4), 200)
    table.delete("c", 200)
    assert told(topics.since(after)) == [("b", 9), ("c", 0)]
    table.delete("a", 200)
    table.put(TopicConfig("TBW102", 2, 2), 300)
    table.delete("TBW102", 300)  # the template stays
    assert told(topics.since(after)) == [("TBW102", 8), ("a", 0), ("b", 9), ("c", 0)]
    assert topics.since(DataVersion(after.counter, 0, 101)) is None  # another table's
    table.load(table.to_json(), 0)
    assert topics.since(after) is None  # of an older process: not known
    assert topics.since(topics.version) == []
    version = topics.version
    group.draining_ms = 1  # every topic's permission changes
    assert topics.version != version and topics.since(version) is None
    assert not any(topic.perm & 2 for topic in topics.all())


def test_remembered_topic_changes_are_limited(monkeypatch):
    monkeypatch.setattr(versioned, "CHANGES_MAX", 3)
    table = TopicTable()
    topics = RegisteredTopics(table, None, BrokerGroupTable())
    versions = []
    for name in "abcde":
        versions.append(topics.version)
        table.put(TopicConfig(name, 1, 1), 1)
    assert topics.since(versions[1]) is None
    assert told(topics.since(versions[2])) == [("c", 1), ("d", 1), ("e", 1)]


async def test_registration_sends_only_changed_topics(tmp_path, monkeypatch):
    """However many topics there are; and everything, when it does not know what there was."""
    monkeypatch.setattr(registration, "SPREAD_S", 120.0)  # however slow this machine is
    config = NameServerConfig("127.0.0.1", 0, http_enable=False)
    async with RealNameServer(config) as names:
        async with Group(tmp_path, namesrvAddr=names.address) as group:
            broker = await group.leading()
            registrar = broker.registrar
            for number in range(500):
                broker.state.topics.put(TopicConfig(f"already-{number}", 1, 1), 5)
            registrar.trigger()
            await until(lambda: names.table.topic_count >= 500)
            before = registrar.body_bytes_sent
            await group.create_topic(broker, "New", queues=3)
            assert names.table.queues("New") is not None  # it is known when that is answered
            broker.state.topics.delete("already-7", 6)
            registrar.trigger()
            await until(lambda: names.table.queues("already-7") is None)
            assert registrar.body_bytes_sent - before < 1_000
            assert (names.table.queues("New") or {})["group-a"].read_queue_count == 3

            present(names.table.group("group-a")).version = DataVersion(99)  # it has another
            names.table.delete_topic("already-8")
            await group.create_topic(broker, "Newer")
            await until(lambda: names.table.queues("already-8") is not None)
            assert names.table.queues("Newer") is not None


async def test_silent_name_server_delays_topic_creation_only_briefly(tmp_path, monkeypatch):
    monkeypatch.setattr(registration, "SPREAD_S", 0.05)
    names = NameServer()
    await names.server.start("127.0.0.1", 0)
    try:
        async with Group(tmp_path, namesrvAddr=f"127.0.0.1:{names.server.port}") as group:
            broker = await group.leading()
            await until(lambda: broker.registrar.registered != {})
            names.silent = True
            assert (await group.create_topic(broker, "T")).code == 0
    finally:
        await names.server.stop()


def registrar_of(names, topics=None, *, identity=None, timeout_ms=1_000, keys=()):
    follower = registration.Identity(broker_id=2, term=1, role="follower")
    return registration.Registrar(
        names,
        cluster="c",
        broker_name="g",
        address="127.0.0.1:1",
        ha_address=str,
        identity=identity or (lambda: follower),
        topics=RegisteredTopics(topics or TopicTable(), None, BrokerGroupTable()),
        on_master=lambda address, ha_address: None,
        needs_master=lambda: False,
        period_ms=30_000,
        timeout_ms=timeout_ms,
        signing_keys=keys,
    )


async def test_missing_answers_double_time_out_and_pause_within_limits(monkeypatch):
    """A name server that cannot be reached is dialled as often as before."""
    monkeypatch.setattr(registration, "RETRY_MS", 1)
    answers = iter([False] * 7 + [True, False])
    timeouts: list[Any] = []

    def connection(client, server):
        return object() if len(timeouts) > 2 else None

    async def invoke(client, server, command, timeout_ms):
        timeouts.append(timeout_ms)
        if next(answers, True):
            return RemotingCommand.response_to(command)
        raise SendTimeout("no answer")

    monkeypatch.setattr(RemotingClient, "connection", connection)
    monkeypatch.setattr(RemotingClient, "invoke", invoke)
    registrar = registrar_of(["namesrv:1"], timeout_ms=10)
    registrar.start()
    await until(lambda: registrar.registered)
    registrar.trigger()
    await until(lambda: len(timeouts) == 10)
    await registrar.stop()
    assert timeouts[:10] == [10, 10, 10, 20, 40, 80, 80, 80, 10, 20]


async def test_full_table_is_sent_once_to_a_name_server_that_is_busy(tmp_path, monkeypatch):
    """A change of the leader does not wait for the topics."""
    monkeypatch.setattr(registration, "RETRY_MS", 10)
    key = tmp_path / "key"
    key.write_text("a key of this cluster, long enough\n")
    key.chmod(0o600)
    config = NameServerConfig("127.0.0.1", 0, http_enable=False, registration_key_file=str(key))
    topics = TopicTable()
    for number in range(3_000):
        topics.put(TopicConfig(f"topic-{number * 7919:07x}", 4, 4), 5)
    identities = [
        registration.Identity(broker_id=2, term=1, role=NO_LEADER, group_id="0a" * 16),
        registration.Identity(broker_id=0, term=2, role="leader", group_id="0a" * 16, own_id=2),
    ]
    lists = instances_of(monkeypatch, WaitingList)
    async with RealNameServer(config) as names:
        registrar = registrar_of(
            [names.address], topics, identity=lambda: identities[0], timeout_ms=100,
            keys=load_registration_keys(str(key)),
        )  # fmt: skip
        table, (signed, _) = names.table, lists
        async with signed.turn("another group"):
            registrar.start()
            await until(lambda: registrar.body_bytes_sent > SMALL_BYTES)
            full_bytes = registrar.body_bytes_sent
            await until(lambda: [one.broker_id for one in table.brokers("g")] == [2])
            del identities[0]
            registrar.trigger()
            await until(lambda: [one.broker_id for one in table.brokers("g")] == [0])
            assert (table.topic_count, registrar.registered) == (0, {})
            await until(lambda: registrar.body_bytes_sent > 2 * full_bytes)
        await until(lambda: registrar.registered and table.topic_count == 3_000)
        assert 2 * full_bytes < registrar.body_bytes_sent < 3 * full_bytes  # once for each term
        await registrar.stop()


@pytest.mark.parametrize("has_name_server", [True, False])
async def test_member_that_no_name_server_lists_reports_that_once(
    monkeypatch, caplog, has_name_server
):
    monkeypatch.setattr(registration, "RETRY_MS", 1)
    monkeypatch.setattr(registration, "UNLISTED_S", 0.01)
    with bound() as nobody:
        server = f"127.0.0.1:{nobody.getsockname()[1]}"
        registrar = registrar_of([server] if has_name_server else [])
        registrar.start()
        reason = f"{server}: " if has_name_server else "namesrvAddr is empty"
        await until(lambda: registrar.unlisted.startswith(reason) and "in_no_route" in caplog.text)
        await asyncio.sleep(0.05)  # of further rounds, with no further line
        await registrar.stop()
    assert caplog.text.count("in_no_route no client finds this broker") == 1
    assert " register_failed" not in caplog.text


async def test_broker_rejected_by_every_name_server_is_not_healthy(tmp_path, monkeypatch):
    """One that is down says nothing either way; nor do a few refusals."""
    names = NameServer()
    names.refusing = True
    await names.server.start("127.0.0.1", 0)
    monkeypatch.setattr(registration, "RETRY_MS", 1)
    down = bound()
    servers = f"127.0.0.1:{names.server.port};127.0.0.1:{down.getsockname()[1]}"
    try:
        async with Group(tmp_path, namesrvAddr=servers) as group:
            broker = await group.leading()
            registrar = broker.registrar

            async def why():
                answer = await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
                return why_not(loads_object(answer.body)["table"])

            reported = f"127.0.0.1:{names.server.port} answers 1: a wrong secret"
            monkeypatch.setattr(registration, "REFUSALS_REPORTED", 10**9)
            before = names.heard
            await until(lambda: names.heard > before + 1)
            assert registrar.refused == ""
            monkeypatch.setattr(registration, "REFUSALS_REPORTED", 5)
            await until(lambda: registrar.refused == reported)
            assert await why() == f"in no route: {reported}"
            names.refusing = False
            await until(lambda: registrar.registered)
            assert await why() == ""
    finally:
        down.close()
        await names.server.stop()


def test_tools_find_a_broker_by_its_name_topics():
    """Java's createTopic takes a cluster's or a broker's name, and asks for its route."""
    config = build_config(parse_properties("brokerName=broker-a\nbrokerClusterName=c\n", "test"))
    result = {topic.name: topic for topic in topics_of_names(config)}
    assert {name: (t.queue_count, t.perm) for name, t in result.items()} == {
        "c": (16, 7),
        "broker-a": (1, 7),
    }
    table = TopicTable()
    table.internal.update(result)
    assert {topic.topic for topic in RegisteredTopics(table, None, BrokerGroupTable()).all()} == {
        "c",
        "broker-a",
    }
