"""Replicated tables and their snapshots; tables of clients, held pulls and gathered commits."""

import asyncio
import random
import struct
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
import pytest
from google_crc32c import value as crc32c

from raftmq.broker.admin.stats import Rates
from raftmq.broker.clients import ClientTable
from raftmq.broker.consume.filters import Filter, parse_tags, subscription_from_json
from raftmq.broker.consume.long_polling import AT_ONCE_MAX, Held, HoldTable
from raftmq.broker.consume.offset_commits import CommitService
from raftmq.broker.errors import Refused, StateError
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.acl import delete_account, put_account, seed
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.offsets import OffsetTable
from raftmq.broker.tables.pops import pop_command
from raftmq.broker.tables.snapshot import twin_of
from raftmq.broker.tables.state import (
    BrokerState,
    announce,
    commit_offsets,
    delay_progress,
    delete_group,
    delete_topic,
    put_group,
    put_topic,
    several,
)
from raftmq.broker.tables.topics import (
    TopicConfig,
    TopicTable,
    topic_name_problem,
    topic_problem,
)
from raftmq.broker.tables.writers import Watermark, open_writer, wrote
from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX
from raftmq.remoting.acl import Account, Accounts
from raftmq.remoting.errors import BodyError
from raftmq.remoting.memory_limits import Allowance
from raftmq.store.disk import OsDisk
from raftmq.store.properties import java_string_hash
from tests.broker.doubles import FakeConnection, config_files
from tests.present import present
from tests.simulator.disk import SimCrash, SimDisk


def checksum_of(table):
    """Return the `raftChecksum` of a file of tables."""
    return crc32c(orjson.dumps(table, option=orjson.OPT_SORT_KEYS))


COMMANDS = [
    put_topic(TopicConfig("T", 4, 4)),
    put_topic(TopicConfig("T", 8, 8), if_absent=True),
    put_group(SubscriptionGroup("g", retry_times_max=3, extra={"groupSysFlag": 0})),
    commit_offsets([("T", "g", 0, 5), ("T", "g", 1, 6), ("U", "h", 0, 1)]),
    put_topic(TopicConfig("U", 1, 1, 4)),
    announce("n1", "h:1"),
    commit_offsets([("T", "g", 0, 4)]),
    delete_topic("U"),
    delete_group("h", offsets=True),
    several([delay_progress(1, 7), delay_progress(2, 1)]),
    b'{"op":"sent_once","window_ms":9,"max":9,"host":"00","sends":[["T","K",0,3,0]]}',
    several([seed(Accounts()), put_account(Account("somebody", "a secret"))]),
    delete_account("somebody"),
    open_writer("T", "w", 1),
    several([wrote(("T", "w"), 0, Watermark(1, 0)), wrote(("T", "w"), 3, Watermark(1, 0))]),
    wrote(("T", "w"), 0, Watermark(1, 1)),
    pop_command([
        ("take", "T", "g", 1, 6, 9, 6, 50, 90, 3, "", "", False), ("offset", "T", "g", 1, 9, None),
    ]),
    pop_command([("done", "T", "g", 1, 6, 50, 5)]),
]  # fmt: skip


def applied(commands, state=None, start=1):
    state = state or BrokerState()
    for index, payload in enumerate(commands, start):
        state.apply(index, 1000 + index, payload)
    return state


def picture(state):
    return [table.to_json() for table in state.tables]


def test_table_commands_have_their_effect():
    state = applied(COMMANDS)
    assert state.topics.get("T") == TopicConfig("T", 4, 4)
    assert state.topics.get("U") is None
    assert state.groups.get("g").retry_times_max == 3
    assert state.groups.get("g").to_json()["groupSysFlag"] == 0
    assert state.offsets.get("T", "g", 0) == 4
    assert state.offsets.get("U", "h", 0) is None
    assert state.addresses == {"n1": "h:1"}
    assert state.applied_index == len(COMMANDS)
    assert state.topics.data_version() == {"counter": 3, "stateVersion": 0, "timestamp": 1008}


def test_topic_change_is_reported_only_if_the_topic_changed():
    state = BrokerState()
    assert state.apply(1, 1, COMMANDS[0]).topics == ("T",)
    assert state.apply(2, 1, COMMANDS[0]).topics == ()
    assert state.apply(3, 1, COMMANDS[1]).topics == ()


