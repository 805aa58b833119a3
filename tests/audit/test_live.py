"""Audits of clusters that run: clean under load, and what is planted is found and blamed."""

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from raftmq.audit import live
from raftmq.audit import pull_audit as pulled
from raftmq.audit import run as job
from raftmq.audit.checks.coverage import STORE_FILES
from raftmq.audit.checks.ranges import ends_check
from raftmq.audit.cli import main
from raftmq.audit.live import audit_cluster
from raftmq.audit.read import live_stores as opened
from raftmq.audit.read import replica
from raftmq.audit.read.history import HistoryUnfit
from raftmq.audit.read.live_log import LiveLog, Window
from raftmq.audit.read.live_stores import NotAudited
from raftmq.audit.read.replica import Replica
from raftmq.audit.report.report import AuditReport, CheckResult
from raftmq.audit.run import AuditOptions
from raftmq.broker.backup import online_source as source
from raftmq.broker.backup.online_source import Offer
from raftmq.broker.backup.protocol import Facts, decode_facts
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.client import Admin, Message, Producer
from raftmq.client.route import BrokerData
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.spark.options import Connection, connection_of
from tests.waiting import wait_until

SETTINGS = {
    "mappedFileSizeCommitLog": "1MiB",  # several segments
    "maxMessageSize": "256KiB",
    # What a test shows is no failover.
    "electionTimeoutMinMs": "4000",
    "electionTimeoutMaxMs": "6000",
}
COUNT = 2_500
BODY = bytes(1_000)


def up(directory: Path, shape: Shape, settings: dict[str, str]) -> Cluster:
    async def start() -> None:
        made = Cluster(directory)
        try:
            await made.up(shape, settings)
        finally:
            await made.close()

    asyncio.run(start())
    return Cluster(directory)


def down(cluster: Cluster) -> None:
    async def stop() -> None:
        here = Cluster(cluster.directory)
        try:
            await here.down()
        finally:
            await here.close()

    asyncio.run(stop())


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = up(tmp_path_factory.mktemp("live") / "c", Shape(), SETTINGS)
    asyncio.run(send(made, "Orders", COUNT))
    asyncio.run(send_one(made, "Later", delay_level=18))  # in two hours
    yield made
    down(made)


async def send(cluster: Cluster, topic: str, count: int) -> None:
    async with Producer("fill", cluster.state().namesrv) as producer:
        for first in range(0, count, 100):
            await asyncio.gather(
                *(producer.send(Message(topic, BODY, keys=f"k{first + n}")) for n in range(100))
            )


def test_new_kind_of_store_file_is_judged_or_listed(group: Cluster) -> None:
    store = group.directory / "n0" / "store"
    paths = (*store.iterdir(), *store.glob("config/*"), *store.glob("raft/*"))
    names = {path.relative_to(store).as_posix() for path in paths}
    assert {"commitlog", "raft/hardstate"} <= names <= {*STORE_FILES}


async def send_one(cluster: Cluster, topic: str, **fields: Any) -> str:
    async with Producer("fill", cluster.state().namesrv) as producer:
        return (await producer.send(Message(topic, BODY, **fields))).msg_id


def connection(cluster: Cluster) -> Connection:
    return connection_of({"namesrv": cluster.state().namesrv})


def audited(cluster: Cluster) -> AuditReport:
    (report,) = audit_cluster(connection(cluster))
    return report


def followers(cluster: Cluster) -> list[str]:
    async def ask() -> list[str]:
        here = Cluster(cluster.directory)
        try:
            leader = await here.leader()
        finally:
            await here.close()
        assert leader is not None
        return [node.name for node in cluster.state().brokers if node.name != leader.name]

    return asyncio.run(ask())


