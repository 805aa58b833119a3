"""Pages, versions and outcomes of several groups as one; where a message is."""

import random
from typing import Any

import pytest

from raftmq.namesrv.http.changes import conditions
from raftmq.namesrv.http.directory import FORGET_MS, Directory, Known, find
from raftmq.namesrv.http.merging import (
    FAILED,
    OK,
    UNKNOWN,
    GroupResult,
    joined_version,
    outcome_of,
    page_of,
    split_version,
)
from raftmq.namesrv.http.tracing import merged_consumers, on_replica, progress_of, store_host
from raftmq.namesrv.routes import Registration, RouteTable
from raftmq.ops.versions import Condition
from tests.callcount import calls_of


def pages(groups: dict[str, list[str]], limit: int, after: str) -> dict[str, Any]:
    result = {}
    for group, names in groups.items():
        behind = sorted(name for name in names if name > after)
        more = "x" if len(behind) > limit else None
        result[group] = {"items": [{"name": name} for name in behind[:limit]], "next": more}
    return result


@pytest.mark.parametrize("seed", range(30))
def test_merged_pages_have_every_name_once_in_order(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"t{number:03}" for number in range(60)]
    groups = {g: chance.sample(names, chance.randint(0, 60)) for g in ("a", "b", "c")}
    limit, after, seen = chance.randint(1, 20), "", []
    while True:
        rows, behind = page_of(pages(groups, limit, after), lambda item: item["name"], limit)
        assert len(rows) <= limit
        for name, each in rows:
            assert {group for group, _ in each} == {g for g in groups if name in groups[g]}
        seen += [name for name, _ in rows]
        if behind is None:
            break
        after = behind
    assert seen == sorted({name for each in groups.values() for name in each})


def test_merged_outcome_status_of_several_groups() -> None:
    def of(*each: tuple[str, int]) -> int:
        return outcome_of([GroupResult(str(n), what, s) for n, (what, s) in enumerate(each)])

    assert of((OK, 200), (OK, 201)) == 200
    assert of((OK, 200), (FAILED, 503)) == 207
    assert of((OK, 200), (UNKNOWN, 0)) == 207
    assert of((UNKNOWN, 0), (FAILED, 503)) == 504
    assert of((FAILED, 412), (FAILED, 412)) == 412
    assert of((FAILED, 412), (FAILED, 503)) == 502
    assert of((FAILED, 0)) == 503


def test_merged_versions_and_conditions() -> None:
    version = joined_version({"b": "22", "a": "11"})
    assert version == "a=11;b=22"
    assert split_version(version) == {"a": "11", "b": "22"}
    assert split_version("11") == {} == split_version("a=;b=1")
    assert conditions(Condition((version,)), ["a", "b", "c"]) == {
        "a": {"If-Match": '"11"'}, "b": {"If-Match": '"22"'}, "c": {"If-None-Match": "*"}
    }  # fmt: skip
    assert conditions(Condition(("*",)), ["a"]) == {"a": {"If-Match": "*"}}
    assert conditions(Condition(absent=True), ["a"]) == {"a": {"If-None-Match": "*"}}
    assert conditions(Condition(("11",)), ["a"]) == {"a": {"If-Match": '"11"'}}
    assert conditions(Condition(), ["a"]) == {"a": {}}


def test_unregistered_broker_is_remembered_for_a_while() -> None:
    table = RouteTable()
    directory = Directory(table, gone_max=1)
    for number, address in enumerate(("n0:1", "n1:1", "n2:1")):
        table.register(Registration("c", "g", address, number, http_address=f"{address}5"), 0)
    assert [known.address for known in directory.poll(0)] == ["n0:1", "n1:1", "n2:1"]
    table.unregister("n1:1", "g", 0)
    (_, gone, _) = directory.poll(10)
    assert (gone.broker_id, gone.http_address, gone.gone_since_ms) == (1, "n1:15", 10)
    table.register(Registration("c", "g", "n9:1", 1), 0)  # another takes its id
    result = find(directory.poll(20), "g", "1")
    assert result is not None
    assert result.address == "n9:1"
    assert not directory.forget("g", "n9:1")  # that one is there
    table.unregister("n0:1", "g", 0)
    assert [k.address for k in directory.poll(30)] == ["n0:1", "n2:1", "n9:1"]  # one, not two
    assert len(directory.poll(30 + FORGET_MS)) == 3
    assert len(directory.poll(31 + FORGET_MS)) == 2
    table.unregister("n2:1", "g", 0)
    assert directory.poll(0)[0].address == "n2:1"
    assert directory.forget("g", "n2:1")
    assert find(directory.poll(0), "g", "n2:1") is None