@pytest.mark.parametrize("end", range(len(COMMANDS)))
def test_truncated_commands_can_be_reapplied_or_replaced(end):
    def said(state):
        times = {"dataVersion": None, "createdMs": None, "deletedMs": None}
        return [{**table, **times} for table in picture(state)]

    state = applied(COMMANDS)
    state.take_back(end)
    assert state.applied_index == end
    applied(COMMANDS[end:], state, end + 1)
    assert said(state) == said(applied(COMMANDS))
    assert state.applied_index == len(COMMANDS)
    state.take_back(end)
    assert state.apply(end + 1, 2_000, put_topic(TopicConfig("V", 1, 1))).topics == ("V",)
    assert state.topics.get("T") == TopicConfig("T", 4, 4)  # of a command that was taken back


def test_replay_over_snapshots_of_any_age_gives_the_same_tables(tmp_path):
    complete = picture(applied(COMMANDS))
    for ages in [
        (17, 14, 12, 0, 3, 8, 10, 11, 12),
        (0, 15, 2, 9, 0, 4, 17, 11, 0),
        (18, 0, 0, 4, 9, 11, 0, 8, 13),
        (5, 16, 5, 5, 5, 5, 5, 5, 5),
    ]:
        disk = OsDisk(str(tmp_path / "-".join(map(str, ages))))
        snapshots = [snapshot.capture(applied(COMMANDS[:age])) for age in ages]
        mixed = tuple(snapshots[n].tables[n] for n in range(9))
        assert snapshot.write(disk, snapshot.Snapshot(mixed)) == min(ages)
        state = BrokerState()
        assert snapshot.load(disk, state) == min(ages)
        applied(COMMANDS[min(ages) :], state, min(ages) + 1)
        assert picture(state) == complete


def test_snapshot_is_a_copy_and_the_previous_one_is_a_fallback(tmp_path):
    disk = OsDisk(str(tmp_path))
    state = applied(COMMANDS[:4])
    copies = snapshot.capture(state)
    before = picture(state)
    applied(COMMANDS[4:], state, 5)
    snapshot.write(disk, copies)
    loaded = BrokerState()
    snapshot.load(disk, loaded)
    assert picture(loaded) == before
    snapshot.write(disk, snapshot.capture(state))
    offsets = tmp_path / "config" / "consumerOffset.json"
    assert orjson.loads(offsets.read_bytes())["raftAppliedIndex"] == len(COMMANDS)
    for damage in (b"{", b'{"offsetTable":{"T@g":{"0":"x"}},"raftAppliedIndex":3}', b"[]"):
        offsets.write_bytes(damage)
        loaded = BrokerState()
        assert snapshot.load(disk, loaded) == 4
        assert loaded.topics.applied_index == len(COMMANDS)
        assert loaded.offsets.get("T", "g", 0) == 5


@pytest.mark.parametrize("name", ["pops.json", "topics.json", "consumerOffset.json"])
@pytest.mark.parametrize("started_anew", [False, True])
def test_damaged_snapshot_file_and_a_killed_write_lose_no_table(name, started_anew):
    """The damaged file takes the copy's place in it, if nobody knows of the damage."""
    for operations in range(1, 80):
        disk = twice_written()
        assert disk.spoil(f"config/{name}", 9, lambda rest: bytes(len(rest)))
        if started_anew:
            reloaded(disk)
        disk.crash_after(operations)
        with suppress(SimCrash):
            snapshot.write(disk, snapshot.capture(applied(COMMANDS)))
        disk.kill_process()
        for _ in range(2):  # a start that is killed, and the next
            assert reloaded(disk).applied_index >= AGES[0]
            disk.crash_after(2)
            with suppress(SimCrash):
                snapshot.write(disk, snapshot.capture(applied(COMMANDS)))
            disk.kill_process()


@pytest.mark.parametrize("name", ["pops.json", "topics.json", "consumerOffset.json"])
@pytest.mark.parametrize("wrong", [("",), ("", ".bak"), (".bak",)])
def test_last_intact_table_version_survives_a_killed_write(name, wrong):
    """Of the file and its copy, those of `wrong` are damaged, and there is no other."""
    path = f"config/{name}"
    for operations in range(1, 80):
        disk = twice_written()
        disk.rename(path, f"{path}.tmp")
        disk.rename(f"{path}.bak", path + wrong[0])
        if len(wrong) == 2:
            disk.open(path + wrong[1]).sync()
        disk.sync_directory("config")
        assert disk.spoil(path + wrong[0], 9, lambda rest: bytes(len(rest)))
        disk.crash_after(operations)
        with suppress(SimCrash):
            reloaded(disk)
            snapshot.write(disk, snapshot.capture(applied(COMMANDS)))
        disk.kill_process()
        assert reloaded(disk).applied_index >= AGES[1]