class Load:
    """Sends that go on until the end of the `with`; all of them have to be acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def work() -> None:
            async with Producer("load", self._cluster.state().namesrv) as producer:
                while not self._ended.is_set():
                    await producer.send(Message("Load", BODY))
                    self.acknowledged += 1
                    await asyncio.sleep(0.002)

        try:
            asyncio.run(work())
        except BaseException as error:
            self.error = error

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self.error is None


def test_incremental_live_audit_reads_the_added_part(group: Cluster, tmp_path: Path) -> None:
    results = tmp_path / "results"
    (first,) = audit_cluster(connection(group), AuditOptions(results=results))
    asyncio.run(send(group, "Added", 100))
    (second,) = audit_cluster(connection(group), AuditOptions(results=results, incremental=True))
    assert first.ok and second.ok, [check for check in second.checks if not check.ok]
    assert {store.start for store in second.stores} == {first.agreed_end}
    assert 100 <= second.figures["stored"] < COUNT
    assert second.agreed_end > first.agreed_end
    assert "found nothing wrong with it" in " ".join(second.not_judged)


def test_group_under_load_is_clean(
    group: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    units_by = Replica.units_by

    async def noted(self: Replica, *arguments: Any, content: bool) -> bytes:
        read.append(content)
        return await units_by(self, *arguments, content=content)

    monkeypatch.setattr(Replica, "units_by", noted)
    with Load(group) as load:
        while load.acknowledged < 10 and load.error is None:
            load._ended.wait(0.01)
        before = load.acknowledged
        (report,) = audit_cluster(connection(group), AuditOptions(scratch=tmp_path))
        after = load.acknowledged
    assert report.ok, [check for check in report.checks if not check.ok]
    assert [store.store for store in report.stores] == ["n0", "n1", "n2"]
    assert {store.agreed for store in report.stores} == {report.agreed_end}  # one commit index
    assert COUNT + before <= report.figures["stored"]
    assert after > before and report.figures["topics"] >= 2
    reported = " ".join(report.not_judged)
    assert "no history" in reported and "IndexFiles" in reported
    assert (report.voters, report.group) == (("n0", "n1", "n2"), "broker-a")
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    assert read and not any(read)  # digests of ConsumeQueues are enough


def damaged_report(group: Cluster, segment: Path, at: int) -> AuditReport:
    """Change a byte, audit, and put it back."""
    try:
        put(segment, at, b"\1")
        return audited(group)
    finally:
        put(segment, at, b"\0")


def put(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_damage_on_one_live_replica_is_found_there(group: Cluster) -> None:
    name = followers(group)[0]
    (node,) = (n for n in group.state().brokers if n.name == name)
    segment = group.store_of(node) / "commitlog" / f"{0:020d}"
    at = segment.read_bytes().index(BODY) + 100
    for _ in range(3):
        report = damaged_report(group, segment, at)
        if not report.ok:
            break  # else the replica's scrub came first, once a minute, and mended it
    assert not report.ok
    (difference,) = report.check("replicas").offenders
    assert difference["store"] == name
    assert difference["location"] == f"commitlog/{0:020d}:{at}"
    assert {offender["store"] for offender in report.check("damage").offenders} == {name}
    assert audited(group).ok


def test_wrong_units_of_a_live_replica_are_named(group: Cluster) -> None:
    name = followers(group)[0]
    (node,) = (n for n in group.state().brokers if n.name == name)
    queue = group.store_of(node) / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    wait_until(lambda: any(unit_of(queue, 8)))  # it was in memory before
    units = {number: unit_of(queue, number) for number in (3, 5, 6, 8)}
    try:
        put(queue, 3 * 20 + 8, b"\0\0\0\7")
        put(queue, 5 * 20, units[6])
        put(queue, 8 * 20, bytes(20))
        report = audited(group)
    finally:
        for number, unit in units.items():
            put(queue, number * 20, unit)
    wrong, absent = report.check("queue_index"), report.check("not_indexed")
    assert {check.name for check in report.checks if not check.ok} == {wrong.name, absent.name}
    assert (wrong.count, absent.count) == (2, 1)
    positions = {number: int.from_bytes(unit[:8], "big") for number, unit in units.items()}
    assert [(row["what"], row["queue_offset"], row["position"]) for row in wrong.offenders] == [
        ("wrong size", 3, positions[3]),
        ("points elsewhere", 5, positions[5]),
    ]
    for row in (*wrong.offenders, *absent.offenders):
        assert (row["store"], row["topic"], row["queue_id"]) == (name, "Orders", 1)
    assert absent.offenders[0]["position"] == positions[8]
    assert absent.offenders[0]["location"].startswith("commitlog/")
    assert audited(group).ok


def unit_of(queue: Path, number: int) -> bytes:
    return queue.read_bytes()[number * 20 : number * 20 + 20] if queue.exists() else b""


async def kill(group: Cluster, name: str) -> None:
    here = Cluster(group.directory)
    try:
        await here.wait_dead(here.signal(name, signal.SIGKILL))
    finally:
        await here.close()


async def start(group: Cluster, name: str) -> None:
    here = Cluster(group.directory)
    try:
        here.start(name)
        async with Admin(group.state().namesrv) as admin:
            for _ in range(600):
                if len((await admin.cluster.info()).brokers["broker-a"].addresses) == 3:
                    break
                await asyncio.sleep(0.1)
    finally:
        await here.close()


def test_stopped_replica_is_named(group: Cluster) -> None:
    name = followers(group)[0]
    asyncio.run(kill(group, name))
    try:
        report = audited(group)
    finally:
        asyncio.run(start(group, name))
    assert [offender["store"] for offender in report.check("brokers_down").offenders] == [name]
    assert not report.ok


def test_replica_that_dies_during_the_audit_is_down(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, contents = followers(group)[0], LiveLog.contents
    killed: list[str] = []

    def first_killing(self: LiveLog, window: Window) -> list[Any]:
        if not killed:
            killed.append(name)
            asyncio.run(kill(group, name))
        return contents(self, window)

    monkeypatch.setattr(replica, "PATIENCE_S", 0.0)
    monkeypatch.setattr(LiveLog, "contents", first_killing)
    try:
        report = audited(group)
    finally:
        asyncio.run(start(group, name))
    assert [check.name for check in report.checks if not check.ok] == ["brokers_down"]
    assert [offender["store"] for offender in report.check("brokers_down").offenders] == [name]


def test_restarted_replica_continues_the_audit(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, contents = followers(group)[0], LiveLog.contents
    restarted = threading.Lock()  # several threads read at once

    def first_restarting(self: LiveLog, window: Window) -> list[Any]:
        if restarted.acquire(blocking=False):
            asyncio.run(kill(group, name))
            asyncio.run(start(group, name))
        return contents(self, window)

    monkeypatch.setattr(LiveLog, "contents", first_restarting)
    report = audited(group)
    assert report.ok and len(report.stores) == 3, report.not_judged


def test_mqaudit_of_a_running_cluster(group: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "reports.json"
    done = CliRunner().invoke(
        main, ["--namesrv", group.state().namesrv, "--group", "broker-a", "--json", str(path)]
    )
    assert done.exit_code == 0, done.output
    assert "broker-a, all topics: nothing is wrong" in done.output
    assert "not judged:" in done.output
    (report,) = json.loads(path.read_bytes())
    assert report["ok"] and report["figures"]["stored"] >= COUNT


def test_live_replica_tables_are_compared_with_the_log(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = audited(group)
    assert report.check("tables").ok
    assert not any("config/" in gap for gap in report.not_judged)
    (victim, _) = followers(group)
    written = opened._written

    def altered(offer: Offer, root: Path) -> Path:
        store = written(offer, root)
        if offer.facts.node == victim:
            path = store / "config" / "topics.json"
            content = json.loads(path.read_bytes())
            content["topicConfigTable"]["Orders"]["readQueueNums"] += 1
            path.write_text(json.dumps(content))
        return store

    monkeypatch.setattr(opened, "_written", altered)
    report = audited(group)
    assert [check.name for check in report.checks if not check.ok] == ["tables"]
    (offender,) = report.check("tables").offenders
    assert (offender["store"], offender["file"]) == (victim, "config/topics.json")
    assert "Orders.readQueueNums" in str(offender["what"])


def test_replica_that_names_a_directory_elsewhere_is_not_copied(
    group: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(data: bytes) -> Facts:
        return msgspec.structs.replace(decode_facts(data), node="../" * 8 + "tmp")

    monkeypatch.setattr(source, "decode_facts", elsewhere)
    with pytest.raises(NotAudited, match="calls itself"):
        audit_cluster(connection(group))


def test_unknown_group_is_named(group: Cluster) -> None:
    with pytest.raises(NotAudited, match=r"no broker group broker-z; there are broker-a"):
        audit_cluster(connection(group), group="broker-z")


async def test_name_server_without_a_broker_is_reported_as_not_audited() -> None:
    """Nothing was judged: that nothing is wrong must not be said."""
    async with NameServer(NameServerConfig("127.0.0.1", 0)) as empty:
        where = connection_of({"namesrv": empty.address})
        with pytest.raises(NotAudited, match=f"{empty.address} knows no broker"):
            await asyncio.to_thread(audit_cluster, where)


@pytest.mark.parametrize(("wrong", "compared"), [(False, True), (True, False)])
def test_group_that_cannot_be_audited_does_not_hide_the_others(
    group: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: bool,
    compared: bool,
) -> None:
    groups = live._groups

    async def with_unreachable(where: Connection, name: str | None) -> dict[str, BrokerData]:
        gone = {each: BrokerData("DefaultCluster", each, {}) for each in ("broker-0", "broker-z")}
        return {**await groups(where, name), **gone}

    def check(*_: object, complete: bool) -> tuple[CheckResult, list[str]]:
        return CheckResult.of_faults("group_offsets", "planted", [{"group": "g"}] * wrong), []

    monkeypatch.setattr(live, "_groups", with_unreachable)
    monkeypatch.setattr(job, "offsets_check", check)
    path, results = tmp_path / "reports.json", tmp_path / "results"
    where = ["--namesrv", group.state().namesrv, "--json", str(path), "--results", str(results)]
    acks = tmp_path / "acks.jsonl"
    sent_id = asyncio.run(send_one(group, "Orders"))
    row = {"msg_id": sent_id, "topic": "Orders", "broker": "broker-a"}
    acks.write_text(json.dumps(row))
    sent = ["--acknowledged", str(acks)] if compared else []
    done = CliRunner().invoke(main, where + sent)
    assert done.exit_code == (1 if wrong else 2), done.output
    assert f"broker-a, all topics: {'something' if wrong else 'nothing'} is wrong" in done.stdout
    why = "broker-0 has no brokers; broker-z has no brokers"
    assert f"mqaudit: {why}\n" in done.stderr
    (report,) = json.loads(path.read_bytes())
    assert (report["group"], report["ok"]) == ("broker-a", not wrong)
    assert f"other broker groups: {why}" in report["not_judged"]
    assert f'raftmq_audit_ok{{group="broker-a"}} {1 - wrong}\n' in (
        (results / "mqaudit.prom").read_text()
    )


@pytest.mark.parametrize(
    ("name", "brokers"), [(None, ["broker-a", "broker-z"]), ("broker-a", ["broker-z"])]
)
def test_acknowledged_messages_of_an_unaudited_group_are_rejected(
    group: Cluster, tmp_path: Path, name: str | None, brokers: list[str]
) -> None:
    rows = [{"msg_id": f"M{n}", "topic": "Orders", "broker": at} for n, at in enumerate(brokers)]
    path = tmp_path / "acks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        HistoryUnfit, match="1 rows of broker groups that are not audited: broker-z"
    ):
        audit_cluster(connection(group), AuditOptions(acknowledged=str(path)), group=name)


def test_queues_longer_than_the_log_are_found() -> None:
    check = ends_check({("T", 0): 5, ("T", 1): 7, ("U", 0): 1}, {("T", 0): 5, ("T", 1): 6})
    assert (check.name, check.ok) == ("queue_ends", False)
    assert [(o["topic"], o["queue_id"], o["log_until"]) for o in check.offenders] == [
        ("T", 1, 6),
        ("U", 0, 0),
    ]


# -- classic brokers ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = up(tmp_path_factory.mktemp("pair") / "c", Shape(mode="async"), {})
    asyncio.run(send(made, "Orders", 300))
    yield made
    down(made)


def test_live_classic_group_is_audited_over_the_wire(pair: Cluster) -> None:
    report = audited(pair)
    assert (report.ok, report.mode, report.figures["stored"]) == (True, "classic", 300)
    assert any("slaves" in each for each in report.not_judged)


def test_history_of_a_classic_group_alone_is_rejected(pair: Cluster, tmp_path: Path) -> None:
    """Nothing of it could be judged: that nothing is wrong must not be said."""
    path = tmp_path / "told.jsonl"
    path.write_text(json.dumps({"msg_id": "gone", "topic": "Orders"}) + "\n")
    for reported in ({"acknowledged": str(path)}, {"history": str(path)}):
        with pytest.raises(HistoryUnfit, match="compared with the logs of Raft groups"):
            audit_cluster(connection(pair), AuditOptions(**reported))  # type: ignore[arg-type]


def test_missing_message_of_a_classic_group_is_a_hole(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = pulled._counted

    def one_less(*arguments):
        result, problem = counted(*arguments)
        less = {q: (n - (q.queue_id == 0), d - (q.queue_id == 0)) for q, (n, d) in result.items()}
        return less, problem

    monkeypatch.setattr(pulled, "_counted", one_less)
    (hole,) = audited(pair).check("offset_holes").offenders
    assert (hole["topic"], hole["queue_id"]) == ("Orders", 0)
    assert hole["messages"] == hole["to"] - hole["from"] - 1


def test_body_with_a_wrong_crc_is_reported(pair: Cluster) -> None:
    master = next(node for node in pair.state().brokers if node.broker_id == 0)
    segment = pair.store_of(master) / "commitlog" / f"{0:020d}"
    put(segment, segment.read_bytes().index(BODY) + 100, b"\1")
    report = audited(pair)
    (offender,) = report.check("unreadable").offenders
    assert offender["topic"] == "Orders" and "is damaged" in offender["what"]
