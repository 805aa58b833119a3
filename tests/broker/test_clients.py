"""Clients are told (40) when their consumer group changes, and can ask for its members right
then."""

import orjson
import pytest

from raftmq.broker.clients import (
    EXPRESSIONS_CHARS_MAX,
    PROMPT_MEMBERS_MAX,
    TAGS_PER_HEARTBEAT_MAX,
    WARN_PAUSE_MS,
    ClientTable,
)
from raftmq.broker.errors import Refused
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.consistency import differences, wishes
from raftmq.remoting.errors import BodyError
from raftmq.remoting.memory_limits import Allowance
from tests.broker.cluster import Group
from tests.broker.doubles import FakeConnection
from tests.waiting import until

CHANGED = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


def table(quiet=(), expiry_ms=100, clients_max=10, kept=None, **more):
    return ClientTable(
        clients_max=clients_max,
        kept=Allowance(1 << 20) if kept is None else kept,
        expiry_ms=expiry_ms,
        notify_enabled=lambda group: group not in quiet,
        on_consumer_group=lambda _: None,
        **more,
    )


def beat(clients, connection, client, text="*", version=1, group="g", now_ms=0):
    subscriptions = [{"topic": "T", "subString": text, "subVersion": version}]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    fields = {"clientID": client, "consumerDataSet": [consumer]}
    return clients.heartbeat(connection, fields, 0, 0, now_ms)


def told(*connections):
    """Return how often each was told since the last call."""
    counts = []
    for connection in connections:
        assert all(command.code == CHANGED for command in connection.oneways)
        counts.append(len(connection.oneways))
        connection.oneways = []
    return counts


def test_heartbeat_with_too_much_text_is_rejected():
    clients, connection = table(), FakeConnection()
    for text in ("||" * (TAGS_PER_HEARTBEAT_MAX + 1), "a" * (EXPRESSIONS_CHARS_MAX + 1)):
        with pytest.raises(BodyError, match="more than"):
            beat(clients, connection, "a", text)
    assert not clients.consumers and not clients.count


def test_heartbeat_of_many_groups_is_processed_in_steps():
    clients, connection = table(clients_max=1_000), FakeConnection()
    groups = [{"groupName": f"g{number}"} for number in range(500)]
    fields = {"clientID": "a", "consumerDataSet": groups}
    steps = clients.heartbeat_in_steps(connection, fields, 0, 0, 0)
    assert len(list(steps)) == 30
    assert clients.count == len(clients.consumers) == 500


def test_members_are_notified_only_of_changes():
    clients = table()
    first, second = FakeConnection(), FakeConnection()
    assert beat(clients, first, "a")
    assert told(first) == [1], "the first heartbeat of a new group, too"
    assert not beat(clients, first, "a")
    assert told(first) == [0]
    beat(clients, second, "b")
    assert told(first, second) == [1, 1]
    beat(clients, first, "a", version=2)  # the same text: Java's rebalance
    assert told(first, second) == [0, 0]
    beat(clients, first, "a", "A || B", version=3)
    assert told(first, second) == [1, 1]
    clients.unregister(second, "b", None, "g")
    assert told(first, second) == [1, 0]
    beat(clients, second, "b", "A || B", version=3)
    assert told(first, second) == [1, 1]
    clients.closed(second)
    assert told(first, second) == [1, 0]
    beat(clients, second, "b", "A || B", version=3, now_ms=200)
    told(first, second)
    clients.expire(250)
    assert told(first, second) == [0, 1], "the silent one left"
    clients.closed(second)
    assert clients.consumers == {}


def test_large_group_is_notified_of_many_changes_at_once():
    count = 10 * PROMPT_MEMBERS_MAX
    clients = table(clients_max=count)
    connections = [FakeConnection() for _ in range(count)]
    rounds = 0
    for number, connection in enumerate(connections):
        beat(clients, connection, f"c{number}")
        if number % 100 == 99:
            clients.notify_pending()
            rounds += 1
    clients.notify_pending()
    prompt = PROMPT_MEMBERS_MAX
    first, *_, last = told(*connections)
    assert prompt < first <= prompt + 2 * (rounds + 1)
    assert last >= 1, "the last to join is told, too"
    clients.notify_pending()
    assert told(*connections) == [0] * count
    clients.closed(connections[0])
    assert told(*connections[1:]) == [1] * (count - 1), "a lone change is told at once"
    clients.closed(connections[1])
    beat(clients, connections[2], "c2", "A || B", version=2)
    assert told(*connections[2:]) == [0] * (count - 2)
    clients.notify_pending()
    assert told(*connections[2:]) == [1] * (count - 2)
    clients.notify_pending()
    assert told(*connections[2:]) == [0] * (count - 2)
    clients.closed(connections[2])
    for connection in connections[3:]:  # the group is gone before it could be told
        clients.closed(connection)
    clients.notify_pending()
    assert clients.consumers == {}


def test_client_on_another_connection_counts_as_a_change():
    clients = table()
    first, second, again = FakeConnection(), FakeConnection(), FakeConnection()
    beat(clients, first, "a")
    beat(clients, second, "b")
    told(first, second)
    beat(clients, again, "a")
    assert told(first, second, again) == [0, 1, 1]
    clients.closed(first)  # it speaks over the other one
    assert told(second, again) == [0, 0]
    assert clients.client_ids("g") == ["a", "b"]