def test_damaged_table_file_does_not_replace_its_copy():
    disk = twice_written()
    for _ in range(2):
        assert disk.spoil("config/topics.json", 9, lambda rest: bytes(len(rest)))
        assert reloaded(disk).topics.applied_index >= AGES[0]
        snapshot.write(disk, snapshot.capture(applied(COMMANDS)))


def test_classic_mode_reads_a_temporary_file_beside_a_damaged_copy():
    disk = SimDisk(random.Random(1))
    for age in AGES:
        files = snapshot.capture(applied(COMMANDS[:age]))
        snapshot.write_changed(disk, files, {}, snapshot.FILES)
    topics = "config/topics.json"
    disk.rename(topics, f"{topics}.tmp")
    disk.sync_directory("config")
    assert disk.spoil(f"{topics}.bak", 9, lambda rest: bytes(len(rest)))
    state = BrokerState()
    config_files(disk, state).load()
    assert state.topics.get("T") == applied(COMMANDS[: AGES[1]]).topics.get("T")
    assert disk.exists(topics)


ENTRY = {"topicName": "G", "groupName": "G", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
NO_ENTRIES: tuple[object, ...] = (None, [], "x", {"0": "x"}, {"x": 0})
# By file: where its entries are, one that is taken, and those that are not.
FOREIGN: dict[str, tuple[str, tuple[str, object], tuple[object, ...]]] = {
    "topics.json": (
        "topicConfigTable",
        ("G", ENTRY),
        (*NO_ENTRIES, ENTRY | {"topicName": "a b"}, ENTRY | {"perm": 99}),
    ),
    "subscriptionGroup.json": (
        "subscriptionGroupTable",
        ("G", ENTRY),
        (*NO_ENTRIES, ENTRY | {"groupName": "a b"}, ENTRY | {"brokerId": "x"}),
    ),
    "consumerOffset.json": ("offsetTable", ("T@G", {"0": 7}), (*NO_ENTRIES, 7)),
    "delayOffset.json": ("offsetTable", ("3", 7), (*NO_ENTRIES, 7)),
}


def foreign(name: str, *, good: bool) -> tuple[bytes, int]:
    """A file of Apache's with bad entries, and how many they are; `good`: and with a good one."""
    key, entry, bad = FOREIGN[name]
    table = dict([entry] * good) | {f"bad{number}": one for number, one in enumerate(bad)}
    data = {"dataVersion": {"counter": 1, "timestamp": 2}, key: table}
    return orjson.dumps(data), len(bad)


def taken(state, name):
    return len(
        {
            "topics.json": state.topics.entries,
            "subscriptionGroup.json": state.groups.entries,
            "consumerOffset.json": state.offsets.offsets,
            "delayOffset.json": state.delays.offsets,
        }[name]
    )


@pytest.mark.parametrize("name", FOREIGN)
def test_invalid_entry_of_a_foreign_table_is_skipped_alone(tmp_path, caplog, name):
    config = tmp_path / "config"
    config.mkdir()
    given, count = foreign(name, good=True)
    (config / name).write_bytes(given)
    disk, state = OsDisk(str(tmp_path)), BrokerState()
    files = config_files(disk, state)
    files.load()
    assert taken(state, name) == 1
    (reported,) = (r.message for r in caplog.records if r.message.startswith("entries_refused"))
    assert f"path=config/{name} kept=config/{name}.refused count={count}: 'bad0': " in reported
    files.write_now()
    assert (config / f"{name}.refused").read_bytes() == given
    again = BrokerState()
    config_files(disk, again).load()
    assert taken(again, name) == 1 and not again.refused


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_table_without_a_valid_entry_is_rejected(tmp_path, name):
    (tmp_path / "config").mkdir()
    given, _ = foreign(name, good=False)
    (tmp_path / "config" / name).write_bytes(given)
    files = config_files(OsDisk(str(tmp_path)), BrokerState())
    with pytest.raises(StateError, match=f"{name} under config/ cannot be read"):
        files.load()


AGES = (12, 15)


def twice_written() -> SimDisk:
    disk = SimDisk(random.Random(1))
    for age in AGES:
        snapshot.write(disk, snapshot.capture(applied(COMMANDS[:age])))
    return disk


def reloaded(disk) -> BrokerState:
    """Return the tables as a start finds them."""
    state = BrokerState()
    snapshot.load(disk, state)
    snapshot.put_right(disk, state)
    return state


@pytest.mark.parametrize("topics", [0, 1, 499, 500, 1_001])
def test_snapshot_written_in_pieces_is_complete(tmp_path, topics):
    disk, state = OsDisk(str(tmp_path)), BrokerState()
    for index in range(topics):
        name = f"t-{index * 7919 % 1009:04d}"
        state.apply(index + 1, 5, put_topic(TopicConfig(name, 1, 1)))
    state.apply(topics + 1, 5, put_group(SubscriptionGroup("g")))
    snapshot.write(disk, snapshot.capture(state))
    config = tmp_path / "config"
    reported = orjson.loads((config / "topics.json").read_bytes())
    assert reported.pop("raftChecksum") == checksum_of(reported)
    alongside = {"raftAppliedIndex": topics + 1, "raftFiles": list(snapshot.FILES)}
    assert reported == state.topics.to_json() | alongside
    reported = orjson.loads((config / "subscriptionGroup.json").read_bytes())
    assert reported.pop("raftChecksum") == checksum_of(reported)
    assert reported == state.groups.to_json() | alongside
    loaded = BrokerState()
    assert snapshot.load(disk, loaded) == topics + 1
    assert picture(loaded) == picture(state) and not loaded.damaged


def test_unchanged_table_is_encoded_once(tmp_path, monkeypatch):
    disk, state, requested = OsDisk(str(tmp_path)), BrokerState(), []
    encoded: dict[Any, Any] = {}
    for index in range(600):
        state.apply(index + 1, 5, put_topic(TopicConfig(f"t{index}", 1, 1)))
    bean = TopicConfig.to_json

    def counted(topic):
        requested.append(topic.name)
        return bean(topic)

    monkeypatch.setattr(TopicConfig, "to_json", counted)
    for index, changes in [(601, True), (602, False), (603, True)]:
        if changes:
            state.apply(index, 5, put_topic(TopicConfig("another", index, 1)))
        state.advance(index)
        requested.clear()
        snapshot.write(disk, snapshot.capture(state), encoded)
        assert len(requested) == (601 if changes else 0)
        loaded = BrokerState()
        assert snapshot.load(disk, loaded) == index
        assert loaded.topics.entries == state.topics.entries and not loaded.damaged


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'{"op":"unheard_of"}',
        b"{}",
        b'{"op":"put_topic","topic":{"topicName":"T"},"if_absent":false}',
        b'{"op":"put_topic","topic":{"topicName":"a b","readQueueNums":1,"writeQueueNums":1},'
        b'"if_absent":false}',
        b'{"op":"commit_offsets","commits":[["T","g",0]]}',
    ],
)
def test_malformed_command_stops_the_replica(payload):
    state = BrokerState()
    with pytest.raises(StateError):
        state.apply(1, 1, payload)
    assert state.applied_index == 0


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("T", True),
        ("%RETRY%" + "g" * 248, True),
        ("%RETRY%" + "g" * 249, False),
        ("t" * 127, True),
        ("t" * 128, False),
        ("", False),
        ("a.b", False),
        ("标", False),
        ("../x", False),
    ],
)
def test_topic_names_are_validated(name, fine):
    assert (topic_name_problem(name) == "") is fine