def test_brokers_are_read_again_only_after_a_change() -> None:
    """Each request of a page polls, so with many groups a page would read each broker often."""

    def register(number: int, broker_id: int = 0, **more: Any) -> None:
        address = f"n{number}-{broker_id}:1"
        fields = {"http_address": f"{address}5"} | more
        table.register(Registration("c", f"g{number}", address, broker_id, **fields), 0)

    def told(number: int) -> Known:
        return directory.groups(1)[f"g{number}"][0]

    table = RouteTable()
    directory = Directory(table)
    for number in range(100):
        for broker_id in range(3):
            register(number, broker_id)
    assert len(directory.poll(0)) == 300
    known = told(7)
    assert calls_of(lambda: told(7)) < 10
    register(7)  # nothing new
    assert told(7) is known
    register(7, http_address="n7:99")
    assert told(7).http_address == "n7:99"
    assert list(directory.at("n7:99")) == [told(7)] and not directory.at("n7-0:15")
    register(7, http_address="n7:99", peer="10.0.0.7")
    assert told(7).peer == "10.0.0.7"
    register(7, http_address="n7:99", peer="10.0.0.7", signed=True)
    assert told(7).signed
    register(200)
    assert told(200).address == "n200-0:1"
    table.unregister("n200-0:1", "g200", 0)
    assert told(200).gone_since_ms == 1


def test_store_host_is_read_from_a_message_id() -> None:
    assert store_host("7F00000100002A9F0000000000000010") == "127.0.0.1:10911"
    assert store_host("7F00000100002A9F00000000000000") == ""
    assert store_host("z" * 32) == ""


def test_message_location_is_found_by_its_id() -> None:
    def state(reached: int, durable: int = 0, begins: int = 0) -> str:
        log = {"minOffset": begins, "maxOffset": reached, "durableOffset": durable}
        broker = {"name": "n", "address": "n:1", "node": {"role": "follower", "commitLog": log}}
        return str(on_replica(broker, 100)["state"])

    assert state(99) == "missing"
    assert state(100) == "written"
    assert state(200, 100) == "durable"
    assert state(200, 200, begins=100) == "deleted"
    silent = {"name": "n", "address": "n:1", "node": None, "error": "down"}
    assert on_replica(silent, 100)["state"] == "unknown"


def test_message_progress_of_a_consumer_group() -> None:
    message = {"topic": "T", "queueId": 3, "queueOffset": 10}

    def of(offset: Any, topic: str = "T") -> Any:
        queue = {"topic": topic, "queueId": 3, "consumerOffset": offset}
        return progress_of("cg", {"queues": [queue], "clients": []}, message)

    assert of(11)["state"] == "consumed"
    assert (of(10)["state"], of(10)["messagesBefore"]) == ("waiting", 0)
    assert of(4)["messagesBefore"] == 6
    assert of(-1)["state"] == of(None)["state"] == "never"
    assert of(11, "U") is None


@pytest.mark.parametrize(
    ("expression", "kind", "tag", "state"),
    [
        ("*", "TAG", "a", "consumed"),
        ("a || b", "TAG", "b", "consumed"),
        ("a || b", "TAG", "c", "passed"),
        ("a", "TAG", None, "passed"),
        ("price > 3", "SQL92", "c", "consumed"),
    ],
)
def test_message_filtered_by_a_subscription_is_reported_as_filtered(
    expression: str, kind: str, tag: str | None, state: str
) -> None:
    message = {"topic": "T", "queueId": 3, "queueOffset": 10, "tags": tag}
    view = {
        "queues": [{"topic": "T", "queueId": 3, "consumerOffset": 11}],
        "subscriptions": {"T": expression},
        "expressionTypes": {"T": kind},
    }
    result = progress_of("cg", view, message)
    assert result is not None
    assert (result["state"], result["expression"]) == (state, expression)


def test_message_progress_of_a_group_with_two_broker_groups() -> None:
    client = {"clientId": "c1"}
    result = merged_consumers("cg", {
        "a": {"clients": [client], "queues": [{"topic": "T", "queueId": 0, "lag": 5}]},
        "b": {"clients": [client], "queues": [{"topic": "T", "queueId": 0, "lag": 2}]},
    })  # fmt: skip
    assert (result["lag"], result["lagByTopic"], result["clients"]) == (7, {"T": 7}, [client])
    assert [queue["group"] for queue in result["queues"]] == ["a", "b"]