def test_group_without_notifications_gets_none():
    clients = table(quiet=("g",))
    first, second = FakeConnection(), FakeConnection()
    beat(clients, first, "a")
    beat(clients, second, "b", "A")
    clients.unregister(second, "b", None, "g")
    clients.notify_all()
    assert told(first, second) == [0, 0]
    beat(clients, first, "a", group="h")
    assert told(first) == [1]


@pytest.mark.parametrize("notified", [True, False])
@pytest.mark.parametrize("switch", ["group", "broker"])
async def test_notified_client_reads_the_new_member_list(tmp_path, notified, switch):
    """A client rebalances as soon as it hears of a change: the list has to be right by then."""
    key = "notifyConsumerIdsChangedEnable"
    async with Group(tmp_path, **{key: notified or switch == "group"}) as group:
        broker = await group.leading()
        config = {"groupName": "cg", key: notified or switch == "broker"}
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await group.ask(broker, code, None, orjson.dumps(config))).code == 0
        lists = []

        async def heard(connection, request):
            ask = RemotingCommand.request(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "cg"}
            )
            answer = await connection.invoke(ask, 60_000)
            lists.append(orjson.loads(answer.body)["consumerIdList"])

        client = RemotingClient({CHANGED: heard})
        try:
            consumer = {"groupName": "cg", "subscriptionDataSet": []}
            body = orjson.dumps({"clientID": "c1", "consumerDataSet": [consumer]})
            command = RemotingCommand.request(RequestCode.HEART_BEAT, None, body)
            assert (await client.invoke(broker.address, command, 60_000)).code == 0
            assert broker.clients.client_ids("cg") == ["c1"]
            if notified:
                await until(lambda: lists)
                assert lists == [["c1"]]
            else:
                # What was sent before the answer to a later request would be here by now.
                assert (await client.invoke(broker.address, command, 60_000)).code == 0
                assert lists == []
        finally:
            await client.close()


def differing(clients):
    return {
        client: [tuple(one) for one in result]
        for client, result in clients.consumers["g"].differences().items()
    }


def test_consumers_with_differing_subscriptions_are_reported(caplog):
    kept = Allowance(1 << 20)
    clients = table(kept=kept)
    connections = [FakeConnection() for _ in range(3)]

    def beats(*texts, now_ms=0):
        for connection, client, text in zip(connections, "abc", texts, strict=False):
            beat(clients, connection, client, text, now_ms=now_ms)

    beats("A || B", "B||A")
    assert differing(clients) == {}, "the same tags, however they are written"
    assert not caplog.records
    beats("A || B", "B||A", "A")
    assert differing(clients) == {"c": [("T", "A", "A || B")]}
    (record,) = caplog.records
    for line in ("subscriptions_inconsistent group=g", "client=c topic=T expression=A"):
        assert line in record.getMessage()
    beats("A || B", "B||A", "A", now_ms=WARN_PAUSE_MS - 1)
    assert len(caplog.records) == 1
    beats("A || B", "B||A", "A", now_ms=WARN_PAUSE_MS)
    assert len(caplog.records) == 2
    beats("A", "*", "A")
    assert differing(clients) == {"b": [("T", "*", "A")]}
    clients.closed(connections[1])
    assert differing(clients) == {}
    clients.closed(connections[0])
    clients.closed(connections[2])
    assert clients.consumers == {} and kept.used_bytes == 0


@pytest.mark.parametrize("changed", ["joins", "changes"])
def test_consumer_with_differing_subscriptions_is_rejected_if_configured(changed):
    wished = [False]
    clients, one, two = table(must_agree=lambda: wished[0]), FakeConnection(), FakeConnection()
    beat(clients, one, "a", "A")
    if changed == "changes":
        beat(clients, two, "b", "A")
    wished[0] = True
    beat(clients, one, "a", "A")
    with pytest.raises(Refused, match=r"^\[INCONSISTENT_SUBSCRIPTIONS\]"):
        beat(clients, two, "b", "B", version=2)
    assert differing(clients) == {}
    assert clients.subscription("g", "T").expression == "A"
    clients.closed(two)
    beat(clients, one, "a", "B", version=2)  # alone it may change its mind
    assert clients.subscription("g", "T").expression == "B"
    wished[0] = False
    beat(clients, two, "b", "A", version=3)
    assert set(differing(clients)) == {"b"}


TYPED = frozenset({("T", "*")})


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ({}, {}),
        ({"a": TYPED, "b": TYPED, "c": frozenset()}, {}),
        ({"a": wishes([("T", "TAG", " *")]), "b": wishes([("T", "", "")])}, {}),
        ({"a": wishes([("T", "TAG", "x"), ("%RETRY%g", "TAG", "*")]), "b": TYPED},
         {"b": [("T", "*", "x")]}),
        ({"a": wishes([("T", "SQL92", "x > 1")]), "b": TYPED, "c": TYPED},
         {"a": [("T", "SQL92 x > 1", "*")]}),
        ({"a": wishes([("T", "TAG", "*"), ("U", "TAG", "*")]), "b": TYPED, "c": TYPED},
         {"a": [("U", "*", None)]}),
        ({"a": TYPED, "b": TYPED, "c": wishes([("U", "TAG", "*")])},
         {"c": [("T", None, "*"), ("U", "*", None)]}),
    ],
)  # fmt: skip
def test_subscription_differences(members, found):
    reported = {
        client: [tuple(one) for one in each] for client, each in differences(members).items()
    }
    assert reported == found