def test_topic_queue_counts_and_permissions_are_validated():
    assert topic_problem(TopicConfig("T", 65_536, 0)) == ""
    assert "65537" in topic_problem(TopicConfig("T", 65_537, 1))
    assert "no queue" in topic_problem(TopicConfig("T", 0, 0))
    assert "perm 16" in topic_problem(TopicConfig("T", 1, 1, 16))


# ---- filters and holds -------------------------------------------------------------------------


def test_tag_expressions_are_parsed_and_limited():
    assert parse_tags("*") is None
    assert parse_tags("") is None
    codes = frozenset({java_string_hash("A"), java_string_hash("B")})
    assert parse_tags(" A ||B|| ") == codes
    assert len(present(parse_tags("||".join(f"t{n}" for n in range(1_000))))) == 1_000
    with pytest.raises(BodyError):
        parse_tags("||".join(f"t{n}" for n in range(1_001)))
    as_strings = [str(code) for code in codes]  # the Go client's
    for reported in (None, [], list(codes), as_strings):
        fields = {"topic": "T", "subString": "A || B", "codeSet": reported, "subVersion": 3}
        assert subscription_from_json(fields).codes == codes
    assert subscription_from_json({"topic": "T", "subString": "*", "codeSet": []}).codes is None
    wrong: Any
    for wrong in (["one"], [1.5], [None], [[]]):
        with pytest.raises(BodyError):
            subscription_from_json({"topic": "T", "subString": "A", "codeSet": wrong})


def units(*codes):
    return b"".join(struct.pack(">qiq", 0, 100, code) for code in codes)


def test_held_pulls_wake_by_queue_tag_and_time():
    released: list[Any] = []
    holds = HoldTable(10, Allowance(0), released.append)
    holds.hold(Held(("T", 0), Filter(), 100, "all"))
    holds.hold(Held(("T", 0), Filter(frozenset({7})), 50, "seven"))
    holds.hold(Held(("T", 1), Filter(), 70, "other queue"))
    assert holds.rest_ms(20) == 30
    holds.arrived("T", 0, units(1, 2))
    assert released == ["all"]
    holds.arrived("U", 0, units(7))
    holds.arrived("T", 0, units(1, 7))
    assert released == ["all", "seven"]
    holds.expire(69)
    assert holds.count == 1
    assert holds.rest_ms(69) == 1
    holds.expire(70)
    assert released[2:] == ["other queue"]
    holds.expire(100)
    assert holds.rest_ms(100) == float("inf")
    holds.hold(Held(("T", 0), Filter(frozenset({7})), 200, "kept"))
    holds.release_all()
    assert (released[3:], holds.count) == (["kept"], 0)


def test_held_pulls_are_limited_and_released_ones_are_dropped():
    kept = Allowance(100)
    released: list[Any] = []
    holds = HoldTable(3, kept, released.append)
    hold = partial(Held, ("T", 0), Filter(), 10)
    assert [holds.hold(hold(n)) for n in range(4)] == [True, True, True, False]
    holds.arrived("T", 0, units(1))
    assert [holds.hold(hold("large", size_bytes=size)) for size in (60, 60, 40)] == [
        True,
        False,
        True,
    ]
    holds.release_all()
    for number in range(1_000):
        holds.hold(Held(("T", 1), Filter(), 1_000_000, number))
        holds.arrived("T", 1, units(1))
        holds.expire(5)
    assert len(holds._waits._deadlines) < 100
    assert kept.used_bytes == 0


def test_held_pull_ends_with_its_connection():
    kept = Allowance(100)
    released: list[Any] = []
    holds = HoldTable(10, kept, released.append)
    for owner in ("a", "b"):
        for queue_id in (0, 1):
            holds.hold(Held(("T", queue_id), Filter(), 10, owner, owner, 25))
    holds.closed("a")
    holds.closed("nobody")
    assert (holds.count, kept.used_bytes) == (2, 50)
    holds.arrived("T", 0, units(1))
    holds.expire(10)
    assert (released, kept.used_bytes) == (["b", "b"], 0)


@pytest.mark.parametrize("end", ["arrived", "expire", "release_all"])
def test_thousands_of_held_pulls_are_released_over_several_turns(end):
    """Whatever releases them: the loop has other things to do than to run so many pulls again."""
    released: list[Any] = []
    holds = HoldTable(10_000, Allowance(0), released.append)
    for number in range(3 * AT_ONCE_MAX):
        holds.hold(Held(("T", 0), Filter(), 1_000 - number % 7, number))
    if end == "arrived":
        holds.arrived("T", 0, units(1))
    elif end == "expire":
        holds.expire(1_000)
    else:
        holds.release_all()
    assert len(released) == AT_ONCE_MAX
    for turn in (2, 3):
        assert holds.rest_ms(1_000) <= 0
        holds.expire(1_000)
        assert len(released) == turn * AT_ONCE_MAX
    assert sorted(released) == list(range(3 * AT_ONCE_MAX))
    holds.expire(1_000)
    assert (holds.count, holds.rest_ms(0)) == (0, float("inf"))


# ---- clients -----------------------------------------------------------------------------------


class Clients:
    def __init__(self, clients_max=10, kept=None):
        self.used: list[Any] = []
        self.silent: set[Any] = set()
        self.table = ClientTable(
            clients_max=clients_max,
            kept=kept or Allowance(1 << 20),
            expiry_ms=120_000,
            notify_enabled=lambda group: group not in self.silent,
            on_consumer_group=self.used.append,
        )

    def beat(self, connection, client, group="g", now_ms=0, subs=(), producer=None):
        consumer = {"groupName": group, "subscriptionDataSet": list(subs)}
        body = {"clientID": client, "consumerDataSet": [consumer] if group else []}
        body["producerDataSet"] = [{"groupName": producer}] if producer else []
        return self.table.heartbeat(connection, body, 0, 409, now_ms)


def test_client_table_notifies_members_of_joins_and_leaves():
    clients = Clients()
    a, b = FakeConnection("a:1"), FakeConnection("b:1")
    assert clients.beat(a, "c1") is True
    assert clients.beat(a, "c1") is False
    assert clients.beat(b, "c2", producer="pg") is True
    assert (len(a.oneways), len(b.oneways)) == (2, 1)
    assert a.oneways[0].ext == {"consumerGroup": "g"}
    assert clients.table.count == 3
    clients.table.closed(b)
    assert clients.table.client_ids("g") == ["c1"]
    assert "pg" not in clients.table.producers
    assert len(a.oneways) == 3
    clients.table.unregister(a, "c1", None, "g")
    assert (clients.table.count, clients.table.consumers) == (0, {})
    assert clients.used == ["g", "g", "g"]


def test_client_table_notifies_of_subscription_changes_of_newer_versions():
    clients = Clients()
    a = FakeConnection()
    clients.beat(a, "c1", subs=[{"topic": "T", "subString": "x", "subVersion": 5}])
    assert clients.beat(a, "c1", subs=[{"topic": "T", "subString": "y", "subVersion": 4}]) is False
    assert present(clients.table.subscription("g", "T")).expression == "x"
    assert clients.beat(a, "c1", subs=[{"topic": "T", "subString": "y", "subVersion": 6}]) is True
    assert present(clients.table.subscription("g", "T")).expression == "y"
    clients.silent.add("g")
    count = len(a.oneways)
    assert clients.beat(a, "c1", subs=[]) is True
    assert len(a.oneways) == count


def test_reconnected_client_survives_the_end_of_its_old_connection():
    clients = Clients()
    old, new = FakeConnection(), FakeConnection()
    clients.beat(old, "c1")
    clients.beat(new, "c1")
    clients.table.closed(old)
    assert clients.table.client_ids("g") == ["c1"]


def test_silent_client_expires_exactly_after_the_limit():
    clients = Clients()
    clients.beat(FakeConnection(), "c1", now_ms=0)
    clients.table.expire(120_000)
    assert clients.table.client_ids("g") == ["c1"]
    clients.table.expire(120_001)
    assert clients.table.client_ids("g") == []


def test_clients_are_limited_in_number():
    clients = Clients(clients_max=2)
    clients.beat(FakeConnection(), "c1")
    clients.beat(FakeConnection(), "c2")
    with pytest.raises(Refused, match="BUSY"):
        clients.beat(FakeConnection(), "c3")
    with pytest.raises(Refused, match="BUSY"):
        clients.beat(FakeConnection(), "c3", group="fresh")
    assert "fresh" not in clients.table.consumers
    with pytest.raises(BodyError):
        clients.table.heartbeat(FakeConnection(), {}, 0, 0, 0)


def test_client_subscriptions_are_limited_in_bytes_and_released():
    kept = Allowance(200_000)
    clients = Clients(clients_max=100, kept=kept)
    tags = {"topic": "T", "subString": "||".join(f"tag{n}" for n in range(300)), "subVersion": 1}
    connections = []
    with pytest.raises(Refused, match="as much as is kept"):
        while True:
            connections.append(FakeConnection())
            clients.beat(connections[-1], "c", group=f"g{len(connections)}", subs=[tags])
    assert 2 < len(connections) < 10
    used = kept.used_bytes
    for _ in range(10):  # the same again takes nothing
        clients.beat(connections[0], "c", group="g1", subs=[tags])
    assert kept.used_bytes == used
    clients.table.set_subscriptions("g1", [tags | {"subString": "*", "subVersion": 2}])
    assert kept.used_bytes < used
    clients.table.unregister(connections[1], "c", None, "g2")
    for connection in connections:
        clients.table.closed(connection)
    assert kept.used_bytes == 0


@pytest.mark.parametrize(
    "body",
    [
        {"clientID": "c" * 256},
        {"clientID": "c\n"},
        {"producerDataSet": [{"groupName": "g" * 256}]},
        {"consumerDataSet": [{"groupName": "good"}, {"groupName": "g\0"}]},
        {"consumerDataSet": [{"groupName": "good", "subscriptionDataSet": [{"topic": "t" * 256}]}]},
        {"consumerDataSet": [{"groupName": "good", "subscriptionDataSet": 7}]},
    ],
)
def test_malformed_heartbeat_changes_nothing(body):
    clients = Clients()
    with pytest.raises(BodyError):
        clients.table.heartbeat(FakeConnection(), {"clientID": "c"} | body, 0, 0, 0)
    assert (clients.table.consumers, clients.table.producers, clients.used) == ({}, {}, [])


def test_clients_per_connection_are_limited(monkeypatch):
    monkeypatch.setattr("raftmq.broker.clients.MEMBERSHIPS_PER_CONNECTION_MAX", 3)
    clients = Clients(clients_max=10)
    greedy = FakeConnection()
    for number in range(3):
        clients.beat(greedy, f"c{number}")
    with pytest.raises(Refused, match="of this connection"):
        clients.beat(greedy, "c3")
    clients.beat(greedy, "c1")  # who is known stays so
    clients.beat(FakeConnection(), "c3")
    assert clients.table.count == 4


# ---- commits -----------------------------------------------------------------------------------


async def test_commits_share_a_frame_and_waiters_are_answered_when_applied():
    frames = []

    def propose(payload):
        frames.append(
            (orjson.loads(payload)["commits"], asyncio.get_running_loop().create_future())
        )
        return frames[-1][1]

    service = CommitService(propose, lambda: True)
    assert service.commit("T", "g", 0, 1)
    assert service.commit("T", "g", 0, 2)
    assert not service.commit("T", "g", 0, -1)
    waiter = asyncio.ensure_future(service.commit_and_wait("T", "g", 1, 9))
    await asyncio.sleep(0)
    service.flush()
    service.flush()
    assert [commits for commits, _ in frames] == [[["T", "g", 0, 2], ["T", "g", 1, 9]]]
    settled = asyncio.ensure_future(service.settle("T", "g", 0))
    await asyncio.sleep(0)
    assert not waiter.done()
    assert not settled.done()
    await service.settle("T", "other", 0)
    frames[0][1].set_result(5)
    await waiter
    await settled
    service.commit("T", "g", 0, 3)
    query = asyncio.ensure_future(service.settle("T", "g", 0))  # does not wait for the timer
    await asyncio.sleep(0)
    frames[1][1].set_exception(RuntimeError("lost"))
    await query


async def test_commit_commands_are_split_to_the_size_of_the_log():
    """Segments may be smaller than a frame of commits would be."""
    payloads = []

    def propose(payload):
        payloads.append(payload)
        return asyncio.get_running_loop().create_future()

    service, longest = CommitService(propose, lambda: True, command_bytes_max=50_000), "x" * 255
    for queue_id in range(200):
        assert service.commit(longest, longest, queue_id, (1 << 62) - 1)
    service.flush()
    assert sum(len(orjson.loads(payload)["commits"]) for payload in payloads) == 200
    assert 40_000 < max(map(len, payloads)) <= 50_000


async def test_commit_waiter_gets_the_outcome_of_its_own_frame():
    """Frames have an upper size; the first of two is refused, and only its waiters are."""
    frames = []

    def propose(payload):
        assert len(payload) < COMMAND_SIZE_BYTES_MAX
        frames.append(asyncio.get_running_loop().create_future())
        if len(frames) == 1:
            raise RuntimeError("no room")
        return frames[-1]

    service, longest = CommitService(propose, lambda: True), "x" * 255
    first = asyncio.ensure_future(service.commit_and_wait(longest, longest, 0, 1 << 62))
    await asyncio.sleep(0)
    for queue_id in range(1, 3_000):
        assert service.commit(longest, longest, (1 << 62) + queue_id, (1 << 62) - 1)
    last = asyncio.ensure_future(service.commit_and_wait(longest, longest, 1, 1))
    await asyncio.sleep(0)
    service.flush()
    assert len(frames) == 2
    with pytest.raises(RuntimeError, match="no room"):
        await first
    assert not last.done()
    frames[1].set_result(7)
    await last


async def test_commit_waiters_fail_on_lost_leadership_and_rejection():
    def refuse(payload):
        raise RuntimeError("no leader")

    service = CommitService(refuse, lambda: True)
    waiter = asyncio.ensure_future(service.commit_and_wait("T", "g", 0, 1))
    await asyncio.sleep(0)
    service.flush()
    with pytest.raises(RuntimeError, match="no leader"):
        await waiter
    waiter = asyncio.ensure_future(service.commit_and_wait("T", "g", 0, 1))
    await asyncio.sleep(0)
    service.leadership_lost()
    with pytest.raises(Refused, match="NOT_LEADER"):
        await waiter
    assert not CommitService(refuse, lambda: False).commit("T", "g", 0, 1)


async def test_gathered_commits_are_limited_and_known_queues_may_continue():
    frames = []

    def propose(payload):
        frames.append(orjson.loads(payload)["commits"])
        return asyncio.get_running_loop().create_future()

    commits = CommitService(propose, lambda: True, count_max=2)
    assert commits.commit("T", "g", 0, 1)
    assert commits.commit("T", "g", 1, 1)
    assert not commits.commit("T", "g", 2, 1)
    assert commits.commit("T", "g", 0, 7)
    commits.flush()
    assert frames == [[["T", "g", 0, 7], ["T", "g", 1, 1]]]
    assert commits.commit("T", "g", 2, 1)


def test_rates_over_three_windows_and_midnights():
    rates = Rates(0, day=1)
    for second in range(10, 700, 10):
        rates.sample(second * 1000, second * 5, day=1)
    assert rates.text(690_000, 3450) == "5.0 5.0 5.0"
    assert rates.text(700_000, 3450 + 100) == "10.0 5.833333333333333 5.083333333333333"
    rates.sample(700_000, 3550, day=2)
    rates.sample(710_000, 3600, day=3)
    assert (rates.at_midnight, rates.at_midnight_before) == (3600, 3550)
    assert Rates(5, 1).text(5, 0) == "0.0 0.0 0.0"


async def test_offsets_are_limited_in_number_and_known_ones_may_continue():
    """Anybody can name queues and groups; the table that every replica keeps has an end."""
    table = OffsetTable()
    proposed = []

    def propose(payload):
        proposed.append(payload)
        future = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return future

    service = CommitService(propose, lambda: True, has_room=table.room_within(3))
    table.commit([("T", "g", queue_id, 1) for queue_id in range(3)])
    assert service.commit("T", "g", 2, 5)
    assert not service.commit("T", "g", 3, 5)
    assert not service.commit("T", "other", 0, 5)
    with pytest.raises(Refused, match="BUSY"):
        await service.commit_and_wait("T", "g", 1 << 40, 5)
    assert not service.has_room("T", "g", [0, 1, 7])
    assert service.has_room("T", "g", [0, 1])
    table.delete_group("g")
    assert table.count == 0
    assert service.commit("T", "other", 0, 5)


def test_offset_count_and_groups_are_exact_over_random_changes():
    random_ = random.Random(7)
    table = OffsetTable()
    for _ in range(300):
        topic, group = random_.choice("ABC"), random_.choice("gh")
        deed = random_.randrange(6)
        rows = [(topic, group, random_.randrange(5), 1) for _ in range(random_.randrange(4))]
        if deed < 2:
            table.commit(rows)
        elif deed == 2:
            table.reset(rows)
        elif deed == 3:
            table.delete_topic(topic)
        elif deed == 4:
            other = OffsetTable()
            other.commit(rows)
            table.merge(other.to_json())
        else:
            table.load(table.to_json(), 3)
        copy_ = twin_of(table)
        copy_.commit([("B", "i", 0, 1)])
        for one in (table, copy_):
            assert one.count == sum(map(len, one.offsets.values()))
            for name in "ABC":
                assert one.groups_of(name) == sorted(g for t, g in one.offsets if t == name)


@pytest.mark.parametrize(
    ("version", "counts", "timestamp_ms"),
    [
        ({"counter": 3, "timestamp": 7}, (4, 4), 7),
        ({"counter": 3, "timestatmp": 7}, (4, 4), 7),  # as brokers of 3.x wrote it
        ({"counter": 3, "timestamp": 7}, (0, 0), 7),  # tools could make topics without queues
        ({"counter": 3, "timestamp": 7}, (0, 4), 7),
    ],
)
def test_apaches_topic_table_is_loaded_completely(version, counts, timestamp_ms):
    bean = {"topicName": "T", "readQueueNums": counts[0], "writeQueueNums": counts[1], "perm": 6}
    other = {"topicName": "Other", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    table = TopicTable()
    table.load({"dataVersion": version, "topicConfigTable": {"T": bean, "Other": other}}, 0)
    assert (table.counter, table.timestamp_ms) == (3, timestamp_ms)
    result = table.entries["T"]
    assert (result.read_queue_count, result.write_queue_count) == counts
    assert table.entries["Other"].queue_count == 2
